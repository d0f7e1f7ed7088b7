"""What targets share: models that a target has itself, and text of Python modules."""

from __future__ import annotations

import json

from nest.errors import InputError
from nest.inputs import load_model
from nest.inputs.model import Model
from nest.inputs.sources import CATALOG


def catalog_name(model: Model) -> str:
    """The name of a model of the catalog; empty: it is none, or was changed."""
    try:
        kept = load_model(model.name, sources=CATALOG)
    except InputError:
        return ""
    return model.name if kept == model else ""


def plain_lines(*lines: str) -> list[str]:
    """Lines that a docstring can hold: a name of a model may hold quotes and backslashes."""
    return [json.dumps(line)[1:-1].replace('\\"', "'") for line in lines]

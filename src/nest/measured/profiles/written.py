"""Measured layers joined where they are equal, and written as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from nest.inputs.files import yaml_text
from nest.inputs.profile import Profile
from nest.units import format_bytes, format_seconds, shorten


def joined(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Fields of the layers of a profile; consecutive equal ones are one layer, repeated.

    ``layers`` are a name for each layer, and its fields besides. Names that come again get a
    number.
    """
    found: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for (name, fields), same in groupby(layers, key=lambda layer: layer):
        seen[name] = seen.get(name, 0) + 1
        own = name if seen[name] == 1 else f"{name}-{seen[name]}"
        found.append({"name": own, "repeat": len(list(same)), **fields})
    return found


def text_of(profile: Profile) -> str:
    """A profile as YAML, which ``nest.load_profile`` reads."""
    data = profile.model_dump(mode="json")
    for layer in data["layers"]:
        if layer["inputs"] is None:
            del layer["inputs"]
    return yaml_text(data)


def table_of(profile: Profile) -> str:
    """The layers of a profile as text of at most 80 columns."""
    lines = [*wrap(f"{profile.name}, {profile.length} layers: {profile.note}", 80), "",
             f"{'layer':20} {'tp':>4} {'forward':>11} {'backward':>11} {'parameters':>11} "
             f"{'activations':>12}"]
    for layer in profile.layers:
        times = f" x {layer.repeat}" if layer.repeat > 1 else ""
        for tp, one in sorted(layer.tp.items()):
            lines.append(
                f"{shorten(layer.name, 14)[1:-1] + times:20} {tp:4} "
                f"{format_seconds(one.forward):>11} {format_seconds(one.backward):>11} "
                f"{format_bytes(one.parameter_bytes):>11} {format_bytes(one.activation_bytes):>12}")
    return "\n".join(lines)

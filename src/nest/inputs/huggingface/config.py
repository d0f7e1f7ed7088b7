"""Hugging Face `config.json` as a model description.

Only the file is read; nothing is fetched, and no code of it runs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs.huggingface import images
from nest.inputs.huggingface.fields import Config, costly_keys, tables, unknown_keys
from nest.inputs.huggingface.rules import family, window
from nest.inputs.model import Model
from nest.units import shorten

_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    **{name: partial(family, model_type=name) for name in tables()["families"]},
    "vit": images.vit}
MODEL_TYPES = tuple(sorted({*_READERS, *images.TOWERS}))

_COMMON = ("llama", "qwen2", "mixtral", "qwen3_moe", "deepseek_v3", "gpt2", "bert")
"""Types that others derive from, to name first where several have the keys of an unknown one."""

# which field of config.json a field of the description came from, where the names differ
_NAMES = {
    "kv_heads": "num_key_value_heads",
    "heads": "num_attention_heads",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "moe.top_k": "num_experts_per_tok",
    "moe": "first_k_dense_replace, decoder_sparse_step or mlp_only_layers",
}


def from_huggingface(
    data: Mapping[str, Any], where: str, path: Path | None = None, known: str | None = None
) -> Model:
    """Read a model from the fields of a Hugging Face config.json.

    Parameters
    ----------
    data : the file's mapping.
    where : start of messages.
    path : the file, whose folder names the model when the file does not.
    known : model type to read it as; default: what the file says.

    Raises
    ------
    InputError : an unknown model type (the message says which known one it looks like, or which
        keys are in the way), missing fields, or a variant that cannot be described.
    """
    if known is not None and known not in MODEL_TYPES:
        close = difflib.get_close_matches(known, MODEL_TYPES, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"as: got {shorten(known)}; {hint}allowed: {', '.join(MODEL_TYPES)}")
    model_type = known or _model_type(data)
    if model_type not in MODEL_TYPES:
        given = shorten(data.get("model_type", data.get("architectures")))
        message = (f"{where}: model_type: got {given}; {_likeness(data, where)}allowed: "
                   f"{len(MODEL_TYPES)} types (docs/formats.md), layers measured as a profile "
                   "(--profile, `nest profile`), or a module (nest.from_torch)")
        raise InputError(message, (message,))
    fields, config = _fields(data, where, model_type)
    if config.problems:
        lines = tuple(dict.fromkeys(config.problems))
        raise InputError("\n".join(lines), lines)
    fields["name"] = _name(data, model_type, path)
    fields["source"] = "config.json of the model (Hugging Face transformers)"
    try:
        return Model.parse(fields, where)
    except InputError as error:
        lines = tuple(_renamed(line, where) for line in error.problems)
        raise InputError("\n".join(lines), lines) from None


def _fields(data: Mapping[str, Any], where: str, model_type: str) -> tuple[dict[str, Any], Config]:
    """Fields of the description, and what read them, with the problems that it noted."""
    config = Config(data, where)
    if model_type in images.TOWERS:
        text, text_type = images.text_of(config, model_type)
        if text_type not in _READERS:
            text.refuse("model_type", ", ".join(_READERS))
            return {}, config
        fields = _text_fields(text, text_type)
        tower = images.TOWERS[model_type](config)
        if tower is not None:
            fields["vision"] = tower
    else:
        fields = _text_fields(config, model_type)
    for part in (config, *config.children):
        for key in unknown_keys(part):
            part.refuse(key, f"nothing: it is not known with model_type {model_type}. If it "
                        "changes neither time nor memory, remove it from a copy of the file")
    return fields, config


def _text_fields(config: Config, model_type: str) -> dict[str, Any]:
    fields = _READERS[model_type](config)
    if "layer_types" in fields or model_type in (
            "deepseek_v32", "glm_moe_dsa", "gpt_neo", "vit"):
        return fields
    return fields | window(config, model_type, fields["layers"])


_LIKE = 0.75
"""Share of a file's keys that a type must have by its own names, to be proposed for it."""


def _plain(model_type: str) -> bool:
    """Whether its layers differ from plain ones by nothing but what keys say."""
    row = tables()["families"].get(model_type) or tables()["bases"].get(model_type, {})
    own = row.get("parallel") is not True and {"layer_norms", "embedding_norm"}.isdisjoint(row)
    return own and ("is" not in row or _plain(row["is"]))


def _likeness(data: Mapping[str, Any], where: str) -> str:
    """Which known model type an unknown one looks like, or which keys are in the way.

    It must have most keys of the file, under the same names, and lack at most three. Of several,
    one that lacks fewer, one named alike, a common one, then the first of families.yaml. A type
    whose layers differ by more than keys say must be named alike.
    """
    given = str(data.get("model_type", data.get("architectures"))).casefold()
    stem = re.match(r"[a-z]*", given)
    found = []
    order = [*_COMMON, *tables()["families"], *images.TOWERS, "vit"]
    for known in MODEL_TYPES:
        related = stem is not None and len(stem[0]) > 2 and known.startswith(stem[0])
        towers = not {"text_config", "vision_config"}.isdisjoint(data)
        if (known in images.TOWERS) != towers or not (related or _plain(known)):
            continue
        config = _fields(data, where, known)[1]
        problems = [line.removeprefix(f"{where}: ") for line in config.problems]
        parts = [(part, costly_keys(part)) for part in (config, *config.children)]
        every = sum(len(keys) for _, keys in parts)
        same = sum(key in part.asked for part, keys in parts for key in keys)
        keys = list(dict.fromkeys(line.split(":")[0] for line in problems))
        if any(": missing;" in line for line in problems) or len(keys) > 3 or (
                same < _LIKE * every):
            continue
        found.append((len(keys), not related, order.index(known), known, keys))
    if not found:
        return ""
    known, keys = min(found)[3:]
    if not keys:
        return (f"its keys are those of {known}: if its layers are the same, read it with --as "
                f"{known} (in Python: as_type={known!r}); ")
    return f"most like {known} (--as {known}), but these keys are in the way: {', '.join(keys)}; "


def _model_type(data: Mapping[str, Any]) -> str | None:
    model_type = data.get("model_type")
    if model_type is not None:
        return model_type if isinstance(model_type, str) else None
    architectures = data.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    match = re.match(r"(\w+?)(?:For|LMHead|Model)", first) if isinstance(first, str) else None
    wanted = match[1].lower() if match else ""
    return next((known for known in MODEL_TYPES if known.replace("_", "") == wanted), None)


def _name(data: Mapping[str, Any], model_type: str, path: Path | None) -> str:
    given = data.get("_name_or_path")
    if not (isinstance(given, str) and given.strip()) and path is not None:
        given = path.stem if path.stem != "config" else path.absolute().parent.name
    text = given.strip().rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else ""
    return text if text and len(text) <= 200 and text.isprintable() else model_type


def _renamed(line: str, where: str) -> str:
    """State a problem with the names of config.json."""
    for ours, theirs in _NAMES.items():
        start = f"{where}: {ours}: "
        if line.startswith(start):
            return f"{where}: {theirs}: {line[len(start) :]}"
    return line

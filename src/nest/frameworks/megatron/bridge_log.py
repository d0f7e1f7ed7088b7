"""The configuration that Megatron-Bridge prints: fields of Megatron-Core's classes.

YAML of all fields up to 0.2, and from 0.3 on a summary of those that are not Megatron-Core's
defaults (NVIDIA-NeMo/Megatron-Bridge@v0.6.0 src/megatron/bridge/training/config.py:1665), which are
those of Megatron-LM's arguments. Overlap and number formats are resolved into these fields before
(the same file, validate).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nest.errors import InputError
from nest.frameworks.megatron import read as megatron
from nest.frameworks.megatron.named import strange_note, words_of
from nest.frameworks.settings import tables_of
from nest.frameworks.source import FileDescription, Source, divided
from nest.inputs import load_model
from nest.inputs.catalog import list_models
from nest.inputs.model import Model
from nest.units import shorten

STACK = "megatron-bridge"
_UNTIED = "untie_embeddings_and_output_weights"
_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated")


def read(settings: Mapping[str, Any], source: Source, vocab: int | None,
         micro_batches: int | None) -> FileDescription:
    """The printed configuration.

    Parameters
    ----------
    settings : fields by section.
    vocab : tokens of the vocabulary, where the tokenizer prints them.
    micro_batches : of a step, where they are printed.

    Raises
    ------
    InputError : fields that may change the cost and are not understood, no number of devices, or
        a model that the summary does not describe and the catalog has not.
    """
    named = _named(settings)
    named |= source.asked.settings
    world = _world(settings, named, source, micro_batches)
    whole = "position_embedding_type" in named
    tokens = vocab or named.pop("vocab_size", None)
    arguments = words_of(named, source.asked.ignored)
    try:
        found = megatron.described(
            arguments.words, world, name="model", vocab=tokens or 1, ignored=source.asked.ignored,
            stack=source.asked.stack or STACK)
    except InputError as error:
        lines = [f"{source.where}: as an argument of Megatron-LM: {line}"
                 for line in str(error).splitlines()]
        raise InputError("\n".join(lines), tuple(lines)) from None
    model = Model.parse(found.model, source.where)
    if not whole or tokens is None or source.asked.model is not None:
        model = _alike(model, source)
    notes = [strange_note(arguments.strange)] if arguments.strange else []
    return FileDescription(model, found.job, found.configuration, world, (*notes, *found.notes))


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the destinations of Megatron-LM's parser."""
    table = tables_of(STACK)["printed"]
    found: dict[str, Any] = {}
    for section, names in table.items():
        fields = settings.get(section)
        for name, value in (fields.items() if isinstance(fields, Mapping) else ()):
            if name.startswith("_") or isinstance(value, Mapping):
                continue
            found[names.get(name, name)] = value
    if _UNTIED in found:  # the field says that they are shared
        found[_UNTIED] = found[_UNTIED] is False
    if found.get("num_query_groups") is not None:
        found["group_query_attention"] = True
    return {name: value for name, value in found.items()
            if not isinstance(value, str) or not value.startswith(("<", "megatron.", "torch."))}


def _world(settings: Mapping[str, Any], named: Mapping[str, Any], source: Source,
           micro_batches: int | None) -> int:
    split = math.prod(int(named.get(f"{name}_parallel_size") or 1) for name in (
        "tensor_model", "pipeline_model", "context"))
    dp = settings.get("data_parallel_size")
    batch, micro = (named.get(f"{name}_batch_size") for name in ("global", "micro"))
    if type(dp) is not int and micro_batches and type(batch) is int and type(micro) is int:
        dp = divided(source, "train.global_batch_size", batch, micro * micro_batches,
                     "train.micro_batch_size x the printed micro-batches")
    world = split * dp if type(dp) is int else source.asked.devices
    if world is None:
        raise InputError(f"{source.where}: the number of devices is not printed; give it by "
                         "--devices N")
    return world


def _alike(model: Model, source: Source) -> Model:
    """The model that the user names, or that of the catalog with these sizes.

    Raises
    ------
    InputError : none, or several, or one of other sizes.
    """
    def same(other: Model) -> bool:
        return all(getattr(other, name) == getattr(model, name) for name in _SIZES) and (
            (other.moe and (other.moe.experts, other.moe.top_k, other.moe.ffn))
            == (model.moe and (model.moe.experts, model.moe.top_k, model.moe.ffn)))

    if source.asked.model is not None:
        named = load_model(source.asked.model)
        if not same(named):
            raise InputError(f"{source.where}: its model has {model.layers} layers of width "
                             f"{model.hidden}, and {shorten(named.name)[1:-1]} has other sizes; "
                             "allowed: a model of the same sizes")
        return named
    found = [one for name in list_models() if same(one := load_model(name))]
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise InputError(f"{source.where}: vocabulary and positions are not printed, and models of "
                         f"the catalog with the printed sizes are: {names}; name the model by "
                         "--model MODEL")
    return found[0]

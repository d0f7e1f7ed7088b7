"""Files whose settings are arguments of Megatron-LM: NeMo 1, nanotron, GPT-NeoX, FlagScale.

The tables are `translated.yaml`: ``takes``, the argument that has the value; ``words``, the
arguments that a value stands for, others are refused; ``always``, arguments that the software has
without being asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.megatron import read as megatron
from nest.frameworks.megatron.named import words_of
from nest.frameworks.settings import Plain, Setting, flat, nested, tables_of
from nest.frameworks.source import (
    LARGEST,
    LEFT_OUT,
    FileDescription,
    Source,
    among,
    mapping_in,
    said,
    understood,
)
from nest.frameworks.torchtitan.read import overrides
from nest.inputs.model import Model
from nest.units import shorten

_COUNTS = ("trainer.devices", "trainer.num_nodes", "parallelism.dp",
           "tokens.batch_accumulation_per_replica")
"""Settings that are read as numbers, besides those of the tables."""
_ENGINE = ("model.mcore_gpt", "model.transformer_engine", "model.use_flash_attention")
"""Which layers NeMo 1 builds. Attention is fused in those of Transformer Engine, and where flash
attention is asked for in its own: NVIDIA/NeMo@v2.0.0
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py:163, 447, 528."""
_FUSION = "gradient_accumulation_fusion"
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
              "gradient_clipping", "zero_optimization", "zero_allow_untested_optimizer",
              "optimizer", "scheduler", "bf16", "data_types", "communication_data_type",
              "steps_per_print", "wall_clock_breakdown", "fp16", "flops_profiler", "comms_logger",
              "wandb")
"""Settings of DeepSpeed that GPT-NeoX hands over as they are."""


class SettingTable(NamedTuple):
    """How a file's settings are arguments."""

    takes: Mapping[str, str]
    words: Mapping[str, Mapping[str, str]]
    always: tuple[str, ...]


@cache
def table_of(target: str) -> SettingTable:
    data = tables_of(target)
    return SettingTable(data["takes"], data["words"], tuple(data["always"].split()))


NEMO = (*table_of("nemo").takes, *table_of("nemo").words, *_COUNTS, *_ENGINE)
NEOX = (*table_of("gpt-neox").takes, *table_of("gpt-neox").words, *_DEEPSPEED, "attention_config",
        "precision", "partition_activations", "gpt_j_residual", "expansion_factor",
        "mlp_multiple_of")
"""Settings of NeMo 1 and of GPT-NeoX that are read."""


def settings_of(source: Source) -> Plain:
    """Settings of a YAML by their names with dots, and what comes before them.

    Raises
    ------
    InputError : it is no mapping.
    """
    return _resolved(flat(mapping_in(source, ".yaml")) | overrides(source))


_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_][\w.]{0,200})\}")
"""A value that is another setting's, of OmegaConf: from the top, or from as many sections up."""


def _resolved(given: Plain) -> Plain:
    """Settings with the values that they refer to; what refers to nothing stays as it is."""
    found = dict(given)
    for name, value in given.items():
        for _ in range(10):  # a chain of them
            match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if match is None:
                break
            above = name.split(".")[:-len(match[1])] if match[1] else []
            value = given.get(".".join((*above, match[2])), value)
        found[name] = value
    return found


def _arguments(given: Plain, table: SettingTable, source: Source) -> list[str]:
    """Words of the arguments that settings stand for.

    Raises
    ------
    InputError : a value that is none of a table's.
    """
    found: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        if name in table.takes:
            found += [f"--{table.takes[name]}", str(value)]
        elif name in table.words:
            if str(value) not in table.words[name]:
                raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: "
                                 f"{', '.join(table.words[name])} (others have no price)")
            found += table.words[name][str(value)].split()
    return [*found, *table.always]


def _known(source: Source, target: str, found: Plain, more: Iterable[str], notes: list[str]
           ) -> tuple[Plain, SettingTable]:
    """Settings that matter, and their table; the file describes its model."""
    if source.asked.model is not None and target != "gpt-neox":
        raise InputError(f"{source.where}: the file describes its model; allowed: without --model")
    table = table_of(target)
    read = tuple(Setting(name, name) for name in (*table.takes, *table.words))
    before = {*found}
    given = understood(found, read, target, source, notes, tuple(more))
    if assumed := [f"{name}: {value}" for name, value in given.items()
                   if name not in before and value is not None]:
        notes.append(f"not in the file, the defaults: {', '.join(assumed)}")
    return given, table


def _count(given: Plain, name: str, source: Source) -> int:
    value = given.get(name, 1)
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: a whole number, "
                         f"1 to {LARGEST}")
    return value


def _found(source: Source, words: list[str], world: int, name: str,
           notes: list[str]) -> FileDescription:
    """What the arguments describe, on so many devices."""
    try:
        found = megatron.described(
            words, world, name=name, vocab=source.asked.vocab, stack=source.asked.stack,
            places=source.places)
    except InputError as error:
        raise InputError(f"{source.where}: as arguments of Megatron-LM: {error}") from None
    said(source, "the tokens of a sequence", found.job["seq_len"], source.asked.seq_len,
         "--seq-len")
    said(source, "the number format", found.job["precision"], source.asked.precision, "--precision")
    model = {**found.model, "source": f"read from a file of {name}"}
    stack = source.asked.stack or "megatron-core"
    notes.append(f"{name} has no stack of its own: priced as {stack} (--stack)")
    return FileDescription(Model.parse(model, source.where), found.job, found.configuration, world,
                 (*notes, *found.notes))


def read_nemo(source: Source) -> FileDescription:
    """A YAML of NeMo 1.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, or do not fit together.
    """
    notes: list[str] = []
    there = settings_of(source)
    given, table = _known(source, "nemo", there, (*_COUNTS, *_ENGINE), notes)
    world = _count(given, "trainer.devices", source) * _count(given, "trainer.num_nodes", source)
    given = _synchronised(given)
    if given.get("model.tokenizer.type") != "GPT2BPETokenizer":
        given["model.tokenizer.type"] = "HuggingFaceTokenizer"  # its tokens are not in the file
    words = _arguments(given, table, source)
    if "model.megatron_amp_O2" not in there:
        notes.append("model.megatron_amp_O2 is not in the file: priced as true (false, which NeMo "
                     "takes then, keeps parameters and gradients in 32 bits, and casts them for "
                     "each product)")
    core, fused, flash = (given.get(name) is True for name in _ENGINE)
    if not fused and (core or not flash):
        words += ["--transformer-impl", "local"]
    if given.get("model.num_query_groups") is not None:
        words.append("--group-query-attention")
    return _found(source, words, world, "NeMo-1", notes)


def _synchronised(given: Plain) -> Plain:
    """Settings by what NeMo reads of those that overlap traffic with passes, and its defaults.

    Sources: NVIDIA/apex@6424da3 apex/contrib/optimizers/distributed_fused_adam.py:558;
    NVIDIA/NeMo@v2.0.0 nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py:554, 561,
    and nemo/collections/nlp/models/language_modeling/megatron_base_model.py:835 to 852, where other
    optimizers reduce each gradient as it comes.
    """
    gradients, *parameters = (f"model.optim.overlap_{name}"
                              for name in ("grad_sync", "param_sync", "param_gather"))
    name, drop = given.get("model.optim.name"), {*parameters}
    found = dict(given)
    if name == "distributed_fused_adam":
        found.setdefault(gradients, True)
        drop -= {parameters[0]}
    elif name == "mcore_distributed_optim":
        drop -= {parameters[1]}
    else:
        found[gradients] = (given.get("model.pipeline_model_parallel_size") or 1) == 1 and not any(
            given.get(f"model.{one}") is True for one in ("sequence_parallel", _FUSION))
    return {one: value for one, value in found.items() if one not in drop}


def read_nanotron(source: Source) -> FileDescription:
    """A YAML of nanotron, for Llama's layers.

    Raises
    ------
    InputError : as :func:`read_nemo`.
    """
    notes: list[str] = []
    given, table = _known(source, "nanotron", settings_of(source), (
        *_COUNTS, "parallelism.pp_engine", "data_stages"), notes)
    dp, steps = (_count(given, name, source) for name in _COUNTS[2:])
    tp, pp = (_count(given, f"parallelism.{name}", source) for name in ("tp", "pp"))
    _check_stages(given, source)
    # src/nanotron/config/parallelism_config.py:43: all forwards, then all backwards, by default
    if pp > 1 and str(given.get("parallelism.pp_engine")).lower() != "1f1b":
        raise InputError(f"{source.where}: parallelism.pp_engine: got "
                         f"{shorten(given.get('parallelism.pp_engine'))}; allowed: 1f1b with "
                         "parallelism.pp above 1 (all forwards before all backwards have no price)")
    world = dp * tp * pp
    batch = dp * steps * _count(given, "tokens.micro_batch_size", source)
    words = [*_arguments(given, table, source), "--group-query-attention", "--global-batch-size",
             str(batch)]
    if pp > 1:
        words += ["--pipeline-model-parallel-layout", _layout(given, pp, source)]
    return _found(source, words, world, "nanotron", notes)


def _check_stages(given: Plain, source: Source) -> None:
    """Stages of the data may have sequences of their own.

    Source: huggingface/nanotron@2411b02 src/nanotron/config/config.py:230.
    """
    stages, length = given.get("data_stages"), given.get("tokens.sequence_length")
    for one in stages if isinstance(stages, list) else []:
        own = one.get("sequence_length") if isinstance(one, dict) else None
        if own not in (None, length):
            raise InputError(f"{source.where}: data_stages: got sequence_length {shorten(own)}; "
                             f"allowed: {shorten(length)}, as tokens.sequence_length, or none "
                             f"(price one stage: --set tokens.sequence_length=N --ignore "
                             "data_stages)")


def _layout(given: Plain, pp: int, source: Source) -> str:
    """Layers of the stages, as Megatron-LM's layout: nanotron divides arithmetic, with the head's.

    Source: huggingface/nanotron@2411b02 src/nanotron/models/base.py:216 to 232,
    huggingface/nanotron@2411b02 src/nanotron/models/llama.py:938 to 950.

    Raises
    ------
    InputError : a stage without layers.
    """
    def size(name: str) -> int:
        return _count(given, f"model.model_config.{name}", source)

    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size(
        "num_hidden_layers")
    layer = 4 * heads * (hidden // heads) * hidden + 3 * size("intermediate_size") * hidden
    total = layers * layer + size("vocab_size") * hidden
    ends = [0]
    for stage in range(1, min(pp, layers, 10**4)):  # behind the layer that passes its share
        ends.append(max(ends[-1] + 1, total * stage // (pp * layer) + 1))
    sizes = [min(end, layers) - start for start, end in zip(ends, [*ends[1:], layers], strict=True)]
    if len(sizes) < pp or min(sizes) < 1:
        raise InputError(f"{source.where}: parallelism.pp: got {pp}; allowed: a number of stages "
                         "by which nanotron gives layers to each, whose last one has the head")
    parts = "|".join(f"t*{count}" for count in sizes)
    return f"E{parts}L"


def read_neox(source: Source) -> FileDescription:
    """A YAML of GPT-NeoX: settings of DeepSpeed beside arguments like Megatron-DeepSpeed's.

    Raises
    ------
    InputError : as :func:`read_nemo`.
    """
    notes: list[str] = []
    there = {name.replace("-", "_"): value for name, value in settings_of(source).items()}
    given_to = {name: value for name, value in there.items() if name.partition(".")[0] in _DEEPSPEED
                and name not in ("fp16.fp16", "fp16.type")}
    given, table = _known(source, "gpt-neox", {
        name: value for name, value in there.items() if name not in given_to},
        ("attention_config", "precision", "partition_activations", "gpt_j_residual",
         "expansion_factor", "mlp_multiple_of"), notes)
    if given.get("gpt_j_residual") and source.asked.model is None:
        raise InputError(f"{source.where}: gpt_j_residual: got True; allowed: false, or the model "
                         "by --model MODEL (layers whose halves run beside each other)")
    if given.get("pipe_parallel_size") == 0:
        given["pipe_parallel_size"] = 1
    given["intermediate_size"] = _width(given, source)
    if given.pop("partition_activations", False):
        given_to["activation_checkpointing.partition_activations"] = True
    # EleutherAI/gpt-neox@ea7aefd megatron/neox_arguments/arguments.py:981 to 1011
    formats = {"bfloat16": ("bf16.enabled",), "fp16": ("fp16.enabled",), "fp32": (), None: ()}
    if given.get("precision") not in formats:
        raise InputError(f"{source.where}: precision: got {shorten(given['precision'])}; allowed: "
                         "bfloat16, fp16, fp32")
    given_to |= dict.fromkeys(formats[given.get("precision")], True)
    words = _arguments(given, table, source)
    if _flash(given.get("attention_config"), source):
        words.append("--use-flash-attn-v2")
    asked = source.asked
    found = deepspeed.read(source._replace(
        text=json.dumps(nested(given_to)), words=tuple(words),
        asked=asked._replace(settings={}, stack=asked.stack or "megatron-deepspeed")))
    if asked.model is None:
        found = found._replace(model=found.model.replace(source="read from a file of GPT-NeoX"))
    return found._replace(notes=(*notes, *found.notes))


def _width(given: Plain, source: Source) -> int:
    """Width of the MLP.

    Source: EleutherAI/gpt-neox@ea7aefd megatron/model/transformer.py:117 to 142, 1003.

    Raises
    ------
    InputError : sizes that are none, or products that do not fit each other.
    """
    hidden, factor = _count(given, "hidden_size", source), given.pop("expansion_factor", None)
    multiple = _count(given, "mlp_multiple_of", source)
    given.pop("mlp_multiple_of", None)
    if factor is not None and not isinstance(factor, (int, float)):
        raise InputError(f"{source.where}: expansion_factor: got {shorten(factor)}; allowed: a "
                         "number")
    width = given.get("intermediate_size") or int((factor or 4) * hidden)
    if type(width) is not int or not 1 <= width <= LARGEST:
        raise InputError(f"{source.where}: intermediate_size: got {shorten(width)}; allowed: a "
                         f"whole number, 1 to {LARGEST}")
    products = 1
    if given.get("activation") == "swiglu":
        width, products = int(width * 2 / 3), 2  # both products together are two thirds
    into, out = (-(-size // step) * step for size, step in (
        (width, 2 * multiple), (width // products, multiple)))
    if into != products * out:
        raise InputError(f"{source.where}: mlp_multiple_of: got {multiple}; allowed: one by which "
                         f"GPT-NeoX makes the products of the MLP fit (it makes {into} outputs of "
                         f"{products * out})")
    return out


def _flash(config: Any, source: Source) -> bool:
    """Whether all layers have flash attention; megatron/neox_arguments/neox_args.py:234."""
    kinds = {str(kind) for part in config or [[["global"], 1]]
             for kind in (part[0] if isinstance(part, list) and part else [part])} if isinstance(
                 config or [], list) else {str(config)}
    if kinds not in ({"flash"}, {"global"}):
        raise InputError(f"{source.where}: attention_config: got {shorten(config)}; allowed: flash "
                         "or global in all layers")
    return kinds == {"flash"}


_PARTS = ("system", "model", "data")
"""Sections of FlagScale whose settings are arguments, however deep they are."""


def read_flagscale(source: Source) -> FileDescription:
    """A YAML of FlagScale, whose settings are Megatron-LM's arguments.

    Source: FlagOpen/FlagScale@1d05957 flagscale/runner/runner_train.py; the sections
    only order them.

    Raises
    ------
    InputError : names that are no arguments, or as :func:`read_nemo`.
    """
    there = settings_of(source)
    notes: list[str] = []
    if left_out := [name for name in there if among(name, source.asked.ignored)]:
        notes.append(f"ignored: {', '.join(left_out)}{LEFT_OUT}")
    parts = {name.removeprefix("train."): value for name, value in there.items()
             if name not in left_out}
    given = {name.rpartition(".")[2]: value for name, value in parts.items()
             if name.partition(".")[0] in _PARTS or name in source.asked.settings}
    if not given:
        raise InputError(f"{source.where}: it names other files (defaults), and no arguments; "
                         "allowed: the file with the sections system and model, such as "
                         "train/7b.yaml beside it, with --devices N")
    found = words_of(given)
    if found.strange:
        names = ", ".join(shorten(name)[1:-1] for name in [*found.strange][:8])
        raise InputError(f"{source.where}: {names}: no arguments of Megatron-LM core_v0.16.1, and "
                         "they may change the cost; price what the job does by nest evaluate, or "
                         "read the log of the job")
    runner = [there.get(f"experiment.runner.{name}") for name in ("nproc_per_node", "nnodes")]
    world = source.asked.devices or source.world
    if world is None and type(runner[0]) is int:
        world = runner[0] * (runner[1] if type(runner[1]) is int else 1)
    if world is None or not 1 <= world <= 10**7:
        raise InputError(f"{source.where}: the number of devices is not in the file; give it by "
                         "--devices N")
    return _found(source, [*found.words], world, "FlagScale", notes)


READERS = {"nemo": read_nemo, "nanotron": read_nanotron, "gpt-neox": read_neox,
           "flagscale": read_flagscale}

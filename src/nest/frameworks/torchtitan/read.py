"""torchtitan's configurations, TOML up to 0.2 and Python of today, as model, job and configuration.

Defaults and rules: torchtitan==0.2.2 torchtitan/config/job_config.py, torchtitan==0.3.0
torchtitan/config/configs.py; the division of layers:
torchtitan==0.2.2 torchtitan/distributed/pipeline_parallel.py:59 to 120, 236.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from nest.errors import InputError
from nest.frameworks.adapters import of_torchtitan
from nest.frameworks.figures import Division, Span, configuration, job
from nest.frameworks.settings import Plain, flat, tables_of
from nest.frameworks.source import (
    FileDescription,
    Source,
    divided,
    figures_in,
    named_model,
    said,
    typed,
    understood,
    unread,
)
from nest.frameworks.text.python_text import Module, PythonCall, UnknownValue, fields_of, not_read
from nest.frameworks.torchtitan.write import (
    BASES,
    CONVERTERS,
    OLD,
    OLD_CONVERTERS,
    POLICIES,
    PYTHON,
    TOKENS,
)
from nest.inputs import load_stack
from nest.inputs.files import parse_text
from nest.inputs.model import Model
from nest.model import Chain, build_chain
from nest.schedules.registry import chunks_at
from nest.units import shorten

TOML, NEW = "torchtitan-toml", "torchtitan"
PIPELINE = tuple(f"parallelism.pipeline_parallel_{name}" for name in (
    "first_stage_less_layers", "last_stage_less_layers", "layers_per_stage"))
_ROTATE = "parallelism.context_parallel_rotate_method"
_COMPONENTS, _BALANCER = "compile.components", "parallelism.context_parallel_load_balancer"
_DTYPE, _REDUCE = "training.dtype", "training.mixed_precision_reduce"
_WHOLE_LOSS = "parallelism.disable_loss_parallel"
_OVERLAP = "parallelism.pipeline_parallel_expert_parallel_overlap"
_EARLY = "activation_checkpoint.early_stop"
_FILTER = "quantize.linear.float8.filter_fqns"
_READ = (*PIPELINE, _COMPONENTS, _BALANCER, _DTYPE, _REDUCE)
_LOSS = ("loss_kept", "loss_peak", "loss_peak_split")
"""Fields of a stack that say what is held of the logits."""
_SINGLE = ("1f1b", "gpipe")
_MODULES = re.compile(r"layers\.(\d{1,5})")
_LORA = "LoRAConverter.Config"
_CONVERTED = {f"{kind}.Config": name for name, kind in CONVERTERS.items()}
_FAMILY = re.compile(r"torchtitan\.models\.(\w+)")


def read_toml(source: Source) -> FileDescription:
    """A TOML of torchtitan up to 0.2.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, or do not fit together.
    """
    return _old(parse_text(source.text, ".toml", source.where), source)


def read_printed(source: Source) -> FileDescription:
    """A configuration that a job prints, as JSON, of 0.1 to 0.2; of 0.3 and later.

    Raises
    ------
    InputError : as :func:`read_toml`.
    """
    data = parse_text(source.text, ".json", source.where)
    return _new(data, source) if "model_spec" in data else _old(data, source)


def _old(data: Mapping[str, Any], source: Source) -> FileDescription:
    older = tables_of(TOML)["older"]
    found = {older.get(name, name): value for name, value in flat(data).items()} | overrides(source)
    notes: list[str] = []
    if not found.get("model.converters"):  # settings of converters that are not used
        found = _without(found, "quantize.", "float8.", "mx.")
    elif found["model.converters"] == [OLD_CONVERTERS["fp8"][0]]:
        found.setdefault(_FILTER, [])  # torchtitan==0.2.2 torchtitan/config/job_config.py:741
    for section in ("fault_tolerance", "validation"):
        if found.get(f"{section}.enable") is False:
            found = _without(found, f"{section}.")
    given = understood(found, OLD, TOML, source, notes, (
        *_READ, _ROTATE, _WHOLE_LOSS, _OVERLAP, _EARLY))
    if given.get("activation_checkpoint.mode") != "selective":
        del given["activation_checkpoint.selective_ac_option"]
    family, flavor = given.pop("model.name"), given.pop("model.flavor")
    name = next((name for name, base in BASES.items()
                 if (base.family, base.flavor) == (family, flavor)), None)
    model = named_model(source, name, f"no model of the catalog is {shorten(family)[1:-1]} "
                     f"{shorten(flavor)}")
    converters = given.pop("model.converters", [])
    precision = next((one for one, (name, _) in OLD_CONVERTERS.items() if converters == [name]), "")
    if converters and not precision:
        allowed = ", ".join(name for name, _ in OLD_CONVERTERS.values())
        raise InputError(f"{source.where}: model.converters: got {shorten(converters)}; allowed: "
                         f"none, or one of {allowed}")
    return _found(source, given, model, precision, OLD, notes)


def _without(found: Plain, *sections: str) -> Plain:
    return {name: value for name, value in found.items() if not name.startswith(sections)}


def _new(data: Mapping[str, Any], source: Source) -> FileDescription:
    """A configuration of 0.3 and later, whose classes it does not name: by their fields."""
    found: Plain = dict(data)
    spec, again, loss = (found.pop(name, None) for name in (
        "model_spec", "activation_checkpoint", "loss"))
    fields = again if isinstance(again, Mapping) else {}
    if "memory_budget" in fields:
        raise InputError(f"{source.where}: activation_checkpoint: got a memory budget; allowed: "
                         "none, full or selective (others have no price)")
    selective = "force_recompute_mm_shapes_by_fqns"
    recompute = "none" if again is None else "selective" if selective in fields else "full"
    parts = loss.get("num_chunks", 1) if isinstance(loss, Mapping) else 1
    base = PythonCall("Trainer.Config", [], {})
    found = in_samples(flat(found) | overrides(source), base, source)
    _check_optimizer(found, source)
    spec = spec if isinstance(spec, Mapping) else {}
    name = next((name for name, one in BASES.items()
                 if (one.family, one.flavor) == (spec.get("name"), spec.get("flavor"))), None)
    model = named_model(source, name, f"no model of the catalog is {shorten(spec.get('name'))} "
                        f"{shorten(spec.get('flavor'))}")
    precision = source.asked.precision or ""
    if not precision and re.search(r"float8|mxfp8|nvfp4", repr(spec), re.IGNORECASE):
        raise InputError(f"{source.where}: model_spec: its products are quantized; give the number "
                         f"format by --precision, one of {', '.join(CONVERTERS)}")
    notes: list[str] = []
    given = understood(found, PYTHON, NEW, source, notes, _READ)
    given["activation_checkpoint.mode"] = recompute
    return _found(source, given, model, precision if precision in CONVERTERS else "", PYTHON, notes,
                  parts if type(parts) is int and parts > 0 else 1)


def overrides(source: Source) -> Plain:
    """Arguments behind the file, and settings of the user, by name with dots."""
    return {name: value for name, (_, value) in _arguments(source.words).items()} | {
        name: typed(value) for name, value in source.asked.settings.items()}


def spelled(source: Source) -> dict[str, str]:
    """Arguments behind the file as they are written, by the names of settings."""
    return {name: written for name, (written, _) in _arguments(source.words).items()}


def _arguments(words: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """What arguments are written as, and their values, by name with dots."""
    found: dict[str, tuple[str, Any]] = {}
    at = 0
    while at < len(words):
        written, equals, value = words[at].removeprefix("--").partition("=")
        at += 1
        if not words[at - 1].startswith("--") or "." not in written:
            continue  # arguments of other programs, and what belongs to them
        name = written.replace("-", "_")
        section, _, last = name.rpartition(".")
        if not equals and (at == len(words) or words[at].startswith("--")):
            off = last.startswith("no_")
            found[f"{section}.{last[3 * off:]}"] = written, not off
            continue
        if not equals:
            value, at = words[at], at + 1
        found[name] = written, typed(value)
    return found


# ---------------------------------------------------------------- Python


def read_python(source: Source) -> FileDescription:
    """A module with a function that returns a ``Trainer.Config``; nothing of it is run.

    Raises
    ------
    InputError : as :func:`read_toml`, or no such function.
    """
    module = Module(source.text, source.where, source.asked.ignored)
    base = module.returned(function_of(module, source))
    if not isinstance(base, PythonCall):
        raise not_read(base, source.where)
    found = in_samples(fields_of(base, source.where) | overrides(source), base, source)
    own = base.name.endswith("Config")  # else fields of a function that is elsewhere
    whole = {name for name, value in found.items()
             if isinstance(value, PythonCall) and value.name in (
        "ParallelismConfig", "TrainingConfig", "CompileConfig")}
    recompute = _policy(found, None if own else base, source)
    _check_optimizer(found, source)
    notes: list[str] = []
    model, precision = _model(module, base, found, source, notes)
    parts = _loss_parts(found, own, notes)
    found = {name: value for name, value in found.items() if name not in whole}
    given = understood(found, PYTHON, NEW, source, notes, _READ)
    if not own:
        _check_whole(found, whole, base, source)
    if precision is None:
        precision = source.asked.precision if source.asked.precision in CONVERTERS else ""
        if not precision:
            notes.append("products are priced as the parameters' format: converters of the model's "
                         f"own function are not in the file (--precision {', '.join(CONVERTERS)})")
    given["activation_checkpoint.mode"] = recompute
    return _found(source, given, model, precision, PYTHON, notes, parts)


def _loss_parts(found: Plain, own: bool, notes: list[str]) -> int:
    """Parts of the sequence that the loss, with the head, runs in one after another.

    Source: torchtitan==0.3.0 torchtitan/components/loss.py:571 (ChunkedLossWrapper).
    """
    made = found.pop("loss", None)
    more = {name: found.pop(name) for name in [*found] if name.startswith("loss.")}
    kind = ""
    if isinstance(made, PythonCall):
        kind = made.name.removesuffix(".Config").rpartition(".")[2]
    parts = more.get("loss.num_chunks", 8) if kind == "ChunkedLossWrapper" else 1
    if type(parts) is int and 1 <= parts <= 10**6 and (kind or own and made is None):
        return parts
    notes.append("no price: a loss that runs in parts (ChunkedLossWrapper) holds one part of the "
                 "logits at once; it is priced as whole")
    return 1


def in_samples(found: Plain, base: PythonCall, source: Source) -> Plain:
    """Settings of sources that count tokens, as 0.3.0 has them: see ``TOKENS``.

    Raises
    ------
    InputError : no numbers, or tokens of a micro-batch or of a step that are no whole samples.
    """
    given = {name: found.pop(name) for name in TOKENS if name in found}
    if not given:
        return found
    for name, value in given.items():
        if type(value) is not int:
            shown = value.text if isinstance(value, UnknownValue) else value
            raise InputError(f"{source.where}: {name}: got {shorten(shown)}; allowed: a number")
    micro, step, length, passes = TOKENS
    if length not in given:
        raise _elsewhere(length, base, source)
    seq_len = given[length]
    samples = {name: divided(source, name, value, seq_len, length)
               for name, value in given.items() if name in (micro, step) and value != -1}
    found[TOKENS[length]] = seq_len
    found[TOKENS[step]] = samples.get(step, -1)
    if micro in samples:
        found[TOKENS[passes]] = samples[micro]
        piped = found.get("parallelism.pipeline_parallel_degree", 1) != 1
        found[TOKENS[micro]] = samples[micro] * (given.get(passes, 1) if piped else 1)
    return found


def function_of(module: Module, source: Source) -> str:
    if source.asked.function is not None:
        return source.asked.function
    names = [name for name in module.functions if not name.startswith("_")]
    if len(names) != 1:
        got = f"{len(names)} functions ({', '.join(names[:20])})" if names else "no function"
        raise InputError(f"{source.where}: got {got}; allowed: one; or say which one returns the "
                         "configuration by --function NAME")
    return names[0]


def _policy(found: Plain, base: PythonCall | None, source: Source) -> str:
    """Recompute by the class of activation checkpointing; by default a base decides it."""
    if base is not None and "activation_checkpoint" not in found:
        raise _elsewhere("activation_checkpoint", base, source)
    made = found.pop("activation_checkpoint", PythonCall("SelectiveAC", [], {}))
    name = made
    if isinstance(made, PythonCall):
        name = made.name.removesuffix(".Config").rpartition(".")[2]
    for recompute, policy in POLICIES.items():
        if name == policy:
            return recompute
    shown = made.text if isinstance(made, UnknownValue) else name
    raise InputError(f"{source.where}: activation_checkpoint: got {shorten(shown)}; allowed: None, "
                     "FullAC.Config(), SelectiveAC.Config()")


def _check_optimizer(found: Plain, source: Source) -> None:
    made = found.pop("optimizer", None)
    names = [name for name, value in found.items()
             if name.startswith("optimizer.") and isinstance(value, str)
             and name.endswith("name") and value not in ("Adam", "AdamW")]
    if isinstance(made,
                  PythonCall) and made.name.rpartition(".")[2] == "default_adamw" and not names:
        return
    if made is not None or names:
        shown = made.name if isinstance(made, PythonCall) else names[0] if names else made
        raise InputError(f"{source.where}: optimizer: got {shorten(shown)}; allowed: default_adamw")


def _model(
    module: Module, base: PythonCall, found: Plain, source: Source, notes: list[str]
) -> tuple[Model, str | None]:
    """The model, and the format that its products are cast to, if any; None: the file does not say.
    """
    spec = found.pop("model_spec", None)
    registry = isinstance(spec, PythonCall) and spec.name.rpartition(".")[2] == "model_registry"
    precision: str | None = None
    name = adapters = None
    if isinstance(spec, PythonCall) and registry:
        origin = _FAMILY.search(module.imports.get(spec.name, ""))
        family = origin[1] if origin else PurePath(source.where).parent.name
        name = next((name for name, one in BASES.items()
                     if [one.family, one.flavor] == [family, *spec.words]), None)
        for each in [key for key in found if key.startswith("model_spec.")]:
            value = found.pop(each)
            calls = [one if isinstance(one, PythonCall) else None for one in value] if (
                isinstance(value, list)) else [None]
            lora = [one for one in calls if one is not None and one.name.endswith(_LORA)]
            kinds = {_CONVERTED.get(one.name if one is not None else "")
                     for one in calls if one not in lora}
            if each == "model_spec.converters" and kinds <= {*CONVERTERS} and len(kinds) < 2 and (
                    len(lora) < 2):
                precision = "".join(map(str, kinds))
                adapters = lora[0] if lora else None
            elif not _ignored(each, source):
                raise InputError(f"{source.where}: {unread(each)}")
        precision = precision or ""
    elif spec is not None and source.asked.model is None:
        raise InputError(f"{source.where}: model_spec is not understood, and nothing is executed; "
                         "name the model by --model MODEL")
    model = named_model(source, name, "no model of the catalog is known by its function")
    if adapters is not None:
        model = model.replace(trainable=of_torchtitan(adapters, model, source, notes))
    return model, precision


def _ignored(name: str, source: Source) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in source.asked.ignored)


def _check_whole(
    found: Mapping[str, Any], whole: set[str], base: PythonCall, source: Source
) -> None:
    """Fields of a base that is elsewhere are not known: those that count must be there."""
    optional = {"training.mixed_precision_param", "training.disable_cuda_graphs"}
    for one in PYTHON:
        if one.name not in found and one.name not in optional and (
                one.name.partition(".")[0] not in whole):
            raise _elsewhere(one.name, base, source)


def _elsewhere(name: str, base: PythonCall, source: Source) -> InputError:
    return InputError(f"{source.where}: {name}: {shorten(base.name)[1:-1]} decides it, which is "
                      f"not in this file; give it by --set {name}=VALUE")


# ---------------------------------------------------------------- figures


def _found(
    source: Source, given: Plain, model: Model, cast: str, table: Any, notes: list[str],
    loss_parts: int = 1,
) -> FileDescription:
    if given.get("parallelism.fsdp_reshard_after_forward") == "default":
        # torchtitan==0.2.2 torchtitan/models/llama3/infra/parallelize.py:324
        after = given["parallelism.pipeline_parallel_degree"] == 1
        given["parallelism.fsdp_reshard_after_forward"] = "always" if after else "never"
        sharded = None
    else:
        sharded = given["parallelism.fsdp_reshard_after_forward"]
    f = figures_in(table, given, source)
    ring = f["cp"] == 1 or given.get(_ROTATE) == "alltoall"
    shards = _shards(f, source)
    dp = f["replicas"] * shards
    zero = f["sharding"] if shards > 1 or sharded else 0
    if zero and f["pp"] > 1:
        if zero == 3:
            raise InputError(f"{source.where}: parallelism.fsdp_reshard_after_forward: got "
                             "always; allowed: never (with a pipeline parameters are gathered "
                             "for a pass unless a backward was just before it, and gradients stay "
                             "whole, which has no price)")
        zero = 1
    world = dp * f["tp"] * f["cp"] * f["pp"]
    seq_len = said(source, "training.seq_len", f["seq_len"], source.asked.seq_len, "--seq-len")
    precision = said(source, "the number format", cast or f["precision"],
                     source.asked.precision, "--precision")
    stack, changes = _stack(source, f, given, zero > 0, loss_parts, notes)
    _check_values(source, f, given, precision, notes)
    local = f["local_batch"]
    batch = f["global_batch"] if f["global_batch"] != -1 else local * dp
    if type(batch) is not int:
        raise InputError(f"{source.where}: training.global_batch_size: got {shorten(batch)}; "
                         "allowed: a whole number, or -1")
    steps = divided(source, "training.global_batch_size", batch, local * dp,
                    "training.local_batch_size x data parallel degree")
    schedule, micro, chunks = _pipeline(source, f, given, build_chain(model))
    if schedule and steps > 1:
        raise InputError(f"{source.where}: training.global_batch_size: got {batch}; allowed: "
                         f"{local * dp} (several pipelines a step have no price)")
    count = divided(source, "training.local_batch_size", local, micro,
                    "parallelism.pipeline_parallel_microbatch_size")
    rounds = max(1, count // f["pp"])
    way = Division(
        chunks, dp, micro, tp=f["tp"], sp=f.get("sp", True), cp=f["cp"],
        cp_comm="p2p" if ring else "all_gather", ep=f["ep"],
        etp=(f["etp"] if table is OLD else 1) if f["ep"] > 1 else f["tp"], zero=zero,
        replicas=f["replicas"] if zero and f["replicas"] > 1 else None, recompute=f["recompute"]
        if table is OLD else given["activation_checkpoint.mode"], modules=("norm", "mlp_act"),
        schedule=schedule,
        group=count // rounds if schedule in ("interleaved", "interleaved-zb") else None)
    found = configuration(way, source.places, source.where, notes)
    return FileDescription(model, job(batch, seq_len, precision, "adam", stack, changes), found,
                           world,
                 tuple(notes))


def _stack(
    source: Source, f: Mapping[str, Any], given: Plain, sharded: bool, loss_parts: int,
    notes: list[str],
) -> tuple[str, dict[str, Any]]:
    """Name of the stack, and what the file says otherwise.

    Layers are compiled where ``compile.components`` has the model, the loss where it has the loss
    (torchtitan==0.2.2 torchtitan/models/llama3/infra/parallelize.py:108,
    torchtitan/components/loss.py:33; 0.3.0 the same). ``training.dtype`` is that of parameters,
    gradients and moments (torchtitan==0.2.2 torchtitan/config/job_config.py:275). Full recompute
    runs whole layers again unless ``early_stop``, which is off by default, and in 0.3.0 always
    (torchtitan==0.2.2 torchtitan/config/job_config.py:675, torchtitan==0.3.0
    torchtitan/distributed/activation_checkpoint.py:180).
    """
    components = given[_COMPONENTS]
    if not isinstance(components, list) or not {*map(str, components)} <= {"model", "loss"}:
        raise InputError(f"{source.where}: {_COMPONENTS}: got {shorten(components)}; allowed: a "
                         "list of model, loss")
    compiled = f["compiled"] and "model" in components
    name = source.asked.stack or ("torchtitan" if compiled else "torchtitan-eager")
    stack = load_stack(name)
    found: dict[str, Any] = {"cuda_graphs": "step" if f.get("graphs", False) else "none"}
    loss = stack
    if compiled and "loss" not in components and source.asked.stack is None:
        loss = load_stack("torchtitan-eager")
    elif f["compiled"] and not compiled and "loss" in components:
        notes.append(f"{_COMPONENTS} has the loss alone: layers are not compiled, and the loss is "
                     "priced as not compiled, too, which holds up to "
                     f"{stack.loss_peak - load_stack('torchtitan').loss_peak:g} bytes a logit more")
    if stack.stops_early and not compiled and not given.get(_EARLY) and (
            given["activation_checkpoint.mode"] == "full"):
        notes.append("no price: recompute without early_stop (layers that are not compiled run the "
                     "last product of a dense MLP again, which is priced as left out)")
    found |= {field: getattr(loss, field) for field in _LOSS}
    if loss_parts > 1:
        found |= {"loss": "chunks", "loss_chunks": loss_parts}
    if given[_DTYPE] == "bfloat16":
        found |= {"master_copy": False, "moment_dtype": "bf16", "fp32_shards": False}
        if given[_REDUCE] == "bfloat16" or not sharded:
            found["gradient_dtype"] = "bf16"
    return name, {field: value for field, value in found.items() if getattr(stack, field) != value}


def _check_values(
    source: Source, f: Mapping[str, Any], given: Plain, precision: str, notes: list[str]
) -> None:
    """Refuse values that change the cost together with others, and have no price there."""
    narrow = given[_DTYPE] == "bfloat16"
    reduced = ("float32", "bfloat16") if narrow else ("float32",)
    for wrong, name, value, allowed in (
            (given[_DTYPE] not in ("float32", "bfloat16"), _DTYPE, given[_DTYPE],
             "float32, bfloat16"),
            (given[_REDUCE] not in reduced, _REDUCE, given[_REDUCE],
             f"{', '.join(reduced)} with {_DTYPE} {'bfloat16' if narrow else 'float32'}"),
            (narrow and precision == "fp32", _DTYPE, "bfloat16",
             "float32 with products in float32"),
            (f["tp"] > 1 and given.get(_WHOLE_LOSS), _WHOLE_LOSS, True,
             "false with tensor parallelism (whole logits on each rank have no price)"),
            (f["cp"] > 1 and given[_BALANCER] not in ("headtail", "ptrr"), _BALANCER,
             given[_BALANCER], "headtail, ptrr with context parallelism (otherwise the last rank "
             "has nearly twice the attention of the average, which has no price)")):
        if wrong:
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: {allowed}")
    if f["pp"] > 1 and f["schedule"] == "dualpipev" and f["ep"] > 1 and given.get(_OVERLAP):
        notes.append(f"no price: {_OVERLAP} (traffic of experts runs beside the passes of another "
                     "micro-batch, up to all of it)")


def _shards(f: Mapping[str, Any], source: Source) -> int:
    """Ranks that a copy is sharded over; -1: all that are left."""
    shards = f["shards"]
    if shards == -1:
        world = source.asked.devices or source.world
        if world is None:
            raise InputError(f"{source.where}: parallelism.data_parallel_shard_degree is -1, all "
                             "devices that are left; say how many there are by --devices N")
        return divided(source, "devices", world, math.prod(
            f[name] for name in ("replicas", "tp", "cp", "pp")), "the product of the degrees")
    if type(shards) is not int or not 1 <= shards <= 10**7:
        raise InputError(f"{source.where}: parallelism.data_parallel_shard_degree: got "
                         f"{shorten(shards)}; allowed: a whole number, or -1")
    return shards


def _pipeline(
    source: Source, f: Mapping[str, Any], given: Plain, chain: Chain
) -> tuple[str | None, int, list[tuple[Span, ...]]]:
    """Schedule, samples of a micro-batch, and layers of the chunks."""
    pp = f["pp"]
    if pp == 1:
        return None, f["local_batch"], [((0, len(chain)),)]
    schedule = f["schedule"]
    parts = f.get("modules")
    if parts is None:
        parts = generated(source, chain, pp, schedule in _SINGLE, given)
    cuts = _cuts(parts, chain, source)
    if (len(cuts) - 1) % pp:
        raise InputError(f"{source.where}: parallelism.module_fqns_per_model_part: got "
                         f"{len(cuts) - 1} parts; allowed: a multiple of {pp}, the stages")
    if schedule == "interleaved-zb" and len(cuts) - 1 == pp:
        schedule = "zb1p"
    return schedule, f["micro_batch"], chunks_at(cuts, pp, schedule)


def _cuts(parts: Any, chain: Chain, source: Source) -> list[int]:
    """First layer of each part, and the number of layers."""
    first, end = chain.body
    cuts = [0]
    ends = {"tok_embeddings": first, "norm": len(chain), "output": len(chain),
            "lm_head": len(chain)}
    for part in parts if isinstance(parts, Sequence) and not isinstance(parts, str) else [None]:
        at = cuts[-1]
        for name in part if isinstance(part, Sequence) and not isinstance(part, str) else [None]:
            layer = _MODULES.fullmatch(name) if isinstance(name, str) else None
            found = first + int(layer[1]) + 1 if layer else ends.get(name)  # type: ignore[arg-type]
            if found is None or found < at or (layer and (found != at + 1 or found > end)):
                raise InputError(
                    f"{source.where}: parallelism.module_fqns_per_model_part: got "
                    f"{shorten(part if name is None else name)}; allowed: tok_embeddings, layers.0 "
                    f"to layers.{end - first - 1}, norm and output or lm_head, in this order")
            at = found
        cuts.append(at)
    if cuts[-1] != len(chain) or cuts[-2] == cuts[-1]:
        raise InputError(f"{source.where}: parallelism.module_fqns_per_model_part: the last part "
                         "is not the model's end")
    return cuts


def generated(
    source: Source, chain: Chain, pp: int, single: bool, given: Plain
) -> list[list[str]]:
    """Names of the modules of each part, as torchtitan divides them by itself."""
    before, behind, each = (given.get(name) for name in PIPELINE)
    layers = chain.body[1] - chain.body[0]
    for name, value in zip(PIPELINE, (before, behind, 1 if each is None else each), strict=True):
        least = int(name == PIPELINE[2])
        if type(value) is not int or not least <= value <= 10**4:
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: a whole "
                             f"number, {least} to 10000")
    assert isinstance(before, int) and isinstance(behind, int)
    total = layers + before + behind
    stages = pp * (1 if single else 2) if each is None else math.ceil(total / each)
    size, more = divmod(total, stages)
    if stages % pp or size < max(1, before, behind):
        raise InputError(f"{source.where}: {total} layers, with both ends, in {stages} parts on "
                         f"{pp} stages: torchtitan cannot divide them")
    numbers = iter(range(layers))
    sizes = [size + (n < more) - (before if n == 0 else behind if n == stages - 1 else 0)
             for n in range(stages)]
    parts = [[f"layers.{n}" for _, n in zip(range(count), numbers, strict=False)]
             for count in sizes]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts

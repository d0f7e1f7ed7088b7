"""DeepSpeed's JSON with the arguments of its launch, as model, job and configuration.

Defaults and rules: deepspeed==0.19.8 deepspeed/runtime/config.py:272, 447, 607,
deepspeed/runtime/zero/config.py:95 to 376, deepspeed/runtime/pipe/module.py:396; arguments:
deepspeedai/Megatron-DeepSpeed@4efb479 megatron/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from nest.errors import InputError, did_you_mean
from nest.frameworks import settings as arguments
from nest.frameworks.adapters import of_arguments
from nest.frameworks.deepspeed.write import ARGUMENTS, JSON, MODEL, TRAINING
from nest.frameworks.figures import Division, Span, configuration, job
from nest.frameworks.settings import (
    Plain,
    Setting,
    Words,
    arguments_of,
    flat,
    known,
    plain,
    tables_of,
)
from nest.frameworks.source import (
    MOST_PROBLEMS,
    FileDescription,
    Source,
    divided,
    figures_in,
    mapping_in,
    named_model,
    said,
    typed,
    understood,
    unread,
)
from nest.inputs import load_stack
from nest.inputs.job import Stack
from nest.inputs.model import Model
from nest.inputs.offload import Offload
from nest.model import Chain, build_chain
from nest.schedules.registry import chunks_at, is_folded
from nest.units import shorten

TABLES = (*ARGUMENTS, *MODEL, *TRAINING)
_TABLE = tables_of("deepspeed")
ALIASES: Mapping[str, str] = _TABLE["arguments"]["names"]
READ = frozenset((*(one.name for one in TABLES), *ALIASES))
"""Arguments that are read."""
_ADAM = ("adam", "adamw", "fusedadam", "deepspeedcpuadam")
_OLD, _PARTED = "zero_optimization.cpu_offload", "activation_checkpointing.partition_activations"
_TYPE, _MOMENTUM = "optimizer.type", "optimizer.params.momentum"
_ZERO = "zero_optimization."
_SEQUENCE = "seq_parallel_communication_data_type"
_PIN, _TORCH_ADAM = f"{_ZERO}offload_optimizer.pin_memory", "optimizer.params.torch_adam"
_BUCKET = f"{_ZERO}reduce_bucket_size"
_PREFETCH, _LIVE, _PERSISTENT = (f"{_ZERO}stage3_{name}" for name in (
    "prefetch_bucket_size", "max_live_parameters", "param_persistence_threshold"))
_DEFAULTS: Mapping[str, int] = _TABLE["defaults"]
PLAIN_NAMES: Mapping[str, str] = _TABLE["names"]
TRAINER: Mapping[str, str] = _TABLE["trainer"]["names"]
"""Arguments of Hugging Face's Trainer, and the settings that it fills in by them."""
AUTOS = frozenset((*TRAINER.values(), *_TABLE["trainer"]["auto"].split()))
"""Settings that may be "auto"."""
_FORMATS = {"bf16.enabled": "bf16", "fp16.enabled": "fp16"}
_RECOMPUTE, _OPTIM = "gradient_checkpointing", "optim"
"""Arguments of the same: each layer is recomputed; the optimizer, where the JSON has none."""
_TRAINERS = (*TRAINER, _RECOMPUTE, _OPTIM)
_OPTIMIZERS: Mapping[str, str] = _TABLE["trainer"]["optim"]


def read(source: Source) -> FileDescription:
    """The JSON, and what the arguments of the program say besides.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, or do not fit together.
    """
    suffix = ".json" if source.text.lstrip()[:1] in "{[" else ".yaml"
    data = mapping_in(source, suffix)
    notes: list[str] = []
    trainer = _trainer(source)
    found = _settings(data, source)
    autos = [name for name, value in found.items() if value == "auto" and name in AUTOS]
    if unfilled := [one.name for one in JSON if found.get(one.name) == "auto"
                    and one.name not in AUTOS]:
        raise InputError(f"{source.where}: {unfilled[0]}: got 'auto', which Hugging Face's Trainer "
                         "does not fill in; allowed: its value")
    given = understood({name: value for name, value in found.items() if name not in autos}, JSON,
                       "deepspeed", source, notes, (_TYPE, _MOMENTUM, _OLD, _PARTED, *_DEFAULTS))
    given = _filled(given, autos, trainer, source)
    spoken, _ = arguments_of(source.words, known_arguments())
    adapters, fused, theirs = (None, False, set()) if "num-layers" in spoken else of_arguments(
        spoken, source)
    arguments_given, megatron = _arguments(
        {name: value for name, value in spoken.items() if name not in theirs}, source, trainer,
        notes)
    f = _figures(given, arguments_given, source)
    model = _model(f, source, megatron)
    if adapters is not None:
        model = model.replace(trainable=adapters)
    base = source.asked.stack or ("megatron-deepspeed" if megatron else "deepspeed")
    stack = load_stack(base)
    precision = said(source, "the number format", f["precision"], source.asked.precision,
                     "--precision")
    optimizer = _optimizer(given, {**arguments_given, **trainer}, source, notes)
    chain = build_chain(model)
    changes = _stack(f, stack, precision, chain, notes)
    changes |= _sizes(f, precision, given, stack, model, source)
    changes |= {"loss": "liger"} if fused else {}
    if not source.words and "recompute" not in f:
        notes.append("recompute is the program's, which no file names: none is assumed (--set "
                     f"{_RECOMPUTE}=true: every layer)")
    if given.get(_PIN) is False and f["offloads"]:
        notes.append(f"no price: {_PIN} false (copies to hosts from memory that may be moved; how "
                     "much longer they take is not known)")
    if found.get(_TORCH_ADAM) is True and f["offloads"]:  # deepspeed/runtime/engine.py:2380
        raise InputError(f"{source.where}: {_TORCH_ADAM}: got True; allowed: false, or the "
                         "optimizer on the devices (PyTorch's Adam on hosts has no price)")
    sent, gradients = f["sent"], f.get("gradients", precision)
    if (f.get("cp") or 1) > 1 and (sent == "fp32") != (gradients == "fp32"):
        notes.append(f"no price: gradients are reduced in {sent} with sequence parallelism, and "
                     f"priced in {gradients}: {'twice' if sent == 'fp32' else 'half of'} that "
                     f"traffic ({_SEQUENCE})")
    batch, micro, steps = _batches(f, source)
    dp = divided(source, "train_batch_size", batch, micro * steps,
                 "train_micro_batch_size_per_gpu x gradient_accumulation_steps")
    if f.get("dp", dp) != dp:
        raise InputError(f"{source.where}: data_parallel_size: got {f['dp']}; allowed: {dp}")
    tp, pp, cp, ep = (f.get(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    if given.get(_PARTED) not in (None, False) and tp > 1:
        raise InputError(f"{source.where}: {_PARTED}: got true; allowed: false, or tp 1 "
                         "(activations that are divided over tp have no price)")
    schedule = f.get("schedule", "1f1b") if pp > 1 else None
    recompute = f.get("recompute", "none")
    way = configuration(Division(
        _chunks(chain, pp, schedule, f, source), dp, micro, tp=tp,
        sp=f.get("sp", False), cp=cp, cp_comm="a2a" if cp > 1 else "p2p", ep=ep,
        etp=tp if f.get("expert_tp") or model.moe is None else 1, zero=f.get("zero", 0),
        recompute=recompute, modules=("core_attn",), recompute_layers=f.get("recompute_layers")
        if f.get("recompute_method") == "block" else None, schedule=schedule,
        offload=_offload(f, source)), source.places, source.where, notes)
    seq_len = said(source, "the tokens of a sequence", f.get("seq_len"), source.asked.seq_len,
                   "--seq-len")
    return FileDescription(model, job(batch, seq_len, precision, optimizer, base, changes), way,
                 dp * tp * pp * cp, tuple(notes))


def _settings(data: Mapping[str, Any], source: Source) -> Plain:
    """Settings of the JSON and of the user by the names that DeepSpeed's pages have.

    Raises
    ------
    InputError : one by both of its names, with two values.
    """
    other = {*(one.name for one in TABLES), *_TRAINERS} - {*TRAINER.values()}
    found = {name: _whole(value) for name, value in flat(data).items()} | {
        name: _whole(typed(value)) for name, value in source.asked.settings.items()
        if name not in other}
    for short, name in PLAIN_NAMES.items():
        if short in found and found[short] != found.setdefault(name, found[short]):
            raise InputError(f"{source.where}: {short}: it is {name} by another name, with another "
                             "value; allowed: one of them")
    return {name: value for name, value in found.items() if name not in PLAIN_NAMES}


def _trainer(source: Source) -> Plain:
    """Arguments of Hugging Face's Trainer: of a script, with its defaults, and the user's."""
    found = _spoken(source)
    if found:  # transformers==4.57.1 src/transformers/training_args.py:887, 1068, 1077, 1405
        found = {"gradient_accumulation_steps": 1, "bf16": False, "fp16": False, _RECOMPUTE: False,
                 **found}
    return found | {name: typed(value) for name, value in source.asked.settings.items()
                    if name in _TRAINERS}


def _spoken(source: Source) -> Plain:
    """Arguments of Hugging Face's Trainer that a script has, whose flags may have a value."""
    table = known_arguments()
    takes = {name: arity for name, arity in table.takes.items() if name not in _TRAINERS}
    words = {name.replace("-", "_"): value
             for name, value in arguments_of(source.words, table._replace(takes=takes))[0].items()}
    return {} if "num_layers" in words else {
        name: typed(words[name][0]) if words[name] else True for name in _TRAINERS if name in words}


def _filled(found: Plain, autos: list[str], trainer: Plain, source: Source) -> Plain:
    """Settings with what Hugging Face's Trainer fills in where they are "auto".

    Raises
    ------
    InputError : its arguments are needed and not given, which names all of them; or they and the
        JSON differ.
    """
    own = {name for name in trainer if name in source.asked.settings}
    absent = {"gradient_accumulation_steps": 1}  # src/accelerate/utils/dataclasses.py:1237
    for argument, value in _spoken(source).items():
        name = TRAINER.get(argument, "")
        there = found.get(name, value if name in autos else absent.get(name, value))
        if argument not in own and there is not None and there != value:
            raise InputError(f"{source.where}: {name}: got {shorten(there)}, and {argument} is "
                             f"{shorten(value)}; allowed: the same, or \"auto\"")
    missing = {name for name in _FORMATS if name not in found}
    found = found | {name: trainer[argument] for argument, name in TRAINER.items()
                     if argument in trainer and (name in autos or name in missing
                                                 or argument in own)}
    if source.asked.precision or any(found.get(name) is True for name in _FORMATS):
        found |= {name: one == source.asked.precision for name, one in _FORMATS.items()
                  if name in autos and name not in found}
    lacking = {argument: name for argument, name in TRAINER.items()
               if name in autos and name not in found}
    if {*_FORMATS} <= {*lacking.values()} or len(lacking) < 2 and found.get("train_batch_size"):
        lacking = {argument: name for argument, name in lacking.items() if name == "bf16.enabled"
                   or name not in _FORMATS and not found.get("train_batch_size")}
    if lacking:
        wanted = " ".join(f"--set {argument}={'true' if name in _FORMATS else 'N'}"
                          for argument, name in lacking.items())
        raise InputError(
            f"{source.where}: Hugging Face's Trainer fills in what is \"auto\" "
            f"({', '.join(autos[:20])}); give its arguments: {wanted} --devices N (the rest "
            "follows)")
    return found


def _whole(value: object) -> object:
    """Whole numbers such as 5e8, which JSON has as fractions."""
    return int(value) if isinstance(value, float) and value.is_integer() and (
        abs(value) < 1e15) else value


def known_arguments() -> arguments.KnownArguments:
    """Arguments of Megatron-DeepSpeed: those of Megatron-LM and its own."""
    flags = {one.name for one in TABLES if one.words is not None and True in one.words.values()}
    table = known()
    return table._replace(takes={
        **table.takes, **{one.name: "flag" if one.name in flags else "one" for one in TABLES}})


def _arguments(
    words: Mapping[str, Words], source: Source, trainer: Plain, notes: list[str]
) -> tuple[Plain, bool]:
    """Arguments of the program by name, and whether it is Megatron-DeepSpeed's."""
    table = known_arguments()
    found = {ALIASES.get(name, name): value for name, value in words.items()
             if name not in source.asked.ignored and name.replace("-", "_") not in trainer}
    found |= {name: (value,) for name, value in source.asked.settings.items()
              if name in {one.name for one in TABLES} and name not in trainer}
    megatron = "num-layers" in found
    wanted = {one.name for one in (TABLES if megatron else ARGUMENTS)}
    rest = [name for name in found if name not in wanted]
    if megatron:
        costless = table.free | table.small | {*_TABLE["arguments"]["free"].split()}
        strange = [name for name in rest if name not in costless]
        problems = [f"--{unread(shorten(name)[1:-1], did_you_mean(name, wanted))}"
                    for name in strange[:MOST_PROBLEMS]]
        if (more := len(strange) - MOST_PROBLEMS) > 0:
            problems.append(f"and {more} more")
        if problems:
            raise InputError("\n".join(problems), tuple(problems))
    elif rest:
        notes.append(f"arguments of the program itself are not read: "
                     f"{arguments.listed(rest[:12])}")
    given = {name: plain(name, value, table.takes.get(name, "one")) for name, value in found.items()
             if name in wanted}
    if trainer.get(_RECOMPUTE) is True:
        given["deepspeed-activation-checkpointing"] = True
    return {name: value for name, value in given.items() if value is not None}, megatron


def _figures(given: Plain, words: Plain, source: Source) -> dict[str, Any]:
    """Figures of the JSON and of the arguments, which come first."""
    overlap = "zero_optimization.overlap_comm"
    stage = given.get("zero_optimization.stage", words.get("zero-stage", 0))
    if given.get(overlap) is None:  # deepspeed/runtime/zero/config.py: overlap_comm_valid
        given[overlap] = stage == 3
    for names in (("pipeline.pipe_partitioned", "pipeline.grad_partitioned"),
                  ("data_types.grad_accum_dtype", "communication_data_type")):
        there = [given[name] for name in names if name in given]
        if len({str(value) for value in there}) > 1:
            raise InputError(f"{source.where}: {' and '.join(names)}: got {shorten(there)}; "
                             "allowed: the same for both")
    sent = given.pop(_SEQUENCE, None) or "fp32"  # deepspeed/runtime/constants.py:236
    if sent not in ("fp32", "fp16", "bf16"):
        raise InputError(f"{source.where}: {_SEQUENCE}: got {shorten(sent)}; allowed: fp32, fp16, "
                         "bf16")
    distance = given.pop("zero_optimization.stage3_max_reuse_distance", 10**9)
    if type(distance) is not int or distance < 0:
        raise InputError(f"{source.where}: zero_optimization.stage3_max_reuse_distance: got "
                         f"{shorten(distance)}; allowed: a whole number")
    device = given.pop("zero_optimization.offload_optimizer.device", None)
    if given.pop(_OLD, False) is True:
        device = "cpu"
    if device not in (None, "none", "cpu"):
        raise InputError(f"{source.where}: zero_optimization.offload_optimizer.device: got "
                         f"{shorten(device)}; allowed: none, cpu")
    json = tuple(one for one in JSON if one.figure not in ("reshard", "offloads"))
    found = _said(json, given, source)
    for table in (ARGUMENTS, MODEL, TRAINING):
        for name, value in _said(table, words, source).items():
            if name == "recompute":
                found[name] = value if found.get(name, "none") == "none" else found[name]
            elif name in found and found[name] != value:
                raise InputError(f"{source.where}: {name} is {shorten(found[name])}, and an "
                                 f"argument says {shorten(value)}; allowed: the same")
            else:
                found[name] = value
    return {"precision": "fp32", **found, "distance": distance, "sent": sent,
            "offloads": device == "cpu" or "cpu-optimizer" in words}


def _said(table: tuple[Setting, ...], given: Plain, source: Source) -> dict[str, Any]:
    """Figures of settings that are there, without what the absence of others says."""
    there = tuple(one._replace(unless=(None,)) for one in table
                  if given.get(one.name, False) is not False or one.words is None)
    there = tuple(one for one in there if one.name in given)
    return figures_in(there, given, source)


def _batches(f: Mapping[str, Any], source: Source) -> tuple[int, int, int]:
    """Samples of a step, of a micro-batch, and micro-batches; what is missing follows.

    Source: deepspeed==0.19.8 deepspeed/runtime/config.py, _set_batch_related_parameters.
    """
    batch, micro, steps = (f.get(name) for name in ("global_batch", "micro_batch", "micro_batches"))
    if batch and micro and steps:
        return batch, micro, steps
    world = source.asked.devices or source.world
    if not (batch or micro):
        raise InputError(f"{source.where}: train_batch_size and train_micro_batch_size_per_gpu: "
                         "missing; give one by --set train_micro_batch_size_per_gpu=N")
    if world is None:
        lacking = "train_batch_size" if not batch else "train_micro_batch_size_per_gpu"
        raise InputError(f"{source.where}: {lacking}: missing; give it by --set {lacking}=N, or "
                         "--devices N")
    split = (f.get("tp") or 1) * (f.get("pp") or 1) * (f.get("cp") or 1)
    dp = divided(source, "devices", world, split, "the product of the degrees")
    if batch and micro:
        steps = divided(source, "train_batch_size", batch, micro * dp,
                        "train_micro_batch_size_per_gpu x data parallel degree")
    elif batch:
        steps = steps or 1
        micro = divided(source, "train_batch_size", batch, dp * steps,
                        "data parallel degree x gradient_accumulation_steps")
    else:
        assert micro
        steps = steps or 1
        batch = micro * steps * dp
    return batch, micro, steps


def _optimizer(given: Plain, words: Plain, source: Source, notes: list[str]) -> str:
    kind = given.get(_TYPE)
    if kind is not None:
        name = str(kind).lower()
        found = "adam" if name in _ADAM else {"sgd": "sgd"}.get(name)
        if found is None:
            raise InputError(f"{source.where}: {_TYPE}: got {shorten(kind)}; allowed: Adam, AdamW, "
                             "SGD")
        momentum = given.get(_MOMENTUM, 0)
        return "sgd-momentum" if found == "sgd" and momentum else found
    if _OPTIM in words:
        if words[_OPTIM] not in _OPTIMIZERS:
            raise InputError(f"--optim: got {shorten(words[_OPTIM])}; allowed: "
                             f"{', '.join(_OPTIMIZERS)} (others have no price)")
        return _OPTIMIZERS[words[_OPTIM]]
    if "optimizer" in words:
        momentum = words.get("sgd-momentum", 0.9)
        return "adam" if words["optimizer"] == "adam" else "sgd-momentum" if momentum else "sgd"
    if source.asked.optimizer is None:
        notes.append("the optimizer is not in the files: Adam is assumed (--optimizer)")
    return source.asked.optimizer or "adam"


def _stack(
    f: Mapping[str, Any], stack: Stack, precision: str, chain: Chain, notes: list[str]
) -> dict[str, Any]:
    """What the files say otherwise than the stack."""
    zero = f.get("zero", 0)
    found: dict[str, Any] = {}
    if zero and not f["overlap"]:
        found["overlap_grad_reduce"] = 0.0
    elif zero and not stack.overlap_grad_reduce:
        notes.append(f"overlap_comm: with stack {stack.name} nothing overlaps")
    # deepspeed==0.19.8 deepspeed/runtime/engine.py, get_data_types
    narrow = "fp32" if precision == "fp32" else "bf16"
    if zero or narrow == "bf16":
        found["gradient_dtype"] = "bf16" if f.get("gradients", narrow) != "fp32" else "fp32"
    if zero == 3:
        found["reshard_after_forward"] = f["distance"] < chain.parameters
    if (f.get("pp") or 1) > 1 and f.get("schedule") != "dualpipev":
        found["scatter_gather"] = f.get("scattered", True)
    if "model.layers" in f:
        found["flash_attention"] = "flash" in f
    return {name: value for name, value in found.items() if getattr(stack, name) != value}


def _sizes(
    f: Mapping[str, Any], precision: str, given: Plain, stack: Stack, model: Model, source: Source
) -> dict[str, Any]:
    """What numbers of elements say otherwise than the stack, whose figures are those of defaults.

    Buffers of reduce_bucket_size elements hold gradients: one of ZeRO-3, in the format that they
    are reduced in (deepspeed/runtime/zero/stage3.py:475, 780), two of ZeRO-1 and 2 where the next
    is filled meanwhile, those of ZeRO-2 in the format of parameters
    (deepspeed/runtime/zero/stage_1_and_2.py:1253, 3257 to 3278). Nothing is gathered ahead without
    a bucket or without parameters that may live
    (deepspeed/runtime/zero/partitioned_param_coordinator.py:453 to 457).

    Raises
    ------
    InputError : parameters that stay whole are more than vectors.
    """
    sizes = {name: default if given.get(name) is None else given[name]
             for name, default in _DEFAULTS.items()}
    for name, size in sizes.items():
        if type(size) is not int or not 0 <= size <= 10**18:
            raise InputError(f"{source.where}: {name}: got {shorten(size)}; allowed: a whole "
                             "number, 0 to 10**18")
    found: dict[str, Any] = {}
    zero, more = f.get("zero", 0), sizes[_BUCKET] - _DEFAULTS[_BUCKET]
    if zero and more > 0:
        wide = (precision if zero == 2 else f.get("gradients", precision)) == "fp32"
        found["workspace"] = stack.workspace + more * (4 if wide else 2) * (
            2 if zero < 3 and f["overlap"] else 1)
    if zero == 3:
        if not (sizes[_PREFETCH] and sizes[_LIVE]) and stack.overlap_zero3:
            found["overlap_zero3"] = 0.0
        smallest = max(model.hidden * model.head_dim, _DEFAULTS[_PERSISTENT] + 1)
        if sizes[_PERSISTENT] >= smallest:
            raise InputError(f"{source.where}: {_PERSISTENT}: got {sizes[_PERSISTENT]}; allowed: "
                             f"below {smallest}, the elements of a product (whole copies of "
                             "products have no price)")
    return found


def _offload(f: Mapping[str, Any], source: Source) -> str:
    """The optimizer on the hosts, in the words of a configuration."""
    if not f["offloads"]:
        return "none"
    share = f.get("offload_optimizer", 1.0)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise InputError(f"{source.where}: zero_optimization.offload_optimizer.ratio: got "
                         f"{shorten(share)}; allowed: 0 to 1")
    return str(Offload(float(share), 0, ()))


def _model(f: Mapping[str, Any], source: Source, megatron: bool) -> Model:
    """The model of Megatron-DeepSpeed's arguments, or the one that the user names."""
    if not megatron or source.asked.model is not None:
        return named_model(source, None, "DeepSpeed's JSON does not describe the model")
    lacking = [one.name for one in MODEL if one.figure in ("model.hidden", "model.heads", "seq_len")
               and one.figure not in f]
    if lacking:
        raise InputError(f"--{lacking[0]}: missing; allowed: a whole number")
    if source.asked.vocab is None:
        raise InputError("--vocab-size: the tokens of the tokenizer are not in the script; give "
                         "them by --vocab N")
    hidden, heads, gated = f["model.hidden"], f["model.heads"], f.get("model.gated", False)
    ffn = f.get("model.ffn") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    found: dict[str, Any] = {
        "name": "model", "layers": f["model.layers"], "hidden": hidden, "heads": heads,
        "kv_heads": f.get("kv_groups") or heads, "ffn": ffn, "gated": gated,
        "vocab": source.asked.vocab, "norm": f.get("model.norm", "layernorm"),
        "bias": f.get("model.bias", True), "tied_embeddings": f.get("model.tied_embeddings", True),
        "source": "read from a command line of Megatron-DeepSpeed"}
    if f.get("kv_channels"):
        found["head_dim"] = f["kv_channels"]
    if not f.get("model.rotary", False):
        found["positions"] = f.get("positions") or f["seq_len"]
    if f.get("moe.experts", 1) > 1:
        found["moe"] = {"experts": f["moe.experts"], "top_k": f.get("moe.top_k", 1), "ffn": ffn,
                        "every": f.get("moe.every", 2)}  # megatron/arguments.py: expert-interval
        if not f.get("moe.plain", False):
            raise InputError("--disable-moe-token-dropping: missing; allowed: with it (experts of "
                             "limited capacity have no price)")
    return Model.parse(found, source.where)


def _chunks(
    chain: Chain, pp: int, schedule: str | None, f: Mapping[str, Any], source: Source
) -> list[tuple[Span, ...]]:
    """Layers of the chunks: all layers divided evenly, or those of a type; more to the first."""
    if pp == 1:
        return [((0, len(chain)),)]
    assert schedule is not None
    parts = pp * 2 if is_folded(schedule) else pp
    method = f.get("partition", "type:transformer" if "model.layers" in f else None)
    first, end = (0, len(chain)) if method == "uniform" else chain.body
    size, more = divmod(end - first, parts)
    if method not in ("uniform", "type:transformer"):
        raise InputError(f"{source.where}: --partition-method: got {shorten(method)}; "
                         "allowed: uniform, type:transformer (--set partition-method=uniform)")
    cuts = [0, *accumulate(size + (n < more) for n in range(parts))]
    cuts = [cut + first for cut in cuts]
    cuts[0], cuts[-1] = 0, len(chain)
    return chunks_at(cuts, pp, schedule)

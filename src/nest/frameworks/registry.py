"""The software that NEST writes and reads files of: one entry for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from nest.evaluation.plans import Plan
from nest.frameworks import fsdp2, huggingface, maxtext, translated
from nest.frameworks.deepspeed import read as read_deepspeed
from nest.frameworks.deepspeed import write as deepspeed
from nest.frameworks.megatron import bridge
from nest.frameworks.megatron import write as megatron
from nest.frameworks.settings import Plain, flat, settings
from nest.frameworks.source import FileDescription, Source, assigned
from nest.frameworks.target import Target
from nest.frameworks.text import edit_json, edit_python, edit_toml, edit_yaml
from nest.frameworks.text.edit_python import Code, Section
from nest.frameworks.text.python_text import Module, PythonCall, UnknownValue, fields_of
from nest.frameworks.torchtitan import read as read_torchtitan
from nest.frameworks.torchtitan import write as torchtitan
from nest.inputs.configuration import Configuration
from nest.inputs.files import parse_text
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model


class BoundInputs(NamedTuple):
    """What bounds of a space depend on."""

    model: Model
    job: Job
    way: Configuration
    words: frozenset[str] | None
    """Arguments that may change; None: all."""


Bounds = Iterable[Mapping[str, object]]
"""Parts of a space: what each dimension is bounded to, a value or a tuple of several."""


class Format(NamedTuple):
    """A file of a target."""

    said: Callable[[Plan], Plain]
    """Settings of a plan by name, as `nest export` writes them."""
    read: Callable[[Source], Plain]
    """Settings of a file by name, as they stand there."""
    edited: Callable[[Source, Plain, list[str]], str]
    """Its text with other values, without some settings. Raises ValueError where it has no place
    for them."""
    overrides: Callable[[Source], Plain]
    """Settings that are given besides the file, and come first."""
    spelled: Callable[[Source], Mapping[str, str]] = lambda _: {}
    """Those of the command line as they are written there, without hyphens, by name."""
    plain: bool = False
    """They are written NAME=VALUE."""
    shown: Callable[[Any], str] = json.dumps
    """The text of a value."""
    overlaps: Mapping[str, str] = {}
    """Settings that switch overlap on, and the field of a stack that prices it."""
    together: Mapping[str, tuple[str, ...]] = {}
    """Settings that say the same in another way, and are taken out with one that changes."""
    environment: Callable[[Plan], Mapping[str, str]] = lambda _: {}
    """Variables that a plan asks for."""
    words: Callable[[Plan], Mapping[str, tuple[str, ...]]] | None = None
    """Arguments of its launch that a plan decides, by name; None: the file says all."""
    stacks: Callable[[Stack], Iterable[Stack]] = lambda stack: (stack,)
    """A stack, and others that settings make of it and compute no number otherwise."""
    bounds: Callable[[BoundInputs], Bounds] = lambda _: ({},)
    """Parts of a space that the file can say."""
    mapped: bool = False
    """It can number ranks replica by replica."""


class Framework(NamedTuple):
    """Training software."""

    target: Target | None = None
    """What a plan for it is written as; None: NEST writes none."""
    read: Callable[[Source], FileDescription] | None = None
    """Reads one of its files; None: it has launch scripts alone."""
    format: Format | None = None
    """What a better plan needs of its file."""


# ---------------------------------------------------------------- files of plain data


def _data(suffix: str) -> Callable[[Source], Plain]:
    def read(source: Source) -> Plain:
        return flat(parse_text(source.text, suffix, source.where))
    return read


def _changed(
    edited: Callable[[str, Plain, list[str]], str]
) -> Callable[[Source, Plain, list[str]], str]:
    return lambda source, given, taken: with_ends(
        source.text, lambda text: edited(text, given, taken))


def with_ends(text: str, changed: Callable[[str], str]) -> str:
    """A text changed, which keeps \\r\\n where all of its lines end so."""
    if 0 < text.count("\n") == text.count("\r\n"):
        return changed(text.replace("\r\n", "\n")).replace("\n", "\r\n")
    return changed(text)


# ---------------------------------------------------------------- Python


def _fields(function: str | None) -> Callable[[Source], Plain]:
    def read(source: Source) -> Plain:
        module = Module(source.text, source.where, source.asked.ignored)
        made = module.returned(_named(source, function, module))
        return {name: _plain(value) for name, value in fields_of(made, source.where).items()}
    return read


def _constants(source: Source) -> Plain:
    found = Module(source.text, source.where).constants
    return {name: _plain(value) for name, value in found.items()}


def _named(source: Source, function: str | None, module: Module) -> str:
    if source.asked.function is not None:
        return source.asked.function
    return function or read_torchtitan.function_of(module, source)


def _plain(value: Any) -> Any:
    """A value of a module to compare; calls without their fields, which are there by name."""
    if isinstance(value, PythonCall):
        return Code(f"{value.name}({', '.join(repr(_plain(one)) for one in value.words)})")
    return Code(value.text) if isinstance(value, UnknownValue) else value


def _words(source: Source) -> Mapping[str, str]:
    """Settings of a command line that are written NAME=VALUE."""
    names = [word.lstrip("+").partition("=")[0] for word in source.words]
    return {name: name for name in names}


def _fields_changed(
    function: str | None, sections: Mapping[str, Section]
) -> Callable[[Source, Plain, list[str]], str]:
    def edited(source: Source, given: Plain, taken: list[str]) -> str:
        module = Module(source.text, source.where, source.asked.ignored)
        return with_ends(source.text, lambda text: edit_python.edited(
            text, given, taken, where=source.where, sections=sections,
            function=_named(source, function, module), ignored=source.asked.ignored))
    return edited


def _code(value: Any) -> str:
    return value.text if isinstance(value, Code) else repr(value)


# ---------------------------------------------------------------- targets


def _torchtitan(plan: Plan) -> Plain:
    here = torchtitan.figures_here(plan)
    policy = torchtitan.POLICIES[str(here["recompute"])]
    made = Code(f"{policy}.Config()", (
        "torchtitan.distributed.activation_checkpoint", policy)) if policy else None
    return {**settings(torchtitan.PYTHON, here), "activation_checkpoint": made}


def _torchtitan_stacks(stack: Stack) -> Iterable[Stack]:
    """With CUDA graphs and without: pipelines and experts exclude them."""
    graphs = stack.cuda_graphs == "step"
    return (stack, stack.replace(cuda_graphs="none")) if graphs else (stack,)


def _torchtitan_bounds(given: BoundInputs) -> Bounds:
    """float8 products need divided sequences."""
    return ({"sp": True} if given.job.precision == "fp8" else {},)


def _torchtitan_toml(plan: Plan) -> Plain:
    return settings(torchtitan.OLD, torchtitan.figures_here(plan, "output"))


def _deepspeed(plan: Plan) -> Plain:
    return settings(deepspeed.JSON, deepspeed.figures_here(plan))


def _deepspeed_words(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    return {first[2:]: tuple(rest) for section in deepspeed.arguments(plan).values()
            for first, *rest in section}


def _deepspeed_bounds(given: BoundInputs) -> Bounds:
    """What no argument says stays: how the program divides layers and products, and recompute."""
    way, stage = given.way, given.way.stages[0]
    fixed: dict[str, object] = {}
    if given.words is not None:
        asked = {"ep": "moe-expert-parallel-size", "etp": "enable-expert-tensor-parallelism"}
        now = {"ep": stage.ep, "etp": stage.etp}
        fixed = {name: now[name] for name, word in asked.items() if word not in given.words}
        pipeline = way.pp > 1 and {"pipeline-model-parallel-size", "partition-method"} <= {
            *given.words}
        fixed["pp"] = tuple(range(2, given.model.layers + 3)) if pipeline else way.pp
        if way.pp > 1 and "tensor-model-parallel-size" not in given.words:
            fixed["tp"] = stage.tp
        if way.pp > 1 and "pipeline-schedule" not in given.words:
            fixed["schedule"] = way.schedule
        if way.pp == 1 and "deepspeed-activation-checkpointing" not in given.words:
            fixed["recompute"] = stage.recompute
        if given.model.moe is None:
            fixed.pop("ep", None)
            fixed.pop("etp", None)
    if given.job.precision in ("bf16", "fp16") and given.job.stack.gradient_dtype == "fp32":
        fixed["zero"] = (1, 2, 3)  # without ZeRO gradients are as narrow
    return (fixed,)


def _bridge(plan: Plan) -> Plain:
    here = bridge.figures_here(plan)
    return {**settings(bridge.SETTINGS, here), **{
        f"comm_overlap.{name}": value for name, value in settings(bridge.OVERLAP, here).items()}}


def _maxtext(plan: Plan) -> Plain:
    return settings(maxtext.SETTINGS, maxtext.figures_here(plan))


def _maxtext_bounds(given: BoundInputs) -> Bounds:
    """Axes of context and experts shard parameters, as ZeRO-3 does, and are not combined."""
    if given.model.moe is None:
        return {"zero": 3}, {"cp": 1}
    return {"zero": 3, "ep": 1}, {"zero": 3, "cp": 1}, {"cp": 1, "ep": 1}


def _fsdp2(plan: Plan) -> Plain:
    return {name: Code(str(value)) if name in fsdp2.DTYPES else value
            for name, value in fsdp2.constants(plan).items()}


def _fsdp2_bounds(given: BoundInputs) -> Bounds:
    """What its functions divide, as `nest export` says it; states are sharded over cp too."""
    model = given.model
    whole = model.moe is not None or model.mla is not None or model.tied_embeddings or (
        not model.gated or model.norm != "rmsnorm")
    fixed: dict[str, object] = {"ep": 1, "etp": 1, "tp": 1} if whole else {}
    return {**fixed, "zero": (2, 3)}, {**fixed, "zero": 0, "cp": 1}


_CONFIG = "torchtitan.config"
_TITAN = {name: Section(_CONFIG, f"{name.capitalize()}Config")
          for name in ("parallelism", "training", "compile")}
FRAMEWORKS: Mapping[str, Framework] = {
    "megatron": Framework(megatron.TARGET),
    "deepspeed": Framework(deepspeed.TARGET, read_deepspeed.read, Format(
        _deepspeed, _data(".json"), _changed(edit_json.edited),
        lambda source: {name: value for name, value in source.asked.settings.items()
                        if name not in read_deepspeed.READ},
        overlaps={"zero_optimization.overlap_comm": "overlap_grad_reduce"},
        together={"zero_optimization.offload_optimizer.device": ("zero_optimization.cpu_offload",),
                  **{name: (short,) for short, name in read_deepspeed.PLAIN_NAMES.items()}},
        environment=deepspeed.environment, words=_deepspeed_words, bounds=_deepspeed_bounds)),
    "torchtitan": Framework(torchtitan.TARGET, read_torchtitan.read_python, Format(
        _torchtitan, _fields(None), _fields_changed(None, _TITAN), read_torchtitan.overrides,
        read_torchtitan.spelled, shown=_code, together={
            "parallelism.module_fqns_per_model_part": read_torchtitan.PIPELINE},
        stacks=_torchtitan_stacks, bounds=_torchtitan_bounds)),
    "torchtitan-toml": Framework(torchtitan.OLD_TARGET, read_torchtitan.read_toml, Format(
        _torchtitan_toml, _data(".toml"), _changed(edit_toml.edited), read_torchtitan.overrides,
        read_torchtitan.spelled,
        together={"parallelism.module_fqns_per_model_part": read_torchtitan.PIPELINE},
        bounds=lambda _: ({"sp": True},))),
    "fsdp2": Framework(fsdp2.TARGET, fsdp2.read, Format(
        _fsdp2, _constants, _changed(edit_python.constants_edited), fsdp2.overrides,
        shown=_code, bounds=_fsdp2_bounds)),
    "megatron-bridge": Framework(bridge.TARGET, bridge.read, Format(
        _bridge, _fields("plan"), _fields_changed("plan", {"comm_overlap": Section(
            "megatron.bridge.training.comm_overlap", "CommOverlapConfig", optional=True)}),
        partial(assigned, section=True), _words, plain=True, shown=_code,
        overlaps={f"comm_overlap.{name}": field for name, field in (
            ("tp_comm_overlap", "overlap_tp"), ("overlap_grad_reduce", "overlap_grad_reduce"),
            ("overlap_param_gather", "overlap_param_gather"))},
        together={"model.pipeline_model_parallel_layout": tuple(bridge.SPLIT)},
        environment=bridge.environment, mapped=True)),
    "maxtext": Framework(maxtext.TARGET, maxtext.read, Format(
        _maxtext, _data(".yml"), _changed(edit_yaml.edited), assigned,
        _words, plain=True, bounds=_maxtext_bounds)),
    **{name: Framework(read=read) for name, read in translated.READERS.items()},
    "accelerate": Framework(read=huggingface.read_accelerate),
    "trainer": Framework(read=huggingface.read),
}
"""Software by name."""
TARGETS = {name: one.target for name, one in FRAMEWORKS.items() if one.target}
"""Those that plans are written for."""
READERS = {name: one.read for name, one in FRAMEWORKS.items() if one.read}
"""Those whose files are read; scripts of Megatron-LM are command lines."""
FORMATS = {name: one.format for name, one in FRAMEWORKS.items() if one.format}
"""Those whose files get a better plan."""

"""A module of Python for PyTorch's FSDP2: mesh, tensor parallelism, recompute, sharding.

Names and meanings are those of torch==2.13.0:
torch/distributed/fsdp/_fully_shard/_fully_shard.py:98, torch/distributed/tensor/parallel/,
torch/utils/checkpoint.py,
torch/distributed/tensor/experimental/_context_parallel/_attention.py:77. Blocks and their parts
have the names of transformers' decoders, such as `LlamaForCausalLM`, which count positions by the
length of their embeddings (transformers==5.23.0 models/llama/modeling_llama.py:375).
`.ci/frameworks` trains with the module on four CPUs.

Its constants say the division, and are read back; nothing of a module is run. A training program of
another form has none, and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.frameworks.figures import Division, Figures, configuration, figures, job
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.settings import Plain, sections, settings
from nest.frameworks.source import (
    FileDescription,
    Source,
    figures_in,
    named_model,
    said,
    typed,
    understood,
)
from nest.frameworks.target import (
    Files,
    Sheet,
    Target,
    model_of,
    plain_lines,
    stage_by_stage,
    written,
)
from nest.frameworks.text.python_text import Module, UnknownValue
from nest.inputs import load_stack
from nest.model import build_chain
from nest.units import shorten

MODULE = "parallelize.py"
SETTINGS = sections("fsdp2")["constants"]
"""Constants of the module."""
DTYPES = ("PARAM_DTYPE", "REDUCE_DTYPE")
MODULES = {"norm": ("input_layernorm", "post_attention_layernorm"), "mlp_act": ("mlp.act_fn",),
           "mlp": ("mlp",), "moe": ("mlp",), "core_attn": ("self_attn",)}
"""Parts of a block that are run again. Of attention, only its core is."""


def figures_here(plan: Plan) -> Figures:
    """Figures of a plan that the table names."""
    found = figures(plan.inputs.job, plan.configuration)
    # Without ZeRO a shard is whole, and nothing is gathered.
    return {**found, "zero": found["zero"] or 2}


def _inexpressible(plan: Plan) -> Iterator[str]:
    model, job, stage = model_of(plan), plan.inputs.job, plan.configuration.stages[0]
    if model.kind != "decoder":
        yield f"model.kind {model.kind}: the names of its modules are not known"
    if job.narrow:
        yield f"precision {job.precision}: its products are another package's (torchao)"
    if stage.ep > 1:
        yield f"ep {stage.ep}: FSDP2 divides no experts; torchtitan does (stack torchtitan)"
    if stage.cp > 1 and stage.zero == 0:
        yield f"zero 0 with cp {stage.cp}: states are sharded over the ranks of cp too"
    if stage.etp > 1 and stage.tp == 1 and model.moe is not None:
        yield f"etp {stage.etp}: FSDP2 divides no experts"
    if stage.tp > 1 and model.moe is not None:
        yield f"tp {stage.tp}: experts have no division by name"
    if stage.tp > 1 and model.mla is not None:
        yield f"tp {stage.tp}: latent attention has no division by name"
    if stage.tp > 1 and model.tied_embeddings:
        yield f"tp {stage.tp}: a table shared by embedding and head is divided in two ways"
    if stage.tp > 1 and (not model.gated or model.norm != "rmsnorm"):
        yield f"tp {stage.tp}: names of modules are known for gated MLPs and RMSNorm"
    for name in stage.recompute_modules:
        if name not in MODULES:
            yield f"recompute_modules {name}: no module is known by it"


def constants(plan: Plan) -> Plain:
    """Constants of the module that a plan decides; those of ``DTYPES`` are names of torch's."""
    given = settings(SETTINGS, figures_here(plan))
    given.setdefault("RECOMPUTE_LAYERS", None)
    return {**given, **{name: f"torch.{given[name]}" for name in DTYPES},
            "PARTS": {name: MODULES[name] for name in given["RECOMPUTE_MODULES"]}}


def module_text(plan: Plan, title: str, priced: str) -> str:
    """The text of the module."""
    given = {"LAYERS": model_of(plan).layers, **constants(plan)}
    rows = (f"{name} = {value if name in DTYPES else repr(value)}" for name, value in given.items())
    lines = ['"""The division of a plan.', "", *plain_lines(title, priced), '"""', ""]
    text = Path(__file__).with_name("fsdp2_module.txt").read_text(encoding="utf-8")
    return "\n".join(lines) + "\n" + text.replace("@CONSTANTS@", "\n".join(rows), 1)


def _files(given: Sheet) -> Files:
    script = LaunchScript(
        title=(given.title, given.priced), variables={},
        asked={"PROGRAM": f"training program that imports {MODULE} (mesh, parallelize)"},
        unsaid=("model, data, optimizer and its learning rate, clipping, steps, checkpoints: "
                "PROGRAM",),
        given=["export PYTHONPATH=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)"
               "${PYTHONPATH:+:$PYTHONPATH}"],
        sections={}, program='"$PROGRAM"', passed=("PYTHONPATH",))
    return written(given, script, {MODULE: module_text(given.plan, given.title, given.priced)})


TARGET = Target(
    version="PyTorch FSDP2 2.13.0", rules=(("PyTorch FSDP2", "2.13.0"),), stacks="fsdp",
    inexpressible=_inexpressible, order=stage_by_stage, files=_files)


def overrides(source: Source) -> Plain:
    """Constants that the user gives otherwise."""
    return {name: typed(value) for name, value in source.asked.settings.items()}


def read(source: Source) -> FileDescription:
    """The module's constants.

    Raises
    ------
    InputError : constants that may change the cost and are not understood, or are missing.
    """
    constants = Module(source.text, source.where).constants | overrides(source)
    found: dict[str, Any] = {
        name: value.text.removeprefix("torch.") if isinstance(value, UnknownValue)
        and name.endswith("_DTYPE") else value for name, value in constants.items()}
    notes: list[str] = []
    given = understood(found, SETTINGS, "fsdp2", source, notes, ("LAYERS",))
    for one in SETTINGS:
        if one.name not in given and one.figure not in ("recompute_layers", "cp_comm"):
            raise InputError(f"{source.where}: no {one.name}; allowed: a module that nest export "
                             "--to fsdp2 wrote, with its constants")
    f = figures_in(SETTINGS, given, source)
    ways = f"set_rotate_method({'ROTATE' if 'ROTATE' in given else chr(34) + 'alltoall' + chr(34)})"
    if ways not in source.text and f["cp"] > 1:
        raise InputError(f"{source.where}: CP: got {f['cp']}; allowed: 1, or keys and values that "
                         "are passed around or gathered (set_rotate_method)")
    model = named_model(source, None, "the module does not name its model")
    if given.get("LAYERS", model.layers) != model.layers:
        raise InputError(f"{source.where}: LAYERS: got {shorten(given['LAYERS'])}; allowed: "
                         f"{model.layers}, the layers of {model.name}")
    stack = source.asked.stack or "fsdp"
    kept = load_stack(stack).gradient_dtype
    changes = {} if f["gradient_dtype"] == kept else {"gradient_dtype": f["gradient_dtype"]}
    dp = f["replicas"] * f["shards"]
    zero = f["zero"] if f["zero"] == 3 or f["shards"] * f["cp"] > 1 else 0
    modules = f["recompute_modules"]
    if f["recompute"] not in ("none", "full", "selective") or not isinstance(modules, tuple):
        raise InputError(f"{source.where}: RECOMPUTE, RECOMPUTE_MODULES: got "
                         f"{shorten(f['recompute'])}, {shorten(modules)}; allowed: none, full or "
                         "selective, and a tuple of modules")
    way = configuration(Division(
        [((0, len(build_chain(model))),)], dp, f["micro_batch"], tp=f["tp"], sp=f["sp"], cp=f["cp"],
        cp_comm=f.get("cp_comm", "p2p") if f["cp"] > 1 else "p2p", etp=f["tp"], zero=zero,
        replicas=f["replicas"] if zero and f["replicas"] > 1 else None,
        recompute=f["recompute"], modules=modules, recompute_layers=f.get("recompute_layers")),
        source.places, source.where, notes)
    optimizer = said(source, "the optimizer", None, source.asked.optimizer or "adam",
                     "--optimizer")
    if source.asked.optimizer is None:
        notes.append("the optimizer is not in the file: Adam is assumed (--optimizer)")
    return FileDescription(model, job(
        dp * f["micro_batch"] * f["micro_batches"], f["seq_len"], f["precision"], optimizer, stack,
        changes), way, dp * f["tp"] * f["cp"], tuple(notes))

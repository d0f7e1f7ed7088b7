"""DeepSpeed's JSON, and the arguments of what the JSON cannot say.

Names and meanings of the JSON are those of deepspeed==0.19.8: deepspeed/runtime/config.py:447,
deepspeed/runtime/zero/config.py, deepspeed/runtime/zero/offload_config.py,
deepspeed/runtime/precision_config.py, deepspeed/runtime/pipe/engine.py:217; `.ci/frameworks` has
DeepSpeed's own DeepSpeedConfig take them.
Arguments are those of deepspeedai/Megatron-DeepSpeed@4efb479 megatron/arguments.py, whose
`pretrain_gpt.py` is launched with a plan for the stacks of Megatron-DeepSpeed. A plan for DeepSpeed
by itself launches a program of the user's with the same names, and two of this file's: how a
pipeline divides its layers (``--partition-method``) and orders them (``--pipeline-schedule``) is
decided by code.

hpZ and MiCS keep second copies of parameters or shards; no plan that the rules let pass has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from nest.evaluation.plans import Plan
from nest.frameworks.figures import Figures, figures, model_figures
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.megatron.write import ASKED, lacking
from nest.frameworks.settings import Setting, nested, sections, settings, words
from nest.frameworks.target import (
    PLAIN_ATTENTION,
    PLAIN_EXPERTS,
    Files,
    Sheet,
    Target,
    model_of,
    stage_by_stage,
    unlike,
    written,
)
from nest.model import build_chain
from nest.schedules.registry import is_folded
from nest.stacks.figures import plan_figures

VERSION = "DeepSpeed 0.19.8"
MEGATRON = "Megatron-DeepSpeed"
"""Software whose own program is launched."""
CONFIG = "ds_config.json"

JSON, ARGUMENTS, MODEL, TRAINING = (
    sections("deepspeed")[name] for name in ("json", "parallel", "model", "training"))

def figures_here(plan: Plan) -> Figures:
    """Figures of a plan that the tables name."""
    job, way, stage = plan.inputs.job, plan.configuration, plan.configuration.stages[0]
    model, stack = model_of(plan), plan.inputs.job.stack
    given = {**figures(job, way), **model_figures(model)}
    narrow = "fp16" if job.precision == "fp16" else "bf16"
    full = stage.recompute == "full"
    return {
        **given, "pipeline": way.pp > 1, "megatron": _megatron(plan), "ulysses": stage.cp > 1,
        "expert_tp": model.moe is not None and stage.etp > 1,
        "gradients": narrow if stack.gradient_dtype == "bf16" else "fp32",
        "reshard": stack.reshard_after_forward, "overlap": stack.overlap_grad_reduce > 0.0,
        "scattered": stack.scatter_gather and not is_folded(way.schedule),
        "flash": stack.flash_attention, "offloads": given["offload_optimizer"] != 0.0,
        "untested": job.optimizer != "adam" and stage.zero > 0,
        "partition": _partition(plan) if way.pp > 1 else None,
        "recompute_method": ("block" if stage.recompute_layers else "uniform") if full else None,
        "kv_groups": model.kv_heads if model.kv_heads != model.heads else None,
        "kv_channels": model.head_dim if model.head_dim * model.heads != model.hidden else None,
        "positions": model.positions or job.seq_len, "no_dropout": 0,
        "momentum": 0.0 if job.optimizer == "sgd" else None, "moe.plain": model.moe is not None}


def _megatron(plan: Plan) -> bool:
    known = plan.inputs.job.stack.capabilities
    return known is not None and known.software == MEGATRON


def _partition(plan: Plan) -> str:
    """How a PipelineModule divides the layers: those of a type, or all.

    Source: deepspeed==0.19.8 deepspeed/runtime/pipe/module.py:398.
    """
    cuts = plan_figures(build_chain(model_of(plan)), plan.inputs.job, plan.configuration)["cuts"]
    assert isinstance(cuts, frozenset)
    return "type:transformer" if cuts & {"even", "front"} else "uniform"


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, way = plan.inputs.job, plan.configuration
    if job.optimizer == "muon":
        yield "job.optimizer muon: which parameters it updates is the program's"
    if (not way.stages[0].zero and job.precision in ("bf16", "fp16")
            and job.stack.gradient_dtype == "fp32"):
        yield (f"zero 0: without ZeRO DeepSpeed keeps gradients in {job.precision}, and the plan "
               "is priced with fp32; plan with --zero 1,2,3, or a stack whose gradient_dtype is "
               "bf16")
    if _megatron(plan):
        yield from _lacking(plan)


def _lacking(plan: Plan) -> Iterator[str]:
    """What Megatron-DeepSpeed has no argument for."""
    model, job = model_of(plan), plan.inputs.job
    yield from lacking(model, job, MEGATRON, PLAIN_ATTENTION)
    moe = model.moe
    if moe is not None:
        plain = {"ffn": model.ffn, "shared_ffn": 0, "router_bias": False, "clamped": False,
                 "first_dense": 0, "every": 1, "groups": moe.group_limit, **PLAIN_EXPERTS}
        yield from (f"model.moe.{name}: {MEGATRON}'s experts have no argument for it"
                    for name in unlike(moe, plain))
        if moe.top_k > 2:
            yield f"model.moe.top_k {moe.top_k}: Megatron-DeepSpeed sends a token to 1 or 2 experts"


_DATA = [
    "MEGATRON_DEEPSPEED=${MEGATRON_DEEPSPEED:-.}  # its folder",
    'DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HFTokenizer',
    '  --tokenizer-model "${TOKENIZER:-}" --save "${CHECKPOINT:-}" --load "${CHECKPOINT:-}"',
    '  --save-interval "${SAVE_INTERVAL:-500}" --lr "${LR:-}" --train-iters "${TRAIN_ITERS:-}")']
_UNSAID = ("optimizer and its learning rate, data, steps and checkpoints: PROGRAM",
           f"clipping: gradient_clipping (1.0) in {CONFIG}")
"""What neither plan nor JSON has: deepspeed==0.19.8 deepspeed/runtime/constants.py:203."""
_MEGATRON_UNSAID = ("positions, initial values, schedule of the learning rate, weight decay, "
                    "evaluation: arguments of megatron/arguments.py",)
_OWN = {"PROGRAM": "program that calls deepspeed.initialize; it gets the arguments below"}


def configuration(plan: Plan, title: str) -> str:
    """The text of the JSON."""
    found = nested(settings(JSON, figures_here(plan)))
    return json.dumps({"nest": title, **found}, indent=2) + "\n"  # unknown keys are left alone


def arguments(plan: Plan) -> Mapping[str, list[list[str]]]:
    """Sections of arguments by name, the words of each argument."""
    given = figures_here(plan)
    tables: dict[str, tuple[Setting, ...]] = {"PARALLEL": ARGUMENTS}
    if _megatron(plan):
        tables = {"MODEL": MODEL, "PARALLEL": ARGUMENTS, "TRAINING": TRAINING}
    return {name: words(settings(table, given)) for name, table in tables.items()}


def environment(plan: Plan) -> dict[str, str]:
    """Environment variables that the arguments ask for: Megatron-DeepSpeed's alone do.

    Source: deepspeedai/Megatron-DeepSpeed@4efb479 megatron/arguments.py:431.
    """
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if _megatron(plan) and plan.stages[0].sp else {}


def _files(given: Sheet) -> Files:
    plan, own = given.plan, not _megatron(given.plan)
    script = LaunchScript(
        title=(given.title, given.priced), variables=environment(plan),
        asked=_OWN if own else ASKED, unsaid=_UNSAID if own else _MEGATRON_UNSAID,
        given=[] if own else _DATA, sections=arguments(plan),
        program='"$PROGRAM"' if own else '"$MEGATRON_DEEPSPEED/pretrain_gpt.py"',
        words=("--deepspeed", f'--deepspeed_config "$here/{CONFIG}"'),
        more=() if own else ("DATA",))
    return written(given, script, {CONFIG: configuration(plan, given.title)})


TARGET = Target(
    version=f"{VERSION}, {MEGATRON} 4efb479",
    rules=(("DeepSpeed", "0.19.8"), (MEGATRON, "4efb479")),
    stacks="deepspeed or megatron-deepspeed", inexpressible=_inexpressible, order=stage_by_stage,
    files=_files)

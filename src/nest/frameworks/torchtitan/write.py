"""torchtitan's configuration: Python of today, TOML up to 0.2.

Names and meanings are those of torchtitan==0.3.0 torchtitan/config/configs.py:33 to 345,
torchtitan/trainer.py:66 (`Trainer.Config`), torchtitan/distributed/activation_checkpoint.py:166 and
the registries torchtitan/models/llama3/config_registry.py and beside it; of the TOML,
torchtitan==0.2.2 torchtitan/config/job_config.py:243 to 480 and 651. `.ci/frameworks` has both
versions' own code take them.

The Python starts from a configuration of torchtitan's own registry, which describes the model, the
data and the optimizer. What a plan does not decide stays as it is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nest.evaluation.plans import Plan
from nest.frameworks.figures import Figures, figures
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.settings import nested, sections, settings
from nest.frameworks.target import (
    Files,
    Sheet,
    Target,
    catalog_name,
    model_of,
    plain_lines,
    stage_by_stage,
    written,
)
from nest.model import build_chain
from nest.stacks.figures import chunks_of

RULES = (("torchtitan", "0.3.0"),)
STACKS = "torchtitan or torchtitan-eager"
CONFIG = "plan_config.py"
TOML = "plan.toml"

COMMON = sections("torchtitan")["common"]
PYTHON = (*COMMON, *sections("torchtitan")["python"])
"""Settings of 0.3.0."""
OLD = (*COMMON, *sections("torchtitan-toml")["toml"])
"""Settings of the TOML."""
TOKENS = {
    "training.num_tokens_per_microbatch_per_dp_rank": "training.local_batch_size",
    "training.num_tokens_per_train_step": "training.global_batch_size",
    "training.max_context_length": "training.seq_len",
    "parallelism.num_pp_microbatches": "parallelism.pipeline_parallel_microbatch_size",
}
"""Names of sources behind 0.3.0, which count tokens where 0.3.0 counts samples, and its own names.
Source: pytorch/torchtitan@b5bcd76 torchtitan/config/configs.py:37 to 52, 232."""
CONVERTERS = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter",
              "nvfp4": "NVFP4LinearConverter"}
"""Classes that make products of a number format, of torchtitan.components.quantization."""
OLD_CONVERTERS = {"fp8": ("quantize.linear.float8", "tensorwise"),
                  "mxfp8": ("quantize.linear.mx", "mxfp8_cublas")}
"""Their names and recipes in the TOML."""
POLICIES = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
"""Classes of activation checkpointing, by recompute."""


class Base(NamedTuple):
    """A model of torchtitan's registry."""

    family: str
    """Folder of torchtitan/models."""
    function: str
    """Of its config_registry, in 0.3.0."""
    flavor: str


BASES: Mapping[str, Base] = {
    "llama3-8b": Base("llama3", "llama3_8b", "8B"),
    "llama3.1-8b": Base("llama3", "llama3_8b", "8B"),
    "llama3-70b": Base("llama3", "llama3_70b", "70B"),
    "llama3.1-405b": Base("llama3", "llama3_405b", "405B"),
    "qwen3-30b-a3b": Base("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "gpt-oss-120b": Base("gpt_oss", "gpt_oss_120b", "120b"),
}
"""By the names of the catalog; other models need a configuration of the user's own."""
_TOML_FAMILIES = ("llama3", "qwen3")
_OLD_UNSAID = """\
# In no plan, and torchtitan's defaults unless you add them here, or behind launch.sh as
# --training.steps N:
#   tokenizer: model.hf_assets_path
#   data: training.dataset, training.dataset_path
#   steps, learning rate: training.steps, optimizer.lr, lr_scheduler.warmup_steps
#   checkpoints: checkpoint.enable, checkpoint.folder""".splitlines()
"""What a TOML leaves to its user. Source: torchtitan==0.2.2 torchtitan/config/job_config.py:107,
138, 170, 244, 247, 267, 488, 513."""
_UNSAID = """
In no plan, and as {base} has them unless plan() or arguments of launch.sh set them:
tokenizer: config.hf_assets_path
data: config.dataloader, such as
    torchtitan.hf_datasets.text_datasets.HuggingFaceTextDataLoader.Config(dataset="c4")
steps: config.training.steps
learning rate: config.optimizer, such as
    torchtitan.components.optimizer.default_adamw(lr=3e-4); config.lr_scheduler.warmup_steps
checkpoints: config.checkpoint.enable, config.checkpoint.folder"""
"""What a module leaves to its user. Source: torchtitan==0.3.0 torchtitan/trainer.py:71 to 99,
torchtitan/config/configs.py:58, torchtitan/models/llama3/config_registry.py:257 to 292, and the
classes that these name."""


def figures_here(plan: Plan, head: str = "lm_head") -> Figures:
    """Figures of a plan that the tables name.

    Parameters
    ----------
    head : name of the module of the head: ``output`` up to 0.2.
    """
    job, way, model = plan.inputs.job, plan.configuration, model_of(plan)
    base = BASES.get(catalog_name(model))
    # A model of the user's own is named on the command line.
    named = base is not None and base.family in _TOML_FAMILIES
    modules: Any = _modules(plan, head) if way.pp > 1 else None
    zero = way.stages[0].zero
    return {
        **figures(job, way), "pipeline": way.pp > 1, "experts": model.moe is not None,
        # With a pipeline gradients stay whole until their last micro-batch.
        "sharding": 2 if way.pp > 1 and zero == 1 else zero,
        "modules": modules, "compiled": not job.stack.name.startswith("torchtitan-eager"),
        "graphs": job.stack.cuda_graphs == "step",
        "converters": OLD_CONVERTERS.get(job.precision, ())[:1] or None,
        "flavor": base.flavor if base and named else None,
        "family": base.family if base and named else None}


def _modules(plan: Plan, head: str) -> list[list[str]]:
    """Names of the modules of each chunk, in the order of the layers."""
    numbers = iter(range(model_of(plan).layers))
    found = []
    for chunk in chunks_of(build_chain(model_of(plan)), plan.configuration):
        names = []
        for layer in chunk:
            if layer.startswith("embedding"):
                names.append("tok_embeddings")
            elif layer.startswith("head"):
                names += ["norm", head]
            else:
                names.append(f"layers.{next(numbers)}")
        found.append(names)
    return found


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, model, stage = plan.inputs.job, model_of(plan), plan.configuration.stages[0]
    if model.mtp_layers:
        yield "model.mtp_layers: layers of multi-token prediction are not among the priced modules"
    if model.vision is not None:
        yield "model.vision: an image tower has module names of its own"
    if job.optimizer != "adam":
        yield (f"job.optimizer {job.optimizer}: the optimizer is the base's, AdamW; which matrices "
               "are Muon's, patterns of names say")
    if job.gradient_dtype != "fp32":
        yield f"stack.gradient_dtype {job.gradient_dtype}: mixed_precision_reduce has float32 alone"
    if model.moe is not None and job.stack.dispatcher != "alltoall":
        yield (f"stack.dispatcher {job.stack.dispatcher}: it is part of the model's configuration "
               "(moe_comm_backend)")
    if job.precision == "fp8" and stage.tp > 1 and not stage.sp:
        yield "precision fp8: float8 products with tp need sequence parallelism"


def _old_inexpressible(plan: Plan) -> Iterator[str]:
    yield from _inexpressible(plan)
    stage, job = plan.configuration.stages[0], plan.inputs.job
    if stage.tp > 1 and not stage.sp:
        yield "sp off: up to 0.2 tensor parallelism always divides the sequence"
    if job.stack.cuda_graphs != "none":
        yield f"stack.cuda_graphs {job.stack.cuda_graphs}: 0.2 has no CUDA graphs"
    if job.precision == "nvfp4":
        yield "precision nvfp4: 0.2 has no converter to it"


# ---------------------------------------------------------------- Python


def configuration(plan: Plan, title: str, priced: str) -> str:
    """The text of the Python module."""
    model, here = model_of(plan), figures_here(plan)
    given = nested(settings(PYTHON, here))
    compiled = given.pop("compile")["enable"]
    policy = POLICIES[str(here["recompute"])]
    base, converter = BASES.get(catalog_name(model)), CONVERTERS.get(plan.inputs.job.precision)
    imports = ["from torchtitan.config import CompileConfig, ParallelismConfig"]
    if converter:
        imports.append(f"from torchtitan.components.quantization import {converter}")
    imports += [f"from torchtitan.distributed.activation_checkpoint import {policy}"] * bool(policy)
    if base:
        imports.append(f"from torchtitan.models.{base.family}.config_registry import "
                       f"{base.function}, model_registry")
    imports.append("from torchtitan.trainer import Trainer")
    lines = [
        '"""The configuration of a plan.', "", *plain_lines(title, priced), *_UNSAID.format(
            base=base.function if base else "$BASE").splitlines(), '"""', "",
        *(["import importlib", "import os"] if base is None else []), "import dataclasses", "",
        *sorted(imports), "", "", "def plan() -> Trainer.Config:", *_base(base, converter),
        *_newer(here), "    spec = config.model_spec.model",
        "    found = len(spec.layers), spec.dim, spec.vocab_size",
        f"    if found != ({model.layers}, {model.hidden}, {model.vocab}):",
        '        raise ValueError(f"layers, width, vocabulary {found}: the plan is for "',
        f'                         "{model.layers}, {model.hidden}, {model.vocab}")',
        "    config.training = dataclasses.replace(", "        config.training,",
        *_keywords(given["training"]), "    )",
        "    config.parallelism = ParallelismConfig(", *_keywords(given["parallelism"]), "    )",
        f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else None}",
        f"    config.compile = CompileConfig(enable={compiled})", "    return config"]
    return "\n".join(lines) + "\n"


def _newer(here: Mapping[str, Any]) -> list[str]:
    """Lines that refuse a torchtitan that counts tokens, with what its settings would be."""
    length, passes = here["seq_len"], here["micro_batches"]
    values = (here["micro_batch"] * length, here["global_batch"] * length, length, passes)
    shown = [f"{name} {value}" for name, value in zip(TOKENS, values, strict=True)
             if here["pipeline"] or name != [*TOKENS][-1]]
    rows = [f'                         "{text}{", " * (text != shown[-1])}"' for text in shown]
    return ['    if not hasattr(config.training, "local_batch_size"):',
            '        raise ValueError("this file is for torchtitan 0.3.0; later sources want "',
            *rows[:-1], f"{rows[-1]})"]


def _base(base: Base | None, converter: str | None) -> list[str]:
    # The head stays in 16 bit: one class names what it leaves, the others what they take.
    names = 'filter_fqns=["lm_head"]' if converter == CONVERTERS["fp8"] else 'fqns=["layers"]'
    converters = (f"converters=[{converter}.Config(\n        {names}, "
                  "model_compile_enabled=True)]")
    if base is None:
        return ['    module, _, function = os.environ["BASE"].partition(":")',
                "    config = getattr(importlib.import_module(module), function)()"]
    more = f", {converters}" if converter else ""
    return [f"    config = {base.function}()",
            f"    config.model_spec = model_registry({base.flavor!r}{more})"]


def _keywords(given: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in given.items():
        if isinstance(value, list):
            rows = [f"            {part!r}," for part in value]
            found += [f"        {name}=[", *rows, "        ],"]
        else:
            found.append(f"        {name}={value!r},")
    return found


_OWN = {"BASE": "function that describes the model, such as "
                "torchtitan.models.llama3.config_registry:llama3_8b; for fp8, mxfp8 and "
                "nvfp4 with its converters"}


def _files(given: Sheet) -> Files:
    script = LaunchScript(
        title=(given.title, given.priced), variables={},
        asked={} if catalog_name(model_of(given.plan)) in BASES else _OWN,
        passed=("PYTHONPATH", "BASE"),
        given=["export PYTHONPATH=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)"
               "${PYTHONPATH:+:$PYTHONPATH}"],
        sections={}, program="-m torchtitan.train",
        words=("--module plan_config --config plan",))
    return written(given, script, {CONFIG: configuration(given.plan, given.title, given.priced)})


# ---------------------------------------------------------------- TOML


def old_configuration(plan: Plan, title: str, priced: str) -> str:
    """The text of the TOML."""
    lines = [f"# {title}", f"# {priced}", "#", *_OLD_UNSAID]
    for section, values in nested(settings(OLD, figures_here(plan, "output"))).items():
        lines += ["", f"[{section}]", *(f"{name} = {_toml(value)}"
                                        for name, value in values.items())]
    if plan.inputs.job.precision in OLD_CONVERTERS:
        name, recipe = OLD_CONVERTERS[plan.inputs.job.precision]
        lines += ["", f"[{name}]", f'recipe_name = "{recipe}"', 'filter_fqns = ["output"]']
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """JSON of numbers, words and lists of them is TOML too."""
    return json.dumps(value)


def _old_files(given: Sheet) -> Files:
    base = BASES.get(catalog_name(model_of(given.plan)))
    named = base is not None and base.family in _TOML_FAMILIES
    script = LaunchScript(
        title=(given.title, given.priced), variables={},
        asked={} if named else {"MODEL": "its model.name", "FLAVOR": "its model.flavor"},
        given=[] if named else ['OWN=(--model.name "${MODEL:-}" --model.flavor "${FLAVOR:-}")'],
        sections={}, program="-m torchtitan.train",
        words=(f'--job.config_file "$here/{TOML}"',), more=() if named else ("OWN",))
    return written(given, script, {
        TOML: old_configuration(given.plan, given.title, given.priced)})


TARGET = Target(
    version="torchtitan 0.3.0", rules=RULES, stacks=STACKS, inexpressible=_inexpressible,
    order=stage_by_stage, files=_files)
OLD_TARGET = Target(
    version="torchtitan 0.2.2", rules=RULES, stacks=STACKS, inexpressible=_old_inexpressible,
    order=stage_by_stage, files=_old_files)

"""MaxText's YAML, on GPUs.

Names and meanings are those of AI-Hypercomputer/maxtext@e591f30 src/maxtext/configs/types.py:1220
to 1300 (axes, pipeline, remat_policy) and src/maxtext/configs/base.yml:105 to 190, 531 (mesh_axes),
532 to 640 (logical_axis_rules), 731, 968; processes are started as
src/maxtext/utils/max_utils.py:317 asks. A process drives one device.

Ranks are numbered along the axes: stages, replicas, fsdp, context, tensor, expert. Experts are an
axis of their own beside tensor parallelism, which the batch is divided over too.

Defaults and rules of what is read: src/maxtext/configs/base.yml, src/maxtext/configs/types.py:1220
to 1300.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.figures import (
    Division,
    Figures,
    Span,
    configuration,
    figures,
    job,
    model_figures,
)
from nest.frameworks.hosts import Placed
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.maxtext_remat import (
    INPUT,
    TENSORS,
    UNPRICED,
    UNREAD,
    mixed_names,
    read_remat,
    remat_figures,
)
from nest.frameworks.settings import Plain, flat, sections, settings
from nest.frameworks.source import (
    FileDescription,
    Source,
    assigned,
    divided,
    figures_in,
    mapping_in,
    named_model,
    said,
    understood,
)
from nest.frameworks.target import (
    PLAIN_ATTENTION,
    Files,
    Sheet,
    Target,
    catalog_name,
    model_of,
    unlike,
    written,
)
from nest.inputs import load_stack
from nest.inputs.formats import number_format
from nest.inputs.model import Model
from nest.model import Chain, build_chain
from nest.schedules.registry import chunks_at
from nest.units import shorten

VERSION = "e591f30"
CONFIG = "plan.yml"
MODELS = {name: name for name in (
    "gpt-oss-120b", "gpt3-175b", "llama2-7b", "llama3-8b", "llama3-70b", "llama3.1-8b",
    "llama3.1-405b", "mistral-7b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "gemma2-9b")} | {"deepseek-v3": "deepseek3-671b"}
"""Files of src/maxtext/configs/models by names of the catalog."""
SETTINGS, OWN = (sections("maxtext")[name] for name in ("settings", "model"))
"""Settings of the YAML, and those of a model that MaxText has no file for: Llama 2's kind of layers
in other sizes."""
_LLAMA = {**PLAIN_ATTENTION, "gated": True, "norm": "rmsnorm", "norm_bias": False, "bias": False,
          "positions": 0, "moe": None}
"""Properties of Llama 2's layers."""


def figures_here(plan: Plan) -> Figures:
    """Figures of a plan that the tables name."""
    job, way, stage = plan.inputs.job, plan.configuration, plan.configuration.stages[0]
    model = model_of(plan)
    found = figures(job, way)
    name = MODELS.get(catalog_name(model))
    replicas, shards = found["replicas"], found["shards"]
    assert isinstance(replicas, int) and isinstance(shards, int)
    accumulated = 1 if way.pp > 1 else job.global_batch // (way.outer_dp * way.micro_batch)
    devices = way.outer_dp * way.pp * (stage.devices[1] - stage.devices[0])
    sharded = stage.zero == 3
    return {
        **found, **model_figures(model), "hardware": "gpu", "one": 1,
        "model_name": name, "block": None if name else "llama2", "mtp": model.mtp_layers,
        "device_batch": job.global_batch / accumulated / devices, "accumulated": accumulated,
        "accumulates": accumulated > 1,
        "data": replicas if sharded else replicas * shards,
        "fsdp": shards // stage.ep if sharded else 1, "optimizer_only": stage.zero == 1,
        "pipeline": way.pp > 1, "stage_layers": model.layers // way.pp if way.pp > 1 else None,
        "rings": stage.cp > 1, "cp_rings": stage.cp // stage.cp_a2a,
        "tensor": 1 if stage.sp else stage.tp,
        "tensor_sequence": stage.tp if stage.sp else 1,
        **remat_figures(plan),
        "dtype": number_format(job.precision).wide or job.precision,
        "attention": "cudnn_flash_te" if job.stack.flash_attention else "dot_product"}


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, stage, model = plan.inputs.job, plan.configuration.stages[0], model_of(plan)
    if not MODELS.get(catalog_name(model)):
        yield from (f"model.{name}: MaxText has no file for {model.name}, and its layers are not "
                    "those of Llama 2" for name in unlike(model, _LLAMA))
    elif model.layers % plan.configuration.pp:
        yield f"pp {plan.configuration.pp}: stages have equal layers"
    if mixed_names(plan):
        yield ("recompute_modules moe without mlp: outputs of MLPs have names that those of "
               "experts have too")
    if job.optimizer == "sgd-momentum":
        yield "job.optimizer sgd-momentum: opt_type sgd has no momentum"
    if stage.zero == 1 and stage.shard == "dp_in":
        yield "shard dp_in: shard_optimizer_over_data shards over the whole data axis"
    if stage.zero != 3:
        for name, degree in (("cp", stage.cp), ("ep", stage.ep)):
            if degree > 1:
                yield (f"{name} {degree} with zero {stage.zero}: logical_axis_rules shard "
                       "parameters over this axis, as ZeRO-3 does")
    if stage.ep > 1 and stage.cp > 1:
        yield f"ep {stage.ep} with cp {stage.cp}: experts are an axis beside the context's"
    elif stage.ep > 1 and stage.dp_in % stage.ep:
        yield f"ep {stage.ep}: the expert axis divides the data-parallel ranks of a block"


def _order(plan: Plan) -> tuple[Rank, ...]:
    """Along the axes of the mesh, the last fastest."""
    ep = plan.configuration.stages[0].ep

    def place(rank: Rank) -> tuple[int, ...]:
        return rank.stage, rank.dp // ep, rank.cp, rank.tp, rank.dp % ep

    return tuple(sorted(plan.ranks(), key=place))


def configuration_text(plan: Plan, title: str, priced: str) -> str:
    """The text of the YAML."""
    given, model = figures_here(plan), model_of(plan)
    own = {} if MODELS.get(catalog_name(model)) else settings(OWN, given)
    rows = {"base_config": "base.yml", **settings(SETTINGS, given), **own}
    lines = [f"# {title}", f"# {priced}",
             *(f"{name}: {_yaml(value)}" for name, value in rows.items())]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    """Words of these tables need no quotes; truth has its own."""
    return str(value).lower() if isinstance(value, bool) else \
        f'"{value}"' if isinstance(value, str) else repr(value)


ASKED: Mapping[str, str] = {
    "RUN_NAME": "name of the run", "OUTPUT": "folder that is written to (base_output_directory)",
    "DATASET_TYPE": "dataset_type: tfds, grain or hf, and its data as arguments (below); synthetic "
                    "to time a step",
    "TOKENIZER": "tokenizer_path", "STEPS": "steps"}
"""Variables that the user sets; its other settings are arguments."""


def unsaid(model: Model) -> list[str]:
    """Settings that no plan has: src/maxtext/configs/base.yml:40 to 57, 227, 716, 777 to 799, 870,
    1015."""
    found = ["data: dataset_path, dataset_name; grain_train_files; hf_path, hf_train_files; "
             "tokenizer_type (sentencepiece)",
             "learning rate: learning_rate (3e-5), warmup_steps_fraction",
             "checkpoints: enable_checkpointing, checkpoint_period, load_parameters_path"]
    if not MODELS.get(catalog_name(model)):
        found.append("positions: rope_max_timescale (10000)")
    if model.moe is not None:
        found.append("balance of experts: load_balance_loss_weight (0)")
    return found


def _files(given: Sheet) -> Files:
    script = LaunchScript(
        title=(given.title, given.priced), asked=ASKED, sections={},
        unsaid=unsaid(model_of(given.plan)), variables={"NVTE_FUSED_ATTN": "1"},
        given=['OWN=(run_name="${RUN_NAME:-}" base_output_directory="${OUTPUT:-}"',
               '  dataset_type="${DATASET_TYPE:-}" tokenizer_path="${TOKENIZER:-}" '
               'steps="${STEPS:-}")'],
        program="-m maxtext.trainers.pre_train.train", words=(f'"$here/{CONFIG}"',), more=("OWN",),
        # It takes the numbers of its devices from here, among all of the node.
        process=("unset CUDA_VISIBLE_DEVICES", "export SLURM_STEP_GPUS=$LOCAL_RANK",
                 "export JAX_COORDINATOR_IP=$MASTER_ADDR JAX_COORDINATOR_PORT=$MASTER_PORT",
                 "export NNODES=$WORLD_SIZE NODE_RANK=$RANK"))
    return written(given, script, {
        CONFIG: configuration_text(given.plan, given.title, given.priced)})


TARGET = Target(
    version=f"MaxText {VERSION}", rules=(("MaxText", VERSION),), stacks="maxtext",
    inexpressible=_inexpressible, order=_order, files=_files, alone=True)


AXES = ("ici_data_parallelism", "ici_fsdp_parallelism", "dcn_data_parallelism")
"""Axes that may take all devices that are left."""
FLASH = {"cudnn_flash_te": True, "cudnn_flash_jax": True, "flash": True, "dot_product": False}


def read(source: Source) -> FileDescription:
    """The YAML, and overrides behind it.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, or do not fit together.
    """
    notes: list[str] = []
    there = flat(mapping_in(source, ".yml")) | assigned(source)
    given = understood(there, (*SETTINGS, *OWN), "maxtext", source, notes, (
        "override_model_config", "num_slices", *UNPRICED, *UNREAD))
    outputs = [INPUT, *UNPRICED, *UNREAD, *(one for names in TENSORS.values() for one in names)]
    places = {name: given.pop(name) for name in outputs if name in given}
    hardware = given.pop("hardware")
    if hardware not in ("gpu", "gpu_multiprocess", "tpu"):
        raise InputError(f"{source.where}: hardware: got {shorten(hardware)}; allowed: gpu, "
                         "gpu_multiprocess, tpu")
    _check_slices(given.pop("num_slices", -1), hardware, given, source, notes)
    if given.pop("override_model_config", False) and given["model_name"] != "default" and (
            changed := [one.name for one in OWN if one.name in there]):
        raise InputError(f"{source.where}: override_model_config: got true, with "
                         f"{', '.join(changed)}; allowed: false, or the changed model by --model "
                         "MODEL and without them")
    for name, plain in (("quantization", ""), ("context_parallel_strategy", "all_gather")):
        if given[name] == plain and (name != "context_parallel_strategy"
                                     or given["ici_context_parallelism"] == 1):
            del given[name]
    given.pop("shardy", None)
    own = _own(given, source)
    axes = {name: given.pop(name) for name in AXES}
    repeats, micro = given.pop("num_pipeline_repeats"), given.pop("num_pipeline_microbatches")
    f = figures_in((*SETTINGS, *OWN), given, source)
    model = _model(f, given, source, own)
    chain = build_chain(model)
    recompute = read_remat(f["policy"], places, source, chain, notes)
    return _found(source, f | {"recompute": recompute}, axes, chain, (repeats, micro), notes)


def _check_slices(
    slices: object, hardware: str, given: Plain, source: Source, notes: list[str]
) -> None:
    """GPUs are one slice (src/maxtext/utils/max_utils.py, get_num_slices); of TPUs several are
    copies along the data axis unless the dcn axes say otherwise, which have no price."""
    if slices not in (-1, 1):
        raise InputError(f"{source.where}: num_slices: got {shorten(slices)}; allowed: -1, 1 "
                         "(several slices have no price)")
    if hardware == "tpu" and slices == -1 and given["dcn_data_parallelism"] == -1:
        notes.append("one slice of TPUs is assumed (several: --set dcn_data_parallelism=N)")


def _own(given: Plain, source: Source) -> bool:
    """Whether the YAML describes the model itself, by widths of Llama 2's layers."""
    own = bool(given["model_name"] == "default")
    if own and given["decoder_block"] != "llama2" and source.asked.model is None:
        raise InputError(f"{source.where}: decoder_block: got {shorten(given['decoder_block'])}; "
                         "allowed: llama2, or the model by --model MODEL")
    if not own:
        for one in OWN:
            given.pop(one.name, None)
    return own


def _model(f: dict[str, Any], given: Plain, source: Source, own: bool) -> Model:
    if source.asked.model is not None or not own:
        named = {theirs: ours for ours, theirs in MODELS.items()}.get(str(given["model_name"]))
        found = named_model(source, named, f"model_name: no model of the catalog is "
                         f"{shorten(given['model_name'])}")
        if f.get("mtp", 0) not in (0, found.mtp_layers):
            raise InputError(f"{source.where}: mtp_num_layers: got {shorten(f['mtp'])}; allowed: "
                             f"{found.mtp_layers}, as {found.name} has")
        return found
    return Model.parse({
        "name": "model", "gated": True, "norm": "rmsnorm", "bias": False,
        "source": "read from a YAML of MaxText",
        **{name.partition(".")[2]: value for name, value in f.items()
           if name.startswith("model.")}}, source.where)


def _found(
    source: Source, f: dict[str, Any], axes: Plain, chain: Chain, pipeline: tuple[Any, Any],
    notes: list[str],
) -> FileDescription:
    """Figures in the terms of NEST."""
    model = chain.model
    assert model is not None
    if min(f["tensor"], f["tensor_sequence"]) > 1:
        raise InputError(f"{source.where}: ici_tensor_parallelism and "
                         "ici_tensor_sequence_parallelism: got both above 1; allowed: one of them")
    tp, pp, ep = f["tensor"] * f["tensor_sequence"], f["pp"], f["ep"]
    cp = f["cp_rings"] * f["cp_a2a"]
    if cp > 1 and (f["cp_a2a"] > 1) != (f.get("cp_comm") == "a2a+p2p"):
        raise InputError(f"{source.where}: ici_context_usp_ulysses_parallelism: got "
                         f"{f['cp_a2a']}; allowed: above 1 with context_parallel_strategy usp "
                         "alone")
    replicas, fsdp = _axes(source, axes, tp * pp * cp * ep)
    dp = replicas * fsdp * ep
    zero = 3 if fsdp * ep * cp > 1 else int(f["optimizer_only"])
    world = dp * tp * pp * cp
    device_batch, accumulated = f["device_batch"], f["accumulated"]
    batch = device_batch * world * accumulated if isinstance(device_batch, (int, float)) else 0
    if not 1 <= batch <= 10**9 or abs(batch - round(batch)) > 1e-6:
        raise InputError(f"{source.where}: per_device_batch_size: got {shorten(device_batch)}; "
                         f"allowed: times {world} devices a whole number of sequences")
    batch = round(batch)
    schedule, steps = _pipeline(source, f, model, pipeline)
    if schedule and accumulated > 1:
        raise InputError(f"{source.where}: gradient_accumulation_steps: got {accumulated}; "
                         "allowed: 1 with a pipeline (several a step have no price)")
    micro = divided(source, "per_device_batch_size x devices", batch, dp * steps,
                    "the data parallel degree x micro-batches")
    seq_len = said(source, "max_target_length", f["seq_len"], source.asked.seq_len, "--seq-len")
    precision = f.get("precision") or f["dtype"]
    if not isinstance(f["attention"], str) or f["attention"] not in FLASH:
        notes.append(f"attention {shorten(f['attention'])} is priced as fused attention")
    base = source.asked.stack or "maxtext"
    stack = load_stack(base)
    gradients = "fp8_gradient_dtype" if number_format(precision).narrow else "gradient_dtype"
    said_ = {"flash_attention": FLASH.get(str(f["attention"]), True),
             gradients: f["gradient_dtype"]}
    changes = {name: value for name, value in said_.items() if getattr(stack, name) != value}
    recompute, modules, offload = f["recompute"]
    way = configuration(Division(
        _chunks(chain, pp), dp, micro, tp=tp, sp=f["tensor_sequence"] > 1, cp=cp,
        cp_comm=f.get("cp_comm", "p2p") if cp > 1 else "p2p", cp_a2a=f["cp_a2a"], ep=ep, etp=tp,
        zero=zero,
        replicas=replicas if zero == 3 and replicas > 1 else None, recompute=recompute,
        modules=modules, schedule=schedule, offload=offload),
        None if source.places is None else _by_stage(source.places, dp, pp, cp, tp, ep, source),
        source.where, notes)
    return FileDescription(model, job(batch, seq_len, said(
        source, "the number format", precision, source.asked.precision, "--precision"),
        f["optimizer"], base, changes), way, world, tuple(notes))


def _axes(source: Source, axes: Plain, inner: int) -> tuple[int, int]:
    """Replicas, and ranks of the fsdp axis; -1: all devices that are left."""
    for name, value in axes.items():
        if type(value) is not int or not (value == -1 or 1 <= value <= 10**7):
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: a whole "
                             "number, or -1")
    if axes[AXES[2]] == -1:  # GPUs are one slice: src/maxtext/utils/max_utils.py, get_num_slices
        axes = {**axes, AXES[2]: 1}
    world = source.asked.devices or source.world
    there = math.prod(value for value in axes.values() if value != -1)
    if world is None and -1 in axes.values():
        raise InputError(f"{source.where}: an axis is -1, all devices that are left; say how many "
                         "there are by --devices N")
    left = [name for name, value in axes.items() if value == -1]
    if len(left) > 1:
        raise InputError(f"{source.where}: {' and '.join(left)} are -1; allowed: one of them")
    if left:
        assert world is not None
        axes = {**axes, left[0]: divided(source, "devices", world, there * inner,
                                         "the product of the axes")}
    return axes[AXES[0]] * axes[AXES[2]], axes[AXES[1]]


def _pipeline(
    source: Source, f: dict[str, Any], model: Model, pipeline: tuple[Any, Any]
) -> tuple[str | None, int]:
    """Schedule, and micro-batches of a step."""
    pp, (repeats, micro) = f["pp"], pipeline
    if pp == 1:
        return None, f["accumulated"]
    size = divided(source, "the model's layers", model.layers, pp, "the stages")
    if f["stage_layers"] != size or repeats not in (-1, 1):
        raise InputError(f"{source.where}: num_layers_per_pipeline_stage, num_pipeline_repeats: "
                         f"got {f['stage_layers']}, {shorten(repeats)}; allowed: {size}, 1 "
                         "(repeats have no price)")
    micro = pp if micro == -1 else micro
    if type(micro) is not int or not 1 <= micro <= 10**7:
        raise InputError(f"{source.where}: num_pipeline_microbatches: got {shorten(micro)}; "
                         "allowed: a whole number, or -1")
    return "gpipe", micro


def _chunks(chain: Chain, pp: int) -> list[tuple[Span, ...]]:
    if pp == 1:
        return [((0, len(chain)),)]
    first, end = chain.body
    size = (end - first) // pp
    return chunks_at([0, *(first + n * size for n in range(1, pp)), len(chain)], pp, "gpipe")


def _by_stage(
    places: Placed, dp: int, pp: int, cp: int, tp: int, ep: int, source: Source
) -> Placed:
    """Places of ranks numbered along MaxText's axes, in the order tp, cp, dp, pp."""
    if len(places) != dp * pp * cp * tp:
        raise InputError(f"{source.where}: the axes take {dp * pp * cp * tp} devices, and the "
                         f"launch starts {len(places)}")
    rows = dp // ep
    return tuple(
        places[(((stage * rows + n // ep) * cp + context) * tp + tensor) * ep + n % ep]
        for stage in range(pp) for n in range(dp) for context in range(cp) for tensor in range(tp))

"""A module of Python for PyTorch's FSDP2: mesh, tensor parallelism, recompute, sharding.

Names and meanings are those of torch==2.13.0:
torch/distributed/fsdp/_fully_shard/_fully_shard.py:98, torch/distributed/tensor/parallel/,
torch/utils/checkpoint.py,
torch/distributed/tensor/experimental/_context_parallel/_attention.py:77. Blocks and their parts
have the names of transformers' decoders, such as `LlamaForCausalLM`, which count positions by the
length of their embeddings (transformers==5.23.0 models/llama/modeling_llama.py:375).
`.ci/frameworks` trains with the module on four CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.evaluation.plans import Plan
from nest.frameworks.figures import Figures, figures
from nest.frameworks.known import plain_lines
from nest.frameworks.script import LaunchScript
from nest.frameworks.settings import Plain, Setting, settings
from nest.frameworks.target import Files, Sheet, Target, model_of, stage_by_stage, written

MODULE = "parallelize.py"
SETTINGS = (
    Setting("replicas", "DP_REPLICATE"),
    Setting("shards", "DP_SHARD"),
    Setting("cp", "CP"),
    Setting("cp_comm", "ROTATE", {"p2p": "alltoall", "all_gather": "allgather"}),
    Setting("tp", "TP"),
    Setting("sp", "SEQUENCE_PARALLEL"),
    Setting("zero", "RESHARD_AFTER_FORWARD", {3: True, 2: False}),
    Setting("precision", "PARAM_DTYPE", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}),
    Setting("gradient_dtype", "REDUCE_DTYPE", {"fp32": "float32", "bf16": "bfloat16"}),
    Setting("recompute", "RECOMPUTE"),
    Setting("recompute_modules", "RECOMPUTE_MODULES"),
    Setting("recompute_layers", "RECOMPUTE_LAYERS"),
    Setting("micro_batch", "MICRO_BATCH"),
    Setting("micro_batches", "MICRO_BATCHES"),
    Setting("seq_len", "SEQ_LEN"),
)
"""Constants of the module. ZeRO 0 and 2 both keep gathered parameters; they differ in the mesh."""
DTYPES = ("PARAM_DTYPE", "REDUCE_DTYPE")
MODULES = {"norm": ("input_layernorm", "post_attention_layernorm"), "mlp_act": ("mlp.act_fn",),
           "mlp": ("mlp",), "moe": ("mlp",), "core_attn": ("self_attn",)}
"""Parts of a block that are run again. Of attention, only its core is."""
_BODY = '''
def mesh(device: str = "cuda") -> DeviceMesh:
    """The ranks: replicas outermost, tensor parallelism innermost."""
    return init_device_mesh(device, (DP_REPLICATE, DP_SHARD, CP, TP),
                            mesh_dim_names=("dp_replicate", "dp_shard", "cp", "tp"))


def parallelize(model: nn.Module, ranks: DeviceMesh, blocks: str = "model.layers") -> None:
    """Divide a model, before it has weights or after.

    Its blocks and what is in them have the names of transformers' LlamaForCausalLM.
    """
    layers = list(model.get_submodule(blocks))
    if len(layers) != LAYERS:
        raise ValueError(f"{len(layers)} blocks: the plan is for {LAYERS}")
    if TP > 1:
        divide(model, ranks["tp"], blocks)
    for layer in layers[:LAYERS if RECOMPUTE_LAYERS is None else RECOMPUTE_LAYERS]:
        recompute(layer)
    if CP > 1:  # parameters are sharded over cp, too
        shards = ranks["dp_shard", "cp"]._flatten("dp_shard_cp")
        over = DeviceMesh._concatenate([ranks["dp_replicate"], shards])
        set_rotate_method(ROTATE)  # keys and values are passed around (alltoall) or gathered
    else:
        over = ranks["dp_replicate", "dp_shard"]
    policy = MixedPrecisionPolicy(param_dtype=PARAM_DTYPE, reduce_dtype=REDUCE_DTYPE)
    for part in (*layers, model):
        fully_shard(part, mesh=over, mp_policy=policy,
                    reshard_after_forward=RESHARD_AFTER_FORWARD)


def divide(model: nn.Module, ranks: DeviceMesh, blocks: str) -> None:
    """Tensor parallelism, with sequence parallelism between the products or without."""
    between = Shard(1) if SEQUENCE_PARALLEL else Replicate()
    whole = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    plan = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between},
            desired_input_kwarg_layouts={"hidden_states": Replicate()}),
        "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
        "mlp": whole, "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=between)}
    if SEQUENCE_PARALLEL:
        plan |= {"input_layernorm": SequenceParallel(),
                 "post_attention_layernorm": SequenceParallel()}
    for layer in model.get_submodule(blocks):
        names = {name for name, _ in layer.named_modules()}
        parallelize_module(layer, ranks, {name: how for name, how in plan.items() if name in names})
    above = blocks.rpartition(".")[0]
    start = f"{above}." if above else ""
    ends = {f"{start}embed_tokens": RowwiseParallel(
        input_layouts=Replicate(), output_layouts=between),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Replicate())}
    if SEQUENCE_PARALLEL:
        ends[f"{start}norm"] = SequenceParallel()
    parallelize_module(model, ranks, ends)
    if SEQUENCE_PARALLEL:  # it counts positions by its embeddings, of which a rank has a part
        model.get_submodule(above).register_forward_pre_hook(whole_positions, with_kwargs=True)


def whole_positions(_, args, kwargs):
    """Positions of all tokens, where the caller gives none."""
    given = args[0] if args else kwargs["input_ids"]
    return args, {**kwargs, "position_ids": kwargs.get("position_ids")
                  if kwargs.get("position_ids") is not None
                  else torch.arange(given.shape[1], device=given.device)[None]}


def recompute(layer: nn.Module) -> None:
    """Activation checkpointing of a block or of parts of it."""
    if RECOMPUTE == "full":
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    for name in RECOMPUTE_MODULES:
        for path in PARTS[name]:
            part = layer.get_submodule(path)
            more = {"context_fn": core_contexts} if name == "core_attn" else {}
            part.forward = partial(checkpoint, part.forward, use_reentrant=False, **more)


def core_contexts():
    """Keep all of attention but its core."""
    aten = torch.ops.aten
    core = {getattr(aten, name).default for name in (
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")}
    return create_selective_checkpoint_contexts(
        lambda _, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE if op in core
        else CheckpointPolicy.MUST_SAVE)


def context(ranks: DeviceMesh, buffers: list[torch.Tensor], dims: list[int]):
    """Context parallelism around a step: what is divided, and where its sequence is.

    Position numbers are among the buffers, and the model is given them.
    """
    return context_parallel(ranks["cp"], buffers=buffers, buffer_seq_dims=dims)
'''
_IMPORTS = '''from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
'''


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
    lines = ['"""The division of a plan.', "",
             *plain_lines(title, priced), '"""', "",
             _IMPORTS, f"LAYERS = {model_of(plan).layers}"]
    for name, value in constants(plan).items():
        lines.append(f"{name} = {value if name in DTYPES else repr(value)}")
    return "\n".join([*lines, "", _BODY.rstrip("\n")]) + "\n"


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

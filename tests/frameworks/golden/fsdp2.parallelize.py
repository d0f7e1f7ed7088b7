"""The division of a plan.

llama3-8b, 16 devices of dgx-h100: for PyTorch FSDP2 2.13.0.
Priced: 3.786 s per step, 138,482 tokens/s.
"""

from functools import partial

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

LAYERS = 32
DP_REPLICATE = 1
DP_SHARD = 8
CP = 1
ROTATE = 'alltoall'
TP = 2
SEQUENCE_PARALLEL = True
RESHARD_AFTER_FORWARD = True
PARAM_DTYPE = torch.bfloat16
REDUCE_DTYPE = torch.float32
RECOMPUTE = 'selective'
RECOMPUTE_MODULES = ('core_attn', 'norm', 'mlp_act')
MICRO_BATCH = 1
MICRO_BATCHES = 8
SEQ_LEN = 8192
RECOMPUTE_LAYERS = None
PARTS = {'core_attn': ('self_attn',), 'norm': ('input_layernorm', 'post_attention_layernorm'), 'mlp_act': ('mlp.act_fn',)}


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

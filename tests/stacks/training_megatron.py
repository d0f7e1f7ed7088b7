"""`pretrain_gpt.py` of an exported Megatron launch, on CPUs; see ``training.py``.

Megatron's own are the parser, model, groups, schedule and reduction of gradients. The optimizer is
PyTorch's, because Megatron's distributed one takes CUDA's tensors alone.

Weights are drawn by the name of a parameter, so that each rank has its part of the same model.
"""

from __future__ import annotations

import os
import sys
import zlib
from contextlib import nullcontext
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # fused functions would be compiled
import torch
from torch import distributed
from torch.overrides import TorchFunctionMode
from training import STEPS, VOCAB, main, mean, optimizer_of, tokens

WHOLE = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1,
         "pipeline_model_parallel_layout": None, "sequence_parallel": False,
         "tp_comm_overlap": False, "recompute_granularity": None, "recompute_method": None,
         "recompute_num_layers": None, "recompute_modules": None}
"""Arguments that a plan gives, and their values for the whole model."""


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on a GPU are on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str((kwargs or {}).get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **(kwargs or {}))


def drawn(name: str, shape: torch.Size, part: int | None, at: int, parts: int) -> torch.Tensor:
    """The part of a rank of a parameter's weights."""
    whole = list(shape)
    if part is not None:
        whole[part] *= parts
    if len(whole) == 1:
        return torch.ones(shape) if "norm" in name else torch.zeros(shape)
    found = 0.02 * torch.randn(whole, generator=torch.Generator().manual_seed(
        zlib.crc32(name.encode())))
    if part is None:
        return found
    # Gate and input of an MLP are divided one by one.
    halves = found.chunk(2) if name.endswith("linear_fc1.weight") else (found,)
    return torch.cat([half.chunk(parts, part)[at] for half in halves], part)


def norm(_: Any, config: Any, hidden_size: int, eps: float = 1e-5, **__: Any) -> Any:
    """Megatron's norm of PyTorch refuses sequence parallelism, which its reduction knows."""
    found = torch.nn.RMSNorm(hidden_size, eps)
    found.weight.sequence_parallel = config.sequence_parallel
    return found


def network(args: Any, config: Any, vpp: int | None) -> list[Any]:
    """The chunks of this rank."""
    from megatron.core import parallel_state as state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    chunks = []
    for at in range(vpp or 1):
        stage = {"vp_stage": at if vpp else None}
        first = state.is_pipeline_first_stage(ignore_virtual=False, **stage)
        last = state.is_pipeline_last_stage(ignore_virtual=False, **stage)
        chunk = GPTModel(
            config, get_gpt_decoder_block_spec(
                config, use_transformer_engine=False, normalization=args.normalization, **stage),
            VOCAB, args.seq_length, pre_process=first, post_process=last,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type, **stage)
        tp, parts = state.get_tensor_model_parallel_rank(), config.tensor_model_parallel_size
        numbers = {n: layer.layer_number for n, layer in enumerate(chunk.decoder.layers)}
        for name, weight in chunk.named_parameters():
            words = name.split(".")
            if words[:2] == ["decoder", "layers"]:
                words[2] = str(numbers[int(words[2])])
            part = weight.partition_dim if getattr(
                weight, "tensor_model_parallel", False) else None
            weight.data.copy_(drawn(".".join(words), weight.shape, part, tp, parts))
        chunks.append(DistributedDataParallel(
            config, DistributedDataParallelConfig(overlap_grad_reduce=False), chunk))
    return chunks


def steps_of(args: Any, config: Any, vpp: int | None) -> list[float]:
    """The loss of each step."""
    from megatron.core import parallel_state as state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    chunks = network(args, config, vpp)
    weights = [weight for chunk in chunks for weight in chunk.parameters()]
    optimizer, found = optimizer_of(weights), []
    config.finalize_model_grads_func = finalize_model_grads
    dp = state.get_data_parallel_world_size()
    batch = tokens(args.global_batch_size, args.seq_length + 1)
    own = batch.chunk(dp)[state.get_data_parallel_rank()].split(args.micro_batch_size)

    def forward(data: Any, model: Any) -> Any:
        samples = next(data)
        places = torch.arange(args.seq_length)[None].expand(len(samples), -1)
        above = torch.ones(args.seq_length, args.seq_length).triu(1).bool()[None, None]
        losses = model(samples[:, :-1], places, above, labels=samples[:, 1:])
        return losses, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})

    for _ in range(STEPS):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        given = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=[iter(own) for _ in chunks], model=chunks,
            num_microbatches=len(own), seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size, forward_only=False)
        for weight in weights:
            weight.grad = weight.main_grad
        optimizer.step()
        optimizer.zero_grad()  # what a backward pass finds here, it adds to
        # Of the last stage alone: the mean over all ranks is that over stages, too.
        found.append(config.pipeline_model_parallel_size * mean(
            sum((one["loss"] for one in given), torch.zeros(())) / len(own)))
    return found


def train(found: dict[str, list[float]]) -> None:
    """The whole model with data parallelism, then the plan."""
    distributed.init_process_group("gloo")
    kept = dict(os.environ)
    from framework_launch import arguments  # sets variables for its judges

    os.environ |= kept
    parser = arguments()
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = torch.cuda.synchronize = lambda *_: None
    from megatron.core import parallel_state as state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.training.argument_utils import core_transformer_config_from_args

    random.initialize_rng_tracker()
    random._CUDA_RNG_STATE_TRACKER.fork = nullcontext  # there is no dropout
    random._get_cuda_rng_state = random._set_cuda_rng_state = lambda *_, **__: None
    torch_norm.WrappedTorchNorm.__new__ = norm
    words = sys.argv[1:]
    for name in ("whole", "plan"):
        sys.argv = ["launch", *words]
        args = parser.parse_args()
        if name == "whole":
            vars(args).update(WHOLE)
        parser.validate_args(args)
        config = core_transformer_config_from_args(args)
        config.use_cpu_initialization, config.perform_initialization = True, False
        vpp = args.virtual_pipeline_model_parallel_size
        state.initialize_model_parallel(
            args.tensor_model_parallel_size, args.pipeline_model_parallel_size, vpp,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp")
        found[name] = steps_of(args, config, vpp)
        state.destroy_model_parallel()


with OnCpu():
    main(train)

"""The frameworks' own code judges configurations, without a GPU; run by their Python, not by NEST.

A judge gets a case (see ``test_frameworks.py``) and gives a verdict: a mapping from a question to
the answer of the framework. Groups are lists of ranks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

warnings.simplefilter("ignore")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost",
                  MASTER_PORT="1", DS_ACCELERATOR="cpu")


def spare_compiling() -> None:
    """Leave out PyTorch's compiler, half of what importing a framework takes."""
    import torch

    torch.compile = lambda function=None, **_: function or (lambda one: one)


@contextmanager
def world(size: int, rank: int = 0) -> Iterator[None]:
    """A process group of so many ranks that talk to nobody."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def accepts(action: Callable[[], Any]) -> bool:
    """Whether an action ends without a complaint."""
    try:
        action()
    except (AssertionError, ValueError, RuntimeError, NotImplementedError):
        return False
    return True


# ---------------------------------------------------------------- Megatron-Core


def megatron(case: dict[str, Any]) -> dict[str, Any]:
    from megatron.core import parallel_state as state
    from megatron.core.pipeline_parallel import schedules

    def groups() -> None:
        try:
            state.initialize_model_parallel(
                case["tp"], case["pp"], case["vpp"] if case["vpp"] > 1 else None,
                context_parallel_size=case["cp"], expert_model_parallel_size=case["ep"],
                expert_tensor_parallel_size=case["etp"], order=order,
                num_distributed_optimizer_instances=case["instances"],
                create_gloo_process_groups=False)
        finally:
            state.destroy_model_parallel()

    found: dict[str, Any] = {"configuration": accepts(lambda: megatron_configuration(case))}
    for name, order in (("groups", "tp-cp-ep-dp-pp"), ("mapped", "tp-cp-ep-pp-dp")):
        with world(case["world"]):
            legal = accepts(groups)
        found[name] = megatron_groups(case, order) if legal else None
    with world(case["world"]):
        found["fsdp"] = accepts(lambda: megatron_fsdp(case))
    found["order"] = schedules.get_forward_backward_func(
        case["pp"], case["vpp"] if case["vpp"] > 1 else None).__name__
    found["micro-batches"] = case["vpp"] == 1 or megatron_interleaves(case)
    return found


def megatron_configuration(case: dict[str, Any]) -> None:
    import torch
    from megatron.core.transformer import TransformerConfig

    experts: dict[str, Any] = {}
    if case["experts"]:
        experts = {"num_moe_experts": case["experts"], "moe_grouped_gemm": True,
                   "moe_token_dispatcher_type": "alltoall", "add_bias_linear": False}
    layout = {}
    if case["pp"] > 1:
        layout = {"pipeline_model_parallel_layout": case["layout"],
                  "pipeline_dtype": torch.bfloat16}
    recompute = {"recompute_granularity": None if case["recompute"] == "none"
                 else case["recompute"]}
    if case["recompute"] == "selective":
        recompute["recompute_modules"] = case["modules"]
    if case["recompute"] == "full":
        recompute |= {"recompute_method": "block", "recompute_num_layers": 1}
    TransformerConfig(
        num_layers=case["layers"], hidden_size=64 * case["heads"],
        num_attention_heads=case["heads"], num_query_groups=case["kv_heads"],
        mtp_num_layers=case["mtp"] or None, tensor_model_parallel_size=case["tp"],
        sequence_parallel=case["sp"], context_parallel_size=case["cp"],
        cp_comm_type=case["cp_comm"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=case["etp"],
        bf16=True, params_dtype=torch.bfloat16, **layout, **recompute, **experts)


def megatron_groups(case: dict[str, Any], order: str) -> dict[str, list[list[int]]]:
    from megatron.core.parallel_state import RankGenerator

    dp = case["world"] // (case["tp"] * case["cp"] * case["pp"])
    expert_dp = case["world"] // (case["etp"] * case["ep"] * case["pp"])
    dense = RankGenerator(tp=case["tp"], ep=1, dp=dp, pp=case["pp"], cp=case["cp"], order=order)
    expert = RankGenerator(tp=case["etp"], ep=case["ep"], dp=expert_dp, pp=case["pp"], cp=1,
                           order=order)
    return {**{name: dense.get_ranks(name) for name in ("tp", "cp", "dp", "pp")},
            "ep": expert.get_ranks("ep"), "etp": expert.get_ranks("tp")}


def megatron_fsdp(case: dict[str, Any]) -> None:
    """The mesh of Megatron-FSDP, as its adapter builds it."""
    from megatron.core import parallel_state as state
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter as adapter

    try:
        state.initialize_model_parallel(
            case["tp"], case["pp"], context_parallel_size=case["cp"],
            create_gloo_process_groups=False)
        adapter._get_dp_tp_mesh(
            state.get_data_parallel_group(with_context_parallel=True),
            state.get_tensor_model_parallel_group())
    finally:
        state.destroy_model_parallel()


def megatron_waits(case: dict[str, Any]) -> bool:
    """Whether a dispatcher asks the device how many tokens there are, which no captured step can.

    Its tensors are without contents, so that they cannot be copied to the host.
    """
    import torch
    from megatron.core.transformer.moe import token_dispatcher as dispatchers

    routing = torch.ones(8, 4, dtype=torch.bool, device="meta")
    probs = torch.ones(8, 4, device="meta")
    factor = 1.0 if case["padded"] else None
    at = SimpleNamespace(
        config=SimpleNamespace(
            moe_router_topk=1, moe_expert_capacity_factor=factor, moe_permute_fusion=True,
            moe_router_padding_for_quantization=False),
        drop_and_pad=case["padded"], moe_expert_capacity_factor=factor, capacity_factor=factor,
        num_experts=4, num_local_experts=4, ep_size=1, tp_size=1, permute_idx_device="cpu",
        group=SimpleNamespace(size=lambda: 1), num_permuted_tokens=None, routing_map=routing,
        local_expert_indices=[0, 1, 2, 3], permute_fusion=False, dispatched_indices=None,
        dispatched_probs=None, tokens_per_expert=probs.sum(dim=0),
        _indices_to_multihot=lambda *_: (routing, probs))
    if case["dispatcher"] == "alltoall":
        kind = dispatchers.MoEAlltoAllTokenDispatcher
        points = ("before_permutation_1", "before_ep_alltoall", "before_permutation_2",
                  "before_finish", "no_sync")
        at.cuda_sync_point_priority = {name: n for n, name in enumerate(points)}
        at.cuda_dtoh_point, at.cuda_sync_point = points[0], points[-1]
        at._maybe_update_cuda_sync_point = lambda point: kind._maybe_update_cuda_sync_point(
            at, point)
        kind.preprocess(at, routing)
        return at.cuda_sync_point != "no_sync"
    if case["dispatcher"] == "hybridep":  # None: its kernel asks
        dispatchers._HybridEPManager.setup_metadata(at, routing, probs)
        return at.num_permuted_tokens is None
    try:
        if case["dispatcher"] == "deepep":
            dispatchers._DeepepManager.get_permuted_hidden_states_by_experts(at, probs)
        else:
            dispatchers.MoEAllGatherTokenDispatcher.dispatch_postprocess(at, probs, probs)
    except (NotImplementedError, RuntimeError) as error:
        assert "meta tensor" in str(error), error
        return True
    return False


class _Started(Exception):
    """The schedule passed its checks."""


def megatron_interleaves(case: dict[str, Any]) -> bool:
    """Whether the interleaved schedule takes the micro-batches."""
    import torch
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.pipeline_parallel import schedules

    config = ModelParallelConfig(
        pipeline_model_parallel_size=case["pp"], pipeline_dtype=torch.bfloat16,
        microbatch_group_size_per_vp_stage=case.get("group") or case["pp"])
    group = SimpleNamespace(size=lambda: case["pp"], rank=lambda: 0)
    peers = SimpleNamespace(config=config, pp_group=group)
    collection = SimpleNamespace(tp=group, cp=group, embd=None, pos_embd=None, pp=group,
                                 dp_cp=group)
    model = [torch.nn.Identity() for _ in range(case["vpp"])]
    for chunk in model:
        chunk.config = config

    def stop(*_: Any, **__: Any) -> None:
        raise _Started

    kept = {name: getattr(schedules, name) for name in ("get_model_type", "get_model_config")}
    zeros, count = torch.zeros, iter(range(10))
    torch.zeros = lambda *sizes, device=None, **given: zeros(*sizes, **given)  # no GPU
    # The first question for the model's type is before the checks, the second behind them.
    schedules.get_model_type = lambda _: stop() if next(count) else None
    schedules.get_model_config = lambda _: config
    try:
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=stop, data_iterator=[None] * case["vpp"], model=model,
            num_microbatches=case["micro_batches"], seq_length=8, micro_batch_size=1,
            forward_only=True, p2p_communicator=peers, pg_collection=collection)
    except _Started:
        return True
    except (RuntimeError, ValueError):
        return False
    finally:
        torch.zeros = zeros
        for name, value in kept.items():
            setattr(schedules, name, value)
    raise AssertionError("the schedule ran")


# ---------------------------------------------------------------- torchtitan


NAMES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}


def torchtitan(case: dict[str, Any]) -> dict[str, Any]:
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part

    found: dict[str, Any] = {}
    with world(case["world"]):
        dims = ParallelDims(
            dp_replicate=case["replicate"], dp_shard=case["shards"], cp=case["cp"], tp=case["tp"],
            pp=case["pp"], ep=case["ep"], world_size=case["world"])
        found["mesh"] = accepts(dims.build_mesh)
        if found["mesh"]:
            dense = dims._global_meshes["dense"].mesh
            sparse = dims._global_meshes["sparse"].mesh
            found["groups"] = {
                "pp": columns(dense, 0), "dp": rows(dense.flatten(1, 2).transpose(1, 3)),
                "cp": columns(dense, 3), "tp": columns(dense, 4), "ep": columns(sparse, 3)}
        found["schedule"] = case["pp"] == 1 or accepts(lambda: torch_schedule(case))
    parts = _generate_llm_fqn_per_model_part(case["pp"] * case["vpp"], case["layers"])
    found["cuts"] = [sum(name.startswith("layers.") for name in part) for part in parts]
    return found


def graphs(case: dict[str, Any]) -> bool:
    """Whether its trainer takes CUDA graphs with these degrees, experts in torchtitan's own form.

    The method alone is taken from its source: importing the trainer needs more than is installed.
    """
    import ast
    from importlib.util import find_spec

    from torchtitan.models.common.token_dispatcher import (
        AllToAllTokenDispatcher,
        HybridEPTokenDispatcher,
        LocalTokenDispatcher,
        MinimalAsyncEPTokenDispatcher,
    )

    found = find_spec("torchtitan.trainer")
    assert found and found.origin
    with open(found.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    method = next(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)
                  and one.name == "_validate_cuda_graphs")
    given: dict[str, Any] = {one.__name__: one for one in (
        HybridEPTokenDispatcher, LocalTokenDispatcher, MinimalAsyncEPTokenDispatcher)}
    exec(compile(ast.Module([method], []), found.origin, "exec"), given)
    dispatcher = object.__new__(AllToAllTokenDispatcher.Config)
    model = SimpleNamespace(traverse=lambda kind: [(None, dispatcher, None, None)] * (
        isinstance(dispatcher, kind)))
    trainer = SimpleNamespace(
        training=SimpleNamespace(disable_cuda_graphs=not case["graphs"]),
        parallelism=SimpleNamespace(pipeline_parallel_degree=case["pp"],
                                    expert_parallel_degree=case["ep"]),
        model_spec=SimpleNamespace(model=model))
    return accepts(lambda: given["_validate_cuda_graphs"](trainer))


def columns(mesh: Any, axis: int) -> list[list[int]]:
    """Groups along one axis of a mesh."""
    return rows(mesh.transpose(axis, -1))


def rows(mesh: Any) -> list[list[int]]:
    return mesh.reshape(-1, mesh.shape[-1]).tolist()


def torch_schedule(case: dict[str, Any]) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    kind = get_schedule_class(NAMES[case["schedule"]])
    mesh = init_device_mesh("cpu", (case["world"] // case["pp"], case["pp"]),
                            mesh_dim_names=("rest", "pp"))
    stages = [PipelineStage(torch.nn.Identity(), n * case["pp"], case["pp"] * case["vpp"],
                            torch.device("meta"), group=mesh.get_group("pp"))
              for n in range(case["vpp"])]
    several = issubclass(kind, PipelineScheduleMulti)
    if several and case["vpp"] < 2:  # as torchtitan, which checks it elsewhere
        raise ValueError("several stages a rank")
    if not several and case["vpp"] > 1:
        raise ValueError("one stage a rank")
    kind(stages if several else stages[0], case["micro_batches"], loss_fn=lambda *_: None)


# ---------------------------------------------------------------- orders of passes


def order(case: dict[str, Any]) -> list[list[tuple[str, int]]] | None:
    """Kind and position of each pass of each rank, as the framework orders them; None: refused."""
    return megatron_order(case) if case["by"] == "megatron" else pytorch_order(case)


def megatron_order(case: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """Forwards and backwards by Megatron-Core's table and its warm-up."""
    from megatron.core.pipeline_parallel import schedules

    pp, vpp = case["pp"], case["vpp"]
    table = schedules.get_schedule_table(case["micro_batches"], vpp, case["group"])
    found = []
    for rank in range(pp):
        group = SimpleNamespace(size=lambda: pp, rank=lambda rank=rank: rank)
        peers = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=vpp)
        total, _, warm, _ = schedules.get_pp_rank_microbatches(
            case["micro_batches"], vpp, case["group"], p2p_communicator=peers,
            overlap_moe_expert_parallel_comm=case["together"])
        ahead = [("f", n * pp + rank) for _, n in table]
        back = [("b", (vpp - 1 - n) * pp + rank) for _, n in table]
        row = ahead[:warm]
        for one, other in zip(ahead[warm:], back[:total - warm], strict=True):
            row += [one, other]
        found.append([*row, *back[total - warm:]])
    return found


def pytorch_order(case: dict[str, Any]) -> list[list[tuple[str, int]]] | None:
    """The order that a schedule class of PyTorch builds."""
    import torch
    from torch.distributed.pipelining import PipelineStage, schedules

    pp, vpp = case["pp"], case["vpp"]
    kind = getattr(schedules, case["class"])
    with world(pp):
        stages = [
            PipelineStage(torch.nn.Identity(), 2 * pp - 1 if n and case["folded"] else n * pp,
                          pp * vpp, torch.device("meta")) for n in range(vpp)]
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        try:
            built = kind(stages if several else stages[0], case["micro_batches"],
                         loss_fn=lambda *_: None)
        except ValueError:
            return None
    return order_of(built, pp)


def order_of(built: Any, pp: int) -> list[list[tuple[str, int]]]:
    """Kind and position of each pass of each rank, of a schedule of PyTorch."""
    several = hasattr(built, "pipeline_order")
    rows = built.pipeline_order if several else built._get_pipeline_order()
    names = {"FORWARD": "f", "FULL_BACKWARD": "b", "BACKWARD_INPUT": "i", "BACKWARD_WEIGHT": "w"}
    return [[(names[one.computation_type.name], one.stage_index)
             for action in rows[rank] if action is not None
             for one in action.sub_actions or (action,) if one.computation_type.name in names]
            for rank in range(pp)]


# ---------------------------------------------------------------- DeepSpeed


def deepspeed(case: dict[str, Any]) -> dict[str, Any]:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(
        num_pp=case["pp"], num_dp=case["world"] // (case["pp"] * case["tp"]), num_mp=case["tp"])
    return {
        "groups": {"pp": topology.get_axis_comm_lists("pipe") or None,
                   "dp": topology.get_axis_comm_lists("data") or None,
                   "tp": topology.get_axis_comm_lists("model") or None},
        "zero": case["pp"] == 1 or deepspeed_zero(case["zero"])}


def deepspeed_divisions(layers: int, chunks: int) -> list[list[int]]:
    """First layer of each chunk and their number, embedding and head among them, by its methods
    that give every stage parameters, as torch's optimizers ask."""
    import torch
    from deepspeed.runtime.utils import partition_balanced, partition_uniform

    weights = [0, *[1] * layers, 0]
    found = []
    for bounds in (partition_uniform(len(weights), chunks), partition_balanced(weights, chunks)):
        ends = [int(n) for n in bounds]
        try:
            for a, b in zip(ends, ends[1:]):  # noqa: B905
                torch.optim.AdamW(torch.zeros(1, requires_grad=True) for _ in range(a, b))
            found.append(ends)
        except ValueError as error:
            assert "empty parameter list" in str(error)
    return found


def deepspeed_zero(stage: int) -> bool:
    """Whether its pipeline takes a stage of ZeRO."""
    from deepspeed.runtime.pipe.engine import DeepSpeedEngine, PipelineEngine
    from deepspeed.runtime.pipe.module import PipelineModule

    started = DeepSpeedEngine.__init__

    def start(self: Any) -> None:
        object.__setattr__(self, "zero_optimization_stage", lambda: stage)
        object.__setattr__(self, "module", PipelineModule.__new__(PipelineModule))

    DeepSpeedEngine.__init__ = start
    try:
        pipeline = PipelineEngine.__new__(PipelineEngine)
        pipeline.__init__()
        return True
    except AssertionError as error:
        return "ZeRO-2 and ZeRO-3" not in str(error)
    except AttributeError:  # behind the check it asks for more than this test makes
        return True
    finally:
        DeepSpeedEngine.__init__ = started


def divided(case: dict[str, Any]) -> Any:
    """Products that the backward of a block runs for its input, and then for its weights.

    By the functions of PyTorch's pipelines; whole ones count, compiled as torchtitan does.
    """
    import torch
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch.distributed.pipelining._backward import (
        stage_backward_input,
        stage_backward_weight,
    )

    ran: list[int] = []

    def counted(graph: Any, _: Any) -> Any:
        products = sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes)

        def run(*given: Any) -> Any:
            ran.append(products)
            return graph.forward(*given)
        return make_boxed_func(run)

    class Block(torch.nn.Sequential):
        def forward(self, given: Any) -> Any:
            for layer in self:
                given = layer(given)
            return given

    block = Block(*(torch.nn.Linear(8, 8, bias=False) for _ in range(2)))
    if case["compiled"]:
        block.compile(fullgraph=True, backend=aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=counted))
    given = torch.ones(2, 8, requires_grad=True)
    out = block(given)
    _, groups = stage_backward_input([out], [torch.ones_like(out)], [given], block.parameters())
    ahead = [sum(ran), sum(weight.grad is not None for weight in block.parameters())]
    stage_backward_weight(block.parameters(), groups)
    return {"for_inputs": ahead, "for_both": [
        sum(ran), sum(weight.grad is not None for weight in block.parameters())]}


JUDGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed, "order": order,
    "graphs": graphs, "waits": megatron_waits, "divided": divided,
    "divisions": lambda case: deepspeed_divisions(case["layers"], case["chunks"])}

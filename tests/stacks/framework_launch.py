"""The frameworks' own code takes whole configurations, as at a launch, without a GPU.

Run by their Python, not by NEST. A judge gets a case (see ``test_framework_plans.py``). Its answer
has ``refused``, what the framework says against the case, or null and what it made of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from tempfile import NamedTemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any

from framework_judge import (
    deepspeed_divisions,
    deepspeed_zero,
    megatron_interleaves,
    order_of,
    world,
)

Case = dict[str, Any]
REFUSALS = (AssertionError, ValueError, RuntimeError, NotImplementedError, SystemExit)


def taken(case: Case, *takers: Callable[[Case], Case]) -> Case:
    """What each taker makes of a case; the first refusal ends it."""
    found: Case = {"refused": None}
    for taker in takers:
        try:
            found |= taker(case)
        except REFUSALS as error:
            return {"refused": str(error) or type(error).__name__}
    return found


# ---------------------------------------------------------------- Megatron-Core


@cache
def arguments() -> Any:
    """Megatron's module of arguments."""
    sys.path.insert(0, os.environ["NEST_FRAMEWORK_ARGUMENTS"])
    import typing

    import torch
    import typing_extensions

    typing.override = typing_extensions.override  # it is of Python 3.12
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    from megatron.training import argument_utils, arguments

    arguments.get_device_arch_version = lambda: 9
    # Each parser reads the texts of --help from the sources again: most of the time of a case.
    factory = argument_utils.ArgumentGroupFactory
    read = factory._get_field_docstrings
    texts = cache(lambda kind: read(factory.__new__(factory), kind))
    factory._get_field_docstrings = lambda _, kind: texts(kind)
    from megatron.core.transformer import transformer_config

    for module in (arguments, transformer_config):
        module.is_te_min_version = lambda *_, **__: True  # as if it were installed
    return arguments


def megatron(case: Case) -> Case:
    arguments()
    return taken(case, megatron_arguments, megatron_layout, megatron_turns, megatron_ranks)


def megatron_arguments(case: Case) -> Case:
    from megatron.training.argument_utils import core_transformer_config_from_args

    sys.argv = ["launch", *case["flags"]]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= {"WORLD_SIZE": str(case["world"]), **case["variables"]}
    args = arguments().parse_args()
    arguments().validate_args(args)
    config = core_transformer_config_from_args(args)
    batches = args.micro_batch_size * args.data_parallel_size
    return {"vpp": args.virtual_pipeline_model_parallel_size or 1, "modules":
            config.recompute_modules, "micro_batches": args.global_batch_size / batches}


def megatron_layout(case: Case) -> Case:
    from megatron.core.transformer import pipeline_parallel_layer_layout as text

    found = text.PipelineParallelLayerLayout.from_str(case["layout"], case["pp"])
    found.validate_layer_layout(num_layers=case["layers"], mtp_num_layers=case["mtp"] or None)
    letter = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return {"chunks": [["".join(letter[one.name] for one in chunk) for chunk in stage]
                       for stage in found.layout]}


def megatron_turns(case: Case) -> Case:
    assert case["vpp"] == 1 or case["pp"] == 1 or megatron_interleaves(case), "micro-batches"
    return {}


def megatron_ranks(case: Case) -> Case:
    """The place of some ranks in all groups."""
    from megatron.core import parallel_state as state
    from torch.distributed import get_process_group_ranks

    mapped = "--use-tp-pp-dp-mapping" in case["flags"]
    found = {}
    for rank in case["ranks"]:
        with world(case["world"], rank):
            try:
                state.initialize_model_parallel(
                    case["tp"], case["pp"], case["vpp"] if case["vpp"] > 1 else None,
                    context_parallel_size=case["cp"], expert_model_parallel_size=case["ep"],
                    expert_tensor_parallel_size=case["etp"],
                    order="tp-cp-ep-pp-dp" if mapped else "tp-cp-ep-dp-pp",
                    num_distributed_optimizer_instances=case["instances"],
                    hierarchical_context_parallel_sizes=case["cp_levels"],
                    create_gloo_process_groups=False)
                found[rank] = {
                    "stage": state.get_pipeline_model_parallel_rank(),
                    "tp": state.get_tensor_model_parallel_rank(),
                    "cp": state.get_context_parallel_rank(),
                    "dp": state.get_data_parallel_rank(),
                    "ep": state.get_expert_model_parallel_rank(),
                    "etp": state.get_expert_tensor_parallel_rank(),
                    "expert_dp": state.get_expert_data_parallel_rank(),
                    "sharded": state.get_data_parallel_group(
                        with_context_parallel=True, partial_data_parallel=True).size()}
                if case["cp_levels"]:
                    found[rank]["a2a"] = get_process_group_ranks(
                        state.get_hierarchical_context_parallel_groups(check_initialized=False)[0])
            finally:
                state.destroy_model_parallel()
    return {"ranks": found}


def bridge(case: Case) -> Case:
    """Which fields of Megatron-Bridge's parts Megatron-Core does not have.

    Megatron-Bridge 0.6.0 has 0.19 beside it (3rdparty/Megatron-LM is cd4afff).
    """
    arguments()
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    parts = {"model": TransformerConfig, "ddp": DistributedDataParallelConfig,
             "optimizer": OptimizerConfig}
    names = (name.split(".") for name in case["fields"])
    return {"unknown": [f"{part}.{name}" for part, name in names if part in parts
                        and name not in parts[part].__dataclass_fields__]}


def bridge_layout(case: Case) -> Case:
    """A recipe that counts embedding and loss as layers, with the fields of a plan."""
    arguments()
    import torch
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=case["layers"], hidden_size=64, num_attention_heads=8,
        mtp_num_layers=case["mtp"] or None, account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True)
    for name, value in case["fields"].items():
        setattr(config, name, value)
    config.pipeline_dtype = torch.float32
    config.__post_init__()
    return {}


# ---------------------------------------------------------------- torchtitan


def torchtitan(case: Case) -> Case:
    with world(case["world"]):
        return taken(case, torchtitan_settings, torchtitan_model, torchtitan_ranks,
                     torchtitan_pipeline)


class Lacking(MetaPathFinder, Loader):
    """Empty modules for what torchtitan imports, but a configuration does not need."""

    names = ("torchdata", "datasets", "wandb", "tokenizers", "safetensors", "torchao", "jinja2",
             "huggingface_hub", "PIL", "transformers", "fsspec")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] in self.names:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        class Empty(ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})

        found = Empty(spec.name)
        found.__path__ = []
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


@cache
def pretend() -> None:
    """Let torchtitan's trainer be imported."""
    import typing

    import typing_extensions

    typing.override = typing_extensions.override  # it is of Python 3.12
    sys.modules["torch.utils.tensorboard"] = ModuleType("torch.utils.tensorboard")
    sys.modules["torch.utils.tensorboard"].SummaryWriter = object
    sys.meta_path.append(Lacking())


@cache
def manager() -> Any:
    """Torchtitan's manager of configurations: each that is made slows all that follow, since it
    adds its rules to a registry of all.
    """
    pretend()
    from torchtitan.config import ConfigManager

    return ConfigManager()


def torchtitan_exported(case: Case) -> Case:
    """The exported module, by torchtitan's own manager of configurations."""
    managed = manager()
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    def base() -> Any:
        """A configuration of the user's own."""
        config = llama3_debugmodel()
        config.model_spec.model.dim, config.model_spec.model.vocab_size = 512, 128
        config.model_spec.model.layers = llama3._build_llama3_layers(
            n_layers=case["layers"], dim=512, n_heads=8, hidden_dim=512, attn_backend="flex",
            rope=ComplexRoPE.Config(dim=64, max_seq_len=64, theta=1e4, scaling="llama"))
        return config

    sys.modules["own"] = SimpleNamespace(base=base)
    os.environ["BASE"] = "own:base"
    sys.modules["plan_config"] = module = ModuleType("plan_config")
    exec(compile(case["exported"], "plan_config.py", "exec"), vars(module))
    config = managed.parse_args([
        "--module", "plan_config", "--config", case.get("config", "plan")])
    policy = type(config.activation_checkpoint).__qualname__.partition(".")[0]
    return {"training": config.training, "parallelism": config.parallelism,
            "policy": None if config.activation_checkpoint is None else policy}


def module(case: Case) -> Case:
    """A module of a user's, with its degrees and the modules of its stages."""
    return taken(case, module_settings)


def module_settings(case: Case) -> Case:
    found = torchtitan_exported(case)
    given = found["parallelism"]
    return {"policy": found["policy"], "modules": given.module_fqns_per_model_part, "degrees": [
        given.tensor_parallel_degree, given.pipeline_parallel_degree,
        given.context_parallel_degree]}


def toml(case: Case) -> Case:
    """The exported TOML, by the manager of configurations of torchtitan 0.2."""
    return taken(case, toml_settings)


def toml_settings(case: Case) -> Case:
    folder = os.environ["NEST_FRAMEWORK_TOML"]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    managed = manager()
    from torchtitan.distributed import ParallelDims

    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(case["toml"])
        file.flush()
        words = ["--job.config_file", file.name]
        found = managed.parse_args([*words, "--model.name", "m", "--model.flavor", "f"])
    given, training = found.parallelism, found.training
    ParallelDims(
        dp_replicate=given.data_parallel_replicate_degree,
        dp_shard=given.data_parallel_shard_degree,
        cp=given.context_parallel_degree, tp=given.tensor_parallel_degree,
        pp=given.pipeline_parallel_degree, ep=given.expert_parallel_degree,
        etp=given.expert_tensor_parallel_degree, world_size=case["world"])
    return {"steps": torchtitan_steps(case, training), "zero": given.fsdp_reshard_after_forward,
            "mode": found.activation_checkpoint.mode,
            "modules": given.module_fqns_per_model_part}


def torchtitan_settings(case: Case) -> Case:
    """Its own classes, as its manager of configurations or its command line reads them."""
    if case["exported"]:
        found = torchtitan_exported(case)
        training, settings = found["training"], found["parallelism"]
        assert settings.module_fqns_per_model_part == (case["modules"] if case["pp"] > 1 else None)
        case |= {"settings": settings, "local": training.local_batch_size,
                 "policy": found["policy"]}
        settings.module_fqns_per_model_part = case["modules"]
        return {"policy": found["policy"], "steps": torchtitan_steps(case, training)}
    import tyro
    from torchtitan.config import ParallelismConfig, TrainingConfig

    kept, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115
    try:
        training = tyro.cli(TrainingConfig, args=case["training"])
        case["settings"] = tyro.cli(ParallelismConfig, args=case["parallelism"])
    finally:
        sys.stderr.close()
        sys.stderr = kept
    case["settings"].module_fqns_per_model_part = case["modules"]
    case["local"] = training.local_batch_size
    return {"steps": torchtitan_steps(case, training)}


def torchtitan_steps(case: Case, training: Any) -> int:
    assert training.global_batch_size % (case["dp"] * training.local_batch_size) == 0, "batch"
    return int(training.global_batch_size // (case["dp"] * training.local_batch_size))


def torchtitan_model(case: Case) -> Case:
    """What a decoder says of the degrees."""
    if "torchtitan.trainer" not in sys.modules:  # it needs more than is installed
        sys.modules["torchtitan.trainer"] = SimpleNamespace(
            Trainer=SimpleNamespace(Config=type("Config", (), {})))
    from torchtitan.models.common.decoder import Decoder

    model = SimpleNamespace(
        enable_weight_tying=case["tied"], layers=[], first_attention=SimpleNamespace(
            n_heads=case["heads"], n_kv_heads=case["kv_heads"]))
    Decoder.Config.update_from_config(
        model, config=SimpleNamespace(parallelism=case["settings"]))
    return {}


def torchtitan_ranks(case: Case) -> Case:
    from torchtitan.distributed.parallel_dims import ParallelDims

    dims = ParallelDims.from_config(case["settings"], case["world"])
    dims.build_mesh()
    dense, sparse = (dims._global_meshes[name].mesh for name in ("dense", "sparse"))
    at, expert = ({rank: (mesh == rank).nonzero()[0].tolist() for rank in case["ranks"]}
                  for mesh in (dense, sparse))
    shards = dense.shape[2]
    return {"ranks": {rank: {
        "stage": at[rank][0], "dp": at[rank][1] * shards + at[rank][2], "cp": at[rank][3],
        "tp": at[rank][4], "sharded": shards * dense.shape[3],
        **({"ep": expert[rank][3],
            "expert_dp": expert[rank][1] * sparse.shape[2] + expert[rank][2]}
           if case["ep"] > 1 else {})} for rank in case["ranks"]}}


def torchtitan_pipeline(case: Case) -> Case:
    """The stages that each rank gets, and the order of their passes."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torchtitan.distributed import pipeline_parallel as pipeline

    if case["pp"] == 1:
        return {}
    every, chunks = [], len(case["modules"])
    for rank in range(case["pp"]):
        own = pipeline._get_pp_rank_to_stage_indices_mapping(
            rank, case["pp"], case["settings"].pipeline_parallel_schedule, chunks)
        every.append(list(own))
    group = torch.distributed.new_group(list(range(case["pp"])))
    stages = [PipelineStage(torch.nn.Identity(), n, chunks, torch.device("meta"), group=group)
              for n in every[0]]
    built = pipeline._build_pipeline_schedule(
        parallelism=case["settings"], local_batch_size=case["local"], stages=stages,
        loss_fn=lambda *_: None)
    return {"stages": every, "order": order_of(built, case["pp"])}


# ---------------------------------------------------------------- FSDP2


def fsdp2(case: Case) -> Case:
    """In a process of its own: meshes outlive their groups."""
    exec(compile(case["text"], "parallelize.py", "exec"), {})  # imports, once for all
    import torch._dynamo  # noqa: F401 - a step imports it, which takes most of its time
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(theirs, "w") as stream:
            try:
                with world(case["world"]):
                    stream.write(json.dumps(taken(case, fsdp2_step)))
            finally:
                stream.flush()
                os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    found: Case = json.loads(text or '{"refused": "it ended"}')
    return found


def fsdp2_step(case: Case) -> Case:
    """A forward and a backward pass of a decoder with the names of transformers'."""
    import torch

    given: dict[str, Any] = {}
    exec(compile(case["text"], "parallelize.py", "exec"), given)
    with torch.device("meta"):
        model = decoder(case["layers"])
    ranks = given["mesh"]("cpu")
    given["parallelize"](model, ranks)
    rows = model.model.layers[0].self_attn.q_proj.weight.to_local().shape[0]
    model.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.ones_(weight)
    model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    group = model.model.layers[0]._get_fsdp_state()._fsdp_param_group
    return {"mesh": list(ranks.mesh.shape), "rows": rows,
            "reshard": group.post_forward_mesh_info is not None}


def decoder(layers: int, width: int = 128, heads: int = 8) -> Any:
    import torch
    from torch import nn

    def linear(*sizes: int) -> nn.Linear:
        return nn.Linear(*sizes, bias=False)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = linear(width, width), linear(width, width)
            self.v_proj, self.o_proj = linear(width, width), linear(width, width)

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            rows, tokens = hidden_states.shape[:2]
            parts = (own(hidden_states).view(rows, tokens, -1, width // heads).transpose(1, 2)
                     for own in (self.q_proj, self.k_proj, self.v_proj))
            found = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return self.o_proj(found.transpose(1, 2).reshape(rows, tokens, -1))

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = linear(width, width), linear(width, width)
            self.down_proj, self.act_fn = linear(width, width), nn.SiLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn, self.mlp = Attention(), Mlp()
            self.input_layernorm = nn.RMSNorm(width)
            self.post_attention_layernorm = nn.RMSNorm(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.self_attn(hidden_states=self.input_layernorm(x))
            return x + self.mlp(self.post_attention_layernorm(x))

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens, self.norm = nn.Embedding(128, width), nn.RMSNorm(width)
            self.layers = nn.ModuleList(Block() for _ in range(layers))

        def forward(self, tokens: torch.Tensor, position_ids: Any = None) -> torch.Tensor:
            x = self.embed_tokens(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head = Inner(), linear(width, 128)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.lm_head(self.model(tokens))

    return Whole()


# ---------------------------------------------------------------- DeepSpeed


def deepspeed(case: Case) -> Case:
    return taken(case, deepspeed_settings, deepspeed_pipeline, deepspeed_ranks)


def deepspeed_settings(case: Case) -> Case:
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    with world(case["world"]):
        comm.comm.cdb = None
        comm.init_distributed("fake")
        found = DeepSpeedConfig(case["settings"], mpu=SimpleNamespace(
            get_data_parallel_world_size=lambda: case["dp"]))
    return {"micro_batches": found.gradient_accumulation_steps,
            "zero": int(found.zero_optimization_stage)}


def hostfile(case: Case) -> Case:
    """Hosts and their devices, in the order of their ranks."""
    from deepspeed.launcher import runner

    found = runner.parse_inclusion_exclusion(
        runner._parse_hostfile(case["text"].splitlines()), "", "")
    return {"hosts": [[host, *slots] for host, slots in found.items()]}


def deepspeed_pipeline(case: Case) -> Case:
    """The rules of its pipelines; kind and chunk of each pass of each rank."""
    from deepspeed.runtime.pipe import schedule

    if case["pp"] == 1:
        return {}
    assert deepspeed_zero(case["zero"]), "ZeRO"
    divisions = deepspeed_divisions(case["layers"], case["pp"] * case["vpp"])
    assert case["cuts"] in divisions, f"layers are divided as {divisions}"
    kind = schedule.DualPipeVSchedule if case["vpp"] == 2 else schedule.TrainSchedule
    letters = {"ForwardPass": "f", "BackwardPass": "b"}
    return {"order": [
        [(letters[one.name], rank if getattr(one, "phase", 0) == 0 else 2 * case["pp"] - 1 - rank)
         for commands in kind(case["micro_batches"], case["pp"], rank).steps()
         for one in commands if one.name in letters] for rank in range(case["pp"])]}


def deepspeed_ranks(case: Case) -> Case:
    from deepspeed import comm
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    from deepspeed.utils import groups

    topology = PipeModelDataParallelTopology(
        num_pp=case["pp"], num_dp=case["dp"] * case["cp"], num_mp=case["tp"])
    mpu = SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: case["tp"],
        get_pipe_parallel_world_size=lambda: case["pp"],
        get_data_parallel_world_size=lambda: case["dp"] * case["cp"])
    found = {}
    for rank in case["ranks"]:
        at = topology.get_coord(rank)
        found[rank] = {"stage": at.pipe, "dp": at.data // case["cp"], "cp": at.data % case["cp"],
                       "tp": at.model}
        if not case["experts"]:
            continue
        groups.mpu = mpu
        for name in ("_EXPERT_PARALLEL_GROUP", "_EXPERT_DATA_PARALLEL_GROUP"):
            setattr(groups, name, {})
            setattr(groups, f"{name}_RANKS", {})
        with world(case["world"], rank):
            comm.comm.cdb = None
            comm.init_distributed("fake")
            if case["etp"] > 1:
                groups._create_expert_data_and_model_parallel(case["ep"], mpu)
            else:
                groups._create_expert_and_data_parallel(case["ep"])
        name = f"ep_size_{case['ep']}"
        found[rank] |= {
            "ep": list(groups._EXPERT_PARALLEL_GROUP_RANKS[name]).index(rank),
            "expert_dp": list(groups._EXPERT_DATA_PARALLEL_GROUP_RANKS[name]).index(rank)}
    return {"ranks": found}


JUDGES: dict[str, Callable[[Case], Any]] = {
    "megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed,
    "arguments": lambda case: taken({**case, "arguments": arguments()}, megatron_arguments),
    "module": module, "json": lambda case: taken(case, deepspeed_settings),
    "bridge layout": lambda case: taken(case, bridge_layout),
    "toml": toml, "fsdp2": fsdp2, "bridge": bridge, "hostfile": hostfile}

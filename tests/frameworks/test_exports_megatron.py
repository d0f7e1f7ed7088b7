"""Megatron-LM's launch scripts: golden ones, the words of each setting, ranks, refusals, quoting.

`tests/stacks/test_framework_plans.py` has Megatron's own parser take exported scripts.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random
from typing import Any

import pytest
from descriptions import MODEL, TRANSLATOR
from launches import launched, run_script

import nest
from nest.errors import InputError, UnsupportedError
from nest.evaluation.even import even_configuration
from nest.frameworks.megatron.write import arguments, inexpressible, options, variables

GOLDEN = Path(__file__).with_name("golden")
PLANS: dict[str, tuple[str, str, int, dict[str, Any], dict[str, Any]]] = {
    "llama3.1-405b": ("llama3.1-405b", "dgx-h100", 512, {"global_batch": 128, "seq_len": 8192},
                      {"tp": 8, "pp": 8, "vpp": 4, "zero": 1, "recompute": "full"}),
    "deepseek-v3": ("deepseek-v3", "gb200-nvl72", 256, {"global_batch": 512, "seq_len": 4096},
                    {"ep": 16, "layout": "Et*7|(t*8|)*6t*6mL", "pp": 8, "dp_in": 16,
                     "zero": 1, "recompute": "selective",
                     "recompute_modules": ("norm", "mlp_act")}),
}


def golden_plan(name: str) -> nest.Plan:
    model, cluster, devices, job, degrees = PLANS[name]
    return plan(nest.load_model(model), nest.load_cluster(cluster, devices=devices),
                nest.Job(**job), **degrees)


def plan(model: nest.Model, cluster: nest.Cluster, job: nest.Job, **degrees: Any) -> nest.Plan:
    return nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, **degrees))


PADDED = {"expert_capacity": 1.0, "expert_padding": True}


def small(changes: dict[str, Any] | None = None, stack: Any = "megatron-core",
          devices: int = 16, asked: dict[str, Any] | None = None, **degrees: Any) -> nest.Plan:
    """A small model on nodes of 8; ``asked``: fields of the job."""
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8, **(changes or {})})
    job = nest.Job(global_batch=64, seq_len=64, stack=stack, **(asked or {}))
    return plan(model, nest.load_cluster("dgx-h100", devices=devices), job, **degrees)


@pytest.mark.parametrize("name", PLANS)
def test_the_golden_scripts(name: str) -> None:
    assert nest.export(golden_plan(name), "megatron") == {
        path.name.removeprefix(f"{name}."): path.read_text(encoding="utf-8")
        for path in GOLDEN.glob(f"{name}.*")}


@pytest.mark.parametrize("name", PLANS)
def test_the_golden_scripts_name_their_version(name: str) -> None:
    for text in nest.export(golden_plan(name), "megatron").values():
        assert "Megatron-LM core_v0.16.1" in "\n".join(text.splitlines()[:3])


# ---------------------------------------------------------------- places of ranks


def places_of(found: nest.Plan, gpus_per_node: int | None = None) -> dict[int, tuple[int, int]]:
    """Node and device of each rank, as the script starts them on each node."""
    files = nest.export(found, "megatron", gpus_per_node=gpus_per_node)
    size = gpus_per_node or 8
    at: dict[int, tuple[int, int]] = {}
    for node in sorted({rank.device // size for rank in found.ranks()}):
        for one in launched(files, node):
            if one.launcher:  # torchrun, which numbers the ranks of a node in a row
                each, number = (one.launcher[f"--{n}"] for n in ("nproc-per-node", "node-rank"))
                assert one.launcher["--nnodes"] * each == len(found.ranks())
                at |= {number * each + local: (node, local) for local in range(each)}
            else:
                rank, local = int(one.variables["RANK"]), int(one.variables["LOCAL_RANK"])
                assert int(one.variables["WORLD_SIZE"]) == len(found.ranks())
                at[rank] = node, local
    return at


@pytest.mark.parametrize(("degrees", "file"), [
    ({"tp": 8, "pp": 2, "outer_dp": 1}, None),
    ({"tp": 8, "zero": 1}, None),
    ({"tp": 4, "pp": 2, "dp_in": 2, "devices": 32}, "hosts"),
    ({"tp": 2, "pp": 2, "dp_in": 2}, "ranks"),
    ({"tp": 1, "pp": 2, "dp_in": 2, "devices": 8}, "ranks"),  # on one node
    ({"tp": 2, "pp": 4}, None),  # replica by replica, by a flag
    ({"tp": 1, "pp": 2, "dp_in": 8, "devices": 64}, "hosts"),
    ({"tp": 2, "devices": 4}, None),
], ids=str)
def test_each_rank_is_where_the_plan_has_it(degrees: dict[str, Any], file: str | None) -> None:
    """Megatron numbers ranks tp, dp, pp, or tp, pp, dp: that is the place of the plan's device."""
    found = small(**degrees)
    files, at = nest.export(found, "megatron"), places_of(found)
    assert set(files) == {"launch.sh", *([file] if file else [])}
    pp, tp = found.parallelism.pp, found.stages[0].tp
    dp = len(at) // pp // tp
    mapped = "--use-tp-pp-dp-mapping" in files["launch.sh"]
    assert sorted(at) == list(range(len(at)))
    here = {(rank.device // 8, rank.device % 8): rank for rank in found.ranks()}
    for rank, place in at.items():
        outer, first = divmod(rank, tp)
        stage, copy = (outer % pp, outer // pp) if mapped else divmod(outer, dp)
        mine = here[place]
        assert (mine.tp, mine.stage, mine.dp) == (first, stage, copy)


def test_other_nodes_than_those_of_the_plan_end_the_script() -> None:
    for degrees in ({"tp": 4, "pp": 2, "dp_in": 2, "devices": 32}, {"tp": 2, "pp": 2, "dp_in": 2}):
        files = nest.export(small(**degrees), "megatron")
        done, started = run_script(files, {"MOCK_DATA": "1", "NODE": "7", "MASTER_ADDR": "a"})
        assert (done.returncode, started) == (2, []) and "no node 7 in this plan" in done.stderr


def test_nodes_are_given_or_those_of_the_cluster() -> None:
    found = small(tp=2, zero=1)
    assert "--nnodes 4 --nproc-per-node 4" in nest.export(
        found, "megatron", gpus_per_node=4)["launch.sh"]
    with pytest.raises(InputError, match=r"gpus_per_node: got 3; allowed: a divisor or a multiple"):
        nest.export(found, "megatron", gpus_per_node=3)


# ---------------------------------------------------------------- what the user fills in


def test_variables_that_are_not_set_are_named_once() -> None:
    done, started = run_script(
        nest.export(small(tp=8), "megatron"), {"LR": "1", "NODE": "0"})
    assert (done.returncode, started) == (2, [])
    assert done.stderr.splitlines() == [
        done.stderr.split(": not set:")[0] + ": not set: DATA_PATH TOKENIZER CHECKPOINT "
        "TRAIN_ITERS MASTER_ADDR (the first lines of this file say what they are)"]


def test_values_of_the_user_stay_whole() -> None:
    """Blanks, quotes and commands in variables and arguments reach the program as they are."""
    evil = "a b'\"$(touch owned)`touch owned`;*"
    given = {"DATA_PATH": evil, "TOKENIZER": evil, "CHECKPOINT": evil, "LR": "1e-4",
             "TRAIN_ITERS": "5", "MEGATRON": "/a b"}
    done, [one] = run_script(nest.export(small(tp=8, devices=8), "megatron"), given, "--x", evil)
    assert done.returncode == 0, done.stderr
    for name in ("--data-path", "--tokenizer-model", "--save", "--load"):
        assert one.words[one.words.index(name) + 1] == evil
    assert one.words[-2:] == ["--x", evil]


def test_names_of_descriptions_cannot_become_commands() -> None:
    """A name is one line, which is a comment."""
    name = "a'b\"c`d` $(touch owned) # \\"
    files = nest.export(small({"name": name}, devices=8, tp=8), "megatron")
    assert f"# {name}, 8 devices of dgx-h100: " in files["launch.sh"].splitlines()[1]
    done, [one] = run_script(files, {"MOCK_DATA": "1"})
    assert done.stderr == "" and not [word for word in one.words if "owned" in word]


def test_made_up_data_have_the_vocabulary_of_the_model() -> None:
    words = launched(nest.export(small({"vocab": 1000}, tp=8), "megatron"), 0)[0].words
    assert "--mock-data" in words and "--save" not in words
    assert words[words.index("--vocab-size") + 1] == "999"  # and the tokenizer's end of document


# ---------------------------------------------------------------- words


def words_of(found: nest.Plan) -> str:
    return shlex.join(launched(nest.export(found, "megatron"), 0)[0].words)


EXPERTS = {"experts": 8, "top_k": 2, "ffn": 64}


@pytest.mark.parametrize(("found", "wanted", "unwanted"), [
    ({"pp": 2, "tp": 8, "zero": 1}, "--pipeline-model-parallel-layout 'Et*4|t*4L'", "cp-comm"),
    ({"layout": "Ett|t*6L", "pp": 2, "tp": 8}, "layout 'Ett|t*6L'", "distributed-optimizer"),
    ({"tp": 8, "zero": 1}, "--use-distributed-optimizer --overlap-grad-reduce "
     "--overlap-param-gather", "layout"),
    ({"tp": 8, "zero": 1, "stack": "megatron-core-serial"}, "--use-distributed-optimizer",
     "overlap"),
    ({"tp": 2, "cp": 2, "cp_comm": "a2a"}, "--context-parallel-size 2 --cp-comm-type a2a", "etp"),
    ({"changes": {"moe": {**EXPERTS, "first_dense": 1, "every": 2}}, "ep": 4},
     "--moe-layer-freq '([0]*2+[1]*1+[0]*1+[1]*1+[0]*1+[1]*1+[0]*1)' --moe-grouped-gemm",
     "router-num-groups"),
    ({"changes": {"moe": {**EXPERTS, "groups": 4, "group_limit": 2, "shared_ffn": 8,
                          "shared_gate": True}}, "ep": 4},
     "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate --moe-router-num-groups 4 "
     "--moe-router-group-topk 2", "flex"),
    ({"changes": {"moe": EXPERTS}, "ep": 4, "stack": {"base": "megatron-core",
                                                      "dispatcher": "hybridep"}},
     "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "alltoall"),
    ({"changes": {"window": 32, "full_layers": [0, 4]}},
     "--window-size 31,0 --window-attn-skip-freq '([0]*1+[1]*3+[0]*1+[1]*3)'", "kv-channels"),
    ({"changes": {"head_dim": 32, "kv_heads": 2, "qk_norm": True, "qkv_bias": True}},
     "--qk-layernorm --kv-channels 32 --group-query-attention --num-query-groups 2", "mla"),
    ({"changes": {"positions": 64, "norm": "layernorm", "bias": True, "gated": False,
                  "tied_embeddings": True}},
     "--max-position-embeddings 64 --position-embedding-type learned_absolute "
     "--normalization LayerNorm", "swiglu"),
    ({"recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
     "--recompute-granularity selective --recompute-modules core_attn mlp", "num-layers 1"),
    ({"recompute": "full", "recompute_layers": 2},
     "--recompute-granularity full --recompute-method block --recompute-num-layers 2", "uniform"),
    ({"zero": 1, "offload": "optimizer:0.5+core_attn"},
     "--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 0.5 "
     "--overlap-cpu-optimizer-d2h-h2d --fine-grained-activation-offloading --offload-modules "
     "core_attn", "recompute"),
    ({"offload": "layers:2"}, "--cpu-offloading-num-layers 2", "optimizer-cpu"),
    ({"zero": 3, "stack": "megatron-fsdp"},
     "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy "
     "optim_grads_params", "layout"),
    ({"zero": 1, "shard": "dp_in", "dp_in": 8}, "--num-distributed-optimizer-instances 2", "fsdp"),
    ({"zero": 3, "shard": "dp_in", "dp_in": 8, "stack": "megatron-fsdp"},
     "--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy no_shard", "layout"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "step"}},
     "--cuda-graph-impl local --cuda-graph-scope full_iteration "
     "--no-check-for-nan-in-loss-and-grad", "moe"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "layers"}},
     "--cuda-graph-impl transformer_engine", "scope"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "layers"}, "changes": {"moe": EXPERTS}},
     "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router moe_preprocess",
     "full_iteration"),
    ({"asked": {"expert_capacity": 1.25}, "changes": {"moe": EXPERTS}},
     "--moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1.25", "pad-expert"),
    ({"asked": PADDED, "changes": {"moe": EXPERTS}},
     "--moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity", "cuda"),
    ({"asked": PADDED}, "--bf16", "capacity"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "layers"}, "changes": {"moe": EXPERTS},
      "asked": {"expert_capacity": 1.25}},
     "--cuda-graph-scope attn moe_router", "moe_preprocess"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "step"}, "changes": {"moe": EXPERTS},
      "asked": PADDED},
     "--cuda-graph-scope full_iteration --no-check-for-nan-in-loss-and-grad "
     "--moe-pad-experts-for-cuda-graph-inference", "moe_router"),
], ids=lambda value: str(value)[:60])
def test_words_of_each_setting(found: dict[str, Any], wanted: str, unwanted: str) -> None:
    text = words_of(small(**found))
    assert wanted in text and unwanted not in text, text


@pytest.mark.parametrize(("precision", "stack", "wanted"), [
    ("bf16", "megatron-core", ["--bf16"]),
    ("bf16", {"base": "megatron-core", "gradient_dtype": "bf16"},
     ["--bf16", "--grad-reduce-in-bf16"]),
    ("fp8", "megatron-core", ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise",
                              "--grad-reduce-in-bf16"]),
    ("fp8-delayed", "megatron-core", ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe",
                                      "delayed", "--grad-reduce-in-bf16"]),
    ("fp8-blockwise", "megatron-core", ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe",
                                        "blockwise", "--grad-reduce-in-bf16"]),
    ("mxfp8", "megatron-core", ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8",
                                "--grad-reduce-in-bf16"]),
    ("nvfp4", "megatron-core", ["--bf16", "--fp4-format", "e2m1", "--grad-reduce-in-bf16"]),
    ("fp16", "megatron-core", ["--fp16", "--accumulate-allreduce-grads-in-fp32"]),
    ("fp32", "megatron-core", []),
], ids=str)
def test_number_formats(precision: Any, stack: Any, wanted: list[str]) -> None:
    found = small()
    job = nest.Job(global_batch=64, seq_len=64, stack=stack, precision=precision)
    assert found.inputs.model
    given = arguments(found.inputs.model, job, found.configuration, None, False)["TRAINING"]
    flat = [word for one in options(given) for word in one]
    assert flat[flat.index("--log-throughput") + 1:flat.index("--optimizer")] == wanted


@pytest.mark.parametrize(("zero", "name"), [(0, "muon"), (1, "dist_muon")])
def test_muon(zero: int, name: str) -> None:
    found = small(zero=zero)
    shown = {"base": "megatron-core", "overlap_grad_reduce": 0, "overlap_param_gather": 0}
    job = nest.Job(global_batch=64, seq_len=64, stack=shown, optimizer="muon")
    assert found.inputs.model
    given = arguments(found.inputs.model, job, found.configuration, None, False)
    words = " ".join(word for part in given.values() for one in options(part) for word in one)
    assert f"--optimizer {name}" in words and "momentum" not in words
    for unwanted in ("distributed-optimizer", "overlap-grad", "overlap-param", "precision-aware"):
        assert unwanted not in words
    alone = nest.evaluate(found.inputs.model, found.inputs.cluster, job, found.configuration)
    assert f"--optimizer {name}" in words_of(alone)
    hides = job.replace(stack=nest.Job(global_batch=1, seq_len=1).stack)
    with pytest.raises(nest.UnsupportedError, match="Muon hides nothing"):
        words_of(nest.evaluate(found.inputs.model, found.inputs.cluster, hides,
                               found.configuration))


@pytest.mark.parametrize(("degrees", "device", "wanted"), [
    ({"tp": 8}, "H100 SXM", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    ({"cp": 2}, "H100 SXM", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    ({"tp": 8}, "GB200", {}),
    ({}, "H100 SXM", {}),
    ({"tp": 8, "zero": 2, "stack": "megatron-fsdp"}, "h100", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ({"changes": {"moe": EXPERTS}, "ep": 4, "schedule": "combined"}, "h100",
     {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
    ({"offload": "core_attn"}, "h100", {"NVTE_CPU_OFFLOAD_V1": "1"}),
], ids=str)
def test_environment(degrees: dict[str, Any], device: str, wanted: dict[str, str]) -> None:
    found = small(**degrees)
    assert variables(found.configuration, found.inputs.job, device) == wanted


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("found", "wanted"), [
    ({"zero": 3}, "zero 3"),
    ({"stack": "torchtitan"}, "stack torchtitan (torchtitan 0.3.0): plan for megatron-core"),
    ({"stack": "megatron-core-2024", "tp": 2}, "Megatron-Core 0.7"),
    ({"stack": {"base": "megatron-core", "capabilities": None}}, "not known what it runs"),
    ({"changes": {"layer_norms": 4}}, "model.layer_norms: Megatron-Core's GPT has no argument"),
    ({"changes": {"moe": {**EXPERTS, "clamped": True}}}, "model.moe.clamped"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "layers"}, "recompute": "full"},
     "recompute full: CUDA graphs of layers exclude full recompute"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "step"}, "changes": {"moe": EXPERTS}},
     "capacity none: a step is captured with the number of tokens of each expert"),
    ({"stack": {"base": "megatron-core", "cuda_graphs": "step"}, "offload": "layers:2"},
     "offload_layers 2: CUDA graphs exclude activations of layers on the host"),
    ({"stack": {"base": "megatron-fsdp", "cuda_graphs": "step"}, "zero": 3},
     "cuda_graphs step: Megatron-FSDP works under CUDA graphs"),
], ids=lambda value: str(value)[:50])
def test_what_it_cannot_express(found: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        nest.export(small(**found), "megatron")
    assert caught.value.problems and wanted in caught.value.problems[0]


def test_every_reason_is_given() -> None:
    model = nest.Model.parse({**TRANSLATOR, "head_bias": True})
    way = small().configuration
    job = nest.Job(global_batch=64, seq_len=64, optimizer="sgd")
    assert len([*inexpressible(model, job, way)]) == 1
    plain = nest.Model.parse({**MODEL, "head_bias": True, "embedding_norm": True, "positions": 8})
    zero = way.replace(stages=(way.stages[0].replace(zero=1),))
    assert [one.split(":")[0] for one in inexpressible(plain, job, zero)] == [
        "model.embedding_norm", "model.head_bias", "job.seq_len 64", "job.optimizer sgd"]


def test_plans_that_do_not_fit_are_refused() -> None:
    found = plan(nest.load_model("llama3-70b"), nest.load_cluster("dgx-h100", devices=8),
                 nest.Job(global_batch=8, seq_len=4096), tp=8)
    with pytest.raises(UnsupportedError, match=r"stage 0 needs .* short"):
        nest.export(found, "megatron")


@pytest.mark.parametrize("target", ["megatorn", "", None, 3])
def test_unknown_targets_are_answered_with_the_known(target: Any) -> None:
    with pytest.raises(InputError, match=r"target: got .*allowed: megatron"):
        nest.export(small(), target)


def test_random_settings_make_scripts_that_bash_reads() -> None:
    rng, seen = Random(20), set()
    for _ in range(16):
        degrees = {"tp": rng.choice((1, 2, 4)), "pp": rng.choice((1, 2)),
                   "dp_in": rng.choice((1, 2)), "zero": rng.choice((0, 1)), "devices": 32}
        found = small(**degrees)
        at = places_of(found, rng.choice((4, 8)))
        assert sorted(at) == list(range(32)) and len(set(at.values())) == 32
        seen.update(nest.export(found, "megatron"))
    assert seen == {"launch.sh", "hosts", "ranks"}

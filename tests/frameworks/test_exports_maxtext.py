"""MaxText's YAML: each setting, the order of its ranks, refusals, and what is read back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from exported import EXPERTS, files_of
from launches import launched
from test_exports_megatron import plan, small

import nest
from nest.errors import UnsupportedError
from nest.frameworks import maxtext
from nest.frameworks.settings import figures_of

GIVEN = {"RUN_NAME": "r", "OUTPUT": "o", "DATASET_TYPE": "hf", "TOKENIZER": "t", "STEPS": "5"}
FULL = {"recompute": "full"}


@pytest.mark.parametrize(("given", "wanted"), [
    ({"zero": 3, "tp": 2, **FULL},
     {"ici_fsdp_parallelism": 8, "ici_data_parallelism": 1, "ici_tensor_sequence_parallelism": 2,
      "ici_tensor_parallelism": 1, "remat_policy": "full", "per_device_batch_size": 0.5,
      "gradient_accumulation_steps": 8, "max_target_length": 64, "dtype": "bfloat16",
      "base_config": "base.yml", "decoder_block": "llama2", "base_emb_dim": 64}),
    ({"zero": 1, "tp": 2, "sp": False, **FULL},
     {"ici_fsdp_parallelism": 1, "ici_data_parallelism": 8, "shard_optimizer_over_data": True,
      "ici_tensor_parallelism": 2, "ici_tensor_sequence_parallelism": 1}),
    ({"zero": 3, "shard": "dp_in", "dp_in": 8, **FULL},
     {"ici_fsdp_parallelism": 8, "ici_data_parallelism": 2}),
    ({"zero": 3, "cp": 2, "cp_comm": "a2a", **FULL},
     {"ici_context_parallelism": 2, "context_parallel_strategy": "ulysses"}),
    ({"zero": 0, "pp": 4, "schedule": "gpipe", **FULL},
     {"ici_pipeline_parallelism": 4, "num_layers_per_pipeline_stage": 2,
      "num_pipeline_microbatches": 16, "gradient_accumulation_steps": 1,
      "per_device_batch_size": 4.0}),
    ({"zero": 3, "recompute": "selective", "recompute_modules": ("norm", "mlp_act")},
     {"remat_policy": "minimal_with_context"}),
    ({"zero": 3, "recompute": "selective", "recompute_modules": ("core_attn", "norm", "mlp_act")},
     {"remat_policy": "minimal"}),
    ({"zero": 3, "recompute": "selective",
      "recompute_modules": ("core_attn", "norm", "mlp_act", "mlp")},
     {"remat_policy": "save_dot_except_mlp", "query_proj": None}),
    ({"zero": 3, "recompute": "selective",
      "recompute_modules": ("core_attn", "norm", "mlp_act", "mlp", "attn_proj")},
     {"remat_policy": "save_qkv_proj"}),
    ({"zero": 3, "recompute": "selective",
      "recompute_modules": ("core_attn", "norm", "mlp_act", "mlp", "qkv_linear")},
     {"remat_policy": "save_out_proj"}),
    ({"zero": 3, "recompute": "selective", "offload": "core_attn",
      "recompute_modules": ("norm", "mlp_act", "mlp", "attn_proj")},
     {"remat_policy": "custom", "query_proj": "offload", "value_proj": "offload",
      "context": "device", "out_proj": None, "mlpwi_0": None, "decoder_layer_input": None}),
    ({"zero": 3, "recompute": "selective", "offload": "qkv_linear+core_attn+attn_proj",
      "recompute_modules": ("norm", "mlp_act", "mlp", "qkv_linear", "attn_proj")},
     {"remat_policy": "custom", "query_proj": None, "context": "offload",
      "decoder_layer_input": "offload"}),
    ({"zero": 3, "offload": "checkpoints", **FULL},
     {"remat_policy": "custom", "decoder_layer_input": "offload", "context": None}),
], ids=lambda value: str(value)[:60])
def test_settings(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = yaml.safe_load(files_of("maxtext", "maxtext", **given)["plan.yml"])
    assert {name: found.get(name) for name in wanted} == wanted


def experts(**given: Any) -> nest.Plan:
    job = nest.Job(global_batch=64, seq_len=64, stack="maxtext")
    return plan(nest.load_model("mixtral-8x7b"), nest.load_cluster("dgx-h100", devices=64), job,
                zero=3, recompute="full", **given)


def test_experts_are_an_axis_of_their_own() -> None:
    found = experts(tp=2, ep=4)
    text = yaml.safe_load(nest.export(found, "maxtext")["plan.yml"])
    assert (text["model_name"], text["ici_expert_parallelism"], text["ici_fsdp_parallelism"]) == (
        "mixtral-8x7b", 4, 8)
    ranks = maxtext.TARGET.order(found)
    for number, rank in enumerate(ranks):  # fsdp, tensor_sequence, expert: the last fastest
        assert (rank.ep, rank.tp) == (number % 4, number // 4 % 2)
        assert (rank.dp // 4, rank.dp % 4) == (number // 8, number % 4)


def test_a_process_drives_one_device() -> None:
    files = nest.export(experts(tp=2, ep=4), "maxtext")
    started = launched(files, 1, GIVEN)
    assert len(started) == 8
    for one in started:
        given = one.variables
        assert given["JAX_COORDINATOR_IP"] == "first" and given["NNODES"] == "64"
        assert given["NODE_RANK"] == given["RANK"]
        assert given["SLURM_STEP_GPUS"] == given["LOCAL_RANK"]
        assert "CUDA_VISIBLE_DEVICES" not in given
        assert one.words[1].endswith("plan.yml") and one.words[2] == "run_name=r"


def test_the_yaml_is_read_back() -> None:
    for given in ({"zero": 3, "tp": 2}, {"zero": 1, "tp": 2, "sp": False},
                  {"zero": 3, "cp": 2}, {"zero": 0, "pp": 2, "schedule": "gpipe"}):
        found = small(stack="maxtext", recompute="full", **given)
        text = nest.export(found, "maxtext")["plan.yml"]
        here = maxtext.figures_here(found)
        table = (*maxtext.SETTINGS, *maxtext.OWN)
        back = figures_of(table, yaml.safe_load(text))
        assert back == {name: here[name] for name in back}
        assert {"data", "fsdp", "tensor", "pp", "policy", "model.hidden"} <= set(back)


@pytest.mark.parametrize(("given", "wanted"), [
    ({"stack": "fsdp"}, "plan for maxtext"),
    ({"recompute": "none"}, "recompute none: "),
    ({"zero": 1, "cp": 2}, "cp 2 with zero 1: logical_axis_rules"),
    ({"zero": 1, "shard": "dp_in", "dp_in": 2}, "shard dp_in: "),
    ({"zero": 3, "changes": {"qk_norm": True}}, "model.qk_norm: MaxText has no file for tiny"),
    ({"zero": 3, "changes": {"moe": EXPERTS}}, "model.moe: "),
], ids=lambda value: str(value)[:60])
def test_what_it_cannot_express(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        files_of("maxtext", given.pop("stack", "maxtext"), **{**FULL, **given})
    assert wanted in caught.value.problems[0]


def test_processes_of_its_own_have_no_torchrun() -> None:
    """Even where whole nodes have the ranks in a row."""
    files = files_of("maxtext", "maxtext", zero=3, tp=2, **FULL)
    assert "torchrun" not in files["launch.sh"]
    assert files["ranks"].splitlines()[3:5] == ["0 0 0", "0 1 1"]
    with pytest.raises(UnsupportedError, match="launcher deepspeed"):
        nest.export(small(stack="maxtext", zero=3, **FULL), "maxtext", launcher="deepspeed")

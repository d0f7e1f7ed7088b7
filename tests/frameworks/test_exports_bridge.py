"""Megatron-Bridge's program: each field, refusals, and what is read back.

`tests/stacks/test_framework_plans.py` looks the fields up in Megatron-Core.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from exported import EXPERTS, files_of
from launches import launched
from test_exports_megatron import plan, small

import nest
from nest.errors import UnsupportedError
from nest.frameworks.megatron import bridge
from nest.frameworks.settings import figures_of


def fields(text: str) -> dict[str, Any]:
    """Fields of the configuration that a program sets; nothing is run."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            name = ast.unparse(node.targets[0]).removeprefix("config.")
            call = isinstance(node.value, ast.Call)
            found[name] = ast.unparse(node.value) if call else ast.literal_eval(node.value)
    return found


@pytest.mark.parametrize(("given", "wanted"), [
    ({"tp": 8, "zero": 1}, {
        "model.tensor_model_parallel_size": 8, "model.sequence_parallel": True,
        "ddp.use_distributed_optimizer": True, "train.global_batch_size": 64,
        "train.micro_batch_size": 1, "dataset.seq_length": 64, "model.recompute_granularity": None,
        "model.pipeline_model_parallel_layout": None, "mixed_precision": "bf16_mixed()",
        "mixed_precision.grad_reduce_in_fp32": False}),
    ({"tp": 8, "pp": 2, "vpp": 2, "outer_dp": 1}, {
        "model.pipeline_model_parallel_layout": "Ett|tt|tt|ttL",
        "model.virtual_pipeline_model_parallel_size": 2, "dist.use_tp_pp_dp_mapping": False}),
    ({"tp": 2, "pp": 4}, {"dist.use_tp_pp_dp_mapping": True}),
    ({"zero": 3}, {"ddp.use_megatron_fsdp": True, "checkpoint.ckpt_format": "fsdp_dtensor",
                   "ddp.data_parallel_sharding_strategy": "optim_grads_params"}),
    ({"zero": 1, "ep": 4, "changes": {"moe": EXPERTS},
      "stack": {"base": "megatron-bridge", "dispatcher": "deepep"}},
     {"model.expert_model_parallel_size": 4, "model.moe_token_dispatcher_type": "flex",
      "model.moe_flex_dispatcher_backend": "deepep"}),
    ({"zero": 1, "recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
     {"model.recompute_granularity": "selective", "model.recompute_method": None,
      "model.recompute_modules": ["core_attn", "mlp"]}),
    ({"zero": 1, "recompute": "full", "recompute_layers": 2},
     {"model.recompute_method": "block", "model.recompute_num_layers": 2}),
    ({"zero": 1, "offload": "optimizer:0.5+core_attn"},
     {"optimizer.optimizer_offload_fraction": 0.5, "optimizer.optimizer_cpu_offload": True,
      "model.offload_modules": ["core_attn"]}),
    ({"zero": 1, "shard": "dp_in", "dp_in": 8}, {"ddp.num_distributed_optimizer_instances": 2}),
    ({"zero": 1, "cp": 2}, {"model.context_parallel_size": 2, "model.cp_comm_type": "p2p"}),
    ({"zero": 1}, {"model.cuda_graph_impl": "none", "model.cuda_graph_scope": [],
                   "rng.te_rng_tracker": None}),
    ({"zero": 1, "stack": {"base": "megatron-bridge", "cuda_graphs": "layers"}},
     {"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_scope": [],
      "model.use_te_rng_tracker": True, "rng.te_rng_tracker": True,
      "rerun_state_machine.check_for_nan_in_loss": None}),
    ({"stack": {"base": "megatron-bridge", "cuda_graphs": "layers"}, "changes": {"moe": EXPERTS}},
     {"model.cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"]}),
    ({"asked": {"expert_capacity": 1.25, "expert_padding": True}, "changes": {"moe": EXPERTS}},
     {"model.moe_expert_capacity_factor": 1.25, "model.moe_pad_expert_input_to_capacity": True}),
    ({"changes": {"moe": EXPERTS}},
     {"model.moe_expert_capacity_factor": None, "model.moe_pad_expert_input_to_capacity": False}),
    ({"zero": 1, "stack": {"base": "megatron-bridge", "cuda_graphs": "step"}},
     {"model.cuda_graph_impl": "local", "model.cuda_graph_scope": ["full_iteration"],
      "rerun_state_machine.check_for_nan_in_loss": False, "ddp.check_for_nan_in_grad": False,
      "rng.te_rng_tracker": True}),
], ids=lambda value: str(value)[:60])
def test_fields(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    text = files_of("megatron-bridge", given.pop("stack", "megatron-bridge"),
                    **given)["plan_recipe.py"]
    found = fields(text)
    assert {name: found.get(name) for name in wanted} == wanted


def test_what_a_recipe_may_have_is_taken_back() -> None:
    """Core refuses other divisions of layers beside a layout, and recipes have them: v0.6.0
    src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py:261, 413 and others."""
    found = fields(files_of("megatron-bridge", "megatron-bridge", tp=2, pp=2, zero=1)[
        "plan_recipe.py"])
    for name in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
                 "virtual_pipeline_model_parallel_size", "microbatch_group_size_per_vp_stage",
                 "offload_modules", "hierarchical_context_parallel_sizes"):
        assert found[f"model.{name}"] is None
    for name in ("model.account_for_embedding_in_pipeline_split", "model.cpu_offloading",
                 "model.account_for_loss_in_pipeline_split", "ddp.use_megatron_fsdp",
                 "model.fine_grained_activation_offloading", "optimizer.optimizer_cpu_offload"):
        assert found[name] is False
    assert found["checkpoint.ckpt_format"] == "torch_dist"


def test_stages_in_fp32_say_what_they_send() -> None:
    """Recipes of one stage have no pipeline_dtype; a number format has, and here is none."""
    text = files_of("megatron-bridge", "megatron-bridge", pp=2, zero=1,
                    asked={"precision": "fp32"})["plan_recipe.py"]
    assert "import torch\n" in text and "config.model.pipeline_dtype = torch.float32\n" in text


def test_the_program_is_read_back() -> None:
    for given in ({"tp": 4, "zero": 1}, {"zero": 3, "recompute": "full"},
                  {"tp": 2, "pp": 2, "vpp": 2, "zero": 1}, {"zero": 1, "offload": "optimizer"}):
        found = small(stack="megatron-bridge", **given)
        here = bridge.figures_here(found)
        names = {one.name for one in bridge.SETTINGS}
        text = nest.export(found, "megatron-bridge")["plan_recipe.py"]
        back = figures_of(bridge.SETTINGS, {
            name: value for name, value in fields(text).items() if name in names})
        assert back == {name: here[name] for name in back}
        assert {"tp", "pp", "ep", "global_batch", "micro_batch", "layout"} <= set(back)


def test_a_recipe_is_known_or_asked_for() -> None:
    job = nest.Job(global_batch=64, seq_len=64, stack="megatron-bridge", precision="fp8")
    files = nest.export(plan(nest.load_model("llama3-8b"), nest.load_cluster(
        "dgx-h100", devices=8), job, zero=1), "megatron-bridge")
    assert "import llama3_8b_pretrain_2gpu_h100_bf16_config" in files["plan_recipe.py"]
    assert "bf16_with_fp8_current_scaling_mixed()" in files["plan_recipe.py"]
    assert fields(files["plan_recipe.py"])[bridge.ENDS] is False  # all layers have the format
    blackwell = nest.load_cluster("dgx-b200", devices=8)
    for precision in ("mxfp8", "nvfp4"):
        narrow = plan(nest.load_model("llama3-8b"), blackwell, job.replace(precision=precision),
                      zero=1)
        text = nest.export(narrow, "megatron-bridge")["plan_recipe.py"]
        assert f"bf16_with_{precision}_mixed()" in text
    [one] = launched(files, 0, {})
    assert one.words == []
    name = '"""+__import__("os").system("touch owned")+"""\\'
    other = files_of("megatron-bridge", "megatron-bridge", zero=1, devices=8,
                     changes={"name": name})
    assert 'os.environ["RECIPE"]' in other["plan_recipe.py"]
    assert ast.get_docstring(ast.parse(other["plan_recipe.py"]))
    changed = nest.load_model("llama3-8b").replace(ffn=512)
    again = nest.export(plan(changed, nest.load_cluster("dgx-h100", devices=8), job, zero=1),
                        "megatron-bridge")
    assert "RECIPE" in again["launch.sh"]  # the recipe's model is another


@pytest.mark.parametrize(("given", "wanted"), [
    ({"stack": "megatron-core"}, "plan for megatron-bridge"),
    ({"stack": {"base": "megatron-bridge", "cuda_graphs": "layers"}, "zero": 3},
     "zero 3: Megatron-FSDP works under CUDA graphs"),
    ({"stack": {"base": "megatron-bridge", "cuda_graphs": "step"}, "changes": {"moe": EXPERTS}},
     "dispatcher alltoall: a captured step has room"),
    ({"zero": 2, "pp": 2}, "zero 2: "),
    ({"pp": 2, "schedule": "zb1p"}, "schedule zb1p: "),
], ids=str)
def test_what_it_cannot_express(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        files_of("megatron-bridge", given.pop("stack", "megatron-bridge"), **given)
    assert wanted in caught.value.problems[0]


def hybrid(name: str, **degrees: Any) -> nest.Plan:
    job = nest.Job(global_batch=64, seq_len=4096, stack="megatron-bridge")
    cluster = nest.load_cluster("dgx-h100", devices=64)
    return plan(nest.load_model(name), cluster, job, zero=1, ep=4, etp=1, **degrees)


def test_hybrids_say_their_layers(tmp_path: Path) -> None:
    # One letter a layer with HybridModel; Qwen3-Next's layers are those of a GPT model.
    letters = hybrid("nemotron3-nano-30b", pp=4)
    found = fields(nest.export(letters, "megatron-bridge")["plan_recipe.py"])
    stages = found["model.hybrid_layer_pattern"].split("|")
    assert [len(stage) for stage in stages] == [
        len([n for n in range(*stage.layers) if 0 < n < 53]) for stage in letters.stages]
    assert "".join(stages) == "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    assert found["model.pipeline_model_parallel_layout"] is None
    layers = fields(nest.export(hybrid("qwen3-next-80b-a3b", pp=4), "megatron-bridge")[
        "plan_recipe.py"])
    assert "model.hybrid_layer_pattern" not in layers and layers["model.mtp_num_layers"] == 0
    assert layers["model.pipeline_model_parallel_layout"] == "Et*12|(t*12|)*2t*12L"
    with pytest.raises(UnsupportedError, match="vpp 2: hybrids have no virtual stages"):
        nest.export(hybrid("nemotron3-nano-30b", pp=2, vpp=2), "megatron-bridge")
    with pytest.raises(UnsupportedError, match="recurrence: .* --to megatron-bridge has recipes"):
        nest.export(plan(nest.load_model("qwen3-next-80b-a3b"), nest.load_cluster(
            "dgx-h100", devices=64), nest.Job(global_batch=64, seq_len=512), ep=32, etp=1, zero=1),
            "megatron")


@pytest.mark.parametrize("name", ["nemotron3-nano-30b", "qwen3-next-80b-a3b"])
def test_hybrids_are_read_back(name: str, tmp_path: Path) -> None:
    before = hybrid(name, pp=4)
    path = tmp_path / "plan_recipe.py"
    path.write_text(nest.export(before, "megatron-bridge")["plan_recipe.py"], encoding="utf-8")
    found = nest.read(path, devices=64)
    assert found.model == before.inputs.model
    assert [stage.layers for stage in found.configuration.stages] == [
        stage.layers for stage in before.stages]
    if name == "nemotron3-nano-30b":
        path.write_text(path.read_text().replace("'MEM", "'EEM"), encoding="utf-8")
        with pytest.raises(nest.InputError, match="hybrid_layer_pattern: got 'EEM.* allowed: MEM"):
            nest.read(path, devices=64)

"""torchtitan's Python and TOML: each setting, refusals, and what is read back.

`tests/stacks/test_framework_plans.py` has torchtitan's own code take exported files.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from exported import EXPERTS, files_of
from launches import launched, run_script
from test_exports_megatron import plan, small

import nest
from nest.errors import UnsupportedError
from nest.frameworks.settings import figures_of, flat
from nest.frameworks.torchtitan import write as torchtitan

EVIL = "a b'\"$(touch owned)`touch owned`;*"


def keywords(text: str) -> dict[str, Any]:
    """Arguments of the calls of a module by name; nothing is run."""
    found: dict[str, Any] = {}
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call):
            for word in call.keywords:
                if word.arg and word.arg not in ("converters", "filter_fqns"):
                    found[word.arg] = ast.literal_eval(word.value)
    return found


@pytest.mark.parametrize(("given", "wanted", "text"), [
    ({"zero": 3, "tp": 4},
     {"data_parallel_shard_degree": 4, "data_parallel_replicate_degree": 1, "local_batch_size": 1,
      "fsdp_reshard_after_forward": "always", "tensor_parallel_degree": 4,
      "enable_sequence_parallel": True, "global_batch_size": 64, "seq_len": 64,
      "disable_cuda_graphs": True, "enable": True}, "activation_checkpoint = None"),
    ({"zero": 2, "sp": False, "tp": 2, "recompute": "full"},
     {"fsdp_reshard_after_forward": "never", "enable_sequence_parallel": False},
     "activation_checkpoint = FullAC.Config()"),
    ({"zero": 0}, {"data_parallel_replicate_degree": 16, "data_parallel_shard_degree": 1}, "def"),
    ({"zero": 3, "shard": "dp_in", "dp_in": 8},
     {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 8}, "def"),
    ({"zero": 2, "recompute": "selective", "recompute_modules": ("norm", "mlp_act")}, {},
     "activation_checkpoint = SelectiveAC.Config()"),
    ({"pp": 4, "zero": 1}, {"fsdp_reshard_after_forward": "never",
                            "pipeline_parallel_schedule": "1F1B", "local_batch_size": 16,
                            "pipeline_parallel_microbatch_size": 1,
                            "module_fqns_per_model_part": [
                                ["tok_embeddings", "layers.0", "layers.1"],
                                ["layers.2", "layers.3"], ["layers.4", "layers.5"],
                                ["layers.6", "layers.7", "norm", "lm_head"]]}, "def"),
    ({"pp": 2, "vpp": 2, "schedule": "zb-v", "zero": 1, "stack": "torchtitan-eager"},
     {"pipeline_parallel_schedule": "ZBVZeroBubble"}, "def"),
    ({"zero": 2, "ep": 4, "etp": 1, "changes": {"moe": EXPERTS}}, {"expert_parallel_degree": 4},
     "def"),
    ({"zero": 2, "stack": "torchtitan-eager"}, {"enable": False}, "def"),
], ids=lambda value: str(value)[:60])
def test_settings_of_the_python(given: dict[str, Any], wanted: dict[str, Any], text: str) -> None:
    found = files_of("torchtitan", given.pop("stack", "torchtitan"), **given)["plan_config.py"]
    compile(found, "plan_config.py", "exec")
    names = keywords(found)
    assert {name: names.get(name) for name in wanted} == wanted and text in found


@pytest.mark.parametrize(("precision", "named"), [
    ("fp8", 'Float8LinearConverter.Config(\n        filter_fqns=["lm_head"]'),
    ("mxfp8", 'MXFP8LinearConverter.Config(\n        fqns=["layers"]'),
    ("nvfp4", 'NVFP4LinearConverter.Config(\n        fqns=["layers"]'),
])
def test_models_of_its_registry_need_nothing_else(precision: Any, named: str) -> None:
    job = nest.Job(global_batch=64, seq_len=64, stack="torchtitan", precision=precision)
    found = nest.export(plan(nest.load_model("llama3.1-405b"), nest.load_cluster(
        "dgx-b200", devices=512), job, zero=3, tp=8), "torchtitan")
    text = found["plan_config.py"]
    assert "import llama3_405b, model_registry" in text and "BASE" not in found["launch.sh"]
    assert "model_registry('405B', converters=[" + named in text
    assert "!= (126, 16384, 128256)" in text
    compile(text, "plan_config.py", "exec")


def test_other_models_are_named_by_the_user() -> None:
    files = files_of("torchtitan", "torchtitan", devices=8)
    done, started = run_script(files, {})
    assert (done.returncode, started) == (2, []) and "not set: BASE" in done.stderr
    [one] = launched(files, 0, {"BASE": "own:base"})
    assert one.words == ["torchtitan.train", "--module", "plan_config", "--config", "plan"]
    assert one.variables["PYTHONPATH"].endswith("two words")
    old = files_of("torchtitan-toml", "torchtitan", devices=8)
    [one] = launched(old, 0, {"MODEL": EVIL, "FLAVOR": EVIL})
    assert one.words[-4:] == ["--model.name", EVIL, "--model.flavor", EVIL]


def test_names_of_models_stay_in_the_docstring() -> None:
    for name in ('"""+__import__("os").system("touch owned")+"""', "a\\", EVIL):
        files = files_of("torchtitan", "torchtitan", devices=8, changes={"name": name})
        tree = ast.parse(files["plan_config.py"])
        assert ast.get_docstring(tree) and not [
            node for node in ast.walk(tree) if isinstance(node, ast.Name)
            and node.id == "__import__"]
        tomllib.loads(files_of("torchtitan-toml", "torchtitan", devices=8,
                               changes={"name": name})["plan.toml"])


@pytest.mark.parametrize(("given", "wanted"), [
    ({"zero": 3, "tp": 4, "recompute": "full"},
     {"parallelism.tensor_parallel_degree": 4, "activation_checkpoint.mode": "full",
      "compile.enable": True}),
    ({"zero": 2, "recompute": "selective", "recompute_modules": ("norm", "mlp_act")},
     {"activation_checkpoint.mode": "selective",
      "activation_checkpoint.selective_ac_option": "op"}),
    ({"zero": 2, "ep": 4, "etp": 1, "changes": {"moe": EXPERTS}},
     {"parallelism.expert_parallel_degree": 4, "parallelism.expert_tensor_parallel_degree": 1}),
    ({"zero": 1, "pp": 8}, {"parallelism.pipeline_parallel_degree": 8}),
], ids=lambda value: str(value)[:60])
def test_settings_of_the_toml(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    text = files_of("torchtitan-toml", "torchtitan", **given)["plan.toml"]
    found = flat(tomllib.loads(text))
    assert {name: found.get(name) for name in wanted} == wanted
    modules = found.get("parallelism.module_fqns_per_model_part")
    assert modules is None or modules[-1][-2:] == ["norm", "output"]


def test_the_toml_is_read_back() -> None:
    for given in ({"zero": 3, "tp": 2}, {"zero": 1, "pp": 2, "vpp": 2, "schedule": "zb-v"},
                  {"zero": 0, "recompute": "full"}, {"zero": 3, "shard": "dp_in", "dp_in": 4}):
        found = small(stack="torchtitan-eager", **given)
        text = nest.export(found, "torchtitan-toml")["plan.toml"]
        here = torchtitan.figures_here(found, "output")
        back = figures_of(torchtitan.OLD, flat(tomllib.loads(text)))
        assert back == {name: here[name] for name in back}
        assert {"global_batch", "tp", "pp", "replicas", "shards", "recompute"} <= set(back)


@pytest.mark.parametrize(("target", "given", "wanted"), [
    ("torchtitan", {"stack": "megatron-core"}, "plan for torchtitan or torchtitan-eager"),
    ("torchtitan", {"zero": 1}, "zero 1: "),
    ("torchtitan", {"changes": {"mtp_layers": 1}}, "model.mtp_layers: "),
    ("torchtitan", {"stack": {"base": "torchtitan", "gradient_dtype": "bf16"}},
     "stack.gradient_dtype bf16: mixed_precision_reduce has float32 alone"),
    ("torchtitan", {"stack": {"base": "torchtitan", "cuda_graphs": "layers"}},
     "cuda_graphs layers: the whole step"),
    ("torchtitan", {"stack": {"base": "torchtitan", "cuda_graphs": "step"}, "pp": 2, "zero": 1},
     "pp 2: CUDA graphs"),
    ("torchtitan", {"stack": {"base": "torchtitan", "cuda_graphs": "step"}, "ep": 4, "etp": 1,
                    "zero": 2, "changes": {"moe": EXPERTS}}, "ep 4: CUDA graphs"),
    ("torchtitan", {"stack": {"base": "torchtitan", "dispatcher": "deepep"}, "ep": 4, "etp": 1,
                    "zero": 2, "changes": {"moe": EXPERTS}}, "stack.dispatcher deepep"),
    ("torchtitan-toml", {"tp": 2, "sp": False}, "sp off: up to 0.2"),
], ids=lambda value: str(value)[:60])
def test_what_it_cannot_express(target: str, given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        files_of(target, given.pop("stack", "torchtitan"), **given)
    assert wanted in caught.value.problems[0]


def test_the_files_name_what_a_plan_does_not_decide() -> None:
    """In their heads; with all of it set they are read back at the same price."""
    job = nest.Job(global_batch=64, seq_len=64, stack="torchtitan")
    found = plan(nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=16), job,
                 zero=3, tp=8)
    text = nest.export(found, "torchtitan-toml")["plan.toml"]
    head = text[:text.index("[")]
    assert all(line.startswith("#") for line in head.strip().splitlines())
    for name in ("model.hf_assets_path", "training.dataset", "training.dataset_path",
                 "training.steps", "optimizer.lr", "lr_scheduler.warmup_steps",
                 "checkpoint.enable", "checkpoint.folder"):
        assert re.search(rf"[ ]{re.escape(name)}(,|$)", head, re.MULTILINE), name
    text = nest.export(found, "torchtitan")["plan_config.py"]
    head = ast.get_docstring(ast.parse(text)) or ""
    for name in ("hf_assets_path", "dataloader", "training.steps", "optimizer",
                 "lr_scheduler.warmup_steps", "checkpoint.enable", "checkpoint.folder"):
        assert f"config.{name}" in head, name
    assert "as llama3_8b has them" in head
    own = files_of("torchtitan", "torchtitan", devices=8)["plan_config.py"]
    assert "as $BASE has them" in own


@pytest.mark.parametrize(("target", "file", "before", "more"), [
    ("torchtitan-toml", "plan.toml", "[training]\n",
     '[training]\ndataset = "c4"\ndataset_path = "/data"\nsteps = 9\n'),
    ("torchtitan-toml", "plan.toml", "[model]\n",
     '[optimizer]\nlr = 1e-4\n[lr_scheduler]\nwarmup_steps = 3\n[checkpoint]\nenable = true\n'
     'folder = "c"\n[model]\nhf_assets_path = "assets"\n'),
    ("torchtitan", "plan_config.py", "    return config",
     "    config.hf_assets_path = 'assets'\n"
     "    config.dataloader = HuggingFaceTextDataLoader.Config(dataset='c4')\n"
     "    config.training.steps = 9\n    config.optimizer = default_adamw(lr=3e-4)\n"
     "    config.lr_scheduler.warmup_steps = 3\n    config.checkpoint.enable = True\n"
     "    config.checkpoint.folder = 'c'\n    return config"),
])
def test_files_with_what_a_plan_does_not_decide_are_read_back(
    target: str, file: str, before: str, more: str, tmp_path: Path
) -> None:
    cluster = nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=64, seq_len=64, stack="torchtitan")
    written = plan(nest.load_model("llama3-8b"), cluster, job, zero=3, tp=8)
    text = nest.export(written, target)[file]
    assert text.count(before) == 1
    (tmp_path / file).write_text(text.replace(before, more), encoding="utf-8")
    found = nest.read(tmp_path / file)
    priced = nest.evaluate(found.model, cluster, found.job, found.configuration)
    assert priced.step_time_s == written.step_time_s

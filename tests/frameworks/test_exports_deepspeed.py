"""DeepSpeed's JSON and arguments: each setting, refusals, and what is read back.

`tests/stacks/test_framework_plans.py` has DeepSpeed's own configuration take exported files.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from exported import EXPERTS, files_of
from launches import launched, run_script
from test_exports_megatron import small

import nest
from nest.errors import UnsupportedError
from nest.frameworks.deepspeed import write as deepspeed
from nest.frameworks.settings import figures_of, flat

GIVEN = {"PROGRAM": "pretrain_gpt.py", "DATA_PATH": "d", "TOKENIZER": "t", "CHECKPOINT": "c",
         "LR": "1", "TRAIN_ITERS": "5", "MEGATRON_DEEPSPEED": "/m"}


def text_of(stack: Any = "deepspeed", **given: Any) -> tuple[dict[str, Any], str]:
    """The JSON by flat names, and the words that the program gets."""
    files = files_of("deepspeed", stack, **{"sp": False, **given})
    [one, *_] = launched(files, 0, GIVEN)
    return flat(json.loads(files["ds_config.json"])), shlex.join(one.words)


@pytest.mark.parametrize(("given", "wanted"), [
    ({"zero": 3}, {"zero_optimization.stage": 3, "bf16.enabled": True,
                   "zero_optimization.stage3_max_reuse_distance": 0,
                   "zero_optimization.overlap_comm": True, "train_batch_size": 64,
                   "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
                   "data_types.grad_accum_dtype": "fp32", "communication_data_type": "fp32"}),
    ({"zero": 2, "tp": 4}, {"tensor_parallel.autotp_size": 4, "gradient_accumulation_steps": 16}),
    ({"zero": 1, "cp": 4, "cp_comm": "a2a"},
     {"sequence_parallel_size": 4, "data_parallel_size": 4,
      "seq_parallel_communication_data_type": "fp32"}),
    ({"zero": 1, "offload": "optimizer"},
     {"zero_optimization.offload_optimizer.device": "cpu",
      "zero_optimization.offload_optimizer.ratio": 1.0}),
    ({"zero": 3, "offload": "optimizer:0.25"},
     {"zero_optimization.offload_optimizer.ratio": 0.25}),
    ({"zero": 1, "pp": 4, "recompute": "full"},
     {"pipeline.stages": 4, "pipeline.activation_checkpoint_interval": 1,
      "pipeline.pipe_partitioned": False}),
    ({"zero": 0, "stack": {"base": "deepspeed", "gradient_dtype": "bf16"}},
     {"zero_optimization.stage": 0, "bf16.enabled": True}),
    ({"zero": 2, "stack": {"base": "deepspeed", "gradient_dtype": "bf16"}},
     {"data_types.grad_accum_dtype": "bf16"}),
], ids=str)
def test_settings_of_the_json(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    found, _ = text_of(**given)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(("given", "absent"), [
    ({"zero": 2}, ["zero_optimization.stage3_max_reuse_distance", "sequence_parallel_size",
                   "tensor_parallel.autotp_size", "pipeline.stages", "fp16.enabled",
                   "zero_optimization.offload_optimizer.device"]),
    ({"zero": 1, "pp": 2, "tp": 2}, ["tensor_parallel.autotp_size"]),
    ({"zero": 1, "tp": 2, "cp": 2, "cp_comm": "a2a", "stack": "megatron-deepspeed"},
     ["tensor_parallel.autotp_size", "sequence_parallel_size", "data_parallel_size"]),
], ids=str)
def test_settings_that_are_left_out(given: dict[str, Any], absent: list[str]) -> None:
    found, _ = text_of(**given)
    assert not set(absent) & set(found)


@pytest.mark.parametrize(("given", "wanted", "unwanted"), [
    ({"zero": 1, "tp": 2, "pp": 4}, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size "
     "4 --partition-method type:transformer", "no-pipeline-parallel"),
    ({"zero": 3, "recompute": "full"}, "--no-pipeline-parallel "
     "--deepspeed-activation-checkpointing", "partition-method"),
    ({"zero": 1, "pp": 2, "vpp": 2, "schedule": "dualpipev"}, "--pipeline-schedule dualpipev",
     "zbh1"),
    ({"zero": 1, "ep": 4, "changes": {"moe": EXPERTS}}, "--moe-expert-parallel-size 4", "sequence"),
    ({"zero": 1, "stack": "megatron-deepspeed", "pp": 4, "schedule": "zb1p"},
     "--enable-zbh1-pipeline", "pipeline-schedule"),
    ({"zero": 1, "stack": "megatron-deepspeed", "cp": 2, "cp_comm": "a2a"},
     "--ds-sequence-parallel-size 2", "--bias"),
    ({"zero": 1, "stack": "megatron-deepspeed", "recompute": "selective"},
     "--recompute-granularity selective", "recompute-method"),
    ({"zero": 1, "stack": "megatron-deepspeed", "recompute": "full", "recompute_layers": 2},
     "--recompute-granularity full --recompute-method block --recompute-num-layers 2", "zbh1"),
    ({"zero": 1, "stack": "megatron-deepspeed", "offload": "optimizer"}, "--cpu-optimizer", "zbh1"),
    ({"zero": 2, "stack": "megatron-deepspeed", "changes": {"moe": EXPERTS}, "ep": 4},
     "--num-experts 8 --topk 2 --expert-interval 1 --disable-moe-token-dropping", "zbh1"),
    ({"zero": 2, "stack": "megatron-deepspeed",
      "changes": {"kv_heads": 2, "head_dim": 16, "positions": 64, "norm": "layernorm",
                  "bias": True, "gated": False, "tied_embeddings": True}},
     "--num-attention-heads 8 --num-key-value-heads 2 --kv-channels 16 --ffn-hidden-size 128 "
     "--seq-length 64 --max-position-embeddings 64 --attention-dropout 0", "swiglu"),
], ids=lambda value: str(value)[:70])
def test_arguments(given: dict[str, Any], wanted: str, unwanted: str) -> None:
    _, text = text_of(**given)
    assert wanted in text and unwanted not in text, text


@pytest.mark.parametrize(("given", "wanted"), [
    ({"zero": 0}, "zero 0: without ZeRO DeepSpeed keeps gradients in bf16"),
    ({"zero": 1, "shard": "dp_in", "dp_in": 2}, "shard dp_in: "),
    ({"zero": 1, "stack": "megatron-core"}, "plan for deepspeed or megatron-deepspeed"),
    ({"zero": 1, "stack": "megatron-deepspeed", "changes": {"qk_norm": True}},
     "model.qk_norm: Megatron-DeepSpeed's GPT has no argument"),
    ({"zero": 1, "stack": "megatron-deepspeed", "changes": {"moe": {**EXPERTS, "ffn": 64}}},
     "model.moe.ffn: Megatron-DeepSpeed's experts"),
    ({"zero": 1, "stack": "megatron-deepspeed", "changes": {"moe": {**EXPERTS, "top_k": 4}}},
     "model.moe.top_k 4"),
], ids=lambda value: str(value)[:70])
def test_what_it_cannot_express(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        files_of("deepspeed", given.pop("stack", "deepspeed"), sp=False, **given)
    assert wanted in caught.value.problems[0]


@pytest.mark.parametrize("stack", ["deepspeed", "megatron-deepspeed"])
def test_the_json_is_read_back(stack: str) -> None:
    """All figures that it names, from the file alone."""
    for given in ({"zero": 3, "tp": 2}, {"zero": 1, "pp": 2, "recompute": "full"},
                  {"zero": 1, "cp": 2, "cp_comm": "a2a"}, {"zero": 1, "offload": "optimizer"}):
        plan = small(stack=stack, sp=False, **given)
        text = nest.export(plan, "deepspeed")["ds_config.json"]
        here = deepspeed.figures_here(plan)
        found = figures_of(deepspeed.JSON, flat(json.loads(text)))
        own = {"recompute"} if plan.parallelism.pp == 1 else set()
        if stack != "deepspeed":
            own |= {"cp", "tp"}
        assert {name: value for name, value in found.items() if name not in own} == {
            name: here[name] for name in found if name not in own}
        assert {"global_batch", "micro_batch", "zero", "precision", "pp"} <= set(found)


def test_values_of_the_user_stay_whole() -> None:
    evil = "a b'\"$(touch owned)`touch owned`;*"
    files = files_of("deepspeed", "deepspeed", zero=1, devices=8,
                     changes={"name": "a'b\"c`d` $(touch owned) \\"})
    done, [one] = run_script(files, {"PROGRAM": f"/x/{evil}.py"}, "--x", evil)
    assert done.stderr == "" and one.words[-2:] == ["--x", evil]
    assert one.words[1].startswith("--deepspeed_config") or "--deepspeed_config" in one.words
    assert "touch" in json.loads(files["ds_config.json"])["nest"]

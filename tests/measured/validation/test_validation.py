"""Measured runs become the configuration that their source states: checked by hand, row by row."""

from __future__ import annotations

from dataclasses import replace

import measured
import pytest

import nest
from nest.errors import InputError
from nest.measured import validation
from nest.measured.validation import Run, RunQuestion
from nest.measured.validation.cells import tables
from nest.measured.validation.hardware import device, device_name, stack, stack_name
from nest.measured.validation.translate import facts

RUNS = {run.run_id: run for run in validation.read()}


def asked(name: str) -> RunQuestion:
    return validation.question(RUNS[name])


def layers(found: RunQuestion) -> list[int]:
    """Layers of each stage, embedding and head included."""
    return [sum(stop - start for start, stop in stage.chunks)
            for stage in found.configuration.stages]


def micro_batches(found: RunQuestion) -> int:
    way = found.configuration
    return found.job.global_batch // (way.outer_dp * way.micro_batch)


# ---------------------------------------------------------------- rows by hand


def test_interleaved_megatron_without_data_parallel() -> None:
    """105 layers, 35 stages of 3 chunks, tp 8 with sp, 280 devices, attention core again."""
    model, cluster, job, way = found = asked("korth22_turing-530B_seqsel")
    assert (model.layers, model.hidden, model.ffn, model.heads) == (105, 20480, 81920, 128)
    assert (way.pp, way.vpp, way.schedule, way.outer_dp) == (35, 3, "interleaved", 1)
    assert way.stages[0].chunks == ((0, 2), (36, 37), (71, 72))
    assert way.stages[34].chunks == ((35, 36), (70, 71), (105, 107))
    assert way.stages[34].devices == (272, 280)
    assert all(s.tp == 8 and s.sp and s.dp_in == 1 and s.zero == 0 for s in way.stages)
    assert way.stages[0].recompute_modules == ("core_attn",)
    assert (cluster.size, cluster.group_sizes, cluster.device.name) == (
        280, (8, 280), "a100-sxm-80gb")
    assert cluster.nominal_bandwidth == (300e9, 25e9)
    assert (job.precision, job.stack.name, micro_batches(found)) == ("fp16", "megatron-2021", 280)


def test_the_ranks_of_a_stage_stand_side_by_side() -> None:
    """80 layers, pp 8 x vpp 2, tp 8, dp 24, mbs 2: a block is tp x dp = 192 devices."""
    found = asked("sc21_145B")
    way = found.configuration
    assert [stage.devices for stage in way.stages[:2]] == [(0, 192), (192, 384)]
    assert (way.micro_batch, micro_batches(found), way.stages[0].dp_in) == (48, 48, 24)
    assert layers(found) == [11, *[10] * 6, 11]
    assert not way.stages[0].sp and way.stages[0].recompute == "full"


def test_plain_pipeline_of_the_vtrain_study() -> None:
    """48 layers, pp 4, tp 4, dp 32, mbs 2, batch 1536; 100 Gb/s a device."""
    found = asked("vtrain_multi_0042")
    way = found.configuration
    assert [stage.layers for stage in way.stages] == [(0, 13), (13, 25), (25, 37), (37, 50)]
    assert (way.schedule, way.micro_batch, micro_batches(found)) == ("1f1b", 64, 24)
    assert found.cluster.nominal_bandwidth[1] == 12.5e9
    assert (found.job.stack.name, found.model.vocab) == ("vtrain", 50257)


def test_tensor_parallel_beyond_a_node() -> None:
    stage, = asked("vtrain_multi_0021").configuration.stages
    assert (stage.tp, stage.dp_in, stage.devices) == (16, 4, (0, 64))


def test_sharded_optimizer_with_a_pipeline() -> None:
    """72 layers, pp 12, tp 8, dp 4, ZeRO-1; 50 Gb/s a device."""
    found = asked("bigsci_025")
    assert layers(found) == [7, *[6] * 10, 7]
    assert {stage.zero for stage in found.configuration.stages} == {1}
    assert (found.model.vocab, found.cluster.nominal_bandwidth[1]) == (250880, 6.25e9)
    assert found.job.stack.name == "megatron-deepspeed"


def test_context_parallel_and_virtual_stages() -> None:
    """80 layers, pp 4 x vpp 5, tp 4, cp 2, dp 2: chunks of 4 layers on blocks of 16."""
    found = asked("dgxc_v24.11.1_llama3-70b_bf16_H100_64_gbs128")
    first = found.configuration.stages[0]
    assert first.chunks == ((0, 5), (17, 21), (33, 37), (49, 53), (65, 69))
    assert (first.cp, first.cp_comm, first.dp_in, first.devices) == (2, "p2p", 2, (0, 16))
    assert (found.model.kv_heads, found.model.norm, found.model.bias) == (8, "rmsnorm", False)
    assert (found.job.seq_len, micro_batches(found)) == (8192, 64)


def test_experts_lie_inside_a_stage() -> None:
    """GPT-OSS: 36 layers on 4 stages, 128 experts over ep 8 inside dp 16, heads of 64."""
    found = asked("mbridge_096")
    model, way = found.model, found.configuration
    assert layers(found) == [10, 9, 9, 10]
    assert (model.head_dim, model.moe.experts, model.moe.top_k, model.moe.ffn) == (
        64, 128, 4, 2880)
    assert {(s.ep, s.etp, s.dp_in) for s in way.stages} == {(8, 1, 16)}
    assert way.stages[1].devices == (16, 32)
    assert way.stages[0].recompute_modules == ("norm", "mlp_act")
    # Every second layer has a window, which the row does not state.
    assert (model.window, model.full_layers[:3], len(model.full_layers)) == (128, (1, 3, 5), 18)
    assert "attention_window 128, every 2nd layer: windows of GPT-OSS" in facts(
        RUNS["mbridge_096"]).remarks


def test_a_rack_is_one_level() -> None:
    """64 GB300 of an NVL72 rack: no network between trays of 4."""
    found = asked("mbridge_092")
    assert (found.cluster.group_sizes, found.cluster.device.name) == ((64,), "gb300")


def test_width_of_a_head_comes_from_the_catalog() -> None:
    model = asked("mbridge_101").model
    assert (model.head_dim, model.qk_norm) == (128, True)
    assert model.parameters() == nest.load_model("qwen3-30b-a3b").parameters()


def test_fully_sharded_with_16_bit_gradients() -> None:
    """MPT-70b on 64 A100 of 40 GB: 64.8624 billion parameters, as its source prints."""
    model, cluster, job, way = asked("foundry_140")
    assert round(model.parameters() / 1e9, 4) == 64.8624
    assert (cluster.device.name, cluster.size) == ("a100-sxm-40gb", 64)
    assert (way.stages[0].zero, way.stages[0].shard, job.stack.gradient_dtype) == (3, "dp", "bf16")
    assert asked("foundry_078").job.stack.gradient_dtype == "bf16"
    assert asked("foundry_089").job.stack.gradient_dtype == "fp32"


def test_shards_over_data_and_context_parallel() -> None:
    model, cluster, job, way = asked("titan_t2_1")
    assert (way.stages[0].cp, way.stages[0].dp_in, way.outer_dp, way.stages[0].shard) == (
        2, 4, 1, "dp")
    assert (job.precision, way.stages[0].recompute, cluster.device.memory) == ("fp8", "full", 96e9)
    names = [facts(RUNS[name]).stack for name in ("titan_t1_0", "titan_t1_1", "titan_t3_0")]
    assert names == ["torchtitan-eager", "torchtitan-2024", "torchtitan-eager"]
    assert facts(RUNS["titan_h200_32"]).stack == "torchtitan"


def test_fsdp_with_a_pipeline_is_zero_1() -> None:
    """PyTorch's stages keep whole gradients, and reduce them after the last micro-batch."""
    cells = {**RUNS["titan_t1_1"].fields, "pp": "2", "dp": "4", "fsdp_shard": "4", "mbs": "1"}
    piped = replace(RUNS["titan_t1_1"], fields=cells)
    assert validation.question(piped).configuration.stages[0].zero == 1
    assert any("priced as ZeRO-1" in remark for remark in facts(piped).remarks)
    assert asked("titan_t1_1").configuration.stages[0].zero == 3


def test_shard_group_in_the_notes() -> None:
    """zero1=8 of 64: blocks of 8, replicated 8 times; zero1=4 with tp 2 as well."""
    way = asked("internevo_tgs_tp1_z8_64").configuration
    stage, = way.stages
    assert (stage.devices, way.outer_dp, stage.shard, stage.zero) == ((0, 8), 8, "dp_in", 1)
    assert (way.micro_batch, micro_batches(asked("internevo_tgs_tp1_z8_64"))) == (16, 4)
    assert asked("internevo_tgs_tp2_z4_64").configuration.stages[0].devices == (0, 8)
    assert asked("internevo_tgs_tp1_z-1_64").configuration.stages[0].shard == "dp"
    assert asked("internevo_tgs_tp1_z8_64").model.ffn == 11008


def test_listed_layers_of_stages() -> None:
    """Sailor lists embedding and head as layers: 5, 7, 7, 7 of 26."""
    found = asked("sailor_OPT-350_N16_N16_D4")
    assert [stage.layers for stage in found.configuration.stages] == [
        (0, 5), (5, 12), (12, 19), (19, 26)]
    assert found.cluster.group_sizes == (4, 64)
    assert not found.configuration.stages[0].sp


def test_all_to_all_context_parallel() -> None:
    found = asked("simumax_b200_36")
    assert found.configuration.stages[0].cp_comm == "a2a"
    assert (found.job.stack.overlap_grad_reduce, found.model.layers) == (0.0, 12)


def test_virtual_stages_of_a_recipe_and_partial_recompute() -> None:
    assert asked("nemo_launcher_h100_05").configuration.vpp == 10
    stage, = asked("mbridge_260").configuration.stages
    assert (stage.recompute, stage.recompute_layers) == ("full", 5)


# ---------------------------------------------------------------- prices


def test_a_price_is_that_of_evaluate() -> None:
    run = RUNS["vtrain_multi_0042"]
    row, = validation.price([run])
    plan = nest.evaluate(*validation.question(run))
    assert row.predicted_s == plan.step_time_s
    assert row.error == plan.step_time_s / 13.8755 - 1
    assert row.predicted_memory == max(stage.memory_bytes.total for stage in plan.stages)
    assert sum(row.shares.values()) == pytest.approx(1.0)


def test_stacks_and_devices_can_be_replaced() -> None:
    run = RUNS["vtrain_multi_0042"]
    slow = stack("vtrain").replace(gemm_derate=0.44)
    small = device("a100-sxm-80gb").replace(memory="40 GiB")
    usual, = validation.price([run])
    slower, = validation.price([run], stacks={"vtrain": slow, "fsdp": slow})
    assert slower.predicted_s > 1.3 * usual.predicted_s
    tight = validation.question(run, devices={"a100-sxm-80gb": small})
    assert tight.cluster.device.memory == 40 * 2**30
    assert validation.price([run], stacks={"fsdp": slow})[0].predicted_s == usual.predicted_s


def test_memory_is_counted_as_its_source_counts() -> None:
    """simumax: allocated; nvidia-smi of the first stage: buffers, fragments and context too."""
    one, = validation.price([RUNS["simumax_b200_00"]])
    plan = nest.evaluate(*validation.question(RUNS["simumax_b200_00"]))
    assert one.predicted_memory == max(s.memory_bytes.total for s in plan.stages)
    assert one.run.measured_memory == 66.55 * 2**30
    two, = validation.price([RUNS["bigsci_025"]])
    question = validation.question(RUNS["bigsci_025"])
    plan, used, device = nest.evaluate(*question), question.job.stack, question.cluster.device
    # Fragments are a share of what is reserved, however much of the device that is.
    assert used.fragmentation == 0.2
    assert two.predicted_memory == pytest.approx(
        plan.stages[0].memory_bytes.total / 0.8 + used.workspace + device.memory_reserved)
    reserved = RUNS["titan_t1_0"]
    plan = nest.evaluate(*validation.question(reserved))
    assert reserved.memory_counted == "reserved"
    assert validation.price([reserved])[0].predicted_memory == pytest.approx(
        plan.stages[0].memory_bytes.total / 0.95)
    assert RUNS["sailor_OPT-350_N16_N16_D4"].measured_memory == 25.141e9


def test_runs_that_ran_fit() -> None:
    """All but two configurations, three runs: they hold more by our count than their device."""
    priced = [row for row in measured.rows() if row.reason is None]
    assert {row.run.run_id for row in priced if row.fits is False} == {
        f"dgxc_{run}" for run in (
            "v25.04.02_nemotron4-15b_bf16_H100_16_gbs64", "s25.05_nemotron4-15b_bf16_H100_16_gbs64",
            "v25.04.02_nemotron4-15b_bf16_H100_32_gbs128")
    }
    # The limit still is one: what is allowed leaves room for the context and buffers.
    for row in {row.key: row for row in priced}.values():
        question = validation.question(row.run)
        plan, memory = nest.evaluate(*question), question.cluster.device.memory
        for stage in plan.stages:
            assert stage.memory_limit_bytes < 0.98 * memory
            assert row.fits is False or stage.memory_bytes.total < 0.98 * memory


def test_fp8_recipes_of_nemo_keep_16_bit_gradients() -> None:
    """NeMo: 2 bytes a gradient in fp8, 4 in bf16, and there 10 of the optimizer; Bridge: 2."""
    held = {}
    for name in ("dgxc_v25.04.02_llama3-8b_fp8_H100_8_gbs128",
                 "dgxc_v25.04.02_llama3-8b_bf16_H100_8_gbs128", "mbridge_141"):
        stage = nest.evaluate(*asked(name)).stages[0].memory_bytes
        held[name] = (stage.gradients / stage.parameters, stage.optimizer / stage.parameters)
    # Parameters take 2 bytes; the optimizer is divided by 8 devices.
    assert list(held.values())[:2] == [(1.0, 12 / 2 / 8), (2.0, 10 / 2 / 8)]
    assert held["mbridge_141"][0] == 1.0


def test_torchtitan_runs_every_second_product_again() -> None:
    """Llama-3.1-8B on 128 GPUs, 2 x 8192 tokens: what stays of 32 layers, and of the logits."""
    stage, = nest.evaluate(*asked("titan_t3_1")).stages
    tokens, h, kv, ff, heads, vocab = 2 * 8192, 4096, 1024, 14336, 32, 128256
    # Input, query, value, the core's output, the gate: 2 bytes each; statistics of the core: 4.
    layer = 2 * (h + h + kv + h + ff) + 4 * heads
    # Norm and logits keep their inputs; 14 bytes a logit while the loss runs. That is more than
    # what a layer that is run again holds for a while.
    head = 2 * 2 * h + 14 * vocab
    assert stage.memory_bytes.activations == pytest.approx(tokens * (32 * layer + head))
    assert 2 * (12 * h + 4 * kv + 6 * ff) < 14 * vocab


def test_chunks_count_embedding_and_head_where_that_divides_them() -> None:
    """30 layers, 4 stages of 8 chunks: the embedding and the head are chunks of their own."""
    way = asked("dgxc_v25.04.02_llama3.1-405b_bf16_H100_64_L30_gbs64").configuration
    assert way.stages[0].chunks[:2] == ((0, 1), (4, 5))
    assert way.stages[3].chunks[-1] == (31, 32)


def test_experts_of_a_capacity_do_not_wait_for_the_host() -> None:
    run = RUNS["mbridge_284"]
    job = validation.question(run).job
    assert (job.expert_capacity, job.capacity, job.counted) == (1.0, "padded", True)
    assert any("capacity" in remark for remark in facts(run).remarks)
    assert not validation.question(RUNS["mbridge_007"]).job.counted


def test_experts_of_a_capacity_go_by_all_to_all() -> None:
    # Its release's configuration says HybridEP, with which Megatron-Bridge refuses to drop tokens.
    run = RUNS["mbridge_274"]
    assert run.text("dispatcher") == "hybridep"
    assert validation.question(run).job.stack.dispatcher == "alltoall"


def test_what_cuda_graphs_capture() -> None:
    # The router alone, attention and the router, the whole step.
    for run, graphs in (("258", "none"), ("146", "layers"), ("048", "step")):
        stack = validation.question(RUNS[f"mbridge_{run}"]).job.stack
        assert stack.cuda_graphs == graphs


def test_layers_whose_activations_are_on_the_host() -> None:
    run = RUNS["mbridge_077"]
    question, (row,) = validation.question(run), validation.price([run])
    assert question.configuration.offload == "layers:40" and row.error is not None
    kept = nest.evaluate(*question._replace(
        configuration=question.configuration.replace(offload="none")))
    assert not kept.feasible and row.fits


def test_asynchronous_tensor_parallelism_hides_part_of_its_traffic() -> None:
    run = RUNS["titan_a8_0a"]
    assert validation.question(run).job.stack.overlap_tp == 0.3
    assert any("asynchronous" in remark for remark in facts(run).remarks)


@pytest.mark.parametrize(("name", "reason"), [
    ("automodel_10", "not stated: recompute"),
])
def test_what_is_not_priced_says_why(name: str, reason: str) -> None:
    run = RUNS[name]
    row, = validation.price([run])
    assert row.reason == reason and row.predicted_s is None and row.error is None
    with pytest.raises(InputError, match=reason.replace("(", r"\(")):
        validation.question(run)


def test_the_own_table() -> None:
    """Most of its rows are priced; each has a source, a measurement and a name of its own."""
    rows = measured.rows()
    priced = [row for row in rows if row.reason is None]
    assert len(priced) > 0.8 * len(rows) > 400
    assert all(run.source and run.measured_s for run in RUNS.values())
    assert sum(run.anomalous for run in RUNS.values()) == 5 + 2 + 2  # vTrain; cuDNN; fp8 by rows
    for row in rows:
        assert (row.predicted_s is None) == (row.reason is not None)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("framework", "group", "name"), [
    ("Megatron-LM (2021)", "", "megatron-2021"),
    ("Megatron-LM (2022)", "", "megatron-2021"),
    ("Megatron-LM (2023-08)", "", "megatron-2021"),
    ("Megatron-LM (2023-09)", "", "megatron-core"),
    ("Megatron-DeepSpeed", "vtrain_multi", "vtrain"),
    ("Megatron-DeepSpeed (BigScience)", "", "megatron-deepspeed"),
    ("Megatron-LM 0.14 (all comm-overlap off)", "", "megatron-core-serial"),
    ("NeMo", "", "megatron-core"),
    ("NeMo 24.09", "", "megatron-core"),
    ("NeMo 24.12", "", "megatron-core"),
    ("NeMo 24.07", "", "megatron-core-2024"),
    ("NeMo (24.03/24.05)", "", "megatron-core-2024"),
    ("Megatron-Bridge 26.04", "", "megatron-bridge"),
    ("Megatron-LM core_v0.9.0", "", "megatron-core"), ("Megatron-LM", "", "megatron-core"),
    ("something of my own", "", "unknown"), ("nanotron (2025-02)", "", "nanotron"),
    ("Megatron-LM-like", "", "unknown"), ("Megatron-DeepSpeed (our fork)", "", "unknown"),
    ("Primus (Megatron-LM) on ROCm", "", "unknown"), ("MaxText (JAX)", "", "maxtext"),
    ("fsdp", "", "fsdp"),
])
def test_stacks_follow_from_the_framework(framework: str, group: str, name: str) -> None:
    assert stack_name(framework, group) == name
    assert stack(name).name == name


def test_provisional_figures_are_complete() -> None:
    for name in tables()["devices"]:
        assert device(name).name == name and device_name(name) == name


def test_software_that_the_catalog_lacks() -> None:
    trainer, eager = stack("llama-3"), stack("torchtitan-eager")
    assert stack_name("llama-3") == trainer.name == "llama-3"
    assert not trainer.wide_ring and trainer.runs == "llama-3"
    assert trainer.memory_derate == eager.memory_derate
    opt = stack(stack_name("metaseq"))
    assert opt.split_inputs and opt.gemm_derate == stack("llm-foundry").devices["a100"].gemm_derate


def test_runs_are_compared_by_identity() -> None:
    run = RUNS["bigsci_025"]
    assert isinstance(run, Run) and hash(run) == hash(run)
    assert run != validation.read()[0]

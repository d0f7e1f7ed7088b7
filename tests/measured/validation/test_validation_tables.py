"""Tables of measured runs: what is read, what is inferred, and what a bad one is told."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest

from nest.errors import InputError
from nest.measured import validation
from nest.measured.validation.cells import precision, recompute
from nest.measured.validation.translate import facts

GIVEN = {
    "run_id": "one", "model": "GPT-3.6B", "n_layers": "30", "d_model": "3072", "d_ff": "12288",
    "gated_mlp": "0", "n_heads": "32", "vocab": "50257", "seq_len": "2048", "gpu": "A100-SXM",
    "n_gpus": "64", "gpus_per_node": "8", "precision": "bf16", "framework": "Megatron-DeepSpeed",
    "tp": "2", "pp": "2", "vpp": "1", "dp": "16", "recompute": "full", "mbs": "4",
    "gbs_seqs": "512", "step_time_s": "4.0",
}
PUBLIC = Path(os.environ.get("NEST_RUNS", "/nowhere"))


def table(*rows: dict[str, str | None]) -> str:
    """CSV text: the run above with changes; None leaves a column out."""
    filled = [{**GIVEN, **row} for row in rows or ({},)]
    names = [name for name, cell in filled[0].items() if cell is not None]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names)
    for row in filled:
        writer.writerow([row[name] for name in names])
    return stream.getvalue()


def read(tmp_path: Path, text: str) -> tuple[validation.Run, ...]:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return validation.read(path)


def one(tmp_path: Path, **changes: str | None) -> validation.Run:
    return read(tmp_path, table(changes))[0]


# ---------------------------------------------------------------- reading


def test_a_run_as_it_is_written(tmp_path: Path) -> None:
    run = one(tmp_path, notes="of my own", peak_mem_gb="40", mem_note="max_mem bytes/1e9")
    assert (run.run_id, run.group, run.framework) == ("one", *["Megatron-DeepSpeed"] * 2)
    assert (run.measured_s, run.measured_memory, run.memory_counted) == (4.0, 40e9, "allocated")
    assert (run.whole("n_layers"), run.degree("cp"), run.whole("ep"), run.line) == (30, 1, None, 2)
    assert run.reason is None and run.notes == "of my own"


def test_columns_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    run, = read(tmp_path, "# a remark\n" + table({"colour": "green"}))
    assert run.reason is None and run.line == 3
    assert "colour" not in run.fields


def test_a_computed_step_time_stands_in_for_a_stated_one(tmp_path: Path) -> None:
    assert one(tmp_path, step_time_s="", step_time_s_derived="3.5").measured_s == 3.5
    assert one(tmp_path, step_time_s="4", step_time_s_derived="3.5").measured_s == 4.0
    assert one(tmp_path, step_time_s="").reason == "no step time is stated"


@pytest.mark.parametrize(("note", "size", "kind"), [
    ("GiB, torch max_memory_allocated (max rank)", 2**30, "allocated"),
    ("GiB, max over GPUs (reserved/active peak)", 2**30, "reserved"),
    ("nvidia-smi snapshot, GPU with the embedding", 2**30, "total"),
    ("max_mem bytes/1e9", 1e9, "allocated"),
])
def test_what_memory_counts(tmp_path: Path, note: str, size: float, kind: str) -> None:
    run = one(tmp_path, peak_mem_gb="10", mem_note=note)
    assert (run.measured_memory, run.memory_counted) == (10 * size, kind)


@pytest.mark.parametrize(("changes", "column", "value"), [
    ({"model": "LLAMA2-13B", "vocab": ""}, "vocab", "32000"),
    ({"model": "GPT3-5B", "vocab": ""}, "vocab", "50257"),
    ({"model": "Nemotron-8B", "vocab": ""}, "vocab", "256000"),
    ({"mbs": "", "grad_accum": "8"}, "mbs", "4"),
    ({"n_experts": "8", "top_k": "2", "d_ff_expert": "64", "n_shared_experts": "2"},
     "d_ff_shared", "128"),
    ({"n_experts": "8", "top_k": "2", "d_ff_expert": "64",
      "notes": "moe_flex_dispatcher_backend=hybridep"}, "dispatcher", "hybridep"),
    ({"dp": ""}, "dp", "16"),
    ({"dp": "", "cp": "2.0", "tp": "1.0"}, "dp", "16"),
    ({"vpp": "", "pp": "1", "dp": "32"}, "vpp", "1"),
    ({"model": "LLAMA3-70B", "vpp": "",
      "notes": "VP not in table (yaml: 175b 6, 70b 4, llama3-70b 5)."}, "vpp", "5"),
    ({"model": "LLAMA2-70B", "vpp": "",
      "notes": "VP not in table (yaml: 175b 6, 70b 4, llama3-70b 5)."}, "vpp", "4"),
    ({"framework": "Megatron-DeepSpeed (Sailor)", "recompute": ""}, "recompute", "none"),
])
def test_what_follows_from_elsewhere(
    tmp_path: Path, changes: dict[str, str], column: str, value: str
) -> None:
    run = one(tmp_path, **changes)
    assert run.text(column) == value and run.fields.get(column, "") == ""
    assert run.inferred[column].why and run.reason is None


def test_what_is_stated_is_not_inferred(tmp_path: Path) -> None:
    run = one(tmp_path, model="LLAMA2-13B", vocab="32016")
    assert run.text("vocab") == "32016" and "vocab" not in run.inferred


@pytest.mark.parametrize(("changes", "text"), [
    ({"notes": "recipe: cpu_offloading_num_layers=20"}, "layers:20"),
    ({"notes": "recipe: cpu_offloading_num_layers=0"}, "none"),
    ({"notes": "offload left blank"}, "none"),
    ({"offload": "activations of 40 layers to CPU"}, "layers:40"),
    ({"offload": "none", "notes": "cpu_offloading_num_layers=20"}, "layers:20"),
    ({"offload": "core_attn+optimizer"}, "optimizer+core_attn"),
])
def test_what_is_kept_on_the_host(tmp_path: Path, changes: dict[str, str], text: str) -> None:
    assert validation.question(one(tmp_path, **changes)).configuration.offload == text


@pytest.mark.parametrize(("changes", "reason"), [
    ({"recompute": ""}, "not stated: recompute"),
    ({"recompute": "remat of some kind"}, "recompute remat of some kind"),
    ({"n_heads": "", "mbs": ""}, "not stated: n_heads, mbs"),
    ({"precision": "MXFP4"}, "precision MXFP4"),
    ({"gpu": "abacus"}, "unknown gpu abacus"),
    ({"vpp": ""}, "not stated: vpp"),
    ({"dp": "8"}, "tp x pp x dp x cp = 32 is not n_gpus 64"),
    ({"mbs": "3"}, "mbs x dp = 48 does not divide gbs_seqs 512"),
    ({"fsdp_shard": "3"}, "fsdp_shard 3 does not divide dp x cp = 16"),
    ({"n_experts": "8"}, "not stated: top_k, d_ff_expert"),
    ({"notes": "recipe: cpu_offloading_num_layers=20"}, None),
    ({"notes": "recipe: cpu_offloading_num_layers=0"}, None),
    ({"notes": "offload left blank"}, None),
    ({"offload": "activations of 20 layers to CPU"}, None),
    ({"offload": "parameters"}, "offloads to the host what is not named"),
    ({"notes": "activations are offloaded to the host"}, "offloads to the host what is not named"),
    ({"offload": "none"}, None),
    ({"model": "Llama3 70B LoRA", "notes": "LoRA fine-tuning"},
     "not stated: lora"),
    ({"model": "DeepSeek-V2", "notes": ""}, "not stated: kv_lora_rank, qk_nope_head_dim, "
                                            "qk_rope_head_dim, v_head_dim"),
    ({"kv_lora_rank": "512"}, "not stated: qk_nope_head_dim, qk_rope_head_dim, v_head_dim"),
])
def test_why_a_run_is_not_priced(
    tmp_path: Path, changes: dict[str, str], reason: str | None
) -> None:
    assert one(tmp_path, **changes).reason == reason


@pytest.mark.parametrize("changes", [
    {"n_heads": "7"}, {"gpus_per_node": "7"}, {"tp": "16", "dp": "2", "n_kv_heads": "5"},
    {"n_layers": "1"}, {"vpp": "31"}, {"layout": "Et|L"}, {"schedule": "zb-h2"},
    {"attention_window": "some"},
    {"zero_stage": "1", "fsdp_shard": "4"},
])
def test_what_evaluate_refuses_is_a_reason_too(tmp_path: Path, changes: dict[str, str]) -> None:
    row, = validation.price([one(tmp_path, **changes)])
    assert row.reason and row.predicted_s is None


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(("text", "found"), [
    ("bf16 (bf16, FSDP mp PURE)", "bf16"), ("fp16/bf16 (not stated)", "bf16"), ("FP8-MX", "mxfp8"),
    ("fp8 32x32 / MXFP8", "mxfp8"), ("MXFP4", None), ("NVFP4", "nvfp4"),
    ("FP8 (blockwise)", "fp8-blockwise"), ("fp8, delayed scaling", "fp8-delayed"),
    ("fp8 (per-tensor/current scaling)", "fp8"), ("fp16", "fp16"), ("", None),
])
def test_number_formats(text: str, found: str | None) -> None:
    assert precision(text) == found


@pytest.mark.parametrize(("framework", "found"), [
    ("NeMo", "fp8-delayed"), ("NeMo 24.07", "fp8-delayed"), ("NeMo 25.04", "fp8-delayed"),
    ("Megatron-LM/NeMo", "fp8-delayed"), ("NeMo (24.03/24.05)", "fp8"), ("NeMo 25.09", "fp8"),
    ("NeMo/Megatron-Core (MLPerf v5.1)", "fp8"), ("Megatron-Bridge 25.09", "fp8"),
])
def test_fp8_is_scaled_as_the_release_does(framework: str, found: str) -> None:
    assert precision("fp8", framework) == found
    assert precision("fp8 (current scaling)", framework) == "fp8"
    assert precision("bf16", framework) == "bf16"


@pytest.mark.parametrize(("text", "policy", "modules", "layers"), [
    ("none (checkpoint=False)", "none", (), None),
    ("full (--checkpoint-activations)", "full", (), None),
    ("full, 5 layers", "full", (), 5),
    ("selective (attention core)", "selective", ("core_attn",), None),
    ("selective: layernorm+moe_act", "selective", ("norm", "mlp_act"), None),
    ("selective: mlp_act+norm", "selective", ("norm", "mlp_act"), None),
    ("selective (per-op SAC)", "selective", ("norm", "mlp_act"), None),
    ("selective: layernorm, moe_act", "selective", ("norm", "mlp_act"), None),
    ("norm, act", "selective", ("norm", "mlp_act"), None),
    ("selective: mla_up_proj, mlp", "selective", ("mlp", "mla_up_proj"), None),
    ("shared_experts", "selective", ("shared_experts",), None),
    ("remat full", "full", (), None),
    ("none (config: full/block with 0 layers)", "none", (), None),
])
def test_recompute_policies(
    text: str, policy: str, modules: tuple[str, ...], layers: int | None
) -> None:
    found = recompute(text)
    assert found is not None
    assert (found.policy, found.modules, found.layers) == (policy, modules, layers)
    assert bool(found.remark) == ("SAC" in text)


@pytest.mark.parametrize(("text", "policy", "modules"), [
    ("selective", "selective", ("core_attn",)),
    ("minimal", "selective", ("norm", "mlp_act")), ("save_qkv_proj", "full", ()),
])
def test_what_is_priced_otherwise_is_a_remark(
    text: str, policy: str, modules: tuple[str, ...]
) -> None:
    found = recompute(text)
    assert found is not None and (found.policy, found.modules) == (policy, modules)
    assert found.remark


@pytest.mark.parametrize("text", ["", "some", "full of it", "selective: colour", "nonesuch"])
def test_recompute_that_is_not_known(text: str) -> None:
    assert recompute(text) is None


# ---------------------------------------------------------------- models, networks, cuts

LATENT = {"gated_mlp": "1", "d_model": "7168", "n_heads": "128", "n_experts": "256", "top_k": "8",
          "d_ff_expert": "2048"}


def test_latent_attention_of_a_row_and_of_the_catalog(tmp_path: Path) -> None:
    """Eight layers of DeepSeek-V3: what the row lacks is the catalog's, each with a remark."""
    run = one(tmp_path, model="DeepSeek-V3 (8 layers)", n_layers="8", **LATENT)
    model, remarks = facts(run).model, facts(run).remarks
    assert (model.mla.kv_rank, model.mla.q_rank, model.mla.value_dim) == (512, 1536, 128)
    assert (model.moe.shared_ffn, model.moe.first_dense) == (2048, 3)
    assert "kv_lora_rank 512: latent attention of deepseek-v3" in remarks
    own = one(tmp_path, model="mine", kv_lora_rank="64", qk_nope_head_dim="32",
              qk_rope_head_dim="16", v_head_dim="32", first_dense="1", mtp_layers="1",
              d_ff_shared="2048", n_shared_experts="2", **LATENT)
    model = facts(own).model
    assert (model.mla.q_rank, model.mla.nope_dim, model.mtp_layers) == (0, 32, 1)
    assert (model.moe.shared_ffn, model.moe.first_dense) == (4096, 1)


@pytest.mark.parametrize(("text", "arch", "window", "full"), [
    ("128, every 2nd layer", "", 128, (1, 3, 5)), ("4096", "", 4096, ()),
    ("512 (5:1)", "", 512, (5,)), ("128", "alternating sliding window", 128, (1, 3, 5)),
])
def test_windows(
    tmp_path: Path, text: str, arch: str, window: int, full: tuple[int, ...]
) -> None:
    run = one(tmp_path, n_layers="6", attention_window=text, arch=arch)
    assert (facts(run).model.window, facts(run).model.full_layers) == (window, full)


@pytest.mark.parametrize(("cell", "parallel", "norms"), [
    ("", False, 2), ("0", False, 2), ("1", True, 1), ("2", True, 2),
])
def test_parallel_blocks(tmp_path: Path, cell: str, parallel: bool, norms: int) -> None:
    model = facts(one(tmp_path, parallel_block=cell)).model
    assert (model.parallel, model.layer_norms) == (parallel, norms)


@pytest.mark.parametrize(("framework", "cell", "fused"), [
    ("Megatron-DeepSpeed", "", False), ("Megatron-DeepSpeed", "1", True),
    ("megatron-core", "", True), ("megatron-core", "0", False),
])
def test_fused_attention(tmp_path: Path, framework: str, cell: str, fused: bool) -> None:
    run = one(tmp_path, framework=framework, flash_attention=cell)
    assert validation.question(run).job.stack.flash_attention is fused


@pytest.mark.parametrize(("devices", "link", "sizes", "remark"), [
    ("512", "NVLink5 NVL72", (64, 512), "8 racks of 72, 64 devices of each, inferred"),
    ("144", "NVL72", (72, 144), ""),
    ("64", "", (64,), "link not stated: an NVL72 rack, usual for gb200"),
    ("64", "NVL4", (4, 64), ""),
])
def test_racks_are_partly_filled(
    tmp_path: Path, devices: str, link: str, sizes: tuple[int, ...], remark: str
) -> None:
    run = one(tmp_path, gpu="GB200", n_gpus=devices, gpus_per_node="4", intra_node=link,
              inter_node_gbps_per_gpu="400", tp="1", pp="1", dp=devices, mbs="1",
              gbs_seqs=devices)
    assert validation.question(run).cluster.group_sizes == sizes
    found = [text for text in facts(run).remarks if "rack" in text]
    assert found == ([remark] if remark else [])


@pytest.mark.parametrize("gpu", ["B200-SXM", "B300-SXM", "GB200", "GB300"])
def test_number_formats_are_the_job_s(tmp_path: Path, gpu: str) -> None:
    given = {"gpu": gpu, "inter_node_gbps_per_gpu": "400", "intra_node": "NVL72"}
    for cell in ("fp8", "MXFP8", "NVFP4"):
        run = one(tmp_path, precision=cell, **given)
        assert validation.question(run).job.precision == cell.lower()
        assert validation.price([run])[0].reason is None
        assert not [text for text in facts(run).remarks if "FP" in text]


def test_a_format_that_the_device_lacks(tmp_path: Path) -> None:
    run = one(tmp_path, precision="NVFP4", gpu="H100-SXM")
    assert "h100-sxm: peak_flops: got no nvfp4" in validation.price([run])[0].reason


def test_unequal_chunks(tmp_path: Path) -> None:
    """33 layers in 2 x 4 chunks: one, near the middle, has five; or as a layout says."""
    run = one(tmp_path, vpp="4", n_layers="33")
    chunks = sorted(each for s in facts(run).configuration.stages for each in s.chunks)
    assert [end - first for first, end in chunks] == [5, 4, 4, 4, 5, 4, 4, 5]
    assert "layout not stated: 1 of 8 chunks have a layer more" in facts(run).remarks
    counted = facts(one(tmp_path, vpp="4")).remarks  # 30 layers, embedding and head
    assert "layout not stated: embedding or head count as layers of their chunks" in counted
    own = one(tmp_path, vpp="2", layout="Ettttt|(tttttttt|)*2tttttttttL")
    sizes = [[end - first for first, end in s.chunks] for s in facts(own).configuration.stages]
    assert sizes == [[6, 8], [8, 10]]


def test_schedules(tmp_path: Path) -> None:
    assert facts(one(tmp_path, schedule="zero-bubble (zbb, ZB1P)")).configuration.schedule == "zb1p"
    folded = facts(one(tmp_path, schedule="zbv"))
    assert (folded.configuration.schedule, folded.configuration.vpp) == ("zb-v", 2)
    assert "vpp not stated: 2, the chunks of zb-v" in folded.remarks
    twice = facts(one(tmp_path, schedule="DualPipe")).configuration
    assert (twice.schedule, [stage.chunks for stage in twice.stages]) == (
        "dualpipe", [((0, 16), (16, 32))] * 2)
    both = one(tmp_path, n_experts="8", top_k="2", d_ff_expert="64", ep="8", pp="1", dp="32",
               etp="1", ep_overlap="1")
    assert facts(both).configuration.schedule == "combined"


# ---------------------------------------------------------------- annotations


def test_annotations_replace_cells(tmp_path: Path) -> None:
    runs, more = tmp_path / "runs.csv", tmp_path / "more.csv"
    runs.write_text(table({"notes": "first", "recompute": ""}), encoding="utf-8")
    more.write_text("run_id,recompute,dispatcher,colour,notes\n"
                    "one,full,deepep,red,second\ntwo,,,,\n", encoding="utf-8")
    run, = validation.read(runs, more)
    assert (run.text("recompute"), run.text("dispatcher"), run.notes) == (
        "full", "deepep", "first; second")
    assert run.reason is None and validation.read(runs)[0].reason == "not stated: recompute"


@pytest.mark.parametrize(("text", "told"), [
    ("recompute\nfull\n", "line 1: column run_id is missing"),
    ("run_id,etp\none,x\n", "line 2: etp: got 'x'; allowed: a whole number"),
    ("run_id,etp\none\n", "line 2: got 1 cells; allowed: 2"),
    ("", "is empty; needed: a header line with columns run_id"),
])
def test_bad_annotations(tmp_path: Path, text: str, told: str) -> None:
    runs, more = tmp_path / "runs.csv", tmp_path / "more.csv"
    runs.write_text(table(), encoding="utf-8")
    more.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(told)):
        validation.read(runs, more)


# ---------------------------------------------------------------- bad tables


@pytest.mark.parametrize(("text", "told"), [
    ("", "is empty; needed: a header line"),
    ("# nothing else\n", "is empty"),
    (table({"tp": None}), "line 1: column tp is missing; needed: tensor-parallel degree"),
    (table().splitlines()[0], "line 1: no row follows the header"),
    (table({"tp": "two"}), "line 2: tp: got 'two'; allowed: a whole number from 1"),
    (table({"tp": "0"}), "line 2: tp: got '0'; allowed: a whole number from 1"),
    (table({"tp": "1.5"}), "line 2: tp: got '1.5'; allowed: a whole number"),
    (table({"zero_stage": "4"}), "zero_stage: got '4'; allowed: a whole number from 0 to 3"),
    (table({"parallel_block": "3"}), "got '3'; allowed: a whole number from 0 to 2"),
    (table({"step_time_s": "-1"}), "step_time_s: got '-1'; allowed: a number above 0"),
    (table({"step_time_s": "nan"}), "step_time_s: got 'nan'; allowed: a number above 0"),
    (table({"step_time_s": "1e400"}), "allowed: a number above 0"),
    (table({"model": ""}), "line 2: model: is empty; needed: name of the model"),
    (table({}, {}), "line 3: run_id: got 'one' again, after line 2; allowed: once"),
    (table() + "two,GPT\n", "line 3: got 2 cells; allowed: 22"),
    (table() + 'two,"GPT\n', "malformed CSV"),
    ("run_id,run_id\n" + "a,b\n", "column run_id comes twice; allowed: once"),
], ids=range(17))
def test_bad_tables_end_in_one_message(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert told in message
    assert all(line.startswith(str(tmp_path / "runs.csv")) for line in message.splitlines())


def test_many_problems_are_counted(tmp_path: Path) -> None:
    rows = [{"run_id": str(number), "tp": "x"} for number in range(30)]
    with pytest.raises(InputError) as caught:
        read(tmp_path, table(*rows))
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].endswith("and 10 more problems")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        validation.read(tmp_path / "none.csv")


# ---------------------------------------------------------------- the published table


@pytest.mark.skipif(not PUBLIC.is_file(), reason="NEST_RUNS does not name the published table")
def test_own_and_published_table_agree() -> None:
    """The same runs are the same questions, whichever way they are written."""
    public = {row.run.run_id: row for row in validation.price(validation.read(PUBLIC))}
    for row in validation.price(validation.read()):
        other = public[row.run.run_id]
        assert row.reason == other.reason and row.stack == other.stack
        assert row.run.measured_s == pytest.approx(other.run.measured_s, rel=1e-5)
        assert row.predicted_s == other.predicted_s
        assert row.predicted_memory == other.predicted_memory
        assert row.run.measured_memory == other.run.measured_memory

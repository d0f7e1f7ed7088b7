"""The report: complete, within 80 columns, and true to the plan."""

from __future__ import annotations

import re

import pytest

from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Alternative, LeftOut, Plan, SearchReport
from nest.inputs import Configuration, Job, SearchSpace, load_cluster, load_model
from nest.report.page import Page
from nest.report.plan_text import defaults, plan_text, proved, searched
from nest.report.stages import runs
from nest.report.summary_text import summary_text
from nest.units import format_seconds


def priced(
    model: str, cluster: str, devices: int, stack: str = "megatron-core", **degrees: object
) -> Plan:
    job = Job(global_batch=1024, seq_len=512, stack=stack)
    described, where = load_model(model), load_cluster(cluster, devices=devices)
    way = even_configuration(described, where, job, **degrees)  # type: ignore[arg-type]
    return evaluate(described, where, job, way)


def test_a_report_in_a_notebook_is_a_text(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would show it there by itself, and leave the text empty."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    page = Page()
    page.paragraph("a step")
    assert page.text().strip() == "a step" and capsys.readouterr().out == ""


def test_the_report_explains_its_words() -> None:
    """Chunks have a legend, `hierarchical` says of what; terms of the search stay in the docs."""
    plan = priced("llama3-70b", "h100-spine-leaf", 1024, tp=8, pp=4, vpp=10, zero=1)
    text = " ".join(plan.report(details=True).split())
    assert "chunks: virtual stages of a stage x layers of each" in text
    assert "hierarchical (level by level)" in text
    assert not re.search("super-pipeline|outer choice|cells", text)


CASES = [
    ("llama3-70b", "h100-spine-leaf", 1024, {"tp": 8, "pp": 16, "zero": 1}),
    ("bert-large", "tpuv4-fat-tree", 1024, {"pp": 8, "dp_in": 4, "zero": 3}),
    ("deepseek-v3", "dgx-h100", 2048, {"tp": 4, "pp": 61, "ep": 8, "etp": 1, "outer_dp": 4,
                                       "recompute": "full", "zero": 3}),
    ("llama3.1-405b", "dgx-b200", 8192, {"tp": 8, "pp": 64, "sp": False, "recompute": "selective"}),
    ("llama2-7b", "dgx-a100", 8, {"tp": 8}),
    ("gpt3-175b", "dgx-a100", 1, {}),
    ("llama3-70b", "h100-spine-leaf", 8192, {
        "tp": 4, "cp": 2, "cp_comm": "a2a", "pp": 20, "dp_in": 2, "zero": 1, "shard": "dp_in",
        "outer_dp": 16, "recompute": "selective",
        "recompute_modules": ("core_attn", "norm", "mlp_act")}),
    ("deepseek-v3", "dgx-h100", 4096, {
        "tp": 2, "cp": 4, "pp": 16, "dp_in": 4, "ep": 8, "etp": 1, "zero": 1, "shard": "dp_in",
        "recompute": "selective", "recompute_modules": ("core_attn", "norm", "mlp_act", "moe")}),
    ("llama3-70b", "h100-spine-leaf", 256, {
        "tp": 8, "pp": 4, "vpp": 5, "recompute": "full", "recompute_layers": 3, "mbs": 1}),
]


@pytest.mark.parametrize(("model", "cluster", "devices", "degrees"), CASES,
                         ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_a_plan_fits_a_screen(model, cluster, devices, degrees):
    """Without what its software cannot run, and why it does not fit."""
    plan = priced(model, cluster, devices, **degrees).model_copy(
        update={"problems": (), "feasible": True, "not_runnable": (), "runnable": True})
    lines = plan.report().splitlines()
    assert len(lines) <= 31 and max(map(len, lines)) <= 80
    assert len(lines) < len(plan.report(details=True).splitlines())


def test_the_short_report_says_the_split_in_the_words_of_the_field() -> None:
    plan = priced("deepseek-v3", "dgx-h100", 4096, tp=2, cp=4, pp=16, dp_in=4, ep=8, etp=1, zero=1,
                  shard="dp_in", recompute="selective", recompute_modules=("core_attn",))
    text = " ".join(summary_text(plan, simulated=plan.step_time_s / 0.98).split())
    assert ("Split data parallel 32 = 8 replicas x 4, ZeRO 1; tensor and sequence parallel 2; "
            "context parallel 4; expert parallel 8; pipeline of 16 stages, 1F1B; recompute "
            "selective; 4,096 of 4,096 devices Batch") in text
    assert "in 9 of 10 cases; simulated 2.803 s (+2.0 %)" in text
    assert "Assumed experts get equally many tokens (--routing)" in text
    held = [stage.memory_bytes.total for stage in plan.stages]
    assert f"on stage {held.index(max(held))}, the fullest (margin 10 %): " in text


def test_the_short_report_adds_up_small_causes() -> None:
    plan = priced("deepseek-v3", "dgx-h100", 2048, tp=4, pp=61, ep=8, etp=1, outer_dp=4,
                  recompute="full", zero=3)
    small = [seconds for seconds in plan.breakdown_s.model_dump().values()
             if 0.0 < seconds < 0.02 * plan.step_time_s]
    assert len(small) > 1
    assert f"\nother {sum(small):.3f} s " in re.sub(" +", " ", plan.report())
    assert "\nother" not in plan.report(details=True)


@pytest.mark.parametrize(("model", "cluster", "devices", "degrees"), CASES,
                         ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_every_line_fits_80_columns_and_nothing_is_cut(model, cluster, devices, degrees):
    plan = priced(model, cluster, devices, **degrees)
    text = plan_text(plan)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    flat = " ".join(text.split())
    assert f"{model} on {cluster}, {devices} device" in flat
    assert f"{100 * plan.mfu:.1f} % MFU" in flat
    assert ("DOES NOT FIT" in text) is not plan.feasible
    for stage in plan.stages:
        word = "+".join(stage.recompute_modules) or stage.recompute
        assert word in text


def test_colour_and_ascii_change_no_word():
    plan = priced(*CASES[0][:3], **CASES[0][3])
    text = plan_text(plan)
    coloured = plan_text(plan, colour=True)
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == text.splitlines()
    simple = plan_text(plan, unicode=False)
    assert simple.isascii()
    assert simple == text.replace("─", "-").replace("█", "#")


def test_alike_stages_are_one_row():
    plan = priced(*CASES[0][:3], **CASES[0][3])
    folded = runs(plan)
    assert [s for run in folded for s in run.stages] == list(plan.stages)
    assert len(folded) < len(plan.stages)
    row = next(line for line in plan_text(plan).splitlines() if line.startswith("1.."))
    assert re.match(r"1\.\.\d+ +6\.\.\d+ +5 ", row)


def test_the_tables_show_the_plan():
    plan = priced("llama2-7b", "dgx-a100", 8, tp=4, pp=2, zero=1)
    text = plan_text(plan)
    for number, stage in enumerate(plan.stages):
        first = re.search(rf"^{number} +{stage.layers[0]}\.\.{stage.layers[1] - 1} ", text, re.M)
        assert first
        assert f"{1e3 * stage.time_s.total:.4g}" in text
    shares = [float(x) for x in re.findall(r"([\d.]+) %", text.split("Where the step")[1])]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.5)
    assert "cp" not in text.split("Time, ms")[1].splitlines()[1].split()


def test_columns_that_are_zero_everywhere_are_left_out():
    one = plan_text(priced("llama2-7b", "dgx-a100", 1))
    head = one.split("Time, ms")[1].splitlines()[1].split()
    assert head == ["stage", "forward", "backward", "total", "end"]


def test_what_the_search_did():
    plan = priced("llama2-7b", "dgx-a100", 8, tp=8)
    assert searched(plan) == "none: only this configuration was priced"
    report = SearchReport(
        seconds=0.48, compile_seconds=0.0, threads=2, solved=12, pruned=76, cells=1194, labels=9,
        transitions=9, peak_bytes=2**28, space=SearchSpace(tp=8, zero="0,1").describe())
    done = plan.model_copy(update={"search": report, "optimal": True})
    did = ("; 12 combinations of replicas and micro-batch solved, 76 excluded by a bound, "
           "in 480 ms on 2 threads; kernels compiled or loaded in 0 s; peak memory 256 MiB")
    assert searched(done) == "every legal plan with tp 8, zero 0..1" + did
    free = report.model_copy(update={"space": SearchSpace().describe()})
    assert searched(plan.model_copy(update={"search": free})) == "every legal plan" + did
    assert "Optimal      yes: no plan in the searched space is faster\n" in plan_text(done)
    narrow = report.model_copy(update={"left_out": (LeftOut(figure="cuts", sentence="most"),)})
    assert ("Optimal      yes: no plan in the searched space is faster; one left out may be\n"
            "Left out     cuts: most\n") in plan_text(done.model_copy(update={"search": narrow}))


def test_how_near_a_stopped_search_came():
    plan = priced("llama2-7b", "dgx-a100", 8, tp=8)
    report = SearchReport(
        seconds=1.5, compile_seconds=0.0, threads=2, solved=12, pruned=76, cells=1194, labels=9,
        transitions=9, peak_bytes=2**28, space=SearchSpace().describe())
    found = plan.model_copy(update={
        "search": report, "gap": 0.0625, "lower_bound_s": plan.step_time_s / 1.0625})
    assert proved(found) == (
        "not proved: within 6.2 % of the best possible (lower bound "
        f"{format_seconds(plan.step_time_s / 1.0625)}). The search ended after 1.5 s, at its "
        "limit")


def test_the_next_best_plans_are_a_table():
    plan = priced("llama2-7b", "dgx-a100", 8, tp=4, pp=2)
    other = priced("llama2-7b", "dgx-a100", 8, tp=8)
    one = Alternative(step_time_s=1.25 * plan.step_time_s, slower=0.25,
                      configuration=other.configuration)
    text = plan_text(plan.model_copy(update={"alternatives": (one,)}))
    table = text.split("Best plans")[1].splitlines()
    assert table[1].split() == ["step", "slower", "outer_dp", "micro_batch", "pp", "vpp",
                                "schedule", "blocks"]
    assert table[4].split()[3:] == ["+25.00", "%", "1", "1", "1", "1", "1F1B", "8"]
    assert "Best plans" not in plan_text(plan)


def test_virtual_stages_show_their_chunks():
    case = CASES[-1]
    text = plan_text(priced(*case[:3], **case[3]))
    assert "vpp 5, schedule interleaved 1F1B" in " ".join(text.split())
    assert "full 3 layers a chunk" in text
    row = next(line for line in text.splitlines() if line.startswith("0 ")).split()
    assert row[:7] == ["0", "0..4", "..", "65..68", "5", "x", "4..5"]


def test_hybrid_sharding_and_all_to_all_are_shown():
    case = CASES[-3]
    text = plan_text(priced(*case[:3], **case[3]))
    assert "1 dp_in" in text
    assert "2 a2a" in text
    assert "core_attn+norm+mlp_act" in text
    assert "Degrees of the stages" in text


def test_many_problems_are_counted():
    plan = priced("llama3.1-405b", "dgx-a100", 64, pp=64)
    assert len(plan.problems) > 8
    text = plan_text(plan)
    assert text.startswith("DOES NOT FIT\n- stage 0 needs ")
    assert f"and {len(plan.problems) - 8} more stages" in text


def test_how_sure_the_price_is():
    plan = priced("llama3-8b", "dgx-h100", 16)
    text = " ".join(plan_text(plan, simulated=plan.step_time_s / 0.98).split())
    assert "discrete-event simulation; the priced step time differs by -2.0 %" in text
    assert "measured configurations of megatron-core are like it; nearest: " in text
    assert "per step in 9 of 10 cases" in text
    assert "never measured" not in text and "Simulated" not in plan_text(plan)
    beyond = " ".join(plan_text(priced("llama3-8b", "dgx-a100", 16, stack="torchtitan")).split())
    assert "extrapolated, because not among 12 measured configurations of torchtitan: device" in (
        beyond)
    piped = [priced("llama3-8b", "dgx-h100", 16, stack="internevo", pp=pp) for pp in (1, 2)]
    assert [plan.confidence is not None and "a pipeline" in plan.confidence.beyond
            for plan in piped] == [False, True]
    assert plan.error is not None
    ways = [Alternative(step_time_s=plan.step_time_s * (1 + slower), slower=slower,
                        configuration=plan.configuration)
            for slower in (0.5 * plan.error, 0.9 * plan.error, 1.1 * plan.error)]
    near = plan_text(plan.model_copy(update={"alternatives": tuple(ways)}))
    assert f"2 of them slower by less than the error of prices, {100 * plan.error:.1f} %" in near


def test_defaults_are_named():
    level = {"name": "node", "size": 2, "link": "pcie4", "latency": "7 us"}
    cluster = load_cluster({"name": "desk", "device": "rtx-4090", "levels": [level]})
    assert defaults(cluster) == ("products of rtx-4090 at most 75 % of the peak; bandwidth, "
                                 "efficiency of level node (pcie4)")
    assert defaults(load_cluster("dgx-h100")) == ""
    way = Configuration.parse({"micro_batch": 1, "stages": [
        {"layers": [0, 26], "devices": [0, 2], "tp": 2}]})
    text = plan_text(evaluate(load_model("bert-large"), cluster,
                              Job(global_batch=2, seq_len=128), way))
    assert "\nDefaults     products of rtx-4090 at most 75 % of the peak; " in text

"""Configurations under schedules that are priced and not searched: rules, files, parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nest
from nest.evaluation.even import even_configuration

MODEL = nest.load_model("llama3-8b")
CLUSTER = nest.load_cluster("dgx-h100", devices=32)


def job(m: int = 16, **changes: Any) -> nest.Job:
    """m micro-batches."""
    return nest.Job(global_batch=m, seq_len=2048, **changes)


def priced(m: int = 16, of: nest.Model = MODEL, **given: Any) -> nest.Plan:
    given = {"pp": 4, "tp": 8, "outer_dp": 1} | given
    return nest.evaluate(of, CLUSTER, job(m), even_configuration(of, CLUSTER, job(m), **given))


@pytest.mark.parametrize(("given", "message"), [
    ({"schedule": "zb1p", "vpp": 2}, "vpp: got 2 with schedule zb1p; allowed: 1"),
    ({"schedule": "interleaved-zb"}, "vpp: got 1 with schedule interleaved-zb; allowed: 2"),
    ({"schedule": "zb-v", "vpp": 4}, "vpp: got 4 with schedule zb-v; allowed: 2"),
    ({"schedule": "zb1p", "pp": 1, "tp": 8, "dp_in": 4, "micro_batch": 4},
     "schedule zb1p needs pp above 1"),
    ({"schedule": "dualpipev", "vpp": 2, "m": 7},
     "schedule dualpipev needs 2 x pp 4 micro-batches a step; here 7"),
    ({"schedule": "dualpipe", "m": 6},
     "schedule dualpipe needs 2 x pp 4 micro-batches a step; here 6"),
    ({"schedule": "dualpipe", "m": 9}, "needs an even pp, and an even number of micro-batches"),
    ({"schedule": "dualpipe", "pp": 3, "m": 12}, "half of them from each end; here pp 3, 12"),
    ({"schedule": "dualpipe", "vpp": 4}, "vpp: got 4 with schedule dualpipe; allowed: 2"),
    ({"schedule": "dualpipe", "vpp": 1}, "vpp: got 1 with schedule dualpipe; allowed: 2"),
    ({"schedule": "dualpipe", "zero": 2}, "zero: got 2 with schedule dualpipe; allowed: up to 1"),
    ({"schedule": "dualpipe", "group": 4},
     "group: got 4 with schedule dualpipe, which has none"),
    ({"schedule": "dualpipe", "first_stage_layers": 4}, "hold each chunk; allowed: layout"),
    ({"schedule": "zb1p", "zero": 3}, "zero: got 3 with schedule zb1p; allowed: up to 2"),
    ({"schedule": "combined", "vpp": 2}, "schedule combined needs ep above 1; here 1"),
    ({"schedule": "1f1b", "group": 4}, "group: got 4 with schedule 1f1b, which has none"),
    ({"schedule": "zb-v", "vpp": 2, "group": 4}, "group: got 4 with schedule zb-v, which has none"),
    ({"vpp": 2, "m": 6}, "needs pp 4 to divide the 6 micro-batches of a step, or a group"),
    ({"vpp": 2, "m": 12, "group": 3}, "group: got 3; allowed: 4 to 12"),
    ({"vpp": 2, "m": 12, "group": 13}, "group: got 13; allowed: 4 to 12"),
    ({"vpp": 2, "m": 13, "group": 5}, "group: 5 leaves 3 of the 13 micro-batches"),
])
def test_rules_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(nest.InputError, match=message):
        priced(**given)


def test_two_copies_are_not_priced_with_muon() -> None:
    way = even_configuration(MODEL, CLUSTER, job(), pp=4, tp=8, outer_dp=1, schedule="dualpipe")
    assert nest.evaluate(MODEL, CLUSTER, job(), way).step_time_s > 0.0
    with pytest.raises(nest.InputError, match="schedule dualpipe with optimizer muon is not"):
        nest.evaluate(MODEL, CLUSTER, job(optimizer="muon"), way)


def test_tied_embeddings_are_not_priced_in_a_v() -> None:
    tied = MODEL.model_copy(update={"tied_embeddings": True})
    with pytest.raises(nest.InputError, match="embedding and head on the first stage"):
        priced(of=tied, schedule="zb-v", vpp=2)


def test_combined_passes_have_the_rules_of_megatron() -> None:
    experts = nest.load_model("mixtral-8x7b")
    given: dict[str, Any] = {"of": experts, "tp": 1, "dp_in": 8, "ep": 8, "vpp": 2, "m": 128,
                             "schedule": "combined"}
    assert priced(**given).parallelism.schedule == "combined"
    for changes in ({"recompute": "full"},
                    {"recompute": "selective", "recompute_modules": ("moe",)}):
        with pytest.raises(nest.InputError, match="excludes recompute full, and of moe"):
            priced(**given, **changes)
    with pytest.raises(nest.InputError, match="vpp: got 1 with schedule combined; allowed: 2"):
        priced(**given | {"vpp": 1})
    with pytest.raises(nest.InputError, match="zero: got 2 with schedule combined; allowed: up to"):
        priced(**given, zero=2)


def test_groups_of_other_sizes() -> None:
    """A rest of at least pp, one group of fewer micro-batches than stages, PyTorch's rounds."""
    for m, group in ((14, 5), (3, 3), (10, 5), (16, 16)):
        plan = priced(m, vpp=2, group=group)
        assert plan.parallelism.group == group
        assert abs(nest.simulate(plan).relative_difference) < 1e-9
    # What a larger group holds: (v - 1)(N - pp) chunks more.
    assert [s.in_flight for s in priced(16, vpp=2, group=6).stages] == [
        2 + s.in_flight for s in priced(16, vpp=2).stages]


def test_a_plan_file_keeps_schedule_and_group(tmp_path: Path) -> None:
    for given in ({"schedule": "zb-v", "vpp": 2}, {"vpp": 2, "group": 6}, {"schedule": "zb1p"}):
        plan = priced(**given)
        (tmp_path / "plan.json").write_text(plan.to_json())
        again = nest.load_plan(tmp_path / "plan.json")
        assert again.configuration == plan.configuration
        assert again.step_time_s == plan.step_time_s
        assert plan.parallelism.schedule in ("zb-v", "interleaved", "zb1p")


def test_chunks_of_a_v_are_where_it_turns() -> None:
    # Embedding, 32 layers, head: eighths of four layers, the first and the last with one more.
    plan = priced(schedule="zb-v", vpp=2)
    chunks = [stage.chunks for stage in plan.stages]
    assert "1..3  5..16 17..28" in plan.report(details=True)
    assert chunks == [((0, 5), (29, 34)), ((5, 9), (25, 29)), ((9, 13), (21, 25)),
                      ((13, 17), (17, 21))]


def test_divisions_in_a_v() -> None:
    """Flags of stages and texts of positions; Megatron-Core has no V, so plans have no text."""
    # Stage 0 has a layer in each chunk, beside embedding and head; the others have five.
    for given in ({"first_stage_layers": 2}, {"layout": "Et|(t*5|)*6tL"}):
        plan = priced(schedule="zb-v", vpp=2, **given)
        assert [stage.chunks for stage in plan.stages] == [
            ((0, 2), (32, 34)), ((2, 7), (27, 32)), ((7, 12), (22, 27)), ((12, 17), (17, 22))]
        assert plan.layout is None
        assert abs(nest.simulate(plan).relative_difference) < 1e-9
    assert priced(schedule="looped-bfs", layout="Et|(t*5|)*6tL").layout == "Et|(t*5|)*6tL"


def test_chunks_may_have_any_layers() -> None:
    even = priced(schedule="zb-v", vpp=2).configuration
    spans = [((0, 6), (30, 34)), ((6, 9), (26, 30)), ((9, 13), (21, 26)), ((13, 17), (17, 21))]
    stages = [stage.model_copy(update={"chunks": own, "layers": (own[0][0], own[1][1])})
              for stage, own in zip(even.stages, spans, strict=True)]
    plan = nest.evaluate(MODEL, CLUSTER, job(), even.model_copy(update={"stages": tuple(stages)}))
    assert abs(nest.simulate(plan).relative_difference) < 1e-9
    stages[1] = even.stages[1]
    with pytest.raises(nest.InputError, match="allowed: to start at layer 6, where stages"):
        nest.evaluate(MODEL, CLUSTER, job(), even.model_copy(update={"stages": tuple(stages)}))


def test_stages_of_dualpipe_hold_both_ends() -> None:
    """Each quarter of the model is on two stages, which share its micro-batches."""
    for given in ({}, {"layout": "Et*8|t*8|t*8|t*8L"}):
        plan = priced(schedule="dualpipe", **given)
        assert [stage.chunks for stage in plan.stages] == [
            ((0, 9), (25, 34)), ((9, 17), (17, 25)), ((9, 17), (17, 25)), ((0, 9), (25, 34))]
        assert plan.parallelism.vpp == 2 and plan.layout is None
        assert "1..2  9..16 17..24" in plan.report(details=True)
        assert abs(nest.simulate(plan).relative_difference) < 1e-9
    plain = priced()
    # A micro-batch takes what it takes on a stage of one copy, in the mean of both chunks.
    for cause in ("forward", "backward"):
        assert sum(getattr(s.time_s, cause) for s in plan.stages) == pytest.approx(
            sum(getattr(s.time_s, cause) for s in plain.stages))
    assert plan.breakdown_s.bubble < plain.breakdown_s.bubble / 2
    held = [sum(s.memory_bytes.parameters for s in found.stages) for found in (plain, plan)]
    assert held[1] == pytest.approx(2 * held[0])
    spans = [stage.chunks for stage in plan.stages]
    spans[3] = ((0, 8), (25, 34))
    stages = [stage.replace(chunks=own, layers=(own[0][0], own[1][1]))
              for stage, own in zip(plan.configuration.stages, spans, strict=True)]
    with pytest.raises(nest.InputError, match=r"allowed: \[0, 9\), of which it is another copy"):
        nest.evaluate(MODEL, CLUSTER, job(), plan.configuration.replace(stages=stages))


def test_copies_of_dualpipe_share_their_shards() -> None:
    """ZeRO-1 over the holders of both copies: half the states of one copy's holders."""
    states = [sum(s.memory_bytes.optimizer for s in priced(
        pp=2, tp=4, dp_in=4, outer_dp=1, micro_batch=4, m=64, zero=1, **given).stages)
        for given in ({}, {"schedule": "dualpipe"})]
    assert states[0] == pytest.approx(states[1])
    plain = [priced(schedule="dualpipe", zero=zero).stages[0] for zero in (0, 1)]
    # One device holds each copy; of the master copy ZeRO keeps 2 bytes less.
    assert plain[1].memory_bytes.optimizer == pytest.approx(
        plain[0].memory_bytes.optimizer / 2 * 10 / 12)
    assert plain[0].finish_s > priced().stages[0].finish_s  # without replicas there is no other sum


def test_tables_of_dualpipe_are_shared_on_a_stage() -> None:
    """Both ends of the model are on one stage (arXiv:2412.19437, section 3.2.3)."""
    tied = MODEL.model_copy(update={"name": "tied", "tied_embeddings": True})
    more = MODEL.model_copy(update={"name": "more", "mtp_layers": 1})
    table = 2.0 * 129_024 * MODEL.hidden / 8  # padded to 128 tp
    both, apart = ({of.name: priced(of=of, **given).stages[-1].memory_bytes.parameters
                    for of in (MODEL, tied, more)} for given in ({"schedule": "dualpipe"}, {}))
    assert both["tied"] == pytest.approx(both[MODEL.name] - table)
    assert apart["tied"] == apart[MODEL.name]
    # A layer of multi-token prediction without its table.
    assert both["more"] - both[MODEL.name] == pytest.approx(
        apart["more"] - apart[MODEL.name] - table)
    for of in (tied, more):
        plan = priced(of=of, schedule="dualpipe")
        assert abs(nest.simulate(plan).relative_difference) < 1e-9
    # No sum of gradients between the ends of the pipeline, and fewer of them.
    ends = [priced(of=of, schedule="dualpipe").stages[0].finish_s for of in (MODEL, tied)]
    assert ends[1] < ends[0]
    with pytest.raises(nest.InputError, match=r"layer 33 \(mtp_layer\) has a table of the"):
        priced(of=more, schedule="dualpipe", layout="Et*8|t*8|t*16m|L")


def test_zb1p_takes_stages_of_different_layers() -> None:
    plan = priced(pp=3, schedule="zb1p", tp=8, m=12)
    assert len({stage.layers[1] - stage.layers[0] for stage in plan.stages}) > 1
    assert abs(nest.simulate(plan).relative_difference) < 1e-9


def test_zero_bubble_is_faster_and_holds_more() -> None:
    plain, zero = priced(), priced(schedule="zb1p")
    assert zero.breakdown_s.bubble < 0.9 * plain.breakdown_s.bubble
    assert zero.stages[-1].memory_bytes.total > plain.stages[-1].memory_bytes.total
    assert zero.stages[0].in_flight == zero.stages[-1].in_flight == 4
    for stage in nest.simulate(zero).stages:
        assert stage.peak_memory_bytes == pytest.approx(stage.closed_form_memory_bytes, rel=1e-9)


def test_a_backward_frees_layer_by_layer_what_the_forward_beside_it_takes() -> None:
    experts = nest.load_model("mixtral-8x7b")
    for vpp, pp in ((1, 1), (2, 4)):
        given: dict[str, Any] = {"of": experts, "tp": 1, "dp_in": 8, "ep": 8, "vpp": vpp, "pp": pp,
                                 "m": 64}
        plain, both = priced(**given), priced(**given, schedule="combined")
        for one, two in zip(plain.stages, both.stages, strict=True):
            held = one.memory_bytes.activations / one.in_flight
            more = two.memory_bytes.activations - one.memory_bytes.activations
            assert two.in_flight == one.in_flight
            # A layer of the chunk, besides which are its ends and the work of a backward.
            assert 0.0 < more < 1.01 * held / (32 / pp / vpp)
        for stage in nest.simulate(both).stages:
            assert stage.peak_memory_bytes == pytest.approx(
                stage.closed_form_memory_bytes, rel=1e-9)


def test_what_runs_beside_counts_once() -> None:
    """All-to-alls that a pass beside hides are no part of the step, nor of its shares."""
    experts = nest.load_model("mixtral-8x7b")
    given: dict[str, Any] = {"of": experts, "tp": 1, "dp_in": 8, "ep": 8, "vpp": 2, "m": 128}
    plain, both = priced(**given), priced(**given, schedule="combined")
    # Half of it, by the stack's overlap_ep.
    assert both.breakdown_s.ep < 0.6 * plain.breakdown_s.ep
    assert both.step_time_s < plain.step_time_s
    assert both.breakdown_s.forward == pytest.approx(plain.breakdown_s.forward)
    assert sum(both.breakdown_s.model_dump().values()) == pytest.approx(both.step_time_s)


def test_the_published_run_of_dualpipe() -> None:
    """What docs/schedules.md says of it."""
    files = Path(__file__).parents[2] / "docs" / "examples" / "dualpipe"
    page = (files.parents[1] / "schedules.md").read_text(encoding="utf-8")
    model, cluster = nest.load_model("deepseek-v3"), nest.load_cluster(files / "cluster.yaml")
    asked = nest.load_job(files / "job.yaml")
    for layout in ("Et*4|(t*4|)*14tmL", None):
        plans = [nest.evaluate(model, cluster, asked, even_configuration(
            model, cluster, asked, pp=16, ep=64, dp_in=64, zero=1, schedule=schedule,
            layout=layout, recompute="selective",
            recompute_modules=("norm", "mlp_act", "mla_up_proj"))) for schedule in (
                "dualpipe", "1f1b")]
        cells = [f"{plan.step_time_s:.1f} s | "
                 f"{max(s.memory_bytes.total for s in plan.stages) / 2**30:.1f}" for plan in plans]
        named = "even (none given)" if layout is None else f"`{layout}`".replace("|", r"\|")
        assert f"| {named} | {' | '.join(cells)} |\n" in page
        assert abs(nest.simulate(plans[0]).relative_difference) < 1e-9

"""The rules of the stacks against the frameworks' own code, for random configurations.

Skipped where no Python with the frameworks is known: ``NEST_FRAMEWORKS`` names one, with the
versions of ``capabilities.yaml`` (megatron-core, torchtitan, deepspeed; no GPU, no Transformer
Engine). Each judge answers the questions that its code can answer, NEST's rules on these questions
must agree with it in both directions. ``test_framework_plans.py`` asks about whole plans.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations_with_replacement
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from framework_plans import CASES, PYTHON, judged

import nest
from nest.evaluation.even import even_configuration
from nest.inputs.space import Dispatcher
from nest.model import build_chain
from nest.schedules.passes import PASSES
from nest.schedules.path import Path as SchedulePath
from nest.schedules.registry import ONE_F_ONE_B, SCHEDULES, is_folded
from nest.stacks import launch_needs, not_runnable
from nest.stacks.figures import chunks_of, cut_forms, layer_counts, plan_figures
from nest.stacks.rules import impossible

STACKS = {"megatron": "megatron-core", "torchtitan": "torchtitan-eager", "deepspeed": "deepspeed"}
pytestmark = pytest.mark.skipif(not PYTHON, reason="NEST_FRAMEWORKS names no Python")

Case = dict[str, Any]
Groups = set[frozenset[int]]


# ---------------------------------------------------------------- random configurations


DRAW = {"torchtitan": 42}
"""Numbers of draws in which each rule is broken by some case, where the first is none."""


@cache
def cases(framework: str) -> tuple[Any, ...]:
    rng = Random(f"{framework} {DRAW.get(framework, 1)}")
    return tuple(_case(rng, framework) for _ in range(CASES))


def _case(rng: Random, framework: str) -> Case:
    pp = rng.choice((1, 2, 2, 3, 4))
    vpp = rng.choice((1, 1, 2, 3)) if pp > 1 else 1
    tp, cp, dp_in = rng.choice((1, 2, 4)), rng.choice((1, 1, 2)), rng.choice((1, 1, 2, 4))
    outer_dp = rng.choice((1, 1, 2, 4))
    experts = rng.choice((0, 8))
    block = tp * cp * dp_in
    ep, etp = 1, tp
    if experts:
        ep, etp = rng.choice([(e, t) for e in (1, 2, 4, 8) for t in (1, 2, 4)
                              if block % (e * t) == 0])
    dense = ("norm", "mlp_act", "core_attn")
    case = {
        "pp": pp, "vpp": vpp, "tp": tp, "cp": cp, "dp_in": dp_in, "outer_dp": outer_dp,
        "ep": ep, "etp": etp, "experts": experts, "mtp": rng.choice((0, 0, 2)),
        "sp": tp > 1 and (bool(experts) or rng.random() < 0.5),
        "cp_comm": rng.choice(("p2p", "a2a", "all_gather")) if cp > 1 else "p2p",
        "schedule": "interleaved" if vpp > 1 else rng.choice(("1f1b", "1f1b", "gpipe")),
        "micro_batches": rng.choice((1, 2, 3, 4, 6, 8, 9, 12)), "heads": 8, "kv_heads": 8,
        "zero": rng.choice((0, 1, 2, 3)), "shard": "dp", "recompute": rng.choice(
            ("none", "selective", "full")),
        "modules": tuple(m for m in (*dense, *(("moe",) if experts else ()))
                         if rng.random() < 0.4),
    }
    if framework != "megatron":
        case |= {"mtp": 0}
    if case["zero"] and outer_dp > 1 and dp_in * cp > 1:
        case["shard"] = rng.choice(("dp", "dp_in"))
    if case["recompute"] == "selective" and not case["modules"]:
        case["recompute"] = "none"
    case["parts"] = _parts(rng, pp * vpp)
    case["parted"] = bool(case["mtp"]) and pp > 1 and rng.random() < 0.5  # one m behind the last t
    if case["parted"]:
        case["parts"][-1] = 0
    case["layers"] = sum(case["parts"])
    return case


def _parts(rng: Random, chunks: int) -> list[int]:
    """Transformer layers of each chunk: near to each other, or any."""
    if rng.random() < 0.5:
        return [rng.randint(1, 4) for _ in range(chunks)]
    size, more = rng.randint(2, 4), rng.randint(0, chunks)
    return [size + (n < more) - (rng.random() < 0.5 and n in (0, chunks - 1))
            for n in range(chunks)]


def described(
    framework: str, case: Case, stack: str = ""
) -> tuple[Any, nest.Job, nest.Configuration]:
    """The case as NEST describes it."""
    moe = {"moe": {"experts": case["experts"], "top_k": 2, "ffn": 64}} if case["experts"] else {}
    model = nest.Model.parse({
        "name": "m", "layers": case["layers"], "hidden": 64 * case["heads"],
        "heads": case["heads"], "kv_heads": case["kv_heads"], "ffn": 512, "gated": False,
        "vocab": 128, "tied_embeddings": False, "norm": "rmsnorm", "bias": False,
        "mtp_layers": case["mtp"], **moe})
    chain = build_chain(model)
    ends, layer = [], 0
    for number, part in enumerate(case["parts"]):
        start = layer
        layer += part + (number == 0)
        ends.append((start, len(chain) if number == len(case["parts"]) - 1 else layer))
    if case["parted"]:  # the last chunk keeps one m and the head
        ends[-2:] = [(ends[-2][0], len(chain) - 2), (len(chain) - 2, len(chain))]
    pp, vpp, block = case["pp"], case["vpp"], case["tp"] * case["cp"] * case["dp_in"]
    stages = []
    for stage in range(pp):
        chunks = [ends[v * pp + stage] for v in range(vpp)]
        stages.append({
            "layers": (chunks[0][0], chunks[-1][1]), "chunks": chunks,
            "devices": (stage * block, (stage + 1) * block),
            **{name: case[name] for name in ("tp", "cp", "cp_comm", "dp_in", "sp", "ep", "etp",
                                             "zero", "shard", "recompute")},
            "recompute_modules": ordered(case) if case["recompute"] == "selective" else ()})
    plan = nest.Configuration.parse({
        "outer_dp": case["outer_dp"], "micro_batch": case["dp_in"], "vpp": vpp,
        "schedule": case["schedule"], "stages": stages})
    batch = case["outer_dp"] * case["dp_in"] * case["micro_batches"]
    return chain, nest.Job(global_batch=batch, seq_len=64, stack=stack or STACKS[framework]), plan


def ordered(case: Case) -> tuple[str, ...]:
    return tuple(m for m in ("core_attn", "norm", "mlp_act", "moe") if m in case["modules"])


def rules_broken(framework: str, case: Case, stack: str = "") -> set[str]:
    return {one.rule for one in not_runnable(*described(framework, case, stack))}


def asked(framework: str, case: Case) -> Case:
    """What the judge gets."""
    layout = ["E" * (n == 0) + "t" * part for n, part in enumerate(case["parts"])]
    if case["parted"]:
        layout[-2] += "m"
    layout[-1] += "m" * (case["mtp"] - case["parted"]) + "L"
    names = {"norm": "layernorm", "mlp_act": "moe_act" if case["experts"] else "mlp_act"}
    dp = case["outer_dp"] * case["dp_in"]
    sharded = {"replicate": dp, "shards": 1} if case["zero"] == 0 else (
        {"replicate": 1, "shards": dp} if case["shard"] == "dp"
        else {"replicate": case["outer_dp"], "shards": case["dp_in"]})
    return {**case, **sharded, "layout": "|".join(layout),
            "modules": [names.get(one, one) for one in case["modules"]],
            "instances": case["outer_dp"] if case["shard"] == "dp_in" else 1,
            "world": dp * case["pp"] * case["tp"] * case["cp"]}


@cache
def verdicts(framework: str) -> tuple[tuple[Any, Any], ...]:
    """Cases with the framework's answers."""
    answers = judged(framework, [asked(framework, case) for case in cases(framework)])
    return tuple(zip(cases(framework), answers, strict=True))


def groups_of(case: Case) -> dict[str, Groups]:
    """Groups of ranks as NEST numbers devices: tp, cp, dp_in, stage, replica."""
    sizes = [case[name] for name in ("tp", "cp", "dp_in", "pp", "outer_dp")]
    block = sizes[0] * sizes[1] * sizes[2]
    found: dict[str, dict[tuple[int, ...], set[int]]] = {}
    rank = 0
    for replica in range(sizes[4]):
        for stage in range(sizes[3]):
            for place in range(block):
                t, c, d = place % sizes[0], place // sizes[0] % sizes[1], (
                    place // (sizes[0] * sizes[1]))
                e = place // case["etp"] % case["ep"]
                keys = {"tp": (replica, stage, d, c), "cp": (replica, stage, d, t),
                        "dp": (stage, c, t), "pp": (replica, place),
                        "etp": (replica, stage, place // case["etp"]),
                        "ep": (replica, stage, place % case["etp"], place // (
                            case["etp"] * case["ep"]))}
                assert 0 <= e < case["ep"]
                for name, key in keys.items():
                    found.setdefault(name, {}).setdefault(key, set()).add(rank)
                rank += 1
    return {name: {frozenset(one) for one in groups.values()} for name, groups in found.items()}


def same_groups(case: Case, judged: dict[str, Any] | None) -> bool:
    if judged is None:
        return False
    mine = groups_of(case)
    return all(groups is None or {frozenset(one) for one in groups} == mine[name]
               or all(len(one) == 1 for one in mine[name]) for name, groups in judged.items())


def needs(framework: str, case: Case) -> set[str]:
    return {one.rule for one in launch_needs(*described(framework, case))}


def disagreements(
    framework: str, question: str, rules: set[str], accept: Any, stack: str = ""
) -> list[Any]:
    """Cases in which the framework accepts what NEST's rules forbid, or the other way round."""
    wrong, answers = [], set()
    for case, verdict in verdicts(framework):
        broken = rules_broken(framework, case, stack) & rules
        answers.add(not broken)
        if accept(case, verdict) != (not broken):
            wrong.append((question, sorted(broken), case, verdict))
    assert answers == {True, False}, f"{question}: too few cases"
    return wrong[:3]


# ---------------------------------------------------------------- Megatron-Core


def test_megatron_takes_the_configurations() -> None:
    """Layouts, modules of recompute, multi-token prediction. Its configuration takes any module
    that it knows; which of them free nothing, it does not say.
    """
    def accept(case: Case, verdict: Any) -> bool:
        return bool(verdict["configuration"])

    def known(case: Case) -> bool:  # norm alone is refused by NEST only
        return "norm" in case["modules"] and case["recompute"] == "selective" and (
            bool(case["experts"]) or "mlp_act" not in case["modules"])

    wrong = disagreements("megatron", "configuration", {
        "recompute-dense", "recompute-experts", "mtp", "placed", "experts-sp"},
        lambda case, verdict: accept(case, verdict) and not known(case))
    assert not wrong


def test_megatron_takes_the_micro_batches_of_interleaved_pipelines() -> None:
    assert not disagreements("megatron", "micro-batches", {"interleaved-groups"},
                             lambda _, verdict: verdict["micro-batches"])


def test_megatron_fsdp_has_no_ranks_for_stages() -> None:
    assert not disagreements("megatron", "mesh", {"pp"}, lambda _, verdict: verdict["fsdp"],
                             "megatron-fsdp")


def test_megatron_captures_steps_of_experts_that_no_dispatcher_counts() -> None:
    """What the dispatchers of 0.16.1 ask the device for, against the rules of captured steps."""
    chain = build_chain(nest.load_model("mixtral-8x7b"))
    asked = [{"dispatcher": name, "padded": padded} for padded in (False, True)
             for name in get_args(Dispatcher) if not padded or name in ("alltoall", "hybridep")]
    for case, waits in zip(asked, judged("waits", asked), strict=True):
        job = nest.Job(
            global_batch=8, seq_len=4096, expert_capacity=1.0 if case["padded"] else None,
            expert_padding=case["padded"], stack={
                "base": "megatron-core", "cuda_graphs": "step", "dispatcher": case["dispatcher"]})
        assert bool(impossible(chain, job)) == waits, case
    assert len(asked) == 6


def test_megatron_has_the_schedules() -> None:
    orders = {"forward_backward_no_pipelining": ("1f1b", "gpipe"),
              "forward_backward_pipelining_with_interleaving": ("interleaved",),
              "forward_backward_pipelining_without_interleaving": ("1f1b",)}
    assert not disagreements("megatron", "schedule", {"schedule"},
                             lambda case, verdict: case["schedule"] in orders[verdict["order"]])


def test_megatron_numbers_ranks_as_nest_unless_a_list_of_hosts_is_needed() -> None:
    seen = set()
    for case, verdict in verdicts("megatron"):
        direct = same_groups(case, verdict["groups"]) or same_groups(case, verdict["mapped"])
        needed = needs("megatron", case)
        assert direct == (not needed), (needed, case, verdict)
        seen |= needed
    assert seen == {"host-list", "host-list-mapping"}


# ---------------------------------------------------------------- orders of passes


CLASSES = {
    "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS", "zb1p": "ScheduleInterleavedZeroBubble",
    "interleaved-zb": "ScheduleInterleavedZeroBubble", "zb-v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV"}


def order_case(rng: Random) -> Case:
    by = rng.choice(("megatron", "pytorch", "pytorch"))
    name = rng.choice(("interleaved", "combined") if by == "megatron" else tuple(CLASSES))
    pp, m = rng.randint(2, 6), rng.randint(1, 24)
    vpp = {"1f1b": 1, "zb1p": 1, "zb-v": 2, "dualpipev": 2}.get(name, rng.randint(2, 4))
    rounds = max(1, m // pp)
    if by == "megatron" or name == "1f1b":
        m = max(m, pp)
    group = rng.randint(pp, m) if by == "megatron" else max(1, m // rounds)
    return {"by": by, "name": name, "pp": pp, "vpp": vpp, "micro_batches": m, "group": group,
            "together": name == "combined", "class": CLASSES.get(name), "folded": is_folded(name)}


def test_orders_are_those_of_the_frameworks() -> None:
    """Megatron-Core's table for groups of any size, PyTorch's schedule classes."""
    rng, seen = Random("orders"), Counter[str]()
    questions = [order_case(rng) for _ in range(CASES)]
    for case, answer in zip(questions, judged("order", questions), strict=True):
        pp, vpp, m = case["pp"], case["vpp"], case["micro_batches"]
        if answer is None:
            assert m % max(1, m // pp) or (case["name"] == "dualpipev" and m < 2 * pp)
            continue
        seen[case["name"]] += 1
        known = SCHEDULES[case["name"]]
        path = known if isinstance(known, SchedulePath) else ONE_F_ONE_B
        order = path.order(pp, m, vpp, case["group"])
        for rank, row in enumerate(answer):
            codes = order.codes[order.rows[rank]:order.rows[rank + 1]]
            assert [list(one) for one in row] == [
                ["fbiwf"[code % PASSES], order.at[rank * vpp + code // PASSES]]
                for code in codes], case
    assert set(seen) == {*CLASSES, "combined"}


# ---------------------------------------------------------------- torchtitan


def test_torchtitan_builds_the_schedules() -> None:
    assert not disagreements(
        "torchtitan", "schedule", {"1f1b", "interleaved-rounds", "several-stages"},
        lambda _, verdict: verdict["schedule"])


def test_a_compiled_block_runs_its_whole_backward_twice_where_it_is_divided() -> None:
    """So zero-bubble schedules are none of the stack that compiles."""
    plain, compiled = judged("divided", [{"compiled": False}, {"compiled": True}])
    assert plain == {"for_inputs": [0, 0], "for_both": [0, 2]}
    # Four products: two for inputs, two for weights.
    assert compiled == {"for_inputs": [4, 0], "for_both": [8, 2]}


def test_torchtitan_builds_the_mesh() -> None:
    assert not disagreements("torchtitan", "mesh", {"expert-ranks"},
                             lambda _, verdict: verdict["mesh"])


def test_torchtitan_numbers_ranks_as_nest_unless_a_list_of_hosts_is_needed() -> None:
    for case, verdict in verdicts("torchtitan"):
        if verdict["mesh"] and not {"etp", "etp-without-ep"} & rules_broken("torchtitan", case):
            needed = needs("torchtitan", case)
            assert same_groups(case, verdict["groups"]) == (not needed), (needed, case, verdict)


def test_torchtitan_captures_steps_without_pipelines_and_experts_of_other_ranks() -> None:
    cases = [{"graphs": graphs, "pp": pp, "ep": ep}
             for graphs in (False, True) for pp in (1, 2) for ep in (1, 4)]
    model = nest.load_model("qwen3-30b-a3b")
    cluster = nest.load_cluster("dgx-h100", devices=8)
    for case, taken in zip(cases, judged("graphs", cases), strict=True):
        job = nest.Job(global_batch=64, seq_len=64, stack={
            "base": "torchtitan", "cuda_graphs": "step" if case["graphs"] else "none"})
        way = even_configuration(model, cluster, job, pp=case["pp"], ep=case["ep"], etp=1,
                                 zero=2 if case["pp"] == 1 else 1)
        broken = {one.rule for one in not_runnable(build_chain(model), job, way)}
        assert broken == (set() if taken else {"cuda-graphs-alone"}), case


def test_torchtitan_divides_layers_as_whole_says() -> None:
    for case, verdict in verdicts("torchtitan"):
        forms = forms_of("torchtitan", {**case, "parts": verdict["cuts"]})
        assert case["pp"] == 1 or "whole" in forms, (case, verdict)


# ---------------------------------------------------------------- DeepSpeed


def test_deepspeed_takes_zero_with_pipelines() -> None:
    assert not disagreements("deepspeed", "zero", {"zero-pipeline"},
                             lambda _, verdict: verdict["zero"])


def test_deepspeed_numbers_ranks_as_nest_unless_a_list_of_hosts_is_needed() -> None:
    for case, verdict in verdicts("deepspeed"):
        if case["cp"] == 1:
            needed = needs("deepspeed", case)
            assert same_groups(case, verdict["groups"]) == (not needed), (needed, case, verdict)


def test_deepspeed_divides_layers_as_its_rule_says() -> None:
    """All that the rule allows, also with fewer layers than stages, are those of its methods."""
    known = nest.inputs.load_stack("deepspeed").capabilities
    assert known is not None
    allowed = {*known.rules["cuts"].allowed}
    cases = [{"layers": n, "chunks": chunks} for n in range(1, 9) for chunks in range(2, 7)]
    for case, found in zip(cases, judged("divisions", cases), strict=True):
        layers, chunks = case["layers"], case["chunks"]
        cuts = [[0, *inner, layers + 2] for inner in combinations_with_replacement(
            range(layers + 3), chunks - 1)]
        inside = [np.clip(ends, 1, layers + 1) for ends in cuts]
        assert sorted({*map(tuple, found)}) == [
            tuple(ends) for ends, t in zip(cuts, inside, strict=True)
            if allowed & cut_forms(np.diff(t).tolist(), np.diff(ends).tolist())], case


def forms_of(framework: str, case: Case) -> Any:
    chain, job, plan = described(framework, case)
    assert layer_counts(chain, chunks_of(chain, plan)) == case["parts"]
    return plan_figures(chain, job, plan)["cuts"]

"""Plans that NEST calls runnable are taken by the frameworks' own code, and others are refused.

Skipped as ``test_frameworks.py``. Each gets what the exported files give it, where a plan is
exported. Megatron's command line is that of 0.19.2: the package has none before 0.17.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import pytest
from framework_plans import CASES, PYTHON, Case, drawn, judged, runnable
from launches import launched

import nest
from nest.errors import UnsupportedError
from nest.frameworks.megatron import bridge
from nest.frameworks.megatron.write import arguments, inexpressible, replica_by_replica, variables
from nest.frameworks.megatron.write import options as export_options
from nest.frameworks.settings import settings
from nest.inputs import load_stack
from nest.schedules.passes import PASSES
from nest.schedules.path import Path as SchedulePath
from nest.schedules.registry import ONE_F_ONE_B, SCHEDULES, position

pytestmark = pytest.mark.skipif(
    not PYTHON or "NEST_FRAMEWORK_ARGUMENTS" not in os.environ,
    reason="NEST_FRAMEWORKS or NEST_FRAMEWORK_ARGUMENTS is not set")
ASKED = 3
"""Ranks of a plan that are asked for their places."""
LACKING = ("--no-rope-fusion", "--no-gradient-accumulation-fusion")
"""What needs kernels that are not installed here."""
NAMES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B",
         "looped-bfs": "LoopedBFS", "zb1p": "InterleavedZeroBubble", "dualpipev": "DualPipeV",
         "interleaved-zb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble"}
REFUSED = {
    "megatron-core": ("combined-ep", "combined-vpp", "combined-recompute", "combined-precision",
                      "interleaved-groups", "interleaved-group", "mtp", "placed",
                      "recompute-dense", "recompute-mla"),
    "torchtitan-eager": ("1f1b", "interleaved-rounds", "v-stages", "dualpipev", "tied", "kv-heads",
                   "expert-ranks", "precision"),
    "deepspeed": ("zero-pipeline", "dualpipev", "cuts"),
}
"""Rules that the code of a framework has too, where it can be asked."""
EACH = 2
"""Configurations that break such a rule, and no other."""


# ---------------------------------------------------------------- what the frameworks are asked


def question(case: Case) -> dict[str, Any]:
    """A case as its judge gets it."""
    stage, stack = case.way.stages[0], case.job.stack.name
    own = {"torchtitan-eager": torchtitan, "deepspeed": deepspeed}.get(stack, megatron)
    return {
        **{name: getattr(stage, name) for name in ("tp", "cp", "ep", "etp", "zero")},
        "pp": case.pp, "vpp": case.vpp, "dp": case.outer_dp * stage.dp_in, "world": case.world,
        "ranks": sorted(Random(case.world).sample(range(case.world), min(ASKED, case.world))),
        "cp_levels": [stage.cp_a2a, stage.cp // stage.cp_a2a]
        if stage.cp_comm == "a2a+p2p" else None,
        "layers": case.model.layers, "mtp": case.mtp, "micro_batches": case.micro_batches,
        "group": case.way.group, "experts": bool(case.experts), **own(case)}


def options(given: dict[str, Any]) -> list[str]:
    """A command line; of a flag the value is None."""
    found: list[str] = []
    for name, value in given.items():
        values = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
        found += [f"--{name}", *map(str, values)]
    return found


def megatron(case: Case) -> dict[str, Any]:
    """What the exported script gives the program, or would if it were exported."""
    model, job, way = case.model, case.job, case.way
    layout = (case.plan.layout if case.plan else None) or case.layout
    if case.files is None:
        sections = arguments(model, job, way, layout, bool(case.needs))
        words = [word for given in sections.values() for one in export_options(given)
                 for word in one] + ["--mock-data", "--lr", "1e-4", "--train-iters", "10"]
        given = variables(way, job, case.cluster.device.name)
    else:
        started = launched(case.files, 0)[0]
        words, given = started.words, {
            name: value for name, value in started.variables.items()
            if name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1")}
    return {"layout": layout, "flags": [*words, *LACKING], "variables": given,
            "instances": case.outer_dp if way.stages[0].shard == "dp_in" else 1}


def mapped(case: Case) -> bool:
    """Whether ranks go replica by replica, which a flag says."""
    return replica_by_replica(case.way, bool(case.needs))


def torchtitan(case: Case) -> dict[str, Any]:
    model, stage, dp = case.model, case.way.stages[0], case.outer_dp * case.way.stages[0].dp_in
    replicas = dp if stage.zero == 0 else case.outer_dp if stage.shard == "dp_in" else 1
    mbs = case.way.micro_batch // stage.dp_in
    precision = {"bf16": "bfloat16", "fp8": "bfloat16", "fp16": "float16", "fp32": "float32"}
    names = iter(range(model.layers))
    letters = {"E": lambda: "tok_embeddings", "t": lambda: f"layers.{next(names)}",
               "L": lambda: "lm_head"}
    parts = [[letters[one]() for one in chunk] for chunk in case.parts_in_order]
    parts[-1].insert(-1, "norm")
    return {
        "training": options({
            "local-batch-size": mbs * (case.micro_batches if case.pp > 1 else 1),
            "global-batch-size": case.job.global_batch, "seq-len": case.job.seq_len,
            "mixed-precision-param": precision[case.job.precision]}),
        "parallelism": options({
            "data-parallel-replicate-degree": replicas,
            "data-parallel-shard-degree": dp // replicas,
            "fsdp-reshard-after-forward": "always" if stage.zero == 3 else "never",
            "tensor-parallel-degree": stage.tp, "context-parallel-degree": stage.cp,
            "enable-sequence-parallel" if stage.sp else "no-enable-sequence-parallel": None,
            "pipeline-parallel-degree": case.pp, "expert-parallel-degree": stage.ep,
            "pipeline-parallel-microbatch-size": mbs,
            "pipeline-parallel-schedule": NAMES[case.schedule]}),
        "exported": case.files and case.files["plan_config.py"],
        "modules": parts, "tied": model.tied_embeddings, "heads": model.heads,
        "kv_heads": model.heads if model.mla else model.kv_heads}


def deepspeed(case: Case) -> dict[str, Any]:
    """The exported JSON, or what it would be."""
    if case.files is not None:
        return {"cuts": case.cuts, "settings": json.loads(case.files["ds_config.json"])}
    stage = case.way.stages[0]
    formats = {name: {"enabled": True} for name in ("bf16", "fp16") if name == case.job.precision}
    return {"cuts": case.cuts, "settings": {
        "train_batch_size": case.job.global_batch, "gradient_accumulation_steps":
        case.micro_batches, "train_micro_batch_size_per_gpu": case.way.micro_batch // stage.dp_in,
        "zero_optimization": {"stage": stage.zero}, **formats}}


# ---------------------------------------------------------------- runnable plans are taken


@cache
def taken(judge: str) -> tuple[tuple[Case, dict[str, Any]], ...]:
    """Runnable plans with the answers of a judge."""
    stacks = {"megatron": {"megatron-core": CASES - CASES // 4, "megatron-fsdp": CASES // 4},
              "torchtitan": {"torchtitan-eager": CASES}}
    cases = [case for stack, count in stacks.get(judge, {judge: CASES}).items()
             for case in runnable(stack, count)]
    answers = judged(judge, [question(case) for case in cases], "framework_launch")
    return tuple(zip(cases, answers, strict=True))


@pytest.mark.parametrize("judge", ["megatron", "torchtitan", "deepspeed"])
def test_runnable_plans_are_taken(judge: str) -> None:
    refused = [(answer["refused"], question(case)) for case, answer in taken(judge)
               if answer["refused"]]
    assert not refused, (len(refused), Counter(one[:70] for one, _ in refused), refused[0])
    schedules = Counter(case.schedule for case, _ in taken(judge))
    assert set(schedules) >= {
        "megatron": {"1f1b", "interleaved", "combined"}, "torchtitan": {*NAMES},
        "deepspeed": {"1f1b", "dualpipev"}}[judge], schedules


@pytest.mark.parametrize("judge", ["megatron", "torchtitan", "deepspeed"])
def test_ranks_are_those_of_the_plan(judge: str) -> None:
    """Places in all groups; where a list of hosts is needed, in the order of that list."""
    needed, groups = set(), 0
    for case, answer in taken(judge):
        listed = case.plan.ranks() if mapped(case) and judge == "megatron" else case.ranks
        needed |= case.needs
        for rank, place in answer["ranks"].items():
            sharded, a2a = place.pop("sharded", None), place.pop("a2a", None)
            mine, stage = listed[int(rank)]._asdict(), case.way.stages[0]
            assert place == {name: mine[name] for name in place}, (rank, question(case))
            if a2a is not None:  # neighbours in cp
                groups += 1
                here = {**mine, "cp": mine["cp"] // stage.cp_a2a}
                assert a2a == [
                    number for number, other in enumerate(one._asdict() for one in listed)
                    if all({**other, "cp": other["cp"] // stage.cp_a2a}[name] == here[name]
                           for name in ("stage", "tp", "cp", "dp"))]
            if sharded is not None and stage.zero:
                dp = stage.dp_in * (case.outer_dp if stage.shard == "dp" else 1)
                assert sharded == dp * stage.cp
    assert "host-list" in needed
    assert groups > 5 or judge != "megatron"


def test_megatron_trains_what_was_priced() -> None:
    for case, answer in taken("megatron"):
        assert answer["chunks"] == case.chunks
        assert (answer["vpp"], answer["micro_batches"]) == (case.vpp, case.micro_batches)


def test_megatron_takes_chunks_without_layers() -> None:
    """Empty entries of the layout: in the middle, in front of the head, and several in a row."""
    found = [(case, answer) for case, answer in taken("megatron")
             if any(not text for texts in case.chunks for text in texts)]
    assert len(found) > CASES // 30, len(found)
    for case, answer in found:
        assert case.plan and "||" in case.layout, case.plan.layout  # which may write it as (t|)*2
        assert not answer["refused"] and answer["chunks"] == case.chunks


def test_torchtitan_trains_what_was_priced() -> None:
    seen = set()
    policies = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
    for case, answer in taken("torchtitan"):
        assert answer["policy"] == policies[case.way.stages[0].recompute]
        assert answer["steps"] == (1 if case.pp > 1 else case.micro_batches)
        if case.pp > 1:
            assert answer["stages"] == [
                [position(case.schedule, case.pp, s, v, case.vpp) for v in range(case.vpp)]
                for s in range(case.pp)]
            if case.schedule != "gpipe":
                seen.add(case.schedule)
                assert answer["order"] == passes(case), question(case)
    assert seen == {*NAMES} - {"gpipe"}


@pytest.mark.skipif("NEST_FRAMEWORK_TOML" not in os.environ,
                    reason="NEST_FRAMEWORK_TOML is not set")
def test_torchtitan_up_to_0_2_takes_the_toml() -> None:
    cases, asked = [], []
    for case in runnable("torchtitan-eager", CASES):
        try:
            files = nest.export(case.plan, "torchtitan-toml") if case.plan else {}
        except UnsupportedError:  # sequence parallelism was not a choice
            continue
        cases.append(case)
        asked.append({"toml": files["plan.toml"], "world": case.world,
                      "dp": case.outer_dp * case.way.stages[0].dp_in})
    answers = judged("toml", asked, "framework_launch")
    assert len(cases) > CASES // 2
    for case, answer in zip(cases, answers, strict=True):
        assert not answer["refused"], (answer["refused"], question(case))
        assert answer["steps"] == (1 if case.pp > 1 else case.micro_batches)
        assert answer["mode"] == case.way.stages[0].recompute
        assert (answer["zero"] == "always") == (case.way.stages[0].zero == 3)
        assert case.pp == 1 or [sum(name.startswith("layers.") for name in part)
                                for part in answer["modules"]] == case.parts


def test_deepspeed_trains_what_was_priced() -> None:
    for case, answer in taken("deepspeed"):
        assert (answer["micro_batches"], answer["zero"]) == (
            case.micro_batches, case.way.stages[0].zero)
        if case.pp > 1:  # its DualPipeV defers no weight gradients: docs/stacks.md
            assert answer["order"] == [
                [["b" if kind == "i" else kind, at] for kind, at in row if kind != "w"]
                for row in passes(case)], question(case)


def passes(case: Case) -> list[list[list[Any]]]:
    """Kind and position of each pass of each rank, as NEST prices them."""
    known = SCHEDULES[case.schedule]
    path = known if isinstance(known, SchedulePath) else ONE_F_ONE_B
    order = path.order(case.pp, case.micro_batches, case.vpp, case.way.group or case.pp)
    return [[["fbiwf"[code % PASSES], order.at[rank * case.vpp + code // PASSES]]
             for code in order.codes[order.rows[rank]:order.rows[rank + 1]]]
            for rank in range(case.pp)]


def test_fields_of_megatron_bridge_are_those_of_megatron_core() -> None:
    # Megatron-Bridge's own.
    own = {"model.seq_length", "model.use_te_rng_tracker", "model.hybrid_layer_pattern"}
    names = {one.name for one in (*bridge.SETTINGS, *bridge.FUSED, *bridge.GRAPHS)} - own
    [answer] = judged("bridge", [{"fields": sorted(names)}], "framework_launch")
    assert not answer["unknown"]


def test_megatron_core_takes_the_layout_of_any_recipe() -> None:
    """Also of one that divides its layers in another way, which it refuses beside a layout."""
    asked = []
    for case in runnable("megatron-bridge", min(CASES, 24)):
        assert case.plan
        given = {**bridge.SPLIT, **settings(bridge.SETTINGS, bridge.figures_here(case.plan))}
        asked.append({"layers": case.model.layers, "mtp": case.mtp, "fields": {
            name.removeprefix("model."): value for name, value in given.items()
            if "pipeline" in name and name.startswith("model.")}})
    answers = judged("bridge layout", asked, "framework_launch")
    assert not [one for one in zip(answers, asked, strict=True) if one[0]["refused"]]
    assert sum(one["fields"]["pipeline_model_parallel_layout"] is not None for one in asked) > 3


def test_deepspeed_reads_the_hostfile() -> None:
    """Hosts in the order of their ranks."""
    found: list[tuple[Case, str]] = []
    for case in runnable("deepspeed", min(CASES, 60)):
        assert case.plan
        with suppress(UnsupportedError):  # ranks in another order than this launcher's
            files = nest.export(case.plan, "deepspeed", launcher="deepspeed")
            found.append((case, files["hostfile"]))
    answers = judged("hostfile", [{"text": text} for _, text in found], "framework_launch")
    assert len(found) > 10 and any(len(answer["hosts"]) > 1 for answer in answers)
    for (case, _), answer in zip(found, answers, strict=True):
        assert [(host, at) for host, *devices in answer["hosts"] for at in devices] == [
            (f"node{rank.device // 8}", rank.device % 8) for rank in case.ranks]


def test_the_module_for_fsdp2_runs() -> None:
    """On a small decoder of its own, on the first rank of a group that talks to nobody."""
    cases = runnable("fsdp", min(CASES, 24))
    answers = judged("fsdp2", [
        {"text": case.files and case.files["parallelize.py"], "world": case.world,
         "layers": case.model.layers} for case in cases], "framework_launch")
    for case, answer in zip(cases, answers, strict=True):
        stage, dp = case.way.stages[0], case.outer_dp * case.way.stages[0].dp_in
        replicas = dp if not stage.zero else case.outer_dp if stage.shard == "dp_in" else 1
        assert not answer["refused"], (answer["refused"], case.way)
        assert answer["mesh"] == [replicas, dp // replicas, stage.cp, stage.tp]
        assert answer["rows"] == -(-128 // stage.tp // (dp // replicas * stage.cp))
        assert answer["reshard"] == (stage.zero == 3)
    assert {case.way.stages[0].recompute for case in cases} == {"none", "selective", "full"}


# ---------------------------------------------------------------- others are refused


@pytest.mark.parametrize("stack", [*REFUSED])
def test_what_breaks_a_rule_is_refused(stack: str) -> None:
    """Rules that the framework's code can be asked about, each broken alone."""
    found: dict[str, list[Case]] = {rule: [] for rule in REFUSED[stack]}
    for case in drawn(stack, "refused"):
        modules = case.way.stages[0].recompute_modules
        # Megatron takes a layernorm that frees nothing: docs/stacks.md.
        silent = "norm" in modules and "mlp_act" not in modules
        if len(case.broken) == 1 and (rule := min(case.broken)) in found and not silent:
            if len(found[rule]) < EACH:
                found[rule].append(case)
            if min(map(len, found.values())) == EACH:
                break
    cases = [case for rule in found.values() for case in rule]
    judge = stack.partition("-")[0]
    answers = judged(judge, [question(case) for case in cases], "framework_launch")
    accepted = [(case.broken, question(case)) for case, answer in zip(cases, answers, strict=True)
                if not answer["refused"]]
    assert not accepted, (len(accepted), [rule for rule, _ in accepted], accepted[0])


# ---------------------------------------------------------------- offloading


OFFLOADS = ("optimizer", "optimizer:0.5", "layers:1", "core_attn", "qkv_linear+core_attn+attn_proj",
            "attn_norm", "mlp_norm+expert_fc1", "moe_act", "optimizer+core_attn")
"""What is kept on the hosts."""


REFUSED_OFFLOADS = {"offload-layers-pp": "layers:1", "offload-layers-recompute": "layers:1"}
"""Rules that Megatron's parser has too, and what is kept on the hosts where they are broken alone.
Those of the optimizer are in its OptimizerConfig, which the parser does not make."""


def offloading(texts: dict[str, str], broken: bool) -> list[Case]:
    """Plans that break the rule of each name alone, or none, and keep its text on the hosts."""
    found: dict[str, list[Case]] = {name: [] for name in texts}
    for case in drawn("megatron-core", "offload"):
        lacking = [name for name in texts if len(found[name]) < EACH]
        if not lacking:
            return [case for each in found.values() for case in each]
        name = lacking[case.world % len(lacking)]
        case.way = case.way.model_copy(update={"offload": texts[name]})
        if case.broken == ({name} if broken else set()) and (broken or case.plan):
            found[name].append(case)
    raise AssertionError


def test_offloading_is_judged_as_by_megatron() -> None:
    """By the flags of the exported script."""
    cases = [*offloading({text: text for text in OFFLOADS}, broken=False),
             *offloading(REFUSED_OFFLOADS, broken=True)]
    answers = judged("megatron", [question(case) for case in cases], "framework_launch")
    wrong = [(case.way.offload, case.broken, answer["refused"]) for case, answer in zip(
        cases, answers, strict=True) if bool(answer["refused"]) != bool(case.broken)]
    assert not wrong, wrong


# ---------------------------------------------------------------- CUDA graphs


def captured(graphs: str) -> list[Case]:
    """Plans whose layers or steps are captured, which no rule forbids, or of layers those of graphs
    alone."""
    stack = load_stack({"base": "megatron-core", "cuda_graphs": graphs})
    taken_: list[Case] = []
    refused: list[Case] = []
    for case in drawn("megatron-core", "graphs"):
        recompute = {one.way.stages[0].recompute for one in taken_}
        if len(taken_) >= 4 * EACH and recompute >= {"none", "selective"} and (
                len(refused) >= EACH or graphs == "step"):
            break
        case.job = case.job.replace(stack=stack)
        if (case.plan is None or not case.plan.feasible
                or any(inexpressible(case.model, case.job, case.way))):
            continue
        if not case.broken:
            taken_.append(case)
        elif graphs == "layers" and all(rule.startswith("graphs-") for rule in case.broken):
            refused.append(case)
    return [*taken_, *refused[:EACH]]


def test_cuda_graphs_are_judged_as_by_megatron() -> None:
    """By the arguments of the exported script, or those that it would have. Of whole steps 0.19.2
    refuses none; the dispatchers of 0.16.1 are asked in ``test_frameworks.py``."""
    cases = [*captured("layers"), *captured("step")]
    answers = judged("megatron", [question(case) for case in cases], "framework_launch")
    wrong = [(case.way, answer["refused"]) for case, answer in zip(cases, answers, strict=True)
             if bool(answer["refused"]) != (case.files is None)]
    assert not wrong, wrong[0]

"""The plans of `golden_questions.py` today, and those written down in `golden/plans.json`.

`python tests/guarantees/refresh_plans.py` writes that file anew. Its difference belongs into the
change of prices or spaces that made plans differ, with the reason why.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from golden_questions import Question

import nest

GOLDEN = Path(__file__).parents[1] / "golden" / "plans.json"
SAME = 1e-12
"""Relative difference of two prices that are the same."""
TIE = 1e-9
"""Relative difference of the prices of two configurations of which either may be the answer."""
Record = dict[str, Any]
PLAIN: Record = {"layers": [0, 0], "devices": [0, 0], "dp_in": 1, "tp": 1, "sp": False, "cp": 1,
                 "cp_comm": "p2p", "ep": 1, "etp": 1, "zero": 0, "shard": "dp",
                 "recompute": "none", "recompute_modules": [], "recompute_layers": None}
"""What the first stage of a record differs from; not the defaults, of which some hang on others."""


def ask(question: Question) -> nest.Plan:
    """Today's plan."""
    return nest.plan(*question.read(), beyond_stack=question.beyond_stack)


def record(plan: nest.Plan) -> Record:
    """What is written down of a plan.

    Returns
    -------
    `step_time_s`, all its digits; `optimal`; `summary`, for people; `configuration`, a stage given
    by what differs from the one before, and the first by what differs from ``PLAIN``; `order`,
    the devices of the network in the order taken, where that is not as it numbers them.
    """
    found = {"step_time_s": plan.step_time_s, "optimal": plan.optimal, "summary": _summary(plan),
             "configuration": _packed(plan.configuration)}
    order = plan.inputs.cluster.order
    return found if order is None else {**found, "order": _ranges(order)}


def _summary(plan: nest.Plan) -> str:
    """The plan in a line: stages of one kind are named once."""
    p = plan.parallelism
    blocks = [f"{len(list(same))} x ({kind})" for kind, same in groupby(map(_kind, plan.stages))]
    return (f"pp {p.pp}, vpp {p.vpp}, outer_dp {p.outer_dp}, {p.micro_batches} micro-batches of "
            f"{p.micro_batch}, {p.schedule}, {p.devices_used} devices: {', '.join(blocks)}")


def _kind(stage: Any) -> str:
    """Degrees of a stage that differ from 1 or none."""
    words = [f"{name} {getattr(stage, name)}" for name in ("dp_in", "tp", "cp", "ep", "zero")
             if getattr(stage, name) != (name != "zero")]
    return " ".join(words + [stage.recompute] * (stage.recompute != "none")) or "plain"


def _packed(configuration: nest.Configuration) -> Record:
    """The configuration as plain data, without what repeats."""
    data = json.loads(configuration.model_dump_json())
    before = PLAIN
    stages = []
    for stage in data.pop("stages"):
        if stage["chunks"] == [stage["layers"]]:
            del stage["chunks"]
        stages.append({name: value for name, value in stage.items()
                       if name == "chunks" or value != before.get(name)})
        before = stage
    return {**{name: value for name, value in data.items() if value is not None}, "stages": stages}


def configuration(found: Record) -> nest.Configuration:
    """The configuration of a record, as `nest.evaluate` takes it."""
    packed = found["configuration"]
    before = PLAIN
    stages = []
    for stage in packed["stages"]:
        # fields that the list was written without keep their defaults
        before = {**before, **stage}
        before["chunks"] = stage.get("chunks", [before["layers"]])
        stages.append(before)
    return nest.load_configuration({**packed, "stages": stages})


def _ranges(numbers: tuple[int, ...]) -> str:
    """Numbers as text, those in a row as ``first..last``."""
    rows = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in row] for _, row in rows]
    return ",".join(f"{row[0]}..{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in found)


def golden() -> dict[str, Record]:
    """The plans that were written down, by the name of their question."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def write(found: dict[str, Record]) -> None:
    """Write plans down, a field a line, so that a difference shows which field it is."""
    entries = [f"{json.dumps(name)}: {{\n" + ",\n".join(
        f"  {json.dumps(field)}: {json.dumps(value)}" for field, value in entry.items()) + "\n}"
        for name, entry in found.items()]
    GOLDEN.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def differences(old: Record, plan: nest.Plan) -> list[str]:
    """How a plan differs from the one written down, a sentence each; ties are none."""
    found = []
    was, now = old["step_time_s"], plan.step_time_s
    if abs(now - was) > SAME * was:
        found.append(f"step time {now!r} s, was {was!r} s ({now / was - 1:+.2e})")
    if plan.optimal != old["optimal"]:
        found.append(f"optimal {plan.optimal}, was {old['optimal']}")
    order = plan.inputs.cluster.order
    same_order = (None if order is None else _ranges(order)) == old.get("order")
    if configuration(old) != plan.configuration or not same_order:
        priced, why = _priced(old, plan)
        if priced is None or abs(priced - now) > TIE * now:
            found.append(f"{_summary(plan)}, was {old['summary']}" + (
                "" if same_order else ", in another order of the devices") + (
                f"; that {why}" if priced is None else f"; that takes {priced!r} s now"))
    return found


def _priced(old: Record, plan: nest.Plan) -> tuple[float | None, str]:
    """Seconds of the configuration written down on the cluster of today's plan; None, and why."""
    given = plan.inputs
    try:
        priced = nest.evaluate(given.model or given.profile, given.cluster, given.job,
                               configuration(old))
    except nest.NestError as error:
        return None, f"is refused now: {error}"
    if not priced.feasible:
        return None, f"does not fit now: {priced.problems[0]}"
    return priced.step_time_s, ""

"""Runs to learn from: tables, plans with what happened, and what was learned before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from nest.errors import InputError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plan_file import load_plan
from nest.evaluation.plans import Plan
from nest.inputs.arguments import need, takes
from nest.inputs.job import Stack
from nest.inputs.space import Precision
from nest.measured import logs
from nest.measured.learning.learned import Learned, load_learned
from nest.measured.learning.observations import Observation, observe_run, observed
from nest.measured.logs.table_row import table
from nest.measured.validation import runs as validation
from nest.units import parse_seconds, shorten

FAILED = "oom"
"""What stands behind a plan that ran out of memory."""


class _Told(NamedTuple):
    """One run, the stack that it was priced with, and what else is kept of it."""

    observation: Observation
    stack: Stack
    device: str
    precision: Precision
    experts: bool


@takes(sources="texts", gpu="text")
def learn(
    sources: Sequence[str], stack: Stack | None = None, gpu: str | None = None
) -> Learned:
    """Learn from runs.

    Parameters
    ----------
    sources : each a table of runs (.csv, docs/accuracy.md), in which a row without a step time ran
        out of memory; a plan and the seconds that its steps took, as ``PLAN.json:6.2``, or
        ``PLAN.json:oom``; the log of a run that prints its settings (docs/read.md); or a file that
        was learned before, whose runs count again.
    stack : prices all of them; None: the one that they name.
    gpu : type of device of logs that do not print it.

    Raises
    ------
    InputError : a source cannot be read or priced, or the runs are of several stacks.
    """
    if stack is not None:
        need("stack", stack, (Stack,), "nest.inputs.load_stack")
    told: list[_Told] = []
    before: list[Learned] = []
    for source in sources:
        path, _, result = source.rpartition(":")
        if source.endswith(".csv"):
            told += _of_table(source, stack)
        elif logs.is_log(source):
            told += _of_log(source, stack, gpu)
        elif path and not os.path.exists(source):
            told.append(_of_plan(path, result, stack))
        else:
            before.append(load_learned(source))
    stacks = list(dict.fromkeys([*(one.stack for one in told), *(one.stack for one in before)]))
    if len(stacks) > 1:
        raise InputError(f"runs: got {len(stacks)} stacks "
                         f"({', '.join(sorted({one.name for one in stacks}))}); needed: runs of "
                         "one, or --stack, which prices all")
    if not stacks:
        raise InputError("runs: got none; needed: at least one")

    return Learned.of(
        [*chain.from_iterable(one.observations for one in before),
         *(one.observation for one in told)], stacks[0],
        dict.fromkeys([*chain.from_iterable(one.devices for one in before),
                       *(one.device for one in told)]),
        dict.fromkeys([*chain.from_iterable(one.precisions for one in before),
                       *(one.precision for one in told)]),
        any(one.experts for one in before) or any(one.experts for one in told))


def _of_table(path: str, stack: Stack | None) -> list[_Told]:
    return [_told(*observe_run(run, stack)) for run in validation.read(path)]


def _of_log(path: str, stack: Stack | None, gpu: str | None) -> list[_Told]:
    log = logs.read(path)
    found = log.settings
    text = table(log, found.model, found.job, found.configuration, found.devices, gpu or "")
    return [_told(*observe_run(run, stack or found.job.stack))
            for run in validation.parse(text, path)]


def _of_plan(path: str, result: str, stack: Stack | None) -> _Told:
    plan = load_plan(path)
    try:
        seconds = None if result.casefold() == FAILED else parse_seconds(result)
    except ValueError:
        raise InputError(f"{path}: got {shorten(result)} behind it; allowed: the seconds of a "
                         f"step, such as :6.2, or :{FAILED} where it ran out of memory") from None
    bare = unlearned(plan, stack)
    name = os.path.basename(path)
    return _told(bare, observed(bare, name, "ran" if seconds else "out of memory", seconds))


def unlearned(plan: Plan, stack: Stack | None = None) -> Plan:
    """The plan, priced as before its stack learned; or with another stack."""
    inputs = plan.inputs
    own = stack or inputs.job.stack
    if own.learned is not None:
        own = own.replace(learned=None, calibration=None)
    if own == inputs.job.stack:
        return plan
    return evaluate(inputs.subject, inputs.cluster, inputs.job.replace(stack=own),
                    plan.configuration)


def _told(plan: Plan, observation: Observation) -> _Told:
    inputs = plan.inputs
    return _Told(observation, inputs.job.stack, inputs.cluster.device.name, inputs.job.precision,
                 chain_of(inputs.subject).experts is not None)


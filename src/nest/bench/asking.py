"""Asking planners the questions of an evaluation, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nest.bench.answers import PlannerAnswer, StoredAnswers, digest
from nest.bench.paper import OPTIONS, PaperQuestion
from nest.planners.compare import ComparedPlan, compare, peak_memory
from nest.report.comparison_text import in_a_line


class PlannerRun(NamedTuple):
    """A question, a planner and its answer."""

    question: PaperQuestion
    planner: str
    answer: PlannerAnswer


def ask(
    questions: Sequence[PaperQuestion], planners: Sequence[str], answers: StoredAnswers,
    tell: Callable[[PaperQuestion, str], None] = lambda question, planner: None,
) -> list[PlannerRun]:
    """Give every answer; ask only for those that are missing.

    Parameters
    ----------
    questions, planners : each planner is asked each question, in this order.
    answers : those there are; new ones are added one by one.
    tell : is called before each question and planner.

    Raises
    ------
    InputError : model or cluster of a question cannot be read, or they are incompatible.
    """
    found = []
    for question in questions:
        described = question.described()
        for planner in planners:
            tell(question, planner)
            key = digest(described, planner, OPTIONS.get(planner, {}))
            answer = answers.get(key)
            if answer is None:
                entry, = compare(
                    *described, [planner], {**OPTIONS, "nest": {"beyond_stack": True}})
                answer = _answer(question, key, entry)
                answers.add(answer)
            found.append(PlannerRun(question, planner, answer))
    return found


def _answer(question: PaperQuestion, key: str, entry: ComparedPlan) -> PlannerAnswer:
    plan = entry.plan
    return PlannerAnswer.parse({
        "schema": "nest.answer/1", "question": key, "model": question.model,
        "cluster": question.cluster, "devices": question.devices, "mbs": question.mbs,
        "planner": entry.planner, "feasible": entry.feasible,
        "reason": None if entry.reason is None else " ".join(entry.reason.split())[:4000],
        "step_time_s": None if plan is None else plan.step_time_s,
        "samples_per_s": None if plan is None else plan.samples_per_s,
        "tokens_per_s": None if plan is None else plan.tokens_per_s,
        "peak_memory_bytes": None if plan is None else peak_memory(plan),
        "search_seconds": max(entry.search_seconds, 0.0),
        "plan": None if plan is None else in_a_line(plan)}, "answer")

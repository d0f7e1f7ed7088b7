"""Scores of planners as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from nest.bench.instance import Digest, digest_of_set
from nest.bench.score import Scored, Status, summary
from nest.inputs.base import Written
from nest.studies.study import VERSION

SCHEMA = "nest.score/1.1"


class ScoredAnswer(Written):
    """The answer to one instance."""

    instance: str
    status: Status = Field(description="ok: it counts; memory: does not fit; stack: cannot be run; "
                           "space: outside; illegal: cannot be built; none or missing: no answer")
    why: str | None = Field(description="why it does not count")
    step_time_s: float | None = Field(description="seconds, where it can be priced")
    best_s: float = Field(description="of the best known configuration")
    proved: bool = Field(description="nothing of the space is faster than best_s")
    distance: float | None = Field(
        description="step_time_s / best_s, less 1; null: it does not count")
    beats: bool = Field(description="it is faster than the proved lower bound")
    untried: str | None = Field(
        description="where it beats that: what of it NEST's searches do not try; null: nothing, "
        "which is a defect of NEST")
    seconds: float | None = Field(description="of a processor, as the planner says")


class PlannerScore(Written):
    """The answers of one planner."""

    planner: str
    score: float = Field(description="mean of best_s / step_time_s; 0 for what does not count")
    stack: float = Field(description="the same of instances of what a stack can run")
    everything: float = Field(description="the same of the others")
    counted: int = Field(description="answers with status ok")
    best: int = Field(description="answers as fast as the best known")
    mean_distance: float | None = Field(description="of those that count, geometric mean")
    answers: tuple[ScoredAnswer, ...]


class ScoreDocument(Written):
    """What the answers of planners are worth."""

    schema_: Annotated[str, Field(alias="schema")] = SCHEMA
    version: str = Field(VERSION, description="of NEST, which priced them")
    instances: Digest = Field(description="SHA-256 of the set, see nest.bench.instance")
    planners: tuple[PlannerScore, ...]


def document(scores: Mapping[str, Sequence[Scored]]) -> ScoreDocument:
    """Scores by planner as a document."""
    asked = {one.instance.name: one.instance for found in scores.values() for one in found}
    return ScoreDocument(instances=digest_of_set(asked),
                 planners=tuple(_planner(name, found) for name, found in scores.items()))


def _planner(name: str, found: Sequence[Scored]) -> PlannerScore:
    whole = summary(found)
    return PlannerScore(
        planner=name, score=whole.score, stack=whole.stack, everything=whole.everything,
        counted=whole.counted, best=whole.best, mean_distance=whole.mean_distance,
        answers=tuple(ScoredAnswer(
            instance=one.instance.name, status=one.status, why=one.why,
            step_time_s=one.step_time_s, best_s=one.instance.optimum.step_time_s,
            proved=one.instance.optimum.proved, distance=one.distance, beats=one.beats,
            untried=one.untried, seconds=one.seconds)
            for one in found))

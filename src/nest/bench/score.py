"""Scores of the configurations of any planner, each priced by `evaluate`; and their document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from nest.bench.instance import Digest, Instance, digest_of_set
from nest.bench.submission import PlannerSubmission, SubmittedAnswer
from nest.costs.network.placement import strides
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of, priced
from nest.evaluation.plans import Plan
from nest.inputs import load_configuration
from nest.inputs.base import Written
from nest.inputs.configuration import Configuration
from nest.model import Chain
from nest.model.layouts import family
from nest.planners.compare import shortage
from nest.planners.prices import outside
from nest.schedules.registry import UNLIKE, USUAL, position
from nest.search.cut_lists import LONGEST
from nest.studies.study import VERSION

SCHEMA = "nest.score/1.1"
Status = Literal["ok", "memory", "stack", "space", "illegal", "none", "missing"]
STATUSES: Mapping[Status, str] = {
    "ok": "counts", "memory": "does not fit into memory", "stack": "the job's stack cannot run it",
    "space": "leaves the space", "illegal": "is no legal configuration",
    "none": "the planner gives none", "missing": "not answered",
}
SAME = 1e-9
"""Relative difference below which two step times are the same."""


class Scored(NamedTuple):
    """What an answer to an instance is worth."""

    instance: Instance
    status: Status
    why: str | None
    """Why it does not count."""
    step_time_s: float | None
    """Seconds, also of what does not count but can be priced."""
    seconds: float | None
    """Of a processor, as the planner says."""
    untried: str | None = None
    """What of it NEST's searches do not try; None: nothing, or it is no faster than they allow."""

    @property
    def ratio(self) -> float:
        """Best step time over this one: 1 is the best known, 0 does not count."""
        if self.status != "ok" or self.step_time_s is None:
            return 0.0
        return self.instance.optimum.step_time_s / self.step_time_s

    @property
    def distance(self) -> float | None:
        """Step time over the best, less 1; None: it does not count."""
        return 1.0 / self.ratio - 1.0 if self.ratio else None

    @property
    def beats(self) -> bool:
        """It is faster than what was proved to be the least."""
        best = self.instance.optimum
        return self.ratio * best.lower_bound_s > best.step_time_s * (1.0 + SAME)


class Summary(NamedTuple):
    """Several scored answers."""

    instances: int
    counted: int
    """Configurations that count."""
    best: int
    """Those as fast as the best known."""
    mean_distance: float | None
    """Geometric mean of step time over the best, less 1, of those that count; None: none does."""
    score: float
    """Mean of best step time over step time; 0 for each that does not count."""
    stack: float
    """The same of instances of what a stack can run."""
    everything: float
    """The same of the others."""


def score(submission: PlannerSubmission, instances: Mapping[str, Instance]) -> list[Scored]:
    """Price the answers of a planner, in the order of the instances.

    Raises
    ------
    InputError : an instance was made with other prices than those of this version.
    """
    answers = {one.instance: one for one in submission.answers}
    return [_scored(instance, answers.get(name)) for name, instance in instances.items()]


def check_prices(instances: Iterable[Instance]) -> None:
    """Refuse instances whose best configurations have other prices by now.

    Raises
    ------
    InputError : says which, and how to make them again.
    """
    for one in instances:
        now = _price(one, one.optimum.configuration).step_time_s
        if abs(now - one.optimum.step_time_s) > SAME * now:
            raise InputError(
                f"instances: {one.name}: its best takes {now!r} s by NEST {VERSION}, not "
                f"{one.optimum.step_time_s!r} s as by NEST {one.made.version}, which made it; "
                f"allowed: that version, or instances made again ({one.made.command})")


def _price(instance: Instance, way: Configuration) -> Plan:
    asked = instance.question
    return priced(chain_of(asked.subject), asked.cluster, asked.job, way)


def _scored(instance: Instance, answer: SubmittedAnswer | None) -> Scored:
    if answer is None:
        return Scored(instance, "missing", None, None, None)
    if answer.configuration is None:
        return Scored(instance, "none", answer.reason, None, answer.seconds)
    try:
        if not isinstance(answer.configuration, dict):
            raise InputError("configuration: allowed: a mapping of fields")
        way = load_configuration(answer.configuration)
        plan = _price(instance, way)
    except InputError as error:
        return Scored(instance, "illegal", error.problems[0], None, answer.seconds)
    status, why = _counts(instance, way, plan)
    found = Scored(instance, status, why, plan.step_time_s, answer.seconds)
    return found if not found.beats else found._replace(
        untried=untried(instance, chain_of(instance.question.subject), way, plan.runnable))


def _counts(instance: Instance, way: Configuration, plan: Plan) -> tuple[Status, str | None]:
    """Whether a priced configuration is one that the instance asks for, and why not."""
    asked = instance.question
    left = outside(asked.space, chain_of(asked.subject), way)
    if left is None and asked.space.schedule is None and way.schedule not in USUAL and (
            way.schedule == "combined" or not plan.runnable):
        left = f"schedule {way.schedule}"
    if left is not None:
        return "space", f"{left}, which the space does not have"
    if not instance.beyond_stack and plan.broken_rules:
        return "stack", plan.broken_rules[0].sentence
    if not plan.feasible:
        return "memory", shortage(plan)
    return "ok", None


def summary(scored: Iterable[Scored]) -> Summary:
    """What answers are worth together."""
    found = [*scored]
    ratios = [one.ratio for one in found if one.ratio]
    return Summary(
        instances=len(found), counted=len(ratios),
        best=sum(ratio >= 1.0 - SAME for ratio in ratios),
        mean_distance=math.exp(-math.fsum(map(math.log, ratios)) / len(ratios)) - 1.0
        if ratios else None,
        score=_mean(found),
        stack=_mean(one for one in found if not one.instance.beyond_stack),
        everything=_mean(one for one in found if one.instance.beyond_stack))


def _mean(scored: Iterable[Scored]) -> float:
    """Mean of ratios; 0 of none."""
    ratios = [one.ratio for one in scored]
    return math.fsum(ratios) / len(ratios) if ratios else 0.0


# ---------------------------------------------------------------- what searches leave out


def untried(
    instance: Instance, chain: Chain, way: Configuration, runnable: bool | None
) -> str | None:
    """What of a legal configuration no search of the instance tries, so that it may be faster.

    None: nothing.

    Parameters
    ----------
    chain : the layers of the instance.
    runnable : the job's stack can run it.
    """
    cluster, space = instance.question.cluster, instance.question.space
    if way.stride not in strides(cluster.size, way.outer_dp, cluster.group_sizes):
        return f"stride {way.stride}"
    if way.group not in (None, way.pp):
        return f"group {way.group}"
    for stage in way.stages:
        if (space.recompute_modules is None and stage.recompute == "selective"
                and stage.recompute_modules not in chain.sets_under(instance.question.job.stack)):
            return f"recompute of {', '.join(stage.recompute_modules)} together"
    if way.schedule not in UNLIKE and len(way.stages) * way.vpp > 1 and not _listed(
            chain, way, instance.beyond_stack and not runnable):
        return "its division into chunks"
    return None


def _listed(chain: Chain, way: Configuration, even: bool) -> bool:
    """Whether a search lists a division into chunks; ``even``: of equal chunks alone."""
    if len(chain) > LONGEST:
        return False
    spans = sorted((position(way.schedule, way.pp, s, n, way.vpp), span)
                   for s, stage in enumerate(way.stages) for n, span in enumerate(stage.chunks))
    cuts = [0, *(stop for _, (_, stop) in spans)]
    first, last = chain.body
    sizes = {min(max(stop, first), last) - min(max(start, first), last)
             for _, (start, stop) in spans}
    if even and len(sizes) > 1:
        return False
    return bool((family(chain, way.pp, way.vpp) == cuts).all(axis=1).any())


# ---------------------------------------------------------------- the document


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

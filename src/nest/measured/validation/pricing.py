"""Price measured runs with exactly their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.inputs.device import Device
from nest.inputs.job import Stack
from nest.measured.validation.runs import Run
from nest.measured.validation.translate import RunQuestion, facts, question


@dataclass(frozen=True)
class PricedRun:
    """A run with its price."""

    run: Run
    predicted_s: float | None
    """Seconds of a step; None: not priced."""
    low_s: float | None
    """Seconds that nine of ten such steps take at the least; None: the stack was never measured."""
    high_s: float | None
    """The same at the most."""
    predicted_memory: float | None
    """Bytes, counted as the run's measured memory; None: not priced."""
    fits: bool | None
    """Whether NEST predicts that the configuration, which ran, fits."""
    shares: Mapping[str, float]
    """Parts of ``breakdown_s`` as shares of the predicted step."""
    stack: str
    key: object
    """Equal for runs of one configuration and software version."""
    remarks: tuple[str, ...]
    reason: str | None
    """Why the run is not priced; None: it is."""

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, less 1; None: not priced."""
        if self.predicted_s is None or self.run.measured_s is None:
            return None
        return self.predicted_s / self.run.measured_s - 1.0


def price(
    runs: Sequence[Run],
    stacks: Mapping[str, Stack] | None = None,
    devices: Mapping[str, Device] | None = None,
) -> list[PricedRun]:
    """Price runs, each distinct question once.

    Parameters
    ----------
    runs : of :func:`nest.measured.validation.read`.
    stacks, devices : figures to use instead of those of the catalog, by name.

    Returns
    -------
    list of Priced
        In the order of the runs; runs that cannot be priced have a reason.
    """
    known: dict[RunQuestion, Plan | str] = {}
    result = []
    for run in runs:
        try:
            asked = question(run, stacks, devices)
        except InputError as error:
            result.append(_refused(run, error.problems[0]))
            continue
        if asked not in known:
            try:
                known[asked] = evaluate(*asked)
            except InputError as error:
                known[asked] = error.problems[0]
        found = known[asked]
        result.append(_refused(run, found) if isinstance(found, str)
                      else _priced(run, asked, found))
    return result


def _refused(run: Run, reason: str) -> PricedRun:
    return PricedRun(run, None, None, None, None, None, {}, "", None, (), reason)


def _priced(run: Run, asked: RunQuestion, plan: Plan) -> PricedRun:
    found = facts(run)
    shares = {name: seconds / plan.step_time_s
              for name, seconds in plan.breakdown_s.model_dump().items()}
    sure = plan.confidence
    low, high = (None, None) if sure is None else (sure.low_s, sure.high_s)
    return PricedRun(run, plan.step_time_s, low, high, _memory(run, asked, plan),
                  plan.feasible, shares, found.stack, (run.group, run.framework, asked),
                  found.remarks, None)


def counted(run: Run, asked: RunQuestion) -> tuple[float, float]:
    """What the bytes of a source are: share of them that is allocated, and bytes beside.

    Allocated: the plan's bytes. Reserved: also the fragments of the allocator, the stack's share of
    all reserved bytes. Total (nvidia-smi): also the buffers of communication and products and the
    driver's context.
    """
    stack = asked.job.stack
    share = 1.0 if run.memory_counted == "allocated" else 1.0 - stack.fragmentation
    beside = stack.workspace + asked.cluster.device.memory_reserved
    return share, beside if run.memory_counted == "total" else 0.0


def _memory(run: Run, asked: RunQuestion, plan: Plan) -> float:
    """Bytes of a device, counted as the source counts them.

    The largest stage counts, or the first one if the source measured the embedding's.
    """
    stages = plan.stages[:1] if "embedding" in run.text("mem_note") else plan.stages
    share, beside = counted(run, asked)
    return max(stage.memory_bytes.total for stage in stages) / share + beside

"""Where the seconds of a step go, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence

from nest.evaluation.plans import Breakdown, StageTime
from nest.evaluation.stages import StagePrice
from nest.schedules.traits import StepTime


def slowest(stages: Sequence[StagePrice]) -> int:
    """Number of the stage whose micro-batches take longest, forward and backward."""
    return max(range(len(stages)),
               key=lambda n: sum(c.forward + c.backward for c in stages[n].chunks))


def breakdown(
    stage: StageTime, time: StepTime, micro_batches: int, pp: int, hidden: float = 0.0
) -> Breakdown:
    """Seconds of a step by cause, none below 0.

    Every micro-batch computes and communicates in full, but not every one waits for ZeRO: nothing
    comes before the first forward and after the last backward of a step, whose traffic counts as
    its end, and waiting for other stages hides some. ZeRO therefore takes its seconds of all
    micro-batches at the most; a single stage has nothing else to wait for.

    Parameters
    ----------
    stage : the slowest stage.
    time : of the step.
    pp : number of stages.
    hidden : seconds of all-to-alls of experts that run beside another pass.
    """
    causes = {name: micro_batches * getattr(stage, name) for name in
              ("forward", "backward", "recompute", "tp", "cp", "ep", "offload", "maxima")}
    causes["ep"] -= hidden
    waits = max(0.0, time.pipeline - sum(causes.values()))
    zero = min(micro_batches * stage.zero, waits) if pp > 1 else waits
    return Breakdown(**causes, zero=zero, bubble=waits - zero, finish=time.finish)


def bottleneck(number: int, seconds: Breakdown, step_time: float) -> str:
    """The two largest causes of a step; ``number`` is that of the slowest stage."""
    words = {
        "forward": "arithmetic of stage {n}", "backward": "arithmetic of stage {n}",
        "recompute": "recomputation on stage {n}", "tp": "tensor-parallel traffic of stage {n}",
        "cp": "context-parallel traffic of stage {n}", "ep": "expert traffic of stage {n}",
        "offload": "transfers to and from the host on stage {n}",
        "maxima": "maxima of fp8 on stage {n}",
        "zero": "ZeRO traffic of stage {n}", "bubble": "the pipeline's bubble",
        "finish": "gradients and optimizer at the end of the step",
    }
    shares: dict[str, float] = {}
    for name, taken in seconds.model_dump().items():
        text = words[name].format(n=number)
        shares[text] = shares.get(text, 0.0) + taken / step_time
    ranked = [x for x in sorted(shares.items(), key=lambda x: -x[1])[:2] if x[1] >= 0.01]
    return ", then ".join(f"{text} ({share:.0%} of the step)" for text, share in ranked)

"""The closed forms with the start and the end of a step taken layer by layer.

What the step time would be if gradients could hide only under the layers that go backward after
their own, gathers only under those that go forward before, and copies of tied embeddings waited for
each other. It is compared with the simulation, to tell what of a difference is due to that.
"""

from __future__ import annotations

from collections.abc import Sequence

from nest.costs.schedules import SCHEDULES
from nest.evaluation import chain_of
from nest.plans import Plan
from nest.simulation.parts import LayerWork, Rates, StageWork
from nest.simulation.times import Pricing


def step_time(plan: Plan) -> float:
    """Seconds of a step."""
    inputs, p = plan.inputs, plan.parallelism
    subject = inputs.model or inputs.profile
    assert subject is not None
    pricing = Pricing(chain_of(subject), inputs.cluster, inputs.job, plan.configuration)
    works = [pricing.stage(number).work for number in range(p.pp)]
    rates, passes = pricing.rates, min(p.pp, p.micro_batches) if p.vpp > 1 else 1
    times = [_times(work, rates) for work in works]
    hops = [stage.time_s.handover for stage in plan.stages]
    left = [reduced(work, rates, passes) for work in works]

    def piped(finish: list[float]) -> float:
        forward, backward = ([pair[way] for pair in times] for way in (0, 1))
        form = SCHEDULES[p.schedule].step_time
        if p.vpp == 1:
            return float(form(forward, backward, finish, hops[:-1], p.micro_batches).total)
        return float(form(forward, backward, finish, hops, p.micro_batches, p.vpp, finish,
                          0.0).total)

    total = piped([e + work.update for e, work in zip(left, works, strict=True)])
    if any(work.tied for work in works):
        ready = piped([e if work.tied else 0.0 for e, work in zip(left, works, strict=True)])
        total = max(total, ready + max(w.tied + w.update for w in works if w.tied))
    return total + _late([refreshed(work, rates, passes) for work in works], times, hops, p.vpp)


def reduced(work: StageWork, rates: Rates, passes: int) -> float:
    """Seconds of reduction after the last backward.

    From the last layer to the first: what is left of the others hides under a layer's backward,
    its own gradients come on top. A chunk's hide under all ``passes`` of the next one, too.
    """
    left = 0.0
    for number, chunk in enumerate(reversed(work.chunks)):
        if number:
            left -= (passes - 1) * rates.reduce * sum(_spare(layer, rates) for layer in chunk)
        for layer in reversed(chunk):
            left = max(0.0, left - rates.reduce * _spare(layer, rates)) + layer.reduced
    return left


def refreshed(work: StageWork, rates: Rates, passes: int) -> float:
    """Seconds that the first micro-batch waits for parameters, had it come at once.

    The gathers up to a layer's are through no sooner than what the layers in front of it hide.
    """
    gathers = hidden = longest = 0.0
    for chunk in work.chunks:
        for layer in chunk:
            gathers += layer.refreshed
            longest = max(longest, gathers - hidden)
            hidden += rates.refresh * layer.forward
        hidden += (passes - 1) * rates.refresh * sum(layer.forward for layer in chunk)
    return longest


def _late(
    waits: Sequence[float], times: Sequence[tuple[float, float]], hops: Sequence[float], vpp: int
) -> float:
    """How much later the pipeline starts: stages wait for parameters and a micro-batch at once."""
    late = there = 0.0
    for wait, (forward, _), hop in zip(waits, times, hops, strict=True):
        late = max(late, wait - there)
        there += forward / vpp + hop / 2
    return late


def _spare(layer: LayerWork, rates: Rates) -> float:
    """Computing backward that ZeRO traffic leaves to hide gradients under."""
    traffic = layer.scattered + layer.regathered
    return max(0.0, layer.backward - traffic / rates.zero) if rates.zero else layer.backward


def _times(work: StageWork, rates: Rates) -> tuple[float, float]:
    """Forward and backward of a micro-batch, as the cost functions have them."""
    layers = [layer for chunk in work.chunks for layer in chunk]
    ahead = sum(x.forward + x.ahead + max(0.0, x.gathered - rates.zero * x.forward)
                for x in layers)
    back = sum(x.backward + x.back
               + max(0.0, x.scattered + x.regathered - rates.zero * x.backward) for x in layers)
    return ahead, back

"""Batches that grow during a training: what a micro-batch times data parallelism must divide.

Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/num_microbatches_calculator.py:474 (ramps);
the same file of NVIDIA/Megatron-LM@d98e8a6 has steps (``--step-batch-size-schedule``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from nest.inputs.space import SearchSpace
from nest.model.legality import divisors
from nest.reading.arguments import Words

_STEP = re.compile(r"[^:\s]{1,30}:(\d{1,9})")


def common_batch(given: Mapping[str, Words], batch: int) -> int | None:
    """The largest number that divides all batches of a schedule; None: the batch never changes.

    Parameters
    ----------
    given : arguments of a command line, by name.
    batch : global batch at the end.
    """
    if "decrease-batch-size-if-needed" in given:
        return None
    sizes: list[int] = []
    ramp = given.get("rampup-batch-size", ())
    if len(ramp) == 3 and all(word.isdecimal() for word in ramp[:2]):
        sizes += map(int, ramp[:2])
    for text in given.get("step-batch-size-schedule", ()):
        sizes += map(int, _STEP.findall(text))
    return math.gcd(batch, *sizes) if sizes else None


def bounded(space: SearchSpace, common: int) -> Iterator[SearchSpace]:
    """Parts of a space in which micro-batches of all replicas together divide a number."""
    for replicas in divisors(common):
        samples = [n for n in divisors(common // replicas) if space.allows("micro_batch", n)]
        if samples and space.allows("outer_dp", replicas):
            yield space.replace(outer_dp=replicas, micro_batch=samples)

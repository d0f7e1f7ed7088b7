"""Samples of many lengths: their shares, and how they fill the sequences of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from nest.inputs.base import Freeze, Number, Whole
from nest.units import shorten

Packing = Literal["packed", "padded"]
PACKINGS = get_args(Packing)
MOST = 1000
"""Lengths that a job may state."""
BINS = 64
"""Lengths, of equally many tokens each, that stand for a distribution."""
FORMS = ("lengths with shares, such as 512:30,2048:50,8192:20, or lognormal:MEDIAN:SIGMA:LONGEST, "
         "such as lognormal:900:1.1:8192")


def read_lengths(value: Any) -> Any:
    """Lengths and their shares, of a text or a mapping whose keys may be texts.

    Raises
    ------
    ValueError : the text has another form, or there are too many.
    """
    if isinstance(value, str):
        value = _of_text(value)
    if isinstance(value, Mapping):
        if not 0 < len(value) <= MOST:
            raise ValueError(f"got {len(value)} lengths; allowed: 1 to {MOST}")
        value = {int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key:
                 share for key, share in value.items()}
    return value


def _of_text(text: str) -> dict[int, float]:
    parts = [part.split(":") for part in text.replace(" ", "").split(",")]
    try:
        if parts[0][0] == "lognormal":
            (_, median, sigma, longest), = parts
            return lognormal(float(median), float(sigma), int(longest))
        found: dict[int, float] = {}
        for length, share in parts:
            found[int(length)] = found.get(int(length), 0.0) + float(share)
        return found
    except (ValueError, OverflowError):
        raise ValueError(f"got {shorten(text)}; allowed: {FORMS}") from None


def lognormal(median: float, sigma: float, longest: int) -> dict[int, float]:
    """Lengths of equally many tokens each, cut off at ``longest``, as data sets do.

    Each stands for the mean of its part of the distribution: of lengths exp(mu + sigma z), z in
    [a, b], the partial expectation is exp(mu + sigma^2 / 2) [Phi(b - sigma) - Phi(a - sigma)].

    Raises
    ------
    ValueError : a figure is out of range.
    """
    if not (1.0 <= median <= 1e8 and 0.0 < sigma <= 5.0 and 1 <= longest <= 10**8):
        raise ValueError("out of range")
    normal, found = NormalDist(), dict[int, float]()
    top = math.log(longest / median) / sigma
    inner = [sigma + normal.inv_cdf(n / BINS) for n in range(1, BINS)]
    edges = [-math.inf, *(z for z in inner if z < top), top]
    whole = median * math.exp(sigma * sigma / 2.0)
    for low, high in zip(edges, edges[1:], strict=False):
        share = normal.cdf(high) - normal.cdf(low)
        if share > 0.0:
            mean = whole * (normal.cdf(high - sigma) - normal.cdf(low - sigma)) / share
            length = min(longest, max(1, round(mean)))
            found[length] = found.get(length, 0.0) + share
    if (share := normal.cdf(-top)) > 0.0:
        found[longest] = found.get(longest, 0.0) + share
    return found


Lengths = Annotated[
    dict[Annotated[Whole, Field(ge=1, le=10**8)], Annotated[Number, Field(gt=0, le=1e12)]],
    BeforeValidator(read_lengths, json_schema_input_type=dict[str, float] | str), Freeze]


def token_shares(lengths: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Each length with the share of all tokens that are in samples of it, the shortest first."""
    total = math.fsum(length * share for length, share in lengths.items())
    return tuple((length, length * share / total) for length, share in sorted(lengths.items()))


def mean_length(lengths: Mapping[int, float]) -> float:
    """Tokens of a sample in the mean."""
    return (math.fsum(length * share for length, share in lengths.items())
            / math.fsum(lengths.values()))

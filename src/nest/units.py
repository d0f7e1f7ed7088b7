"""Quantities as text ("400 Gb/s", "80 GiB", "5 us") and as numbers.

Inside NEST every quantity is a float64 in SI units: bytes, seconds, bytes per second, FLOP per
second. A plain number in a file is taken in these units.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_NUMBER = re.compile(
    r"([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[ \t]*([^\d\s].*)?", re.ASCII
)
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 12
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 5, 60, 60
_LONGEST = 100  # characters; longer text is not a quantity

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}

_BYTES = {p + "B": f for p, f in {**_DECIMAL, **_BINARY}.items()}
_BANDWIDTH = {
    **{u + s: f for u, f in _BYTES.items() for s in ("/s", "ps")},
    **{p + u: f / 8 for p, f in _DECIMAL.items() for u in ("b/s", "bps", "bit/s")},
    **{p: _DECIMAL[p] / 8 for p in "GT"},  # 400G: networks are named by their bits
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0}
_SPANS = {**_SECONDS, "h": 3600.0, "d": 86400.0, "days": 86400.0}
_FLOPS = {
    p + u: f
    for p, f in _DECIMAL.items()
    for u in ("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "FLOPS/s", "flop/s", "flops")
}

_BYTES_HELP = "a number of bytes, or a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
_BANDWIDTH_HELP = (
    "a number of bytes/s, or a number with B/s, MB/s, GB/s, TB/s, GiB/s (bytes) "
    "or Mb/s, Gb/s, Tb/s (bits); 400G means 400 Gb/s"
)
_SECONDS_HELP = "a number of seconds, or a number with s, ms, us or ns"
_SPANS_HELP = "a number of seconds, or a number with s, min, h or d"
_FLOPS_HELP = "a number of FLOP/s, or a number with GFLOP/s, TFLOP/s or PFLOP/s"


def shorten(value: object, limit: int = 60) -> str:
    """Text of a value for a message, cut at `limit` characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    try:
        # reprlib looks at the first entries only: a value may have millions
        text = repr(value[: 2 * limit]) if isinstance(value, str) else _REPR.repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _parse(value: object, units: dict[str, float], allowed: str) -> float:
    refusal = ValueError(f"got {shorten(value)}; allowed: {allowed}")
    if isinstance(value, (bool, bytes, bytearray)):
        raise refusal
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip()) if len(value) <= _LONGEST else None
        if match is None:
            raise refusal
        unit = (match[2] or "").strip()
        if unit and unit not in units:
            raise refusal
        result = float(match[1]) * (units[unit] if unit else 1.0)
    else:
        try:
            result = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise refusal from None
    if not math.isfinite(result) or result < 0:
        raise ValueError(f"got {shorten(value)}; allowed: {allowed}, finite and not negative")
    return result


def parse_bytes(value: object) -> float:
    """Bytes of `80 GiB`, `141 GB` or a plain number.

    Raises
    ------
    ValueError : not a number with a known unit, not finite, or negative.
    """
    return _parse(value, _BYTES, _BYTES_HELP)


def parse_bandwidth(value: object) -> float:
    """Bytes per second of `400 Gb/s` or `400G` (5e10), `900 GB/s` (9e11) or a plain number.

    Raises
    ------
    ValueError : not a number with a known unit, not finite, or negative.
    """
    return _parse(value, _BANDWIDTH, _BANDWIDTH_HELP)


def parse_seconds(value: object) -> float:
    """Seconds of `5 us`, `0.1 ms` or a plain number.

    Raises
    ------
    ValueError : not a number with a known unit, not finite, or negative.
    """
    return _parse(value, _SECONDS, _SECONDS_HELP)


def parse_span(value: object) -> float:
    """Seconds of `50000 h`, `2 d` or a plain number.

    Raises
    ------
    ValueError : not a number with a known unit, not finite, or negative.
    """
    return _parse(value, _SPANS, _SPANS_HELP)


def parse_flops(value: object) -> float:
    """FLOP per second of `989 TFLOP/s` or a plain number.

    Raises
    ------
    ValueError : not a number with a known unit, not finite, or negative.
    """
    return _parse(value, _FLOPS, _FLOPS_HELP)


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    for factor, unit in steps:
        shown = f"{value / factor:.{digits}g}"
        if abs(float(shown)) >= 1.0 or (factor, unit) == steps[-1]:
            plain = f"{value / factor:.0f}" if abs(float(shown)) >= 10 ** (digits - 1) else shown
            return f"{plain} {unit}".rstrip()
    raise AssertionError("steps is never empty")


def format_bytes(value: float, digits: int = 4) -> str:
    """`85899345920` as `80 GiB`."""
    steps = tuple((2.0 ** (10 * i), u) for i, u in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")))
    return _scaled(value, (*steps, (1.0, "B")), digits)


def format_seconds(value: float, digits: int = 4) -> str:
    """`0.0025` as `2.5 ms`."""
    if value == 0:
        return "0 s"
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")), digits)


def format_bandwidth(value: float, digits: int = 4) -> str:
    """`5e10` bytes per second as `50 GB/s`."""
    steps = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
    return _scaled(value, steps, digits)


def format_flops(value: float, digits: int = 4) -> str:
    """`9.89e14` FLOP per second as `989 TFLOP/s`."""
    steps: tuple[tuple[float, str], ...] = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
    steps += ((1e6, "MFLOP/s"), (1.0, "FLOP/s"))
    if value >= 1e16:  # peaks of single devices are quoted in TFLOP/s up to ten thousand
        steps = ((1e15, "PFLOP/s"), *steps)
    return _scaled(value, steps, digits)


def format_count(value: float, digits: int = 4) -> str:
    """`70553706496` as `70.55 B` (billions), `8.03e6` as `8.03 M`."""
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")), digits)


def _quantity(
    parse: Callable[[object], float], low: float, high: float, help_text: str
) -> tuple[Any, ...]:
    """Pydantic metadata of one quantity: the parser, its range and its JSON Schema."""

    def check(value: object) -> float:
        result = parse(value)
        if not low <= result <= high:
            raise ValueError(f"got {shorten(value)}; allowed: {low:g} to {high:g} ({help_text})")
        return result

    number: dict[str, Any] = {"type": "number", "minimum": low, "maximum": high}
    text = {"type": "string", "description": help_text}
    schema: dict[str, Any] = {"anyOf": [number, text], "title": "number or text with unit"}
    return (BeforeValidator(check), Field(ge=low, le=high), WithJsonSchema(schema))


# Ranges well beyond all hardware, in which no price overflows or vanishes.
Bytes = Annotated[float, *_quantity(parse_bytes, 1.0, 1e18, _BYTES_HELP)]
BytesOrZero = Annotated[float, *_quantity(parse_bytes, 0.0, 1e18, _BYTES_HELP)]
Seconds = Annotated[float, *_quantity(parse_seconds, 0.0, 1e6, _SECONDS_HELP)]
Delay = Annotated[float, *_quantity(parse_seconds, 0.0, 100.0, _SECONDS_HELP)]
"""Seconds of one message, one launch or one layer's gaps."""
Span = Annotated[float, *_quantity(parse_span, 0.0, 1e12, _SPANS_HELP)]
"""Seconds of what takes minutes or days."""
Bandwidth = Annotated[float, *_quantity(parse_bandwidth, 1.0, 1e18, _BANDWIDTH_HELP)]
Flops = Annotated[float, *_quantity(parse_flops, 1e6, 1e21, _FLOPS_HELP)]


def runs_text(numbers: Sequence[int]) -> str:
    """Numbers as runs such as `3, 0..2`; the first few and the last where there are many."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first}..{last}" for first, last in runs]
    if len(shown) > 10:
        shown = [*shown[:8], "...", shown[-1]]
    return ", ".join(shown).replace("..., ", "... ")

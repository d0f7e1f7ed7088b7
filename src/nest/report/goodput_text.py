"""The text of the tokens that a plan trains in a day."""

from __future__ import annotations

from typing import Unpack

from nest.replanning.goodput import Goodput, SparesChoice
from nest.report.page import Page, PageOptions
from nest.units import format_bytes, format_count, format_seconds

SHOWN = 9
"""Numbers of spares listed."""


def goodput_text(found: Goodput, **options: Unpack[PageOptions]) -> str:
    """Give the report of a goodput.

    Parameters
    ----------
    found : what is shown.
    options : as of :class:`nest.report.page.Page`.
    """
    page = Page(**options)
    saved, shares = found.checkpoint, found.shares
    page.fact("Goodput", f"{found.goodput:.1%}: {format_count(found.tokens_per_day)} tokens a day "
              f"with {_nodes(found.spares, 'spare')}")
    lost = sum(one.failures_per_day for one in found.domains)
    page.fact("Failures", f"{lost:.3g} a day, one in {_long(found.mean_time_s)}")
    page.fact("Checkpoint", f"every {_long(saved.interval_s)} ({saved.interval_steps:,} steps; "
              f"Daly {_long(saved.daly_s)}): {format_bytes(saved.total_bytes)}, at most "
              f"{format_bytes(saved.device_bytes)} of a device; {format_seconds(saved.pause_s)} of "
              f"waiting, written in {format_seconds(saved.write_s)}")
    page.fact("Time", f"{shares.trains:.1%} trains, {shares.checkpoints:.1%} checkpoints, "
              f"{shares.restarts:.1%} restarts, {shares.repeats:.1%} repeated work, "
              f"{shares.waits:.1%} waits for nodes")
    if found.smaller_plans:
        page.fact("Fewer nodes", ", ".join(
            f"{one.speed:.1%} of the speed without {one.lost}" if one.speed else
            f"nothing fits without {one.lost}" for one in found.smaller_plans)
            + ("; above 100 % because the plan is not the best of its cluster, counted as 100 %"
               if max(one.speed for one in found.smaller_plans) > 1.0 else ""))
    page.fact("Evidence", "rates and storage that are not yours are those of Llama 3 405B "
              "(arXiv:2407.21783); restart and repair times are assumed. Compared with one "
              "published share alone: more than 90 % of 54 days on 16,384 H100")
    page.blank()
    page.table("Failures", ("part", "parts", "a day", "takes"), [
        (one.name, f"{one.parts:,}", f"{one.failures_per_day:.3g}",
         _nodes(one.nodes) if one.nodes else "-") for one in found.domains], (0, 3))
    page.blank()
    page.table("Spare nodes", ("spares", "goodput", "tokens/day", "of a device", "smaller plan",
                               "waits"), [
        (f"{one.spares}{' *' if one.spares == found.spares else ''}", f"{one.goodput:.2%}",
         format_count(one.tokens_per_day), format_count(one.tokens_per_day_device, 5),
         f"{one.smaller:.2%}", f"{one.waits:.2%}") for one in _some(found)], ())
    return page.text()


def _some(found: Goodput) -> list[SparesChoice]:
    """Choices around the best, the first and the last."""
    at = next(n for n, one in enumerate(found.choices) if one.spares == found.spares)
    first = max(0, min(at - SHOWN // 2, len(found.choices) - SHOWN))
    near = found.choices[first:first + SHOWN]
    ends = found.choices[:1], near, found.choices[-1:]
    return list({one.spares: one for part in ends for one in part}.values())


def _nodes(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{' ' if kind else ''}node{'s' if count != 1 else ''}"


def _long(seconds: float) -> str:
    """`11134` as `3.09 h`."""
    for factor, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return format_seconds(seconds)

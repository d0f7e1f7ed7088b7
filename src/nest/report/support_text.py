"""What prices of each stack, device and kind of model rest on: measured, extrapolated, assumed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from nest.evaluation.evidence import missed, runs_of
from nest.inputs import Stack, catalog, load_stack
from nest.report.page import Page
from nest.stacks.overview import allows

MEANING = """\
measured: configurations, and the median error of their prices; * where figures were fitted to some
of these runs, without it to none. extrapolated: the stack was measured on other devices or kinds of
model. assumed: no run of the stack was measured. refused: it cannot run this."""


class Support(NamedTuple):
    """What prices of a stack on a device rest on, for one kind of model."""

    stack: str
    device: str
    experts: bool
    word: str
    """measured, extrapolated, assumed or refused."""
    configurations: int
    """Measured ones."""
    error: float | None
    """Median of priced over measured seconds, less 1, without sign; None: nothing was measured."""
    fitted: bool
    """Figures were fitted to some of the runs whose error it is."""

    @property
    def text(self) -> str:
        """The word, with what was measured."""
        if self.error is None:
            return self.word
        return f"{self.configurations}: {100 * self.error:.1f} %{'*' if self.fitted else ''}"


def support_rows() -> list[Support]:
    """Every stack of the catalog on every device, first without experts, then with."""
    return [_support(name, load_stack(name), device, experts)
            for name in catalog.names("stacks") for device in _devices()
            for experts in (False, True)]


def _devices() -> list[str]:
    """Those of the catalog, and those that only measured runs have."""
    return sorted({*catalog.names("devices"), *(row["device"] for row in catalog.evidence())})


def _support(name: str, stack: Stack, device: str, experts: bool) -> Support:
    known = stack.capabilities
    measured = runs_of(stack.runs).measured if stack.runs is not None else ()
    own = [one for one in measured
           if (one.question.device, one.question.experts) == (device, experts)]
    if own:
        return Support(name, device, experts, "measured", len(own), *missed(own))
    excluded = known is not None and known.hardware is not None and known.hardware.excludes(device)
    if excluded or (experts and known is not None and not allows(
            known, "experts", {"experts": "yes"})):
        word = "refused"
    else:
        word = "extrapolated" if measured else "assumed"
    return Support(name, device, experts, word, 0, None, False)


def support_text(width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """A table: stack, devices that have the same words, and these without and with experts."""
    page = Page(width, colour, unicode)
    rows = [row for _, of_stack in groupby(support_rows(), key=lambda row: row.stack)
            for row in _lines(list(of_stack))]
    page.table("", ("stack", "devices", "dense", "experts"), rows, (0, 1, 2, 3))
    page.paragraph(" ".join(MEANING.split()), "dim")
    return page.text()


def _lines(rows: list[Support]) -> Iterator[tuple[str, ...]]:
    """A line for each device with runs, then one for all other devices of equal words."""
    alike: dict[tuple[str, str], list[str]] = {}
    for dense, experts in zip(rows[::2], rows[1::2], strict=True):
        alike.setdefault((dense.text, experts.text), []).append(dense.device)
    most = max(map(len, alike.values()))
    # Numbers first, and the words that most devices have last, without their names.
    order = sorted(alike, key=lambda pair: (len(alike[pair]) == most, not pair[0][0].isdigit()))
    for number, pair in enumerate(order):
        named = ", ".join(alike[pair])
        if len(alike[pair]) == most:
            named = "all others"
        elif pair[0] == "refused":
            named = ", ".join(f"{start}*" for start in dict.fromkeys(
                device.split("-")[0].rstrip("0123456789") for device in alike[pair]))
        yield rows[0].stack if number == 0 else "", named, *pair

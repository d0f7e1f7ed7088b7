"""Tables of measured runs, priced once: the one that comes with NEST, and those of ``bench``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from nest.evaluation.evidence import MeasuredConfiguration
from nest.measured import validation
from nest.measured.validation import PricedRun
from nest.measured.validation.ranges import evidence as evidence_of

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "docs" / "support.md"
EVIDENCE = ROOT / "src" / "nest" / "catalog" / "evidence.csv"
OTHERS = ("automodel", "hybrid", "known", "larger", "long", "lora", "newer", "torchtitan", "tpu")
"""Tables in ``bench``, to which nothing is fitted, but for ``CHOSEN``."""
CHOSEN = ("grok1_h100", "maxtext_v5e", "maxtext_v5p_experts", "maxtext_v6e", "maxtext_v7")
"""Groups of these tables on which a figure was chosen (docs/accuracy.md#newer-and-larger-runs)."""


@cache
def rows() -> list[PricedRun]:
    """All rows of the table, priced with the figures of the catalog."""
    return validation.price(validation.read())


@cache
def other_rows() -> list[PricedRun]:
    """The same of the other tables."""
    return validation.price([run for name in OTHERS for run in validation.read(
        ROOT / "bench" / f"{name}_runs.csv")])


@cache
def evidence() -> dict[str, list[MeasuredConfiguration]]:
    """The measured configurations of all tables, as the catalog's table of evidence has them."""
    found = evidence_of(rows(), fitted=True)
    more = evidence_of(other_rows(), fitted=False)
    return {name: [*found.get(name, []), *(
        one._replace(fitted=one.group in CHOSEN) for one in more.get(name, []))]
        for name in sorted({*found, *more})}

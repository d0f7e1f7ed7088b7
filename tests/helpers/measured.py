"""NEST's own table of measured runs, priced once."""

from __future__ import annotations

from functools import cache

from nest.measured import validation
from nest.measured.validation import PricedRun


@cache
def rows() -> list[PricedRun]:
    """All rows of the table, priced with the figures of the catalog."""
    return validation.price(validation.read())

"""The place of each rank, as a table for launchers: a line for each device that a plan uses."""

from __future__ import annotations

import csv
import io

from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank


def ranks_text(plan: Plan) -> str:
    """Give the ranks of a plan as CSV; the columns are the fields of :class:`Rank`."""
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(Rank._fields)
    table.writerows(plan.ranks())
    return stream.getvalue()

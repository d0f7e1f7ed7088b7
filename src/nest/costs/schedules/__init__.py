"""Pipeline schedules: what a stage holds, and how long a step takes.

`closed` has those with a closed form, `path` those that are the longest path through their order of
passes; both answer the same questions. `steps` has what they say of a step. The formulas, and with
them the bubble, are in `nest.forms`: `one_f_one_b` and others with a closed form, `passes`.
"""

from __future__ import annotations

from nest.costs.schedules import path
from nest.costs.schedules.closed import Closed
from nest.costs.schedules.path import Path
from nest.costs.schedules.steps import StepTime

SCHEDULES: dict[str, Closed | Path] = {
    "1f1b": Closed(all_forward=False), "gpipe": Closed(all_forward=True),
    "interleaved": Path(path.interleaved, grouped=True),
    "combined": Path(path.combined, together=True, grouped=True),
    "looped-bfs": Path(path.breadth_first, repeats=False),
    "zb1p": Path(path.zero_bubble, split=True, grouped=True),
    "interleaved-zb": Path(path.zero_bubble, split=True, grouped=True),
    "zb-v": Path(path.zero_bubble_v, split=True),
    "dualpipev": Path(path.dual_pipe_v, split=True),
    "dualpipe": Path(path.dual_pipe, split=True, together=True, chains=2),
}
ONE_F_ONE_B = Path(path.one_f_one_b)
"""1F1B by its path, which its closed form is below where stages differ or hand over."""

__all__ = ["ONE_F_ONE_B", "SCHEDULES", "Closed", "Path", "StepTime"]

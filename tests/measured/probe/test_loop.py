"""The whole loop for real: `bench/loop.py` on CPUs; figures are noise, files and order are not.

Skipped unless NEST_FRAMEWORKS names a Python with torch and transformers.
"""

from __future__ import annotations

import os
from statistics import median

import loop
import pytest

import nest
from nest.frameworks.fsdp2 import TARGET
from nest.inputs import load_cluster, load_stack

PYTHON = os.environ.get("NEST_FRAMEWORKS", "")
pytestmark = [pytest.mark.kernels(uncompiled=True),
              pytest.mark.skipif(not PYTHON, reason="NEST_FRAMEWORKS is not set")]
WORSE = 0.1
"""Error that learning may add: steps of 100 ms vary by a tenth on a machine that does else, too."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> loop.Loop:
    result = loop.loop(PYTHON, tmp_path_factory.mktemp("loop"))
    print(loop.loop_text(result))
    return result


def test_each_candidate_trains_and_has_the_same_first_loss(found: loop.Loop) -> None:
    assert len(found.candidates) == sum(map(len, loop.CANDIDATES.values()))
    for one in found.candidates:
        assert len(one.seconds) == 4 and min(one.seconds) > 0.0
        assert one.loss == pytest.approx(found.candidates[0].loss, abs=1e-3), one.name


def test_files_are_valid_and_the_same_again(found: loop.Loop) -> None:
    mine = found.learned.parent / "mine"
    cluster, stack = load_cluster(str(mine / "cluster.yaml")), load_stack(str(mine / "stack.yaml"))
    assert cluster.size == max(loop.RANKS) and cluster.device.peak("fp32") > 1e9
    assert stack.layer_gap > 0.0 and cluster.levels[0].latency > 0.0
    for one in found.candidates:
        plan = nest.load_plan(one.path)
        assert plan.step_time_s == one.priced and plan.inputs.job.stack == stack
        again = nest.export(plan, "fsdp2")["parallelize.py"]
        kept = one.path.parent / f"on{one.ranks}" / f"parallelize_{one.name}.py"
        assert again == kept.read_text("utf-8") and TARGET.version in nest.export(
            plan, "fsdp2")["launch.sh"]
    learned = nest.load_learned(str(found.learned))
    again = nest.learn([f"{one.path}:{one.measured}" for one in found.candidates])
    assert again == learned
    for ranks, plan in found.again.items():
        same = nest.plan(plan.inputs.subject, plan.inputs.cluster, plan.inputs.job, loop.SPACE)
        assert same.configuration == plan.configuration and same.step_time_s == plan.step_time_s
        assert plan.inputs.job.stack.learned is not None and plan.inputs.cluster.size == ranks


def test_learning_helps(found: loop.Loop) -> None:
    """Beyond noise: errors do not grow, and no pick is slower than the middle or prices' own."""
    assert found.error(found.left_out) <= found.error(found.priced) + WORSE
    for ranks in loop.RANKS:
        middle = median(one.measured for one in found.candidates if one.ranks == ranks)
        allowed = max(middle, found.pick(ranks, found.priced).measured)
        assert found.pick(ranks, found.whole).measured <= (1.0 + WORSE) * allowed


def test_the_table_fits_80_columns(found: loop.Loop) -> None:
    assert all(len(line) <= 80 for line in loop.loop_text(found).splitlines())

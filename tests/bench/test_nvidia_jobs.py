"""The table of NVIDIA's published jobs: which it lists, and that plans are no slower."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from nvidia_jobs import jobs, rows  # noqa: E402


def test_the_newest_release_of_each_job_counts() -> None:
    found = {one.name: one.run for one in jobs()}
    assert len(found) == 41
    newest = found["DeepSeekV3 on 256 gb300, mxfp8, 4,096 x 4,096"]
    assert newest.framework == "Megatron-Bridge 26.08"


@pytest.mark.kernels
@pytest.mark.parametrize("part", ["405B on 128 b200-sxm, fp8", "Qwen3_235B_a22B on 64 b200"])
def test_a_plan_is_no_slower_than_the_published_run(part: str) -> None:
    [(cells, ok)] = rows(part)
    assert ok and cells[4] == "yes"

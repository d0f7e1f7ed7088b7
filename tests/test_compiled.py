"""The gate into compiled code: same fields, one signature each, a cache of its own."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import pytest

import nest
from nest import compiled
from nest._kernels import options, pipeline
from nest.costs.layer import Sums
from nest.costs.pipeline import add_stage
from nest.tensors import Tables

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def test_kernels_and_tensors_agree_on_fields() -> None:
    assert options.Candidates._fields == Tables._fields
    for number, name in enumerate(Sums._fields):
        assert getattr(options, name.upper()) == number


@pytest.mark.skipif(WITHOUT_JIT, reason="nothing is compiled")
def test_every_kernel_is_compiled_once() -> None:
    kernels, _ = compiled.load()
    for model, devices, space in (("llama2-7b", 8, {}), ("bert-large", 4, {"tp": 2, "pp": 2})):
        nest.plan(
            nest.load_model(model), nest.load_cluster("dgx-a100", devices=devices),
            nest.Job(global_batch=16, seq_len=512), nest.SearchSpace(**space),
        )
    assert len(kernels.select.signatures) == 1
    assert len(kernels.solve.signatures) == 1


def test_the_kernel_has_the_formula_of_the_costs() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        after, f, b, hop = rng.random(4)
        n, m = int(rng.integers(1, 9)), int(rng.integers(1, 30))
        rest = after + rng.random() * m
        assert pipeline.add_stage(rest, after, f, b, hop, n, m) == add_stage(
            rest, after, f, b, hop, n, m)[0]


def test_compiled_code_is_kept_below_the_folder_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = compiled.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "nest-planner"
    config = importlib.import_module("numba.core.config")
    assert str(folder.parent.parent) != config.CACHE_DIR, "numba's own setting is left alone"


def test_without_a_folder_to_write_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, "/proc/nest")
    assert compiled.cache_folder() is None


def test_only_an_option_worse_in_nothing_takes_another_s_place() -> None:
    kept, who = np.empty((1, 8, 5)), np.empty((1, 8), np.int64)
    base = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # forward, backward, finish, in flight, shards
    better = np.array([-0.5, -0.5, -0.5, 1.0, 1.0])
    count = options._keep(kept, who, 0, 0, base, 0)
    assert options._keep(kept, who, 0, count, base, 1) == 1, "of equal ones the first stays"
    for field in range(5):
        # Better in one field and worse in another, whatever their sum: both stay.
        for other in set(range(5)) - {field}:
            new = base.copy()
            new[field] += better[field]
            new[other] -= better[other]
            assert options._keep(kept.copy(), who.copy(), 0, 1, new, 1) == 2
        new = base.copy()
        new[field] += better[field]
        changed, names = kept.copy(), who.copy()
        assert options._keep(changed, names, 0, 1, new, 7) == 1
        assert names[0, 0] == 7

"""How far prices of collectives are off by the size of the message: text, JSON, published table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import CLUSTER, run
from descriptions import put
from measurements import NOT_PUBLISHED, PUBLISHED, table

import nest
from nest.measured.calibration.collectives import (
    MeasuredCollective,
    decades,
    fit_collectives,
    misfits,
)
from nest.measured.calibration.timings import TimingSelection, read_collectives

ROOT = Path(__file__).parents[3]
MEASURED = PUBLISHED / "collectives.csv"
PAGE = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
LIMIT = 0.12
"""Median error over 1 MiB that prices have to stay below; two figures alone leave 0.17."""
needs_table = pytest.mark.skipif(not MEASURED.is_file(), reason=NOT_PUBLISHED)
CLUSTER_8 = nest.load_cluster(CLUSTER)


def exact(size: float, off: float = 1.0) -> MeasuredCollective:
    """An all-gather of four devices that takes ``off`` times what it is priced at."""
    alike = MeasuredCollective("all_gather", 4, 1, size, 1.0)
    seconds = math.exp(float(misfits(CLUSTER_8, [alike])[0]))
    return MeasuredCollective("all_gather", 4, 1, size, off * seconds)


def test_misfits() -> None:
    found = misfits(CLUSTER_8, [exact(2.0**22), exact(2.0**22, 2.0)])
    assert found == pytest.approx([0.0, -math.log(2)])


def test_powers_of_ten() -> None:
    # 1, 2 and 4 MB take 2, 1 and 1/1.1 times as long as priced before: errors of 50, 0 and 10 %,
    # 10 % in the median. 1 MB is below the limit: a power of ten that has both kinds has two rows.
    sizes = [(10e3, 1.25), (1e6, 2.0), (1e6, 1.0), (2e6, 2.0), (2e6, 1.0), (4e6, 1 / 1.1),
             (100e6, 1.0), (999e6, 1.0)]
    found = fit_collectives(CLUSTER_8, [exact(*each) for each in sizes], smallest=1.5e6)
    rows = decades(found)
    assert [(row.from_bytes, row.to_bytes, row.fitted, row.count) for row in rows] == [
        (10**4, 10**5, False, 1), (10**6, 10**7, False, 2), (10**6, 10**7, True, 3),
        (10**8, 10**9, True, 2)]
    assert [row.before for row in rows] == pytest.approx([0.2, 0.25, 0.1, 0.0], abs=1e-9)
    after = np.abs(np.expm1(found.fit.after))
    assert rows[2].after == pytest.approx(float(np.median(after[:3])))
    assert rows[3].after == pytest.approx(float(np.median(after[3:])))


def test_text_and_json_say_the_same(tmp_path: Path, capsys) -> None:
    sizes = [2.0**n for n in range(8, 29)]
    rows = [("all_gather", 4, f"{size:.0f}", f"{1e6 * exact(size, 1.2).seconds:.4f}")
            for size in sizes]
    path = table(tmp_path / "c.csv", ["collective", "n_ranks", "message_bytes", "latency_us"],
                 [*rows, ("broadcast", 4, "1e6", "3")])
    words = ("calibrate", "collectives", str(path), "--cluster", str(put(
        tmp_path, CLUSTER, "c.yaml")))
    text, _ = run(capsys, *words)
    found = json.loads(run(capsys, *words, "--json")[0])
    assert found["schema"] == "nest.collectives/1" and found["cluster"] == CLUSTER_8.name
    assert found["count"] == 9 and "'broadcast'" in found["notes"][0]
    assert [(size["from_bytes"], size["count"], size["fitted"]) for size in found["sizes"]] == [
        (10**2, 2, False), (10**3, 4, False), (10**4, 3, False), (10**5, 3, False),
        (10**6, 4, True), (10**7, 3, True), (10**8, 2, True)]
    units = {2: "100 B to 1 kB", 3: "1 kB to 10 kB", 6: "1 MB to 10 MB", 8: "100 MB to 1 GB"}
    for power, words_ in units.items():
        size = next(size for size in found["sizes"] if size["from_bytes"] == 10**power)
        line = next(line for line in text.splitlines() if line.startswith(words_)).split()
        assert line[5:10] == [str(size["count"]), f"{100 * size['before']:.1f}", "%",
                              f"{100 * size['after']:.1f}", "%"]
        assert ("not" in line) is not size["fitted"]
        assert size["before"] == pytest.approx(1 - 1 / 1.2, abs=1e-4)
    error = found["error"]
    assert error["before"]["median"] == pytest.approx(1 - 1 / 1.2, abs=1e-4)
    assert error["after"]["median"] < 0.01 and error["after"]["p90"] < 0.02
    figure = {each["name"]: each for each in found["figures"]}["node: efficiency"]
    assert figure["before"] == CLUSTER_8.levels[0].efficiency
    assert f"{figure['value']:.3g}" in text
    assert any(each["error"] is None for each in found["figures"])


def test_only_some_figures_may_be_fitted() -> None:
    measured = [exact(2.0**n, 1.3) for n in range(20, 29)]
    found = fit_collectives(CLUSTER_8, measured, figures=("efficiency",))
    assert [each.parameter.name for each in found.fit.estimates] == ["node: efficiency"]
    assert found.cluster.levels[0].latency == CLUSTER_8.levels[0].latency


# ---------------------------------------------------------------- the published table


@needs_table
def test_the_table_of_the_page_is_what_prices_give_today() -> None:
    command = [sys.executable, str(ROOT / "bench" / "collectives.py"), str(MEASURED)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = printed.splitlines()
    assert len(lines) > 8 and lines[-2].startswith("all ")
    assert printed in PAGE
    overall = float(lines[-2].split()[-2])
    assert overall < 100 * LIMIT


@needs_table
@pytest.mark.parametrize(("gpu", "name", "most"), [
    ("A100-SXM4-80GB", "dgx-a100", 6.0), ("H100-SXM", "dgx-h100", 5.7),
    ("H200-SXM", "dgx-h200", 5.4), ("B200-SXM", "dgx-b200", 9.6), ("GB200", "gb200-nvl72", 8.3)])
def test_no_power_of_ten_is_much_worse_than_the_others(gpu: str, name: str, most: float) -> None:
    measured, _ = read_collectives([MEASURED], TimingSelection(gpu=gpu, system="NVLink domain"))
    found = fit_collectives(nest.load_cluster(name), measured)
    assert 100 * np.median(np.abs(np.expm1(found.fit.after))) < most
    assert all(row.after < 2 * most / 100 for row in decades(found) if row.fitted)

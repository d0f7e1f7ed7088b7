"""Devices from measured matrix products: known figures are found, files are read and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import Files, run
from descriptions import put
from measurements import BF16, DEVICE, FP8, NOT_PUBLISHED, PEAK, PUBLISHED, products, table

from nest.inputs import load_device
from nest.measured.calibration.fit import median_and_tail
from nest.measured.calibration.gemms import DeviceFit, fit_products, read_products

MEASURED = PUBLISHED / "gemm.csv"


def fitted(path: Path, **options: object) -> DeviceFit:
    return fit_products(load_device(DEVICE), read_products(path), **options)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DeviceFit:
    folder = tmp_path_factory.mktemp("gemm")
    return fitted(products(folder / "p.csv", {"torch.bfloat16": BF16, "fp8": FP8}, 0.003))


def test_the_figures_that_the_products_were_made_with_are_found(found: DeviceFit) -> None:
    bf16, fp8 = found.formats
    for each, truth in ((bf16, BF16), (fp8, FP8)):
        assert each.efficiency.peak_fraction == pytest.approx(truth["peak_fraction"], rel=0.01)
        assert each.efficiency.m_half == each.efficiency.n_half
        assert each.efficiency.m_half == pytest.approx(truth["half"], rel=0.05)
        assert each.efficiency.k_half == pytest.approx(truth["k_half"], rel=0.05)
        assert each.efficiency.decline == pytest.approx(truth["decline"], rel=0.1)
        for estimate in each.fit.estimates:
            assert estimate.determined
            assert estimate.error < 0.2 * estimate.value
    assert fp8.efficiency.cast_bytes == pytest.approx(8.0, rel=0.05)
    assert found.device.memory_efficiency == pytest.approx(0.6, rel=0.05)
    assert found.device.launch_overhead == pytest.approx(5e-6, rel=0.03)


def test_all_that_is_left_is_the_noise(found: DeviceFit) -> None:
    assert median_and_tail(found.formats[0].after)[0] < 1.0
    assert median_and_tail(found.formats[0].fit.before)[0] > 10.0


def test_a_launch_of_fp8_is_its_own_and_not_written(found: DeviceFit) -> None:
    fp8 = found.formats[1]
    assert fp8.fit.values()["launch_overhead"] == pytest.approx(11e-6, rel=0.05)
    assert "a launch of fp8 takes" in fp8.note
    assert median_and_tail(fp8.after)[1] > median_and_tail(fp8.fit.after)[1]


def test_large_products_tell_neither_launches_nor_memory(tmp_path: Path) -> None:
    path = products(tmp_path / "p.csv", {"bf16": BF16}, sides=(2048, 4096, 8192, 16384))
    found = fitted(path)
    told = {each.parameter.name: each.determined for each in found.formats[0].fit.estimates}
    assert told["peak_fraction"] and not told["memory_efficiency"]
    assert "launch_overhead" not in told
    assert "launch_overhead is not fitted" in found.formats[0].note
    assert found.device.launch_overhead == pytest.approx(4e-6)
    assert found.device.memory_efficiency == 0.7


def test_halves_apart_where_asked_for(tmp_path: Path) -> None:
    found = fitted(products(tmp_path / "p.csv", {"bf16": BF16}, 0.003), apart=True)
    efficiency = found.formats[0].efficiency
    assert efficiency.m_half != efficiency.n_half
    assert (efficiency.m_half, efficiency.n_half) == pytest.approx((70.0, 70.0), rel=0.1)


@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_units_of_time(unit: str, tmp_path: Path) -> None:
    path = products(tmp_path / "p.csv", {"bf16": BF16}, 0.0, (1024, 2048), unit)
    assert read_products(path)["bf16"].seconds.min() == pytest.approx(10e-6, rel=0.5)


def test_rows_of_one_gpu(tmp_path: Path) -> None:
    rows = [(gpu, "half", 512, 512, 64 * i, 0.01) for gpu in ("A", "B") for i in range(1, 6)]
    rows.append(("A", "fp8", "", "", "", ""))  # the best rate of any product, in some tables
    path = table(tmp_path / "p.csv", ["gpu", "dtype", "m", "n", "k", "latency_ms"], rows)
    found = read_products(path, "a")
    assert list(found) == ["fp16"]
    assert np.array_equal(found["fp16"].k, 64.0 * np.arange(1, 6))


def written(folder: Path, capsys, device: str, **data: object) -> tuple[str, str, dict]:
    path = products(folder / "p.csv", {"bf16": BF16}, sides=(128, 1024, 8192))
    out, err = run(capsys, "calibrate", "gemm", str(path), "--device", device, "-o",
                   str(folder / "new.yaml"))
    return out, err, yaml.safe_load((folder / "new.yaml").read_text(encoding="utf-8"))


@pytest.mark.kernels(uncompiled=True)
def test_the_file_is_a_device_that_plans_and_evaluations_take(tmp_path: Path, capsys) -> None:
    files = Files(tmp_path)
    out, err, data = written(tmp_path, capsys, "h100-sxm")
    assert data["base"] == "h100-sxm" and set(data["gemm"]) == {"default"}
    assert "27 products of p.csv" in data["source"]
    assert "--device" in err
    new = files.path("new.yaml")
    assert load_device(new).gemm["fp8"] == load_device("h100-sxm").gemm["fp8"]
    plans = {}
    for words in ([], ["--device", new]):
        plan, _ = run(capsys, "plan", *files.words, *words, "--json", "-q")
        plans[len(words)] = yaml.safe_load(plan)
        run(capsys, "evaluate", *files.words, *words)
    assert plans[2]["inputs"]["cluster"]["device"]["name"] == "h100-sxm (calibrated)"
    assert plans[2]["step_time_s"] != plans[0]["step_time_s"]


def test_a_device_of_a_file_is_written_whole(tmp_path: Path, capsys) -> None:
    device = put(tmp_path, DEVICE, "device.yaml")
    _, _, data = written(tmp_path, capsys, str(device))
    assert "base" not in data and data["peak_flops"]["bf16"] == PEAK
    assert load_device(tmp_path / "new.yaml").memory == load_device(device).memory


def test_the_report_is_80_columns_and_says_what_is_not_told(tmp_path: Path, capsys) -> None:
    path = products(tmp_path / "p.csv", {"bf16": BF16}, sides=(2048, 4096, 8192))
    out, _ = run(capsys, "calibrate", "gemm", str(path), "--device", "h100-sxm")
    assert max(map(len, out.splitlines())) <= 80
    line = next(line for line in out.splitlines() if line.startswith("memory_efficiency"))
    assert line.split()[1:3] == ["0.8", "0.8"]
    assert line.endswith("not determined by these measurements")


ROW = ("bf16", 512, 512, 512, 20.0)
HEAD = ["dtype", "m", "n", "k", "latency_us"]


@pytest.mark.parametrize(("header", "rows", "words", "message"), [
    (HEAD[:-2], [ROW[:-2]] * 9, (), "column k is missing"),
    (HEAD[:-1], [ROW[:-1]] * 9, (), "no column of times"),
    (HEAD, [ROW] * 4, (), "got 4 of bf16"),
    (HEAD, [], (), "no row follows the header"),
    (HEAD, [("int3", *ROW[1:])] * 9, (), "dtype: got 'int3'; allowed: bf16"),
    (HEAD, [("bf16", "wide", *ROW[2:])] * 9, (), "m: got 'wide'"),
    (HEAD, [("bf16", -3, *ROW[2:])] * 9, (), "m: got '-3'"),
    (HEAD, [(*ROW[:-1], "nan")] * 9, (), "latency_us: got 'nan'"),
    (HEAD, [ROW[:-1]] * 9, (), "line 2: got 4 cells; allowed: 5"),
    (HEAD, [ROW] * 9, ("--gpu", "H100"), "no such column"),
    (["gpu", *HEAD], [("A", *ROW)] * 9 + [("B", *ROW)] * 9, (), "gpu: got none; needed"),
    (["gpu", *HEAD], [("A", *ROW)] * 9, ("--gpu", "Z"), "gpu: got 'Z'; allowed: 'A'"),
    (HEAD, [("fp8", *ROW[1:])] * 9, ("--device", "tpu-v4"), "got no fp8"),
    (HEAD, [ROW] * 9, ("--device", "h100"), "allowed: a name in the catalog"),
    (HEAD, [ROW] * 9, ("-o", "device.txt"), "a name that ends in .yaml"),
])
def test_bad_input_is_one_message(
    header: list[str], rows: list, words: tuple, message: str, tmp_path: Path, capsys
) -> None:
    path = table(tmp_path / "p.csv", header, rows)
    given = ("--device", "h100-sxm", *words)
    _, err = run(capsys, "calibrate", "gemm", str(path), *given, code=2)
    assert message in err and err.count("error:") == 1
    assert not list(tmp_path.glob("*.txt"))


@pytest.mark.skipif(not MEASURED.is_file(), reason=NOT_PUBLISHED)
@pytest.mark.parametrize(("gpu", "name", "most"), [
    ("A100-SXM", "a100-sxm-80gb", 4.0), ("H100-SXM", "h100-sxm", 2.6),
    ("H200-SXM", "h200-sxm", 2.6), ("B200-SXM", "b200-sxm", 4.2), ("GB200", "gb200", 5.6)])
def test_published_products(gpu: str, name: str, most: float) -> None:
    """The figures of the catalog come out again, as they were fitted to the same rows."""
    found = fit_products(load_device(name), read_products(MEASURED, gpu))
    bf16 = found.formats[0]
    assert bf16.dtype == "bf16"
    assert median_and_tail(bf16.after)[0] < most
    catalog = load_device(name).gemm_for("bf16")
    if gpu != "A100-SXM":  # whose catalog figures were fitted with a launch overhead of their own
        assert bf16.efficiency.peak_fraction == pytest.approx(catalog.peak_fraction, rel=0.01)
        assert bf16.efficiency.m_half == pytest.approx(catalog.m_half, abs=3.0)
    for fp8 in found.formats[1:]:
        assert median_and_tail(fp8.fit.after)[0] < 4.2
        own = load_device(name).gemm["fp8"]
        assert fp8.efficiency.cast_bytes == pytest.approx(own.cast_bytes, rel=0.03)

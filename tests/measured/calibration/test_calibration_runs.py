"""Stacks from measured training runs: known figures are found from five of them, and written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Files, run
from descriptions import put
from measurements import NOT_PUBLISHED, PUBLISHED, table

from nest.errors import InputError
from nest.inputs import load_device, load_stack
from nest.measured import validation
from nest.measured.calibration.fit import median_and_tail
from nest.measured.calibration.runs import FitRuns, choose, fit_runs, settled, usual
from nest.measured.validation import Run

RUNS = PUBLISHED / "runs.csv"
RUN: dict[str, Any] = {
    "run_id": "r", "source_group": "mine", "model": "gpt", "n_layers": 8, "d_model": 8192,
    "d_ff": 32768, "gated_mlp": 0, "n_heads": 64, "vocab": 50304, "seq_len": 2048,
    "gpu": "H100-SXM", "gpu_mem_gb": 80, "n_gpus": 8, "gpus_per_node": 8, "precision": "bf16",
    "framework": "megatron-core", "tp": 1, "pp": 1, "vpp": 1, "dp": 8, "cp": 1, "ep": 1, "sp": 0,
    "zero_stage": 1, "recompute": "none", "mbs": 1, "gbs_seqs": 64, "step_time_s": 1.0}
SHAPES: tuple[dict[str, Any], ...] = (
    {}, {"tp": 2, "dp": 4, "sp": 1}, {"mbs": 4}, {"d_model": 4096, "d_ff": 16384, "seq_len": 4096},
    {"pp": 2, "dp": 4}, {"recompute": "full", "mbs": 2}, {"gbs_seqs": 8}, {"seq_len": 8192},
    {"tp": 8, "dp": 1, "sp": 1}, {"d_model": 16384, "d_ff": 65536, "n_heads": 128})


START = settled(load_stack("megatron-core"), {"h100-sxm"})
"""What fits start from: the stack of the catalog as it is on the device of these runs."""


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    return table(path, list(RUN), [{**RUN, **row}.values() for row in rows])


def made(
    folder: Path, shapes: tuple[dict[str, Any], ...] = SHAPES[:5], noise: float = 0.0,
    **truth: float,
) -> Path:
    """A table whose steps take what NEST says of a stack that the fit does not know."""
    rows = [{"run_id": f"run-{i}", **shape} for i, shape in enumerate(shapes)]
    path = written(folder / "runs.csv", rows)
    stack = START.replace(**(truth or {"gemm_derate": 0.6}))
    random = np.random.default_rng(0)
    for row, priced in zip(
            rows, validation.price(validation.read(path), {"megatron-core": stack}), strict=True):
        assert priced.predicted_s is not None, priced.reason
        row["step_time_s"] = priced.predicted_s * math.exp(noise * random.standard_normal())
    return written(path, rows)


def chosen(path: Path, **options: Any) -> FitRuns:
    return choose(validation.read(path), **options)


def test_five_runs_tell_how_fast_products_are(tmp_path: Path) -> None:
    found = fit_runs(chosen(made(tmp_path)))
    gemm, memory = found.fit.estimates[:2]
    assert gemm.value == pytest.approx(0.6, abs=0.01) and gemm.determined
    assert memory.value == START.memory_derate and not memory.determined
    assert median_and_tail(found.fit.before)[0] > 10
    assert median_and_tail(found.fit.after)[0] < 1
    assert median_and_tail(found.left_out)[0] < 3


def test_noise_stays_within_the_errors(tmp_path: Path) -> None:
    found = fit_runs(chosen(made(tmp_path, SHAPES, 0.03)), ("gemm_derate",))
    gemm = found.fit.estimates[0]
    assert abs(gemm.value - 0.6) < 3 * gemm.error < 0.06


def test_narrow_and_wide_models_together_tell_memory_too(tmp_path: Path) -> None:
    shapes = tuple({"d_model": width, "d_ff": 4 * width, "n_heads": width // 64, "mbs": size}
                   for width in (128, 512, 8192) for size in (2, 8))
    path = made(tmp_path, shapes, gemm_derate=0.6, memory_derate=0.5)
    gemm, memory = fit_runs(chosen(path), ("gemm_derate", "memory_derate")).fit.estimates
    assert (gemm.value, memory.value) == pytest.approx((0.6, 0.5), abs=0.02)
    assert gemm.determined and memory.determined


def test_what_runs_do_not_tell_stays(tmp_path: Path) -> None:
    """Runs of one device each have no gradients to reduce and no hand-overs."""
    rows = {"n_gpus": 1, "gpus_per_node": 1, "dp": 1, "gbs_seqs": 8, "zero_stage": 0}
    path = made(tmp_path, tuple({**rows, "mbs": size} for size in (1, 2, 4)))
    found = fit_runs(chosen(path), ("gemm_derate", "overlap_p2p", "overlap_grad_reduce"))
    derate, hand_over, reduce = found.fit.estimates
    assert derate.determined
    assert not hand_over.determined and hand_over.value == START.overlap_p2p
    assert not reduce.determined and reduce.value == START.overlap_grad_reduce
    assert found.stack.overlap_grad_reduce == START.overlap_grad_reduce


def test_figures_that_are_fitted_by_default(tmp_path: Path) -> None:
    alone = {"n_gpus": 1, "gpus_per_node": 1, "dp": 1}
    for row, more in ((alone, ()), ({}, ("overlap_grad_reduce",)),
                      ({"zero_stage": 3}, ("overlap_zero3",))):
        path = written(tmp_path / "r.csv", [{**row, "run_id": "a"}, {**row, "run_id": "b",
                                                                     "mbs": 2}])
        assert usual(chosen(path)) == ("gemm_derate", "memory_derate", *more)
    assert usual(chosen(made(tmp_path, SHAPES)))[:3] == (
        "gemm_derate", "attention_derate", "memory_derate")


def test_a_stack_that_hides_nothing_is_found(tmp_path: Path) -> None:
    shapes = tuple({"gbs_seqs": 8 * size, "d_model": width, "d_ff": 4 * width, "seq_len": length}
                   for size in (1, 2, 16) for width, length in ((8192, 1024), (16384, 512)))
    path = made(tmp_path, shapes, gemm_derate=0.7, overlap_grad_reduce=0.1)
    found = fit_runs(chosen(path), ("gemm_derate", "overlap_grad_reduce"))
    assert list(found.fit.values().values()) == pytest.approx([0.7, 0.1], abs=0.12)
    assert all(each.determined for each in found.fit.estimates)


def test_a_figure_of_the_device(tmp_path: Path) -> None:
    shapes = tuple({**shape, "seq_len": 16384} for shape in SHAPES)
    path = made(tmp_path, shapes, gemm_derate=START.gemm_derate)
    slow = load_device("h100-sxm").replace(attention_fraction=0.45)
    rows = [dict(each.run.fields) | {"step_time_s": each.predicted_s} for each in
            validation.price(validation.read(path), devices={"h100-sxm": slow})]
    found = fit_runs(chosen(written(path, rows)), ("attention_fraction",))
    assert found.device is not None
    assert found.device.attention_fraction == pytest.approx(0.45, abs=0.03)
    assert found.stack == START


def test_runs_of_one_configuration_count_once(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", [
        {"run_id": "a", "step_time_s": 0.9}, {"run_id": "b", "step_time_s": 1.1},
        {"run_id": "c", "mbs": 2}])
    assert list(fit_runs(chosen(path)).weights) == [0.5, 0.5, 1.0]


def test_left_out_is_what_a_fit_without_the_run_says(tmp_path: Path) -> None:
    path, names = made(tmp_path, SHAPES[:4], 0.08), ("gemm_derate",)
    whole = chosen(path)
    found = fit_runs(whole, names)
    assert np.abs(found.left_out - found.fit.after).max() > 0.009
    for i in range(4):
        rest = [run for j, run in enumerate(whole.runs) if j != i]
        again = fit_runs(choose(rest), names)
        price = validation.price([whole.runs[i]], {"megatron-core": again.stack})[0]
        exact = math.log(price.predicted_s / whole.runs[i].measured_s)
        assert found.left_out[i] == pytest.approx(exact, abs=0.004)


def test_runs_that_contradict_their_neighbours_are_left_out(tmp_path: Path) -> None:
    runs = validation.read(made(tmp_path))
    odd = [Run(**{**vars(run), "anomalous": i == 2}) for i, run in enumerate(runs)]
    found = choose(odd)
    assert len(found.runs) == 4 and dict(found.skipped) == {"contradicts its neighbours": 1}


OWN = {"H100": {"gemm_derate": 0.7, "memory_derate": START.memory_derate},
       "A100": {"gemm_derate": 0.9, "memory_derate": START.memory_derate}}


def test_a_stack_with_rates_of_its_own_on_the_device(tmp_path: Path, capsys) -> None:
    """They are where the fit starts, and the file has the new ones in their place."""
    runs, new = made(tmp_path), str(tmp_path / "new.yaml")
    given = put(tmp_path, {"base": "megatron-core", "devices": OWN}, "stack.yaml")
    found = fit_runs(chosen(runs, stack=load_stack(given)), ("gemm_derate",))
    gemm = found.fit.estimates[0]
    assert gemm.parameter.catalog == 0.7 and gemm.value == pytest.approx(0.6, abs=0.02)
    run(capsys, "calibrate", "runs", str(runs), "--stack", str(given), "-o", new)
    stack = load_stack(new)
    assert stack.rates("h100-sxm").gemm_derate == pytest.approx(0.6, abs=0.03)
    assert stack.rates("h100-sxm").attention_derate == stack.gemm_derate
    assert stack.rates("h100-sxm").memory_derate == START.memory_derate
    assert stack.rates("a100-sxm-80gb") == load_stack(given).rates("a100-sxm-80gb")


def test_a_stack_with_several_rates_is_fitted_on_one_device(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", [{"run_id": "a"}, {"run_id": "b", "gpu": "A100-SXM"}])
    stack = load_stack({"base": "megatron-core", "devices": OWN})
    with pytest.raises(InputError, match="rates of its own on H100, A100; needed: runs on one"):
        chosen(path, stack=stack)


# ---------------------------------------------------------------- the command


@pytest.mark.kernels(uncompiled=True)
def test_the_file_is_a_stack_that_plans_and_evaluations_take(tmp_path: Path, capsys) -> None:
    files, new = Files(tmp_path), str(tmp_path / "new.yaml")
    out, err = run(capsys, "calibrate", "runs", str(made(tmp_path)), "-o", new)
    assert max(map(len, out.splitlines())) <= 80
    assert "left out one at a time" in out and "run-4" in out
    data = yaml.safe_load(Path(new).read_text(encoding="utf-8"))
    assert data["base"] == "megatron-core" and "5 training runs of runs.csv" in data["source"]
    assert load_stack(new).rates("h100-sxm").gemm_derate == pytest.approx(0.6, abs=0.03)
    slower, _ = run(capsys, "plan", *files.words, "--stack", new, "--json", "-q")
    usual, _ = run(capsys, "plan", *files.words, "--json", "-q")
    assert yaml.safe_load(slower)["step_time_s"] > yaml.safe_load(usual)["step_time_s"]
    run(capsys, "evaluate", *files.words, "--stack", new)


def test_a_fit_can_go_on_from_the_file_of_another(tmp_path: Path, capsys) -> None:
    first, second = str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")
    runs = str(made(tmp_path))
    run(capsys, "calibrate", "runs", runs, "-o", first)
    out, _ = run(capsys, "calibrate", "runs", runs, "--stack", first, "-o", second)
    assert "megatron-core (calibrated): 5 runs" in out
    data = yaml.safe_load(Path(second).read_text(encoding="utf-8"))
    assert "base" not in data
    assert load_stack(second).gemm_derate == pytest.approx(load_stack(first).gemm_derate, rel=0.02)


def test_a_device_is_written_apart(tmp_path: Path, capsys) -> None:
    new = str(tmp_path / "d.yaml")
    _, err = run(capsys, "calibrate", "runs", str(made(tmp_path)), "--fit",
                 "gemm_derate,memory_efficiency",
                 "--output-device", new)
    assert "is not written: the runs do not determine its figures" in err
    runs = str(made(tmp_path, tuple({"seq_len": 512 * 4**i} for i in range(4)),
                    gemm_derate=START.gemm_derate))
    run(capsys, "calibrate", "runs", runs, "--fit", "attention_fraction", "--output-device", new)
    assert yaml.safe_load(Path(new).read_text(encoding="utf-8"))["base"] == "h100-sxm"
    load_device(new)


def test_a_fit_that_is_no_better_says_so(tmp_path: Path, capsys) -> None:
    """Steps that are right at one time and wrong at the next."""
    path = made(tmp_path, SHAPES[:6], gemm_derate=START.gemm_derate)
    rows = [dict(run.fields) for run in validation.read(path)]
    for i, row in enumerate(rows):
        row["step_time_s"] = float(row["step_time_s"]) * (1.5 if i % 2 else 1 / 1.5)
    out, _ = run(capsys, "calibrate", "runs", str(written(path, rows)))
    assert "keep those, or measure more" in " ".join(out.split())


@pytest.mark.parametrize(("rows", "words", "message"), [
    ([{}], (), "got 1 that can be fitted; needed: at least 2"),
    ([{"gpu": "abacus"}] * 3, (), "got 0 that can be fitted; needed: at least 2 (left out: 3"),
    ([{}, {"framework": "vtrain"}], (), "stack: got none; needed, for the runs are of"),
    ([{}, {"mbs": 2}], ("--fit", "gemm_derate,speed"), "fit: got 'speed'; allowed, each once:"),
    ([{}, {"mbs": 2}], ("--fit", "gemm_derate,gemm_derate"), "fit: got 'gemm_derate'; allowed"),
    ([{}, {"gpu": "A100-SXM"}], ("--fit", "attention_fraction"), "needed: runs on one"),
    ([{}, {"mbs": 2}], ("--stack", "megatron"), "allowed: a name in the catalog"),
    ([{}, {"mbs": 2}], ("--group", "yours"), "got 0 that can be fitted"),
    ([{}, {"mbs": 2}], ("--output-device", "d.yaml"), "no figure of a device is fitted"),
    ([{}, {"mbs": "two"}], (), "mbs"),
])
def test_bad_input_is_one_message(
    rows: list[dict[str, Any]], words: tuple, message: str, tmp_path: Path, capsys
) -> None:
    named = [{"run_id": str(number), **row} for number, row in enumerate(rows)]
    path = written(tmp_path / "r.csv", named)
    _, err = run(capsys, "calibrate", "runs", str(path), *words, code=2)
    assert message in err and err.count("error:") == 1


def test_runs_of_one_stack_are_taken_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", [
        {"run_id": "a"}, {"run_id": "b", "mbs": 2}, {"run_id": "c", "framework": "vtrain"}])
    assert [run.run_id for run in chosen(path, stack_name="megatron-core").runs] == ["a", "b"]
    with pytest.raises(InputError, match="got 1 that can be fitted"):
        chosen(path, stack_name="vtrain")


@pytest.mark.skipif(not RUNS.is_file(), reason=NOT_PUBLISHED)
def test_published_runs() -> None:
    """B200 with all overlap off: one derate explains runs of three models."""
    found = fit_runs(choose(validation.read(RUNS), group="simumax_b200"))
    assert median_and_tail(found.fit.before)[0] > 15
    assert median_and_tail(found.left_out)[0] < 6

"""Profiles of Metis and Galvatron, worked out by hand; what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InputError
from nest.measured.profiles import from_galvatron, from_metis
from nest.measured.profiles.planners import text_of

MIB = 2**20


def metis(folder: Path, batches: tuple[int, ...] = (1, 4), device: str = "A100") -> Path:
    """Three layers at tp 1 and 2."""
    folder.mkdir(exist_ok=True)
    for tp in (1, 2):
        for batch in batches:
            (folder / f"DeviceType.{device}_tp{tp}_bs{batch}.json").write_text(json.dumps({
                "model": {"model_name": "GPT", "parameters": {
                    "parameters_per_layer_bytes": [400, 200, 200, 800]}},
                "execution_time": {"layer_compute_total_ms": [
                    batch * 1.5 / tp, batch * 6 / tp, batch * 6 / tp, batch * 3 / tp]},
                "execution_memory": {"layer_memory_total_mb": [
                    100, 200 + 10 * batch / tp, 200 + 10 * batch / tp, 300 + batch]}}))
    return folder


def test_a_profile_of_metis_by_hand(tmp_path: Path) -> None:
    found = from_metis(metis(tmp_path / "m"), "2 MiB")
    assert [(layer.name, layer.repeat, layer.output_bytes) for layer in found.layers] == [
        ("first", 1, 2 * MIB), ("layer", 2, 2 * MIB), ("last", 1, 0)]
    one, two = found.layers[1].tp[1], found.layers[1].tp[2]
    assert (one.forward, one.backward) == (pytest.approx(0.002), pytest.approx(0.004))
    assert (one.parameter_bytes, one.activation_bytes) == (200, pytest.approx(10 * MIB))
    assert (two.forward, two.parameter_bytes) == (pytest.approx(0.001), 100)
    assert two.activation_bytes == pytest.approx(5 * MIB)
    assert found.layers[0].tp[1].activation_bytes == 0 and found.bytes_per_parameter == 4
    (tmp_path / "p.yaml").write_text(text_of(found))
    assert nest.load_profile(tmp_path / "p.yaml") == found


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: [path.unlink() for path in folder.glob("*bs4*")], "two batches"),
    (lambda folder: [path.unlink() for path in folder.glob("*tp1_bs4*")]
     + [path.unlink() for path in folder.glob("*tp2_bs1*")], "measured at every tp"),
    (lambda folder: metis(folder, device="H100"), "device: got None; allowed: A100, H100"),
    (lambda folder: [path.unlink() for path in folder.glob("*")], "a folder of Metis's profiles"),
    (lambda folder: [path.write_text(path.read_text().replace("[400, ", "["))
                     for path in folder.glob("*tp2*")], "as many everywhere"),
    (lambda folder: [path.write_text(path.read_text().replace("[400,", '["x",'))
                     for path in folder.glob("*")], "parameters_per_layer_bytes: got"),
    (lambda folder: [path.write_text("[" * 10**5) for path in folder.glob("*")], "DeviceType"),
    (lambda folder: [path.write_text('{"model": 1}') for path in folder.glob("*")], "model: got 1"),
])
def test_what_metis_lacks_is_told(tmp_path: Path, change: Any, message: str) -> None:
    change(metis(tmp_path / "m"))
    with pytest.raises(InputError, match=message):
        from_metis(tmp_path / "m", 1)


def galvatron(folder: Path, **changes: Any) -> tuple[Path, Path, Path]:
    """Times of two batches, memory of tp 1 and 2, all-reduces of 1 and 4 MiB."""
    sizes = {"2048": {"model_states": {"1": 40, "2": 20}, "activation": {"1": 8, "2": 4}}}
    files = {
        "times": {"layernum[2]_bsz4_seq2048": 9.0, "layertype_0_bsz1_seq2048": 5.0,
                  "layertype_0_bsz4_seq2048": 4.0, "layertype_other_bsz1_seq2048": 3.0,
                  "layertype_other_bsz4_seq2048": 2.0},
        "memory": {"layertype_0_sp": {"2048": {
            "parameter_size": 6, "tp_activation_per_bsz_dict": {"1": 7, "2": 3.5,
                                                                "checkpoint": 1}}},
                   "other_memory_pp_on_first_sp": sizes, "other_memory_pp_on_last_sp": sizes},
        "messages": {"allreduce_size_2_1MB_time": 0.2, "allreduce_size_2_4MB_time": 0.8},
    } | changes
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    times, memory, messages = (folder / f"{name}.json" for name in files)
    return times, memory, messages


def test_a_profile_of_galvatron_by_hand(tmp_path: Path) -> None:
    times, memory, messages = galvatron(tmp_path)
    found = from_galvatron(times, memory, [3], hidden=128, messages=messages)
    first, layer, last = found.layers
    handed = 2 * 2048 * 128  # half a MiB: 2 MiB for 4 samples
    assert (first.output_bytes, layer.output_bytes, last.output_bytes) == (handed, handed, 0)
    assert (layer.repeat, found.degrees) == (3, (1, 2))
    assert (layer.tp[1].forward, layer.tp[1].backward) == (0.004, 0.008)
    assert (layer.tp[1].parameter_bytes, layer.tp[1].activation_bytes) == (6 * MIB, 7 * MIB)
    # An all-gather takes half of an all-reduce of 2 MiB: 0.2 ms for 4 samples.
    assert layer.tp[2].forward == pytest.approx(0.002 + 4 * 0.05e-3)
    assert layer.tp[2].backward == pytest.approx(0.004 + 2 * 0.05e-3)
    assert (layer.tp[2].parameter_bytes, layer.tp[2].activation_bytes) == (3 * MIB, 3.5 * MIB)
    assert (first.tp[1].forward, last.tp[2].backward) == (0.001, 0.001)
    assert first.tp[2].parameter_bytes == 5 * MIB
    alone = from_galvatron(times, memory, [3], hidden=128, batch=1)
    assert alone.degrees == (1,) and alone.layers[1].tp[1].forward == 0.005
    # Beyond the largest message the rate is that of the largest one: 8 MiB.
    far = from_galvatron(times, memory, [1], hidden=512, messages=messages)
    assert far.layers[1].tp[2].forward == pytest.approx(0.002 + 4 * 0.2e-3)


@pytest.mark.parametrize(("changes", "options", "message"), [
    ({}, {"batch": 3}, "batch: got 3; allowed: 1, 4"),
    ({}, {"seq_len": 512}, "seq_len: got 512; allowed: 2048"),
    ({"times": {}}, {}, "seq_len: got None; allowed: none is measured"),
    ({}, {"layers": [3, 1]}, "layertype_1_sp: got None"),
    ({"memory": {}}, {}, "layertype_0_sp: got None"),
    ({"times": {"layertype_0_bsz4_seq2048": 4.0}}, {}, "layertype_other_bsz4_seq2048: got None"),
    ({"times": {"layertype_0_bsz4_seq2048": -4.0}}, {}, "got -4.0; allowed: a number"),
    ({"messages": {}}, {}, "messages: got no key"),
    ({}, {"hidden": 0}, "hidden: got 0"),
])
def test_what_galvatron_lacks_is_told(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    times, memory, messages = galvatron(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        from_galvatron(times, memory, **{
            "layers": [3], "hidden": 128, "messages": messages, **options})


def test_the_commands_write_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "profile.yaml")
    out, _ = run(capsys, "profile", "metis", str(metis(tmp_path / "m")), "--output-bytes", "1MiB",
                 "-o", target)
    assert "layer x 2" in out and max(map(len, out.splitlines())) <= 80
    assert nest.load_profile(target).length == 4
    times, memory, _ = galvatron(tmp_path)
    run(capsys, "profile", "galvatron", str(times), str(memory), "--layers", "3", "--hidden", "128",
        "-o", target)
    assert nest.load_profile(target).length == 5
    for words in (("metis", str(tmp_path / "m"), "--output-bytes", "many"),
                  ("galvatron", str(times), str(memory), "--layers", "x", "--hidden", "4")):
        assert "allowed" in run(capsys, "profile", *words, "-o", target, code=2)[1]

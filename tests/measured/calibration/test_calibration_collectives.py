"""Networks from measured collectives: formats are read, known figures are found and written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import CLUSTER, Files, run
from descriptions import put
from measurements import (
    ALL_GATHER_2020,
    ALL_REDUCE,
    HEADER,
    NOT_PUBLISHED,
    PUBLISHED,
    RANKS,
    nccl_json,
    table,
)

import nest
from nest.errors import InputError
from nest.measured.calibration.collectives import MeasuredCollective, fit_collectives
from nest.measured.calibration.fit import median_and_tail
from nest.measured.calibration.timings import (
    TimingSelection,
    from_json,
    from_text,
    read_collectives,
)

MEASURED = PUBLISHED / "collectives.csv"
SIZES = tuple(2.0**n for n in range(20, 31))
INNER, OUTER = (100e9 * 0.7, 8e-6), (25e9 * 0.5, 30e-6)
"""Bytes/s reached and seconds of a step of the two levels that measurements are made with."""
CLUSTER_8 = nest.load_cluster(CLUSTER)


# ---------------------------------------------------------------- what nccl-tests prints


def test_printed_output() -> None:
    found = from_text(ALL_REDUCE, "x.txt")
    assert [each.size for each in found] == [2.0**29, 2.0**30, 2.0**33]
    assert [each.seconds for each in found] == pytest.approx([1806.7e-6, 3108.8e-6, 20299e-6])
    assert {(each.program, each.ranks, each.nodes) for each in found} == {("all_reduce", 4, 2)}
    assert found[0].place.startswith("x.txt: line ")


def test_output_of_2020_has_fewer_columns() -> None:
    found = from_text(ALL_GATHER_2020, "x.txt")
    assert [(each.size, each.program, each.ranks, each.nodes) for each in found] == [
        (2.0**n, "all_gather", 2, 2) for n in (20, 21, 22)]
    assert found[0].seconds == pytest.approx(91.2e-6)


def test_several_tests_in_one_file() -> None:
    found = from_text(ALL_GATHER_2020 + ALL_REDUCE + ALL_GATHER_2020, "x.txt")
    assert [(each.program, each.ranks) for each in found] == (
        [("all_gather", 2)] * 3 + [("all_reduce", 4)] * 3 + [("all_gather", 2)] * 3)


def test_time_stamps_are_no_figures() -> None:
    lines = []
    for line in ALL_REDUCE.splitlines():
        lines.append(line + "  timestamp" if "#wrong" in line else line)
        if line.split()[:1] and line.split()[0].isdigit():
            lines[-1] += "  2026-01-01 10:00:00"
    assert from_text("\n".join(lines), "x") == from_text(ALL_REDUCE, "x")


def test_the_processor_time_counts_where_it_was_asked_for() -> None:
    text = ALL_REDUCE.replace(" time  ", "cputime ")
    assert "cputime" in text
    assert len(from_text(text, "x")) == 3


def test_blank_columns_in_front_of_the_time() -> None:
    """alltoall of 2020 prints no reduction, though its header has the column."""
    line = ("     1048576        131072   float              91.20   11.50    5.75      0"
            "    90.11   11.64    5.82      0\n")
    found = from_text(f"# alltoall_perf\n{RANKS}{HEADER}{line}", "x")
    assert [(each.size, each.seconds) for each in found] == [(2.0**20, pytest.approx(91.2e-6))]


def test_wrong_results_are_left_out() -> None:
    text = ALL_REDUCE.replace("681.17      0", "681.17     12")
    assert [each.size for each in from_text(text, "x")] == [2.0**29, 2.0**33]


def test_groups_side_by_side_count_once() -> None:
    text = ALL_REDUCE.replace("Rank  2 Group  0", "Rank  0 Group  1").replace(
        "Rank  3 Group  0", "Rank  1 Group  1")
    assert {(each.ranks, each.nodes) for each in from_text(text, "x")} == {(2, 1)}


def test_ranks_of_more_digits_than_a_number_has() -> None:
    found = from_text(ALL_REDUCE.replace("Rank  1", "Rank  " + "9" * 5000), "x")
    assert (found[0].ranks, found[0].nodes) == (4, 2)


def test_json_output() -> None:
    found = from_json(nccl_json(), "x.json")
    assert [(each.size, each.ranks, each.nodes) for each in found] == [
        (2.0**20, 8, 2), (2.0**21, 8, 2)]  # 2 processes of 4 GPUs; wrong results are left out
    assert found[0].program == "all_reduce"
    assert [each.seconds for each in found] == pytest.approx([38.42e-6, 38.9e-6])


def test_table(tmp_path: Path) -> None:
    head = ["gpu", "system", "collective", "n_ranks", "n_nodes", "message_bytes", "latency_us",
            "busbw_gb_s"]
    path = table(tmp_path / "c.csv", head, [
        ("H", "one node", "allreduce", 8, 1, 1e6, 20, ""),
        ("H", "one node", "alltoall", 8, "", 1e6, "", 100),
        ("H", "two nodes", "all-gather", 16, 2, 1e6, 30, ""),
        ("H", "two nodes", "broadcast", 16, 2, 1e6, 30, ""),
        ("H", "two nodes", "p2p", 2, 2, "", 30, ""),
        ("V", "one node", "all_reduce", 8, 1, 1e6, 90, "")])
    found, notes = read_collectives([path], TimingSelection(gpu="h", system="*"))
    assert [(each.collective, each.ranks, each.nodes) for each in found] == [
        ("all_reduce", 8, 1), ("alltoall", 8, 0), ("all_gather", 16, 2)]
    assert found[1].seconds == pytest.approx(7 / 8 * 1e6 / 100e9)
    assert len(notes) == 2 and any("'broadcast'" in note for note in notes)
    assert len(read_collectives([path], TimingSelection(gpu="H", system="two*"))[0]) == 1


# ---------------------------------------------------------------- fits


def seconds(kind: str, ranks: int, nodes: int, size: float) -> float:
    """Formulas of docs/costs.md for groups within a node of 4, or one device on each node."""
    bandwidth, latency = INNER if nodes == 1 else OUTER
    steps, share = math.log2(ranks), (ranks - 1) / ranks
    if kind == "sendrecv":
        return size / bandwidth + latency
    if kind == "alltoall":
        return share * size / bandwidth + latency
    times = 2 if kind == "all_reduce" else 1
    return times * (share * size / bandwidth + steps * latency)


def made(noise: float = 0.01, nodes: tuple[int, ...] = (1, 2)) -> list[MeasuredCollective]:
    random = np.random.default_rng(0)
    shapes = [(2, 1), (4, 1)] if 1 in nodes else []
    shapes += [(2, 2)] if 2 in nodes else []
    return [MeasuredCollective(kind, ranks, over, size,
                     seconds(kind, ranks, over, size) * math.exp(noise * random.standard_normal()))
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
            for ranks, over in shapes for size in SIZES]


def test_the_figures_that_the_collectives_were_made_with_are_found() -> None:
    found = fit_collectives(CLUSTER_8, made())
    assert found.crossed == ("node", "leaf")
    for level, nominal, (bandwidth, latency) in zip(
            found.cluster.levels, (100e9, 25e9), (INNER, OUTER), strict=True):
        assert level.efficiency == pytest.approx(bandwidth / nominal, rel=0.02)
        assert level.latency == pytest.approx(latency, rel=0.04)
    for each in found.fit.estimates:
        if each.parameter.name.endswith(("efficiency", "latency")):
            assert each.determined and not each.bound
    assert median_and_tail(found.fit.after)[0] < 1.2 < 20 < median_and_tail(found.fit.before)[0]
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"):
        own = [each.collective == kind for each in found.measured]
        assert median_and_tail(found.fit.after[own])[1] < 5, kind


def test_a_level_that_nothing_crosses_stays() -> None:
    found = fit_collectives(CLUSTER_8, made(nodes=(1,)))
    assert found.crossed == ("node",)
    assert found.cluster.levels[1] == CLUSTER_8.levels[1]
    assert found.cluster.levels[0].efficiency == pytest.approx(0.7, rel=0.02)


def test_large_messages_do_not_tell_the_latency() -> None:
    large = [each for each in made(0.05) if each.size >= 2**29]
    told = {each.parameter.name: each for each in fit_collectives(CLUSTER_8, large).fit.estimates}
    latency = told["node: latency"]
    assert not latency.determined and latency.value == latency.parameter.catalog
    assert told["node: efficiency"].determined


def test_small_messages_are_compared_and_not_fitted() -> None:
    tiny = [MeasuredCollective("all_reduce", 4, 1, 2.0**12, 1.0)] * 50
    found = fit_collectives(CLUSTER_8, [*made(), *tiny])
    assert len(found.small) == len(found.small_after) == 50
    assert found.cluster.levels[0].efficiency == pytest.approx(0.7, rel=0.02)


def test_nodes_that_are_smaller_than_the_innermost_level() -> None:
    """Four ranks on two hosts of two, in one NVLink domain of four."""
    found = fit_collectives(CLUSTER_8, [
        MeasuredCollective("all_gather", 4, 2, size, seconds("all_gather", 4, 1, size))
        for size in SIZES],
        node_size=2)
    assert found.crossed == ("node",)
    assert found.cluster.levels[0].efficiency == pytest.approx(0.7, rel=0.02)


def test_more_ranks_than_the_nodes_hold() -> None:
    with pytest.raises(InputError, match="got 8 ranks on 1 nodes; allowed: at most 4 a node"):
        fit_collectives(
            CLUSTER_8, [MeasuredCollective("all_reduce", 8, 1, 2.0**20, 1.0, "x: line 1")] * 5)
    with pytest.raises(InputError, match="x: got 3 nodes of 4; allowed: at most the 8 devices"):
        fit_collectives(CLUSTER_8, [MeasuredCollective("all_reduce", 12, 3, 2.0**20, 1.0, "x")] * 5)


# ---------------------------------------------------------------- the command


def printed(kind: str, nodes: int = 1, noise: float = 0.0) -> str:
    """Output of a test on the ranks of one node of two, or one on each of two."""
    ranks = RANKS.splitlines(keepends=True)
    ranks = ranks[:2] if nodes == 1 else ranks[::2]
    lines = [f"# Collective test starting: {kind}_perf\n", *ranks, HEADER]
    for size in SIZES:
        time = seconds(kind, 2, nodes, size) * 1e6
        lines.append(f"{size:.0f} {size / 4:.0f} float sum -1 {time:.2f} 1.00 1.00 0 "
                     f"{time * 1.5:.2f} 1.00 1.00 N/A\n")
    return "".join(lines)


@pytest.mark.kernels(uncompiled=True)
def test_the_file_is_a_cluster_that_plans_and_evaluations_take(tmp_path: Path, capsys) -> None:
    files, names = Files(tmp_path), []
    for kind in ("all_reduce", "all_gather", "sendrecv"):
        for nodes in (1, 2):
            names.append(tmp_path / f"{kind}-{nodes}.txt")
            names[-1].write_text(printed(kind, nodes), encoding="utf-8")
    new = files.path("new.yaml")
    out, err = run(capsys, "calibrate", "collectives", *map(str, names), "--cluster",
                   files.cluster, "-o", new)
    assert max(map(len, out.splitlines())) <= 80
    assert "Median error by size" in out and "100 MB to 1 GB" in out
    data = yaml.safe_load(Path(new).read_text(encoding="utf-8"))
    assert data["levels"][1]["size"] == "n" and data["name"] == "c (calibrated)"
    assert data["levels"][0]["efficiency"] == pytest.approx(0.7, rel=0.01)
    assert "66 collectives of all_reduce-1.txt" in data["levels"][0]["source"]
    words = [files.model, new, *files.words[2:]]
    plan, _ = run(capsys, "plan", *words, "--json", "-q")
    assert json.loads(plan)["inputs"]["cluster"]["levels"][0]["efficiency"] == pytest.approx(
        0.7, rel=0.01)
    run(capsys, "evaluate", *words, "--tp", "2")


def test_a_cluster_of_the_catalog(tmp_path: Path, capsys) -> None:
    path, new = tmp_path / "reduce_scatter.txt", tmp_path / "new.yaml"
    path.write_text(printed("reduce_scatter"), encoding="utf-8")
    run(capsys, "calibrate", "collectives", str(path), "--cluster", "dgx-h100", "-o", str(new))
    found, before = nest.load_cluster(new, devices=256), nest.load_cluster("dgx-h100", devices=256)
    assert found.levels[1:] == before.levels[1:]
    assert found.levels[0].efficiency * 450e9 == pytest.approx(INNER[0], rel=0.03)
    assert "before: bandwidth: NVLink 4" in found.levels[0].source


def test_json_files_too(tmp_path: Path, capsys) -> None:
    path = tmp_path / "out.json"
    data = json.loads(nccl_json())
    data["results"] = [{**data["results"][0], "size": int(size),
                        "out_of_place": {"time": 1e6 * seconds("all_reduce", 4, 1, size)}}
                       for size in SIZES]
    data["config"]["devices"] = data["config"]["devices"][:1]
    path.write_text(json.dumps(data), encoding="utf-8")
    out, _ = run(capsys, "calibrate", "collectives", str(path), "--cluster",
                 str(put(tmp_path, CLUSTER, "c.yaml")))
    assert "c: 11 collectives" in out and "all_reduce      4     11" in out


@pytest.mark.parametrize(("text", "words", "message"), [
    ("", (), "is empty"),
    ("collective,n_ranks\nall_reduce,8\n", (), "column message_bytes is missing"),
    ("collective,n_ranks,message_bytes,latency_us\nbroadcast,8,1e6,3\n", (),
     "got none of all_reduce"),
    ("collective,n_ranks,message_bytes,latency_us\nall_reduce,8,1e6,soon\n", (),
     "line 2: latency_us: got 'soon'"),
    ("collective,n_ranks,message_bytes,latency_us\nall_reduce,2.5,1e6,3\n", (),
     "n_ranks: got '2.5'; allowed: a whole number"),
    (ALL_REDUCE.replace("all_reduce", "broadcast"), (), "3 of 'broadcast', which NEST does not"),
    (ALL_REDUCE.replace("all_reduce_perf", "mine"), (), "does not say which collective"),
    (ALL_REDUCE.replace("Rank", "Worker"), (), "no `# Rank` lines; needed: --ranks N"),
    (ALL_REDUCE.replace("1806.7", "broken"), (), "time: got 'broken'; allowed: a number"),
    (ALL_REDUCE.split("#\n#   ")[0] + "# algbw busbw\n", (), "got no line with a size and a time"),
    ("{", (), "JSON"),
    ("{}", (), "has no config and results"),
    (nccl_json(results=[3]), (), "results.0: got 3; allowed: a mapping"),
    (nccl_json(results=[{"size": "big", "in_place": {"time": 3.0}}]), (), "size: got 'big'"),
    (nccl_json(results=[{"size": 3}]), (), "neither out_of_place nor in_place"),
    (ALL_REDUCE, ("--from", "many"), "got 'many'"),
    (ALL_REDUCE, ("--from", "100 GB"), "got 0 of 93.13 GiB and more"),
    (ALL_REDUCE, ("--node-size", "0"), "node-size: got 0; allowed: 1 and more"),
    (ALL_REDUCE, ("--node-size", "1"), "got 4 ranks on 2 nodes"),
    (ALL_REDUCE, ("--gpu", "H100", "--cluster", "nowhere"), "allowed: a name in the catalog"),
])
def test_bad_input_is_one_message(
    text: str, words: tuple, message: str, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "given.txt"
    path.write_text(text, encoding="utf-8")
    given = ("--cluster", "dgx-h100", "-o", str(tmp_path / "new.yaml"), *words)
    _, err = run(capsys, "calibrate", "collectives", str(path), *given, code=2)
    assert message in err and err.count("error:") == 1
    assert not (tmp_path / "new.yaml").exists()


def test_what_the_output_does_not_say_can_be_said(tmp_path: Path, capsys) -> None:
    path = tmp_path / "given.txt"
    text = printed("all_gather").replace("Rank", "Worker").replace("all_gather_perf", "mine")
    path.write_text(text, encoding="utf-8")
    out, _ = run(capsys, "calibrate", "collectives", str(path), "--cluster", "dgx-h100",
                 "--collective", "all_gather", "--ranks", "2")
    assert "all_gather      2" in out


@pytest.mark.skipif(not MEASURED.is_file(), reason=NOT_PUBLISHED)
@pytest.mark.parametrize(("gpu", "name", "most"), [
    ("A100-SXM4-80GB", "dgx-a100", 17.0), ("H100-SXM", "dgx-h100", 18.0),
    ("H200-SXM", "dgx-h200", 18.5), ("B200-SXM", "dgx-b200", 24.0),
    ("GB200", "gb200-nvl72", 21.0)])
def test_published_collectives(gpu: str, name: str, most: float) -> None:
    measured, _ = read_collectives([MEASURED], TimingSelection(gpu=gpu, system="NVLink domain"))
    found = fit_collectives(nest.load_cluster(name), measured)
    assert median_and_tail(found.fit.after)[0] < most

"""The picture of a plan on its network: what stands where, in which colour; `--map`; the docs."""

from __future__ import annotations

import csv
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Files, run
from descriptions import MODEL
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import nest
from nest.cli.main import main
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.network.network import other_orders
from nest.report.figure import save_figure
from nest.report.files import ranks_text
from nest.report.network import layout as network_layout
from nest.report.network import sketch as network_sketch
from nest.report.network.chart import OKABE_ITO, SIDE, network_chart, stage_colours
from nest.report.network.layout import STEP
from nest.report.network.sketch import MOST_CABLES, MOST_NODES, sketch

DOCS = Path(__file__).parents[3] / "docs"
SOURCE = Path(__file__).parents[3] / "src"
PAGE = (DOCS / "topologies.md").read_text(encoding="utf-8")
PICTURES = re.findall(r"```sh\n(nest plan [^\n]* --map docs/(networks/[\w-]+\.svg))\n```\n\n"
                      r"!\[[^\]]+\]\(([^)]+)\)", PAGE)


def planned(
    network: str | nest.Cluster, layers: int = 4, devices: int | None = None, **degrees: int
) -> Plan:
    cluster = network if isinstance(network, nest.Cluster) else nest.load_network(
        network, devices=devices)
    model = nest.load_model({**MODEL, "layers": layers})
    job = nest.Job(global_batch=4 * cluster.size, seq_len=64)
    return nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, **degrees))


def drawn_squares(figure: Figure) -> dict[str, list[tuple[float, float, float]]]:
    """Left, bottom and width of the squares and strips of each stage."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for collection in figure.axes[0].collections:
        if re.fullmatch(r"stage\d+|idle", collection.get_gid()):
            for path in collection.get_paths():
                low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
                assert high[1] - low[1] == pytest.approx(SIDE)
                found.setdefault(collection.get_gid(), []).append(
                    (low[0], low[1], high[0] - low[0]))
    return found


def part(figure: Figure, gid: str) -> Any:
    return next(each for each in figure.axes[0].collections if each.get_gid() == gid)


def legend(figure: Figure) -> list[tuple[str, str]]:
    """Texts and colours."""
    found = figure.legends[0]
    return [(text.get_text(), to_hex(patch.get_facecolor()))
            for text, patch in zip(found.get_texts(), found.get_patches(), strict=True)]


def texts(figure: Figure) -> dict[tuple[float, float], str]:
    return {(round(t.get_position()[0], 6), round(t.get_position()[1], 6)): t.get_text()
            for t in figure.axes[0].texts}


def notes(figure: Figure) -> str:
    return " ".join(figure.texts[1].get_text().split())


def roles(plan: Plan) -> list[tuple[int, int]]:
    """Stage and replica of the devices that a plan uses, by the table of ranks."""
    rows = csv.DictReader(io.StringIO(ranks_text(plan)))
    return [(int(row["stage"]), int(row["replica"])) for row in rows]


# ---------------------------------------------------------------- stages, replicas, labels


def test_each_device_has_the_colour_of_its_stage_and_the_number_of_its_replica() -> None:
    plan = planned("torus:dims=4x4,device=h100-sxm", tp=2, pp=4)
    figure = network_chart(plan)
    # an embedding, 4 layers and a head; 16 devices are 2 replicas of 4 stages of 2
    layers = ["0..1", "2", "3", "4..5"]
    assert legend(figure) == [
        (f"stage {n}: layers {layers[n]}, tp 2 x dp_in 1, ZeRO 0", OKABE_ITO[n]) for n in range(4)]
    assert figure.legends[0].get_title().get_text() == "4 stages x 2 replicas"
    stands = {(round(x + SIDE / 2, 6), round(y + SIDE / 2, 6)): gid
              for gid, own in drawn_squares(figure).items() for x, y, _ in own}
    expected = roles(plan)
    assert len(stands) == 16 == len(expected)
    for device, (stage, replica) in enumerate(expected):
        spot = (round(STEP * (device % 4), 6), round(-STEP * (device // 4), 6))
        assert stands[spot] == f"stage{stage}"
        assert texts(figure)[spot] == str(replica)
    for stage in range(4):
        faces = {to_hex(face) for face in part(figure, f"stage{stage}").get_facecolor()}
        assert faces == {legend(figure)[stage][1]}


def test_title_and_notes() -> None:
    plan = planned("fat-tree:k=4", tp=2, pp=4)
    figure = network_chart(plan)
    assert figure.texts[0].get_text().replace("\n", " ").startswith(
        "tiny on fat tree of 4-port switches, 16 devices: ")
    assert figure.texts[0].get_text().endswith(" per step")
    # a device has 50 GB/s; 2 below an edge switch, 4 below an aggregation, 16 below the core
    assert notes(figure) == ("numbers: replica; each switch: all that join its group; "
                             "links: 50 GB/s (thin) to 200 GB/s (wide)")
    # 16 links of 50, 8 of 100 and 4 of 200 GB/s, as wide as 0.7 (b / 50)^0.4: 2^0.4 = 1.3195
    widths = np.array(sorted(part(figure, "links").get_linewidths()))
    assert widths == pytest.approx(np.repeat([0.7, 0.92365, 1.21877], [16, 8, 4]), abs=1e-4)
    one = network_chart(planned("spine-leaf:leaves=1,per_leaf=4", tp=4))
    assert "numbers" not in notes(one)
    assert one.legends[0].get_title().get_text() == "1 stage x 1 replica"
    assert [t for t in texts(one).values() if t not in ("", "leaf")] == []


def test_more_stages_than_colours_are_numbered() -> None:
    plan = planned("spine-leaf:leaves=4,per_leaf=10", layers=18, tp=2, pp=10)
    figure = network_chart(plan)
    assert notes(figure).startswith("numbers: stage, below replica; ")
    assert sorted(text for text in texts(figure).values() if "\n" in text) == sorted(
        f"{stage}\n{replica}" for stage, replica in roles(plan))
    colours = stage_colours(60)
    assert tuple(colours[:8]) == OKABE_ITO and stage_colours(3) == list(OKABE_ITO[:3])
    assert len(set(colours)) == 60
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert [colour for _, colour in legend(figure)] == colours[:10]


def test_a_long_pipeline_is_not_listed_to_its_end() -> None:
    figure = network_chart(planned("spine-leaf:leaves=8,per_leaf=8", layers=64, pp=64))
    entries = [text for text, _ in legend(figure)]
    assert len(entries) == 61 and entries[-1] == "and 4 more stages"
    assert len(drawn_squares(figure)) == 64


def test_chunks_and_layers_in_an_order_of_their_own() -> None:
    plan = planned("spine-leaf:leaves=1,per_leaf=4", layers=8, pp=2, tp=2, vpp=4)
    # embedding, 8 layers and head in 2 x 4 chunks of a layer: stage 0 has 0 and 1, 3, 5 and 7
    assert [text.partition(", tp")[0] for text, _ in legend(network_chart(plan))] == [
        "stage 0: layers 0..1 .. 7", "stage 1: layers 2 .. 8..9"]
    parts = plan.parallelism.model_copy(update={"order": (9, *range(9))})
    stages = [stage.model_copy(update={"chunks": (), "layers": (5 * n, 5 * n + 5)})
              for n, stage in enumerate(plan.stages)]
    changed = plan.model_copy(update={"parallelism": parts, "stages": tuple(stages)})
    assert [text.partition(", tp")[0] for text, _ in legend(network_chart(changed))] == [
        "stage 0: layers 0..3,9", "stage 1: layers 4..8"]


def test_devices_in_another_order_keep_their_places() -> None:
    """Along a snake, device 4 of the plan is the last one of the second row."""
    cluster = next(each for each, _ in other_orders(nest.load_network("torus:dims=4x4"), [])
                   if each.order[:8] == (0, 1, 2, 3, 7, 6, 5, 4))
    figure = network_chart(planned(cluster, tp=2, pp=4))
    for device, number in enumerate(cluster.order):
        spot = (STEP * (number % 4) - SIDE / 2, -STEP * (number // 4) - SIDE / 2, SIDE)
        assert pytest.approx(spot) in drawn_squares(figure)[f"stage{device // 2 % 4}"]


def test_idle_devices_are_hollow() -> None:
    plan = planned("spine-leaf:leaves=3,per_leaf=4", tp=2, pp=2, outer_dp=2)
    figure = network_chart(plan)
    count = 12 - 2 * 2 * 2
    assert len(drawn_squares(figure)["idle"]) == count
    assert {to_hex(face) for face in part(figure, "idle").get_facecolor()} == {"#ffffff"}
    assert legend(figure)[-1] == (f"idle: {count} devices", "#ffffff")
    for x, y, _ in drawn_squares(figure)["idle"]:
        assert (round(x + SIDE / 2, 6), round(y + SIDE / 2, 6)) not in texts(figure)
    assert sum(len(own) for own in drawn_squares(figure).values()) == 12
    assert "idle" not in drawn_squares(network_chart(planned("fat-tree:k=4", tp=2, pp=4)))


def test_stages_and_idle_devices_of_several_types_name_theirs() -> None:
    """Slow devices are a type of their own: the legend says which stage runs on them."""
    cluster = nest.load_network("fat-tree:k=4", degrade="gpu0=0.5,gpu1=0.5")
    model, job = nest.Model.parse(MODEL), nest.Job(global_batch=8, seq_len=128)
    way = even_configuration(model, cluster, job, pp=2, tp=2, outer_dp=1)
    figure = network_chart(nest.evaluate(model, cluster, job, way))
    names = [cluster.device_types[kind].name for kind in (cluster.type_at(0), cluster.type_at(2))]
    assert names[0] != names[1]
    found = [text for text, _ in legend(figure)]
    assert [text.rpartition(", on ")[2] for text in found[:2]] == names
    assert found[2] == f"idle: 12 devices (12 {names[1]})"


# ---------------------------------------------------------------- large networks


def test_groups_of_a_large_network_are_squares_with_strips() -> None:
    plan = planned("dgx-h100", devices=1024, tp=4, pp=4, layers=6)
    drawn = sketch(plan.inputs.cluster)
    # 128 nodes of 8, without their switches; 4 leaves of 32 nodes; a spine
    assert (drawn.each, drawn.squares, drawn.switches) == (8, 128, 5)
    figure = network_chart(plan)
    found = drawn_squares(figure)
    # a node holds two stages of 4 devices: half a square each
    assert {gid: len(own) for gid, own in found.items()} == {f"stage{n}": 128 // 2
                                                             for n in range(4)}
    assert {round(width, 9) for own in found.values() for *_, width in own} == {SIDE / 2}
    lefts = {(round(x, 6), round(y, 6)) for x, y, _ in found["stage0"]}
    assert {(round(x - SIDE / 2, 6), round(y, 6)) for x, y, _ in found["stage1"]} == lefts
    assert "each square: a group of 8 devices" in notes(figure)
    assert sorted(t for t in texts(figure).values() if t.isdigit()) == sorted(
        str(n) for n in range(64) for _ in range(2))


def test_a_square_of_several_replicas_names_the_first_and_the_last() -> None:
    # every 4 devices a replica of 2, in nodes of 8
    plan = planned("dgx-h100", devices=1024, tp=2, pp=1, outer_dp=256)
    figure = network_chart(plan)
    numbers = [text for text in texts(figure).values() if ".." in text]
    assert sorted(numbers) == sorted(f"{n}..{n + 1}" for n in range(0, 256, 2))
    found = drawn_squares(figure)
    for gid in ("stage0", "idle"):
        assert [width for *_, width in found[gid]] == pytest.approx([SIDE / 2] * 128)
    assert legend(figure)[-1][0] == "idle: 512 devices"


# ---------------------------------------------------------------- files and the command line


def test_the_same_plan_is_the_same_file(tmp_path: Path) -> None:
    for n in (1, 2):
        plan = planned("dragonfly:a=2,p=2,h=1", tp=2, pp=2)
        save_figure(str(tmp_path / f"{n}.svg"), network_chart(plan))
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()


def test_map_of_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(tmp_path)
    given = [files.model, "torus:dims=2x4,device=h100-sxm", "--global-batch", "16", "--seq-len",
             "64", "--tp", "2", "--pp", "2"]
    png, svg, again, plan = (files.path(name) for name in ("a.png", "a.svg", "b.svg", "p.json"))
    run(capsys, "evaluate", *given, "-q", "--map", png)
    run(capsys, "evaluate", *given, "-q", "--map", svg, "-o", plan)
    run(capsys, "evaluate", plan, "-q", "--map", again)
    assert Path(png).read_bytes().startswith(b"\x89PNG")
    assert Path(svg).read_bytes().startswith(b"<?xml")
    assert Path(svg).read_bytes() == Path(again).read_bytes()
    assert "stage 1: layers" in Path(svg).read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["plan", "evaluate"])
def test_names_are_checked_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    files = Files(tmp_path)
    for name, told in (("x.gif", "--map: got 'x.gif'; allowed: a name that ends in .png, .svg or "
                 ".pdf"),
                       ("no/x.svg", "cannot be written (no folder no)"),
                       ("", "--map: got no name; allowed: a file to write")):
        # the cluster would be refused too, but later
        _, err = run(capsys, command, files.model, "no-such-cluster", "--map", name, code=2)
        assert told in err and len(err.splitlines()) == 1


def test_nothing_is_written_where_no_picture_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    target, plan = files.path("m.svg"), files.path("p.json")
    _, err = run(capsys, "evaluate", *files.infeasible(), "--map", target, code=3)
    assert f"{target} is not written, because the plan does not fit" in err
    monkeypatch.setattr(network_sketch, "MOST_NODES", 4)
    monkeypatch.setattr("nest.api.plan", lambda *a, **k: pytest.fail("searched"))
    large = [files.model, "spine-leaf:leaves=4,per_leaf=3,device=h100-sxm", "--global-batch", "24",
             "--seq-len", "64"]
    for command in ("plan", "evaluate"):
        _, err = run(capsys, command, *large, "--map", target, "-o", plan, code=2)
        assert "map: got 4 leaves of 3 with 12 devices, too large for a picture" in err
    assert not Path(target).exists() and not Path(plan).exists()


def test_matplotlib_is_loaded_for_pictures_only() -> None:
    code = (f"import sys; sys.path.insert(0, {str(SOURCE)!r}); "
            "import nest.cli.main, nest.report.network.chart; print(*sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "matplotlib" not in {name.partition(".")[0] for name in done.stdout.split()}


# ---------------------------------------------------------------- docs


def test_every_family_has_its_picture() -> None:
    from nest.network.generators.text import NAMES

    found = [shlex.split(line)[3].partition(":")[0] for line, _, _ in PICTURES]
    assert sorted(found) == sorted(NAMES)
    for line, written, shown in PICTURES:
        assert written == shown == f"networks/{shlex.split(line)[3].partition(':')[0]}.svg"
        size = (DOCS / written).stat().st_size
        assert 10_000 < size < 200_000
    assert {path.name for path in (DOCS / "networks").iterdir()} == {
        Path(shown).name for *_, shown in PICTURES}


def test_the_page_names_the_limits() -> None:
    section = PAGE[PAGE.index("## Pictures"):PAGE.index("## What is not covered")]
    section = " ".join(section.split())
    assert f"more than {MOST_NODES} devices and switches" in section
    assert f"{MOST_CABLES:,} links" in section
    assert f"more than {len(OKABE_ITO)} stages" in section
    assert f"above {network_layout.SLOW} places" in section


def shown(path: Path) -> list[str]:
    """The texts of an SVG, which stand in comments; the step time is left out."""
    found = re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"), re.DOTALL)
    return [text.rpartition(":")[0] if text.endswith("per step") else text for text in found]


@pytest.mark.kernels
@pytest.mark.parametrize("family", ["fat-tree", "dragonfly"])
def test_commands_of_the_page_draw_its_pictures(family: str, tmp_path: Path) -> None:
    line, written, _ = next(each for each in PICTURES if f"/{family}.svg" in each[1])
    words = shlex.split(line)[1:]
    words[words.index("--map") + 1] = str(tmp_path / "again.svg")
    assert main([*words, "-q"]) == 0
    assert shown(tmp_path / "again.svg") == shown(DOCS / written)
    assert len(shown(DOCS / written)) > 16  # a number for each device, and the legend

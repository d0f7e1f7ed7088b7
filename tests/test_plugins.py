"""A package outside the tree adds planners, devices, networks, readers of logs and exports."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Files, run

import nest
from nest import plugins
from nest.errors import InputError, UnsupportedError
from nest.evaluation.even import even_configuration
from nest.inputs import catalog, load_device, load_stack
from nest.measured import logs

PYPROJECT = '''
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "acme-nest"
version = "1.2"
[tool.hatch.build.targets.wheel]
packages = ["acme"]
[project.entry-points."nest.planners"]
acme-widest = "acme.code:Widest"
[project.entry-points."nest.catalog"]
acme = "acme.entries"
[project.entry-points."nest.networks"]
acme-ring = "acme.code:ring"
[project.entry-points."nest.logs"]
acme = "acme.code:read_log"
[project.entry-points."nest.exports"]
acme-degrees = "acme.code:degrees"
'''
CODE = '''
import json
from pathlib import Path
import nest
from nest.evaluation.even import even_configuration

class Widest:
    name = "acme-widest"
    def plan(self, model, cluster, job, space):
        return nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, tp=4))

def ring(devices=4, device="acme-x1"):
    if devices < 3:
        raise nest.InputError(f"acme-ring: devices: got {devices}; allowed: at least 3")
    names = [f"d{n}" for n in range(devices)]
    return {"name": f"ring of {devices}",
            "nodes": [{"name": name, "kind": "device", "device": device} for name in names],
            "links": [{"source": a, "target": b, "bandwidth": "50 GB/s", "latency": "1 us"}
                      for a, b in zip(names, [*names[1:], names[0]])]}

def read_log(path):
    lines = Path(path).read_text().splitlines()
    if not lines or lines[0] != "ACME TRAINER":
        return None
    return {"framework": "acme-trainer", "steps": [float(one.split()[1]) for one in lines[1:]]}

def degrees(plan):
    if not plan.feasible:
        raise nest.UnsupportedError("acme-degrees: the plan does not fit")
    return {"degrees.json": json.dumps({"pp": plan.configuration.pp})}
'''
DEVICES = '''
acme-x1: {base: h100-sxm, memory: 64 GiB, source: Acme data sheet}
acme-x2: {base: acme-x1, memory: 128 GiB, source: Acme data sheet}
'''
STACKS = "acme-trainer: {base: megatron-core, gemm_derate: 0.5, source: Acme}\n"
CLUSTER = '''
device: acme-x1
default_devices: 8
levels:
  - {name: node, size: 4, link: nvlink4}
  - {name: network, size: n, link: infiniband}
source: Acme
'''


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """A folder of sys.path that ends with the test; what was found before is forgotten."""
    catalog.refresh()
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    yield place
    catalog.refresh()
    for name in [name for name in sys.modules if name.split(".")[0] in ("acme", "other")]:
        del sys.modules[name]


def write(place: Path, package: str, files: dict[str, str], entries: str) -> None:
    """A package as pip installs it: its files, and its metadata."""
    for name, text in files.items():
        path = place / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    about = place / f"{package}-3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 3\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture
def acme(fresh: Path, tmp_path: Path) -> Path:
    """The package, built as a wheel by its own backend and unpacked, which is what pip does."""
    source = tmp_path / "acme-nest"
    for name, text in {"pyproject.toml": PYPROJECT, "acme/__init__.py": "",
                       "acme/code.py": CODE, "acme/entries/__init__.py": "",
                       "acme/entries/devices.yaml": DEVICES, "acme/entries/stacks.yaml": STACKS,
                       "acme/entries/clusters/acme-pod.yaml": CLUSTER}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
                   cwd=source, check=True, capture_output=True)
    wheel, = tmp_path.glob("acme_nest-*.whl")
    zipfile.ZipFile(wheel).extractall(fresh)
    return fresh


def priced(cluster: str) -> nest.Plan:
    model, where = nest.load_model("llama2-7b"), nest.load_cluster(cluster, devices=8)
    job = nest.Job(global_batch=16, seq_len=512)
    return nest.evaluate(model, where, job, even_configuration(model, where, job, tp=4))


# ---------------------------------------------------------------- a package that is right


def test_devices_stacks_and_clusters(acme, capsys):
    assert load_device("acme-x2").memory == 128 * 2**30
    assert load_stack("Acme-Trainer").gemm_derate == 0.5
    assert nest.load_cluster("acme-pod", devices=8).device.name == "acme-x1"
    assert {"acme-x1", "acme-x2", "h100-sxm"} <= {*nest.list_devices()}
    assert "acme-x2" in run(capsys, "list", "devices")[0]
    document = json.loads(run(
        capsys, "evaluate", "llama2-7b", "acme-pod", "--devices", "8", "--global-batch", "16",
        "--seq-len", "512", "--stack", "acme-trainer", "--tp", "4", "--json")[0])
    assert document["inputs"]["job"]["stack"]["name"] == "acme-trainer"


def test_networks(acme):
    ring = nest.load_network("acme-ring:devices=5")
    assert (ring.name, ring.size, ring.device.name) == ("ring of 5", 5, "acme-x1")
    with pytest.raises(InputError, match="^acme-ring: devices: got 2; allowed: at least 3$"):
        nest.load_network("acme-ring:devices=2")
    with pytest.raises(InputError, match="allowed: .*torus.*, acme-ring"):
        nest.load_network("acme-rig:devices=5")


def test_logs(acme, tmp_path):
    path = tmp_path / "train.log"
    path.write_text("ACME TRAINER\nstep 9.0\n" + "step 2.0\n" * 8)
    log = logs.read(path)
    assert (log.framework, log.step_time_s, log.left_out) == ("acme-trainer", 2.0, 1)
    path.write_text("something else\n")
    with pytest.raises(InputError, match="nothing found that training software prints"):
        logs.read(path)


def test_exports(acme, files, tmp_path, capsys):
    plan = priced("acme-pod")
    assert json.loads(nest.export(plan, "acme-degrees")["degrees.json"]) == {"pp": 1}
    (tmp_path / "plan.json").write_text(plan.to_json())
    out = run(capsys, "export", str(tmp_path / "plan.json"), "--to", "acme-degrees", "-o",
              str(tmp_path / "out"))[0]
    assert "degrees.json" in out
    with pytest.raises(UnsupportedError, match="^acme-degrees: the plan does not fit$"):
        nest.export(plan.unchecked(feasible=False), "acme-degrees")
    with pytest.raises(InputError, match="allowed: megatron, .*simai, acme-degrees"):
        nest.export(plan, "acme")


def test_planners(acme):
    assert "acme-widest" in plugins.usable(plugins.PLANNERS)


def test_doctor_lists_what_is_added(acme, capsys):
    assert "acme-widest of acme-nest 1.2 (planners)" in " ".join(run(capsys, "doctor")[0].split())


# ---------------------------------------------------------------- packages that are wrong


def test_a_broken_catalog_gives_a_line_and_stops_nothing(fresh, capsys):
    write(fresh, "other", {"__init__.py": "", "devices.yaml":
                           "h100-sxm: {base: a100-sxm-80gb}\nother-good: {base: h100-sxm}\n"
                           "other-bad: {base: h100-sxm, memory: none}\nOther: 3\n"
                           "other-round: {base: other-round}\n"},
          "[nest.catalog]\ngood = other\ngone = no_such_package\n")
    out, err = run(capsys, "list", "devices")
    assert "other-good" in out and "other-bad" not in out
    said = err.splitlines()
    assert len(said) == 5 and all(line.startswith("nest: note: catalog: ") for line in said)
    for part in ("gone of other 3 (no_such_package) cannot be used: ModuleNotFoundError",
                 "devices: h100-sxm: NEST has this name, too",
                 "devices: other-bad: device: memory: got ",
                 "devices: other-round: base: it is based on itself",
                 "devices: Other: got this name; needed: up to 40"):
        assert part in err, err
    assert load_device("h100-sxm").memory == load_device("H100-SXM").memory > 70 * 2**30


@pytest.mark.parametrize(("group", "line", "ask", "said"), [
    ("nest.networks", "ring = other:fails", lambda: nest.load_network("ring:k=2"),
     "network: ring of other 3 .*cannot be used: RuntimeError: no"),
    ("nest.networks", "ring = other:text", lambda: nest.load_network("ring:k=2"),
     "network: ring.*mapping of fields|got 'text'"),
    ("nest.networks", "torus = other:fails", lambda: nest.load_network("torus (other 3):k=2"),
     "NEST has a network of this name, too|allowed"),
])
def test_a_broken_network(fresh, group, line, ask, said):
    write(fresh, "other", {"__init__.py": "def fails(**_):\n    raise RuntimeError('no')\n"
                                          "def text(**_):\n    return 'text'\n"},
          f"[{group}]\n{line}\n")
    with pytest.raises(InputError, match=said) as raised:
        ask()
    assert "\n" not in str(raised.value)
    assert nest.load_network("torus:dims=2x2").device.name == "tpu-v4"


def test_a_broken_reader_of_logs_lets_the_next_one_read(fresh, tmp_path):
    write(fresh, "other", {"__init__.py": "def fails(path):\n    raise SystemExit(3)\n"
                                          "def wrong(path):\n    return {'steps': ['x']}\n"
                                          "def right(path):\n    return {'framework': 'z', "
                                          "'steps': [1, 1, 1]}\n"},
          "[nest.logs]\na = other:fails\nb = other:wrong\nc = other:right\n")
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert logs.read(path).framework == "z"
    texts = [str(one.message) for one in told]
    assert len(texts) == 2 and "SystemExit: 3" in texts[0] and "steps.0: got 'x'" in texts[1]


@pytest.mark.parametrize(("body", "said"), [
    ("return {'../x': 'a'}", "a file name without folders"), ("return {'x': 3}", "got int for 'x'"),
    ("return {}", "needed: texts or bytes by file name"), ("return 1 / 0", "ZeroDivisionError"),
])
def test_a_broken_export(fresh, body, said):
    write(fresh, "other", {"__init__.py": f"def make(plan):\n    {body}\n"},
          "[nest.exports]\nother = other:make\nmegatron = other:make\n")
    plan = priced("dgx-a100")
    with pytest.raises(InputError, match=said):
        nest.export(plan, "other")
    assert [*nest.export(plan, "megatron")] != []
    with pytest.raises(InputError, match="NEST has an export of this name, too"):
        nest.export(plan, "megatron (other 3)")


def test_the_table_says_each_group_in_the_documents() -> None:
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    assert [group for group in plugins.GROUPS if f'"{group}"' not in page] == []

"""The wheel, installed into a fresh environment, plans without any network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import nest

ROOT = Path(__file__).parents[1]
ASKED = ("llama2-7b", "dgx-a100", "--devices", "8", "--global-batch", "16", "--seq-len", "512",
         "--pp", "1", "--cp", "1", "--recompute", "none", "--json", "--quiet")


def offline() -> list[str]:
    """Words before a command that take its network away, where this system can do so."""
    words = ["unshare", "--net", "--map-root-user"]
    can = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True)
    return words if can and can.returncode == 0 else []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
                   cwd=ROOT, check=True, capture_output=True)
    wheel, = folder.glob("nest_planner-*.whl")
    assert f"-{nest.__version__}-py3-none-any" in wheel.name
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*offline(), python, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                    wheel], check=True, capture_output=True, env=_bare())
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                          check=True, capture_output=True, text=True).stdout.strip()
    beside = [sysconfig.get_path("purelib"),
              *(path for path in sys.path if path.endswith("-packages"))]
    (Path(site) / "beside.pth").write_text("\n".join(dict.fromkeys(beside)) + "\n")
    return python


def _bare() -> dict[str, str]:
    """Variables without this tree, and with a proxy that refuses, whoever would ask it."""
    kept = {name: value for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "NUMBA_CACHE_DIR", "TMPDIR")}
    return {**kept, "NUMBA_DISABLE_JIT": "1", "COLUMNS": "80",
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
                            "http://127.0.0.1:9")}


def ran(python: Path, *words: str) -> str:
    found = subprocess.run([*offline(), python, *words], cwd=python.parent, env=_bare(),
                           capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.kernels(uncompiled=True)
def test_the_wheel_plans_as_the_tree_does(installed: Path, tmp_path: Path) -> None:
    code = "import inspect, nest; print(inspect.getfile(nest))"
    assert str(installed.parents[1]) in ran(installed, "-c", code)
    other = json.loads(ran(installed, "-m", "nest", "plan", *ASKED))
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
    plan = nest.plan(model, cluster, nest.Job(global_batch=16, seq_len=512),
                     nest.SearchSpace(pp=1, cp=1, recompute="none"))
    own = json.loads(plan.to_json())
    for name in ("step_time_s", "parallelism", "stages", "optimal", "inputs"):
        assert other[name] == own[name], name


def test_the_wheel_has_its_data_its_command_and_its_planners(installed: Path) -> None:
    assert ran(installed, installed.parent / "nest", "--version") == f"nest {nest.__version__}\n"
    assert "dgx-h100" in ran(installed, "-m", "nest", "list", "clusters")
    code = "from nest.planners import usable; print(*usable())"
    assert ran(installed, "-c", code).split()[:2] == ["nest", "manual"]


def test_versions_agree() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {nest.__version__}\n" in cited
    assert f"\n## {nest.__version__} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

"""Planners of other packages: found by their entry points, asked, and told of if they are wrong."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Files, run

import nest
from nest import plugins
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.planners import planner, registered, usable
from nest.planners.compare import compare
from nest.planners.registry import GROUP
from nest.plugins import UnusablePlugin

OWN = ["nest", "manual", "zero", "mcmc", "alpa", "phaze", "piper", "exhaustive"]
CODE = '''
import nest
from nest.evaluation.even import even_configuration

class Widest:
    """Tensor parallelism as wide as the space allows."""
    name = "widest"
    def __init__(self, most=4):
        self.most = most
    def plan(self, model, cluster, job, space):
        tp = max(n for n in (1, 2, 4) if n <= self.most and space.allows("tp", n))
        return nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, tp=tp))

class Stubborn(Widest):
    name = "stubborn"
    def plan(self, model, cluster, job, space):
        raise nest.NoPlanError("it would rather not")

class Fails(Widest):
    name = "fails"
    def plan(self, model, cluster, job, space):
        return {}["plan"]

class Strays(Widest):
    name = "strays"
    def plan(self, model, cluster, job, space):
        return nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, tp=1))

class Boasts(Widest):
    name = "boasts"
    def plan(self, model, cluster, job, space):
        return super().plan(model, cluster, job, space).unchecked(step_time_s=1e-9)

class NoMethod:
    name = "no-method"
    plan = None

class Needs(Widest):
    name = "needs"
    def __init__(self, licence):
        pass

class Renamed(Widest):
    name = "something-else"
'''
MODULE = "widest_planner" + ".py"
Install = Callable[..., None]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with lines of entry points of the group."""
    place = tmp_path / "site"
    place.mkdir()
    (place / MODULE).write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))

    def add(*lines: str, package: str = "widest-planner", group: str = GROUP) -> None:
        folder = place / f"{package.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(
            "\n".join((f"[{group}]", *lines, "")), encoding="utf-8")

    return add


def question(files: Files) -> tuple[nest.Model, nest.Cluster, nest.Job]:
    return (nest.load_model(files.model), nest.load_cluster(files.cluster),
            nest.Job(global_batch=16, seq_len=128))


def test_own_planners_stand_in_the_project_file() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    listed = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    assert list(listed) == OWN == [name for name, one in registered().items()
                                   if one.package is None]
    assert all(planner(name).name == name for name in OWN)


def test_an_installation_has_them_in_its_metadata(install, monkeypatch, tmp_path):
    listed = [f"{name} = {one.target}" for name, one in registered().items()]
    monkeypatch.setattr(plugins, "SOURCE", tmp_path / "none")
    install(*sorted(listed), package="nest-planner")  # as a wheel has them
    assert [*registered()] == OWN and planner("zero").name == "zero"


def test_an_installation_without_them_is_told(monkeypatch):
    monkeypatch.setattr(plugins, "entries", lambda group: iter(()))
    with pytest.raises(InputError, match="nest-planner registers none.*installed again"):
        registered()


def test_a_planner_of_another_package_is_found(install, files, capsys):
    install("widest = widest_planner:Widest")
    assert usable() == [*OWN, "widest"]
    assert planner("widest", most=2).most == 2
    with pytest.raises(InputError, match="got 'wide'; allowed: nest, .*, exhaustive, widest$"):
        planner("wide")
    out, err = run(capsys, "compare", *files.words, "--planners", "manual,widest", "--json")
    found = json.loads(out)[1]
    model, cluster, job = question(files)
    best = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, tp=4))
    assert (found["planner"], found["step_time_s"]) == ("widest", best.step_time_s) and not err
    assert "widest" in run(capsys, "compare", *files.words, "--planners", "widest")[0]
    err = run(capsys, "compare", *files.words, "--planners", "widst", code=2)[1]
    assert "did you mean widest?" in err and "exhaustive, widest" in err


@pytest.mark.parametrize(("line", "said"), [
    ("gone = no_such_module:Planner", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("gone = widest_planner:Gone", "AttributeError: module 'widest_planner' has no"),
    ("gone = widest_planner", "TypeError: 'module' object is not callable"),
    ("gone = no module", "AttributeError"),
    ("renamed = widest_planner:Renamed", "its name is 'something-else'"),
    ("no-method = widest_planner:NoMethod", "plan is no method"),
    ("needs = widest_planner:Needs", "TypeError: .*missing 1 required positional argument"),
    ("All of them = widest_planner:Widest", "got the name 'All of them'; needed: up to 40"),
    ("all = widest_planner:Widest", "got the name 'all'; needed: up to 40 of a-z"),
    ("alpa = widest_planner:Widest", "NEST has a planner of this name, too"),
    ("no equals sign", "the file cannot be read"),
])
def test_a_wrong_entry_is_told_once_and_breaks_nothing_else(install, files, line, said):
    install(line)
    assert usable()[:8] == OWN
    other, = set(registered()) - set(OWN)
    with pytest.raises(UnusablePlugin, match=said) as raised:
        planner(other)
    assert str(raised.value).startswith(f"planner: {other} of widest-planner 1.2 (")
    assert "\n" not in str(raised.value) and "docs/extending.md" in str(raised.value)
    found = compare(*question(files), None, ["manual", other, "zero"])
    assert [one.feasible for one in found] == [True, False, True]
    assert found[1].reason == str(raised.value)


def test_two_packages_with_one_name_are_told(install):
    install("widest = widest_planner:Widest")
    install("widest = widest_planner:Widest", package="another")
    for name, also in (("widest", "widest-planner"), ("widest (widest-planner 1.2)", "another")):
        with pytest.raises(UnusablePlugin, match=f"used: {also}.* has (a planner of )?this name"):
            planner(name)


@pytest.mark.parametrize(("name", "said"), [
    ("stubborn", "it would rather not"),
    ("fails", "the planner of another package failed: KeyError: 'plan'"),
    ("strays", "its plan is not within the space: tp 1"),
])
def test_a_planner_that_fails_breaks_no_other(install, files, capsys, name, said):
    install(f"{name} = widest_planner:{name.title()}")
    words = ["compare", *files.words, "--planners", f"{name},manual", "--tp", "2", "--json"]
    found = json.loads(run(capsys, *words)[0])
    assert (found[0]["reason"], found[0]["plan"]) == (said, None) and found[1]["feasible"]


def test_a_planner_does_not_price_its_own_plan(install, files):
    install("boasts = widest_planner:Boasts", "widest = widest_planner:Widest")
    found = compare(*question(files), None, ["boasts", "widest"])
    assert found[0].plan.step_time_s == found[1].plan.step_time_s

"""Read, price and improve published launch scripts; print the table of docs/scripts.md.

    python bench/scripts.py                     # the table, of the figures in bench/scripts.json
    python bench/scripts.py CLONES [SUBSTRING]  # read again, and keep the figures

bench/scripts.yaml lists the scripts. CLONES is a folder with git clones of their repositories,
CLONES/OWNER/NAME. They are read as text at their commits; nothing in them is executed.
bench/scripts.json has what was read and found: model, job, both configurations, and why others are
refused. Where the text alone does not decide a launch, the figures stay: the script would have to
be run (`nest capture`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from cases import aligned
from recipes import shape

import nest
from nest.evaluation.plans import Plan
from nest.inputs import Configuration

CASES = Path(__file__).with_name("scripts.yaml")
FIGURES = Path(__file__).with_name("scripts.json")
HEAD = ("script", "devices", "job", "now", "step, s", "NEST's plan", "step, s", "gain",
        "new script")
SAME = ("layers", "devices", "chunks")
"""Fields of a stage that differ where stages are alike."""


def cases(part: str = "") -> dict[str, dict[str, Any]]:
    """Scripts whose names have this part."""
    every = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    return {name: case for name, case in every.items() if part in name}


def figures() -> dict[str, dict[str, Any]]:
    """What was read and found, by the name of the script."""
    found: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def read(case: dict[str, Any], clones: Path) -> dict[str, Any]:
    """Figures of a script."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (case["path"], *(str(Path(case["path"]).parent / other)
                                     for other in case.get("beside", ()))):
            text = subprocess.run(
                ["git", "-C", str(clones / case["repo"]), "show", f"{case['commit']}:{name}"],
                check=True, capture_output=True, encoding="utf-8").stdout
            for old, new in case.get("edit", {}).items() if name == case["path"] else ():
                assert text.count(f"\n{old}\n") == 1, (name, old)
                text = text.replace(f"\n{old}\n", f"\n{new}\n")
            (Path(folder) / Path(name).name).write_text(text, encoding="utf-8")
        return _improved(case, Path(folder) / Path(case["path"]).name)


def _improved(case: dict[str, Any], path: Path) -> dict[str, Any]:
    given: dict[str, Any] = {
        "vocab": case.get("vocab"), "stack": case.get("stack"), "ignore": case.get("ignore", ()),
        "variables": {str(name): str(value) for name, value in (
            *enumerate(case.get("set", ()), 1), *case.get("env", {}).items())}}
    try:
        devices = case.get("devices") or nest.read(path, **given).devices
        cluster = nest.load_cluster(case["cluster"], devices=devices)
        found = nest.improve(path, cluster, **given)
    except nest.InputError as error:
        return {"refused": str(error).replace(str(path), path.name).splitlines()}
    except nest.InfeasibleError as error:
        return {"refused": [str(error)]}
    plan = found.plan or found.before
    assert plan is not None and plan.inputs.model is not None
    before = found.before
    return {
        "devices": devices, "notes": list(found.notes),
        "model": plan.inputs.model.as_dict() | {"name": path.stem},
        "job": (before or plan).inputs.job.as_dict() | {"stack": _stack(before or plan)},
        "before": None if before is None else {"step_time_s": before.step_time_s,
                                               **_way(before.configuration)},
        "problems": list(found.problems),
        "plan": None if found.plan is None else {
            "step_time_s": found.plan.step_time_s, "optimal": found.plan.optimal,
            "files": ["in place" if name == path.name else name for name in found.files],
            "stack": _stack(found.plan), **_way(found.plan.configuration)}}


def _stack(plan: Plan) -> dict[str, Any]:
    """A stack as its name in the catalog and what is changed."""
    stack = plan.inputs.job.stack
    base = stack.name.removesuffix(" (changed)")
    kept = nest.Job(global_batch=1, seq_len=1, stack=base).stack
    return {"base": base, **{name: getattr(stack, name) for name in nest.Stack.model_fields
                             if name not in ("name", "capabilities", "calibration", "devices")
                             and getattr(stack, name) != getattr(kept, name)}}


def _way(way: Configuration) -> dict[str, Any]:
    """A configuration whose stages are alike but for their layers."""
    found = way.as_dict()
    stages = found.pop("stages")
    alike = [{name: value for name, value in stage.items() if name not in SAME}
             for stage in stages]
    assert all(one == alike[0] for one in alike)
    return {**found, "stage": alike[0], **{
        name: [stage[name] for stage in stages] for name in SAME}}


def priced(figure: dict[str, Any], which: str, cluster: str) -> Plan:
    """A configuration of the figures, priced again: ``before`` or ``plan``."""
    given = dict(figure[which])
    alike = given.pop("stage")
    stages = [{**alike, **dict(zip(SAME, values, strict=True))}
              for values in zip(*(given.pop(name) for name in SAME), strict=True)]
    job = {**figure["job"], "stack": given.pop("stack", figure["job"]["stack"])}
    return nest.evaluate(
        nest.Model.parse(figure["model"]), nest.load_cluster(cluster, devices=figure["devices"]),
        nest.Job.parse(job), Configuration.parse({
            **{name: value for name, value in given.items()
               if name in Configuration.model_fields}, "stages": stages}))


def row(name: str, case: dict[str, Any], figure: dict[str, Any]) -> list[str]:
    """The line of a script that is read."""
    job, before, plan = figure["job"], figure["before"], figure["plan"]
    own = "" if before is None else priced(figure, "before", case["cluster"])
    mark = "†" if before is not None and figure["problems"] else ""
    where = f"{figure['devices']:,} of {case['cluster']}{'*' if 'assumed' in case else ''}"
    cells = [
        name, where, f"{job['global_batch']:,} x {job['seq_len']:,}, {job['precision']}",
        shape(own) if own else "no configuration",
        f"{before['step_time_s']:.4g}{mark}" if before else "-"]
    if plan is None:
        cells += ["none is faster", "", "", ""]
    else:
        gain = "" if before is None else f"{before['step_time_s'] / plan['step_time_s'] - 1.0:+.1%}"
        cells += [shape(priced(figure, "plan", case["cluster"])), f"{plan['step_time_s']:.4g}",
                  gain, " + ".join(plan["files"]) or "-"]
    return cells


def table() -> str:
    """The tables of docs/scripts.md: scripts that are read, and those refused."""
    known = figures()
    listed = {name: (case, known[name]) for name, case in cases().items()}
    taken = {name: pair for name, pair in listed.items() if "refused" not in pair[1]}
    lines = [aligned([HEAD, *(row(name, *pair) for name, pair in taken.items())], len(HEAD))]
    lines += ["", "## Refused", ""]
    for name, (case, figure) in listed.items():
        if name not in taken:
            reasons = "; ".join(reason.strip().split("; did you mean")[0].split("; leave it out")[0]
                                for reason in figure["refused"])
            lines.append(f"- {name} ({_where(case)}): {reasons}")
    return "\n".join(lines) + "\n"


def _where(case: dict[str, Any]) -> str:
    return f"{case['repo']}@{case['commit'][:7]} {case['path']}"


def main() -> None:
    if len(sys.argv) > 1:
        known = figures() if FIGURES.exists() else {}
        for name, case in cases(sys.argv[2] if len(sys.argv) > 2 else "").items():
            found = read(case, Path(sys.argv[1]))
            if name not in known or "nest capture" not in "".join(found.get("refused", ())):
                known[name] = found
            lines = (f"{json.dumps(one)}: {json.dumps(known[one])}" for one in cases()
                     if one in known)
            FIGURES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
            print(name, file=sys.stderr, flush=True)
    print(table(), end="")


if __name__ == "__main__":
    main()

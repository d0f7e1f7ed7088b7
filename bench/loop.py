"""The whole loop on this machine: probe, plan, export, train, learn, plan again.

    python bench/loop.py --python PYTHON [--out FOLDER] [--seconds 20]

PYTHON has torch and transformers. CPUs are the devices: four processes over gloo measure them
(`nest probe`), a small Llama is priced on two and on four of them, with tensor parallelism, FSDP,
HSDP and recompute, each candidate is exported to FSDP2 and trained for real, `nest next` chooses
runs among them, and `nest learn` takes them. Printed: errors before and after, the order of
candidates, and the regret of the pick (its measured step over the fastest one).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import nest
from nest.cli.main import main as command
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Job, Model, SearchSpace, Stack, load_stack
from nest.measured.learning import Learned, following, learn, observed
from nest.report.page import Page

PROGRAM = Path(__file__).parents[1] / "tests/stacks/training_times.py"
RANKS = (2, 4)
MODEL = {"name": "small", "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512,
         "gated": True, "vocab": 512, "tied_embeddings": False, "norm": "rmsnorm", "bias": False}
BATCH = 16
FULL = {"recompute": "full"}
HALVES: dict[str, Any] = {"dp_in": 2, "shard": "dp_in"}
CANDIDATES: dict[int, dict[str, dict[str, Any]]] = {
    2: {"ddp": {"zero": 0}, "zero3_full": {"zero": 3, **FULL}, "tp2": {"tp": 2}},
    4: {"ddp": {"zero": 0}, "zero2": {"zero": 2}, "zero3_full": {"zero": 3, **FULL},
        "hsdp2": {"zero": 2, **HALVES}, "hsdp3": {"zero": 3, **HALVES}, "tp2": {"tp": 2},
        "tp2_zero2_full": {"tp": 2, "zero": 2, **FULL}, "tp4": {"tp": 4}}}
"""Degrees by processes and name."""
SPACE = SearchSpace.parse({"pp": "1", "cp": "1", "zero": "0,2,3"})
LEARNED = 3
"""Runs on the most processes that are chosen and learned from, before the others are priced."""


@dataclass(frozen=True)
class Candidate:
    """A plan, and what its training took.

    Attributes
    ----------
    seconds : of a step, each the slowest rank's.
    loss : of the first step.
    """

    name: str
    path: Path
    plan: Plan
    seconds: tuple[float, ...]
    loss: float

    @property
    def ranks(self) -> int:
        return self.plan.inputs.cluster.size

    @property
    def priced(self) -> float:
        return self.plan.step_time_s

    @property
    def measured(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Loop:
    """One round of the loop.

    Attributes
    ----------
    first : what `nest.plan` finds before anything ran, by processes; ``again``: after learning.
    chosen : candidates that `nest next`'s rule ran, in its order.
    after : seconds of candidates by what these taught; ``whole``: by what all taught.
    left_out : seconds of each candidate by what all others taught.
    learned : the file of what all taught.
    """

    candidates: tuple[Candidate, ...]
    first: Mapping[int, Plan]
    again: Mapping[int, Plan]
    chosen: tuple[str, ...]
    after: Mapping[str, float]
    whole: Mapping[str, float]
    left_out: Mapping[str, float]
    learned: Path

    @property
    def priced(self) -> dict[str, float]:
        return {one.name: one.priced for one in self.candidates}

    def error(self, by: Mapping[str, float], without: Sequence[str] = ()) -> float:
        """Median error of seconds, a share."""
        return median(abs(by[one.name] / one.measured - 1.0) for one in self.candidates
                      if one.name not in without)

    def ordered(self, by: Mapping[str, float]) -> float:
        """Share of pairs on equally many processes that seconds order as they were measured."""
        pairs = [(a, b) for a, b in combinations(self.candidates, 2) if a.ranks == b.ranks]
        return sum((by[a.name] < by[b.name]) == (a.measured < b.measured)
                   for a, b in pairs) / len(pairs)

    def pick(self, ranks: int, by: Mapping[str, float]) -> Candidate:
        """The fastest by given seconds."""
        return min((one for one in self.candidates if one.ranks == ranks and one.name in by),
                   key=lambda one: by[one.name])

    def standing(self, pick: Candidate) -> tuple[int, int, float]:
        """Place of one in the measured order, of how many, its regret."""
        own = [one.measured for one in self.candidates if one.ranks == pick.ranks]
        faster = sum(seconds < pick.measured for seconds in own)
        return faster + 1, len(own), pick.measured / min(own) - 1.0


def run(python: str, folder: Path, words: Sequence[str], **variables: str) -> str:
    """What a program of the other Python prints.

    Raises
    ------
    SystemExit : it failed.
    """
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(words), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, timeout=500, env={
            **kept, **variables, "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"})
    if done.returncode:
        raise SystemExit(done.stdout[-4000:])
    return done.stdout


def probed(python: str, folder: Path, seconds: float) -> tuple[Cluster, Stack]:
    """This machine by its own measurements: files of `nest probe`, loaded."""
    if command(["probe", "--write", str(folder / "probe.py")]):
        raise SystemExit("nest probe --write failed")
    run(python, folder, [python, "-m", "torch.distributed.run", "--nproc-per-node",
                         str(max(RANKS)), "--standalone", "probe.py", "--seconds", str(seconds)])
    if command(["probe", str(folder / "probe.json"), "-o", str(folder / "mine")]):
        raise SystemExit("nest probe failed")
    return (nest.load_cluster(str(folder / "mine" / "cluster.yaml")),
            load_stack(str(folder / "mine" / "stack.yaml")))


def trained(python: str, folder: Path, ranks: int, plans: Mapping[str, Plan]) -> list[Candidate]:
    """All plans for so many processes, exported, and trained by one start."""
    here = folder / f"on{ranks}"
    here.mkdir()
    files: dict[str, str] = {}
    for name, plan in plans.items():
        files = nest.export(plan, "fsdp2")
        module = files.pop("parallelize.py")
        (here / f"parallelize_{name}.py").write_text(module, encoding="utf-8")
        (folder / f"{name}.json").write_text(plan.to_json(), encoding="utf-8")
    for name, text in files.items():  # the launch is the same for all
        (here / name).write_text(text, encoding="utf-8")
    run(python, here, ["bash", "launch.sh"], PROGRAM=str(PROGRAM), MODULES=str(here),
        TIMES=str(here / "times.json"), WIDTH=str(MODEL["hidden"]), LAYERS=str(MODEL["layers"]))
    times = json.loads((here / "times.json").read_text("utf-8"))
    return [Candidate(name, folder / f"{name}.json", plan, tuple(times[name]["seconds"]),
                      times[name]["loss"]) for name, plan in plans.items()]


def chosen(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Runs in the order in which `nest next` chooses them, each after what the last one took."""
    done: list[Candidate] = []
    while len(done) < LEARNED:
        told = [observed(one.plan, one.name, "ran", one.measured) for one in done]
        left = [one for one in candidates if one not in done]
        found = following(told, [observed(one.plan, one.name) for one in left], worth=0.0)
        done.append(left[found[0].number])
    return done


def loop(python: str, folder: Path, seconds: float = 20.0) -> Loop:
    """Probe, plan, train, learn and plan again; all files are in a folder."""
    cluster, stack = probed(python, folder, seconds)
    model = Model.parse(MODEL)
    job = Job(global_batch=BATCH, seq_len=64, precision="fp32", stack=stack)
    first: dict[int, Plan] = {}
    candidates: list[Candidate] = []
    for ranks in RANKS:
        sized = cluster.with_devices(ranks)
        first[ranks] = nest.plan(model, sized, job, SPACE)
        plans = {f"{ranks}_{name}": nest.evaluate(
            model, sized, job, even_configuration(
                model, sized, job, mbs=BATCH * degrees.get("tp", 1) // ranks, **degrees))
            for name, degrees in CANDIDATES[ranks].items()}
        candidates += trained(python, folder, ranks, plans)
    order = chosen([one for one in candidates if one.ranks == max(RANKS)])
    written = folder / "learned.yaml"
    if command(["learn", *(f"{one.path}:{one.measured}" for one in candidates), "-o",
                str(written)]):
        raise SystemExit("nest learn failed")
    whole = nest.load_learned(str(written))
    points = [observed(one.plan, one.name) for one in candidates]

    def by(taught: Learned) -> dict[str, float]:
        found = taught.posterior.forecast(points).seconds
        return {one.name: float(found[n]) for n, one in enumerate(candidates)}

    again = {ranks: nest.plan(model, cluster.with_devices(ranks),
                              job.replace(stack=whole.taught()), SPACE) for ranks in RANKS}
    return Loop(
        tuple(candidates), first, again, tuple(one.name for one in order),
        by(learn([f"{one.path}:{one.measured}" for one in order])), by(whole),
        {one.name.removesuffix(".json"): one.expected for one in whole.left_out}, written)


def loop_text(found: Loop, width: int = 80) -> str:
    """The table of a loop."""
    page = Page(width, False, False)
    rows = []
    for one in sorted(found.candidates, key=lambda one: (one.ranks, one.measured)):
        spread = (max(one.seconds) - min(one.seconds)) / one.measured
        ran = str(found.chosen.index(one.name) + 1) if one.name in found.chosen else ""
        each = (one.measured, one.priced, found.after[one.name], found.left_out[one.name])
        rows.append((one.name, *(f"{1e3 * value:.0f}" for value in each), f"{100 * spread:.0f} %",
                     ran))
    page.table("Steps in ms: priced, after the chosen runs, after all others", (
        "processes_plan", "measured", "priced", "chosen", "others", "spread", "run"), rows, (0,))
    for name, seconds in (("price", found.priced), (f"{LEARNED} runs", found.after),
                          ("all others", found.left_out)):
        without = found.chosen if seconds is found.after else ()
        page.paragraph(f"By {name}: {100 * found.error(seconds, without):.0f} % off in the "
                       f"median, {100 * found.ordered(seconds):.0f} % of pairs in order.")
    for ranks in RANKS:
        ways = [("price", found.priced), ("all runs", found.whole)]
        if ranks == max(RANKS):
            ran = {one.name: one.measured for one in found.candidates if one.name in found.chosen}
            ways.insert(1, (f"best of {LEARNED} runs", ran))
        page.paragraph(f"Pick on {ranks}: " + "; ".join(
            f"by {name} {place} of {count}, {100 * regret:.0f} % slower than the fastest"
            for name, seconds in ways for place, count, regret
            in [found.standing(found.pick(ranks, seconds))]))
    for ranks in RANKS:
        for name, plan in (("before", found.first[ranks]), ("after", found.again[ranks])):
            one = plan.stages[0]
            page.paragraph(f"nest plan on {ranks}, {name}: tp {one.tp}, zero {one.zero}, recompute "
                           f"{one.recompute}, {1e3 * plan.step_time_s:.0f} ms")
    return page.text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the probe")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    print(loop_text(loop(asked.python, asked.out.resolve(), asked.seconds)), file=sys.stdout)


if __name__ == "__main__":
    main()

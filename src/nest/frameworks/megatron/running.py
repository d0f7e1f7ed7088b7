"""A launch script of Megatron-LM that runs today, and the same with a better plan."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Self

from nest.errors import InputError, KernelError, UnsupportedError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.capture.document import ScriptText
from nest.frameworks.hosts import Placed, RankPlaces, devices_of, per_node, places
from nest.frameworks.improvement import (
    UNSET,
    Change,
    Now,
    RunningJob,
    WrittenFiles,
    parts,
    placed,
    shown_words,
    unsearched,
    with_overlap,
)
from nest.frameworks.launchers import DEFAULT, LAUNCHERS
from nest.frameworks.megatron import arguments, edit_script
from nest.frameworks.megatron import write as megatron
from nest.frameworks.megatron.edit_script import NAME, remade
from nest.frameworks.megatron.read import Described, described
from nest.frameworks.megatron.script import Launch, followed, name_of, opened, placed_beside
from nest.frameworks.megatron.write import TARGET
from nest.frameworks.settings import Words, arguments_of, known
from nest.inputs.cluster import MOST_PER_NODE, Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job, Stack
from nest.inputs.loading import load_stack
from nest.inputs.model import Model
from nest.inputs.space import SearchSpace
from nest.model.legality import divisors

OVERLAPS = {"overlap-grad-reduce": "overlap_grad_reduce",
            "overlap-param-gather": "overlap_param_gather", "tp-comm-overlap": "overlap_tp"}
"""Arguments that switch overlap on, and the field of a stack that prices it."""
DISPATCHER = "moe-token-dispatcher-type"
MAPPED = "--use-tp-pp-dp-mapping"
"""The argument by which ranks go replica by replica."""
ORDER = ('Ranks of nodes: the first node of "$here/hosts" is rank 0, the next one rank 1, and so '
         "on; nodes are numbered as in the cluster, from 0.")
"""Comment of a script whose nodes have another order than those of the cluster."""
_STEP = re.compile(r"[^:\s]{1,30}:(\d{1,9})")


@dataclass(frozen=True, kw_only=True)
class RunningScript(RunningJob):
    """A launch script of Megatron-LM and how it is to be read."""

    path: str
    launch: Launch
    described: Described
    again: Mapping[str, Any]
    """Arguments of :func:`described` besides words, devices and places."""
    common: int | None
    """What micro-batches of all replicas together divide."""
    in_place: bool

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], cluster: Cluster, vocab: int | None, stack: str | None,
        variables: Mapping[str, str] | None, ignored: Sequence[str], in_place: bool,
        number: int | None = None,
    ) -> Self:
        """Read a script; see :func:`nest.improve`.

        Raises
        ------
        InputError : as :func:`nest.read`, but for configurations that do not fit these devices.
        """
        launch = opened(path, variables, number)
        again: dict[str, Any] = {
            "name": name_of(path), "vocab": vocab, "stack": stack, "ignored": tuple(ignored)}
        at = placed_beside(launch.source, launch.launcher)
        each, nodes = (int(launch.launcher.get(name, 0)) for name in ("each", "nodes"))
        # A plan that leaves devices idle has fewer ranks: those listed, or that the launcher
        # starts. Which of both is meant is not said: whichever takes less time.
        fewer = len(at) if at is not None else each * nodes
        ways = [cls._of(path, launch, described(
            launch.words, size, lenient=True, places=at, **again), cluster, again, in_place)
            for size in (cluster.size, fewer) if 0 < size <= cluster.size]
        return min(ways, key=lambda one: one.now().seconds)

    @classmethod
    def _of(
        cls, path: str | os.PathLike[str], launch: Launch, found: Described, cluster: Cluster,
        again: Mapping[str, Any], in_place: bool,
    ) -> Self:
        job = Job.parse(found.job, launch.where)
        notes = (*found.notes, *launch.script.notes)
        where, line = launch.source.place(launch.where, launch.command.line)
        common = _common_batch(arguments_of(launch.words, known())[0], job.global_batch)
        if common:
            notes += (f"batches of the schedule are multiples of {common}: micro-batch x data "
                      "parallel size divides it",)
        return cls(
            target="megatron", where=where, line=line,
            model=Model.parse(found.model, launch.where), job=job, cluster=cluster, notes=notes,
            keeps=(*OVERLAPS, DISPATCHER), path=os.fspath(path), launch=launch, described=found,
            again=again, common=common, in_place=in_place)

    @property
    def given(self) -> Mapping[str, tuple[str, ...]]:
        """Arguments of the command by name."""
        return arguments_of(self.launch.words, known())[0]

    def now(self) -> Now:
        """What the script takes."""
        if self.described.problem:
            return Now(None, tuple(self.described.problem.splitlines()))
        try:
            return self._priced(self.described)
        except InputError as error:
            why = tuple(str(error).splitlines())
            if "straddle" not in str(error):
                return Now(None, why)
        try:  # ranks stage by stage leave groups of the cluster partly used
            found = self._priced(described(
                (*self.launch.words, MAPPED), self.cluster.size, **self.again))
        except InputError:
            return Now(None, why)
        return found._replace(notes=(
            "ranks are priced replica by replica: stages straddle groups of the cluster",))

    def _priced(self, found: Described) -> Now:
        return self.priced(Configuration.parse(found.configuration, self.launch.where))

    # ------------------------------------------------------------ the search

    def _stacks(self, keep: tuple[str, ...]) -> Iterator[Stack]:
        """The script's stack with overlap; then without gathering of tokens for experts."""
        given, own = self.described.job["stack"], self.job.stack
        base = load_stack(str(given["base"] if isinstance(given, dict) else given))
        stack = with_overlap(own, base, OVERLAPS, keep)
        yield stack
        if own.dispatcher == "allgather" and self.model.moe and DISPATCHER not in keep:
            yield stack.replace(dispatcher="alltoall")

    def spaces(
        self, before: Plan | None, space: SearchSpace | None, keep: tuple[str, ...]
    ) -> Iterable[tuple[Stack, SearchSpace]]:
        """The space asked for; in place its ranks go stage by stage, or replica by replica."""
        ways = [{name: 1} for name in ("pp", "outer_dp", "dp_in")] if self.in_place else [{}]
        spaces = [*parts(unsearched(before, space), ways)]
        if self.common is not None:
            spaces = [part for each in spaces for part in _bounded(each, self.common)]
        return product(self._stacks(keep), spaces)

    def lacks(self, plan: Plan) -> tuple[str, ...]:
        """Why the script cannot keep its launcher, where it has to."""
        return tuple(one.sentence for one in plan.launch_needs) if self.in_place else ()

    # ------------------------------------------------------------ the new script

    def written(self, before: Plan | None, plan: Plan) -> WrittenFiles:
        """The script with other arguments, or a new one; lists of nodes or ranks beside it."""
        stack = plan.inputs.job.stack.capabilities
        if stack is None or (stack.software, stack.version) not in TARGET.rules:
            what = "an unknown version" if stack is None else f"{stack.software} {stack.version}"
            return WrittenFiles(refused=(
                f"a script is written for {megatron.VERSION}, and the stack is {what}",))
        given = self.given
        try:
            new = arguments.said(plan, arguments.mapped(plan))
            old = arguments.unpriced(given, new) if before is None else arguments.said(
                before, MAPPED[2:] in given)
        except UnsupportedError as error:
            return WrittenFiles(refused=error.problems)
        change = arguments.changed(given, old, new, plan)
        names = dict.fromkeys((*change.taken, *change.given))
        lines = (Change(name=f"--{name}", before=shown_words(given, name),
                        after=shown_words(change.given, name)) for name in names)
        changes, notes = placed((line for line in lines if line.before != line.after),
                                self.launch.source.capture)
        return WrittenFiles(self._files(plan, change), changes, notes=notes)

    def _files(self, plan: Plan, change: arguments.Flags) -> dict[str, str]:
        launch, table = self.launch, known()
        each = int(launch.launcher.get("each", "0"))
        cluster = self.cluster
        # A launcher that starts all ranks says nothing of nodes, one on nodes of which some devices
        # are not used says less than their size.
        if not 1 <= each <= MOST_PER_NODE or (cluster.numbers and cluster.links is None):
            each = per_node(cluster)
        order = TARGET.order(plan)
        found = places(order, each, in_a_row=cluster.numbers is None)
        title = f"{self.model.name}, {cluster.size} devices: for {megatron.VERSION}."
        listed = LAUNCHERS[DEFAULT].files(found, title)
        wanted = {name: value for name, value in megatron.variables(
            plan.configuration, plan.inputs.job, cluster.device.name).items()
            if launch.command.variables.get(name, UNSET.get(name)) != value}
        # it orders its nodes itself
        own = placed_beside(launch.source, launch.launcher) is not None
        other = own or "ranks" in listed or len(found.at) != cluster.size
        text = None if other or launch.source.capture else edit_script.edited(
            launch.source.text, change, table, edit_script.Head(
                launch.command.variables, wanted, ORDER if "hosts" in listed else ""),
            partial(edit_script.stands, launch=launch, flags=change, table=table))
        name, given = os.path.basename(self.path), {**launch.given}
        if text is None:
            # It hands its own arguments to the program, and needs none of the old script's.
            given = {key: value for key, value in given.items() if not key.isdigit()}
            marked, _ = arguments_of(launch.marked, table)
            text, name = remade(launch, plan, arguments.applied(self.given, change), marked, found,
                                (title,)), NAME
        files = {name: text, **listed}
        new = ScriptText(files[name], launch.source.path)
        self._check(plan, files, followed(new, launch.where, given), found,
                    self._beside_idle(order, found))
        return files

    def _beside_idle(self, order: Sequence[Rank], at: RankPlaces) -> Placed | None:
        """Devices of the ranks, where others of the same nodes are idle: what a launch does not
        say, with a list of hosts either. None: it says all."""
        if self.cluster.links is not None or at.each is None:
            return None
        numbers = self.cluster.numbers or range(self.cluster.size)
        number = {device: n for n, device in enumerate(numbers)}
        found = tuple(number[rank.device] for rank in order)
        if all(device // at.each == place.node for device, place in zip(
                found, at.at, strict=True)):
            return None
        return found

    def _check(
        self, plan: Plan, files: Mapping[str, str], launch: Launch, at: RankPlaces,
        devices: Placed | None,
    ) -> None:
        """Read a new script: it must have the plan's step time. ``devices``: those that it does not
        say, by rank.

        Raises
        ------
        KernelError : it has another one.
        """
        where = f"{self.launch.where}, changed"
        hosts, ranks = files.get("hosts"), files.get("ranks")
        if devices is None and (hosts or ranks):
            devices = devices_of(hosts, ranks, at.each or at.per_node or 1, where)
        found = described(launch.words, len(at.at), **self.again, places=devices)
        again = evaluate(Model.parse(found.model, where), self.cluster, Job.parse(found.job, where),
                         Configuration.parse(found.configuration, where))
        if again.step_time_s != plan.step_time_s:
            raise KernelError(f"the new script takes {again.step_time_s} s by what it says, the "
                              f"plan {plan.step_time_s} s")


# ---------------------------------------------------------------- batches that grow


def _common_batch(given: Mapping[str, Words], batch: int) -> int | None:
    """The largest number that divides all batches of a training; None: the batch never changes.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/num_microbatches_calculator.py:474
    (ramps); the same file of NVIDIA/Megatron-LM@d98e8a6 has ``--step-batch-size-schedule``.

    Parameters
    ----------
    given : arguments of a command line, by name.
    batch : global batch at the end.
    """
    if "decrease-batch-size-if-needed" in given:
        return None
    sizes: list[int] = []
    ramp = given.get("rampup-batch-size", ())
    if len(ramp) == 3 and all(word.isdecimal() for word in ramp[:2]):
        sizes += map(int, ramp[:2])
    for text in given.get("step-batch-size-schedule", ()):
        sizes += map(int, _STEP.findall(text))
    return math.gcd(batch, *sizes) if sizes else None


def _bounded(space: SearchSpace, common: int) -> Iterator[SearchSpace]:
    """Parts of a space in which micro-batches of all replicas together divide a number."""
    for replicas in divisors(common):
        samples = [n for n in divisors(common // replicas) if space.allows("micro_batch", n)]
        if samples and space.allows("outer_dp", replicas):
            yield space.replace(outer_dp=replicas, micro_batch=samples)

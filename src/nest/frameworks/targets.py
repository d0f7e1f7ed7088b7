"""The software that plans are exported to, and the files of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nest import plugins
from nest.errors import InputError, UnsupportedError, did_you_mean
from nest.evaluation.plans import Plan
from nest.frameworks.hosts import RankPlaces, per_node, places
from nest.frameworks.launchers import DEFAULT, LAUNCHERS
from nest.frameworks.registry import TARGETS
from nest.frameworks.submitters import Handover, submission, submitters
from nest.frameworks.target import refuse, sheet
from nest.inputs.arguments import need, need_count, takes
from nest.inputs.cluster import Cluster
from nest.simulation import chakra, simai
from nest.units import shorten

_FILE = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}")
"""A file of an export of another package."""


@takes(hosts="texts")
def export(
    plan: Plan, target: str, *, gpus_per_node: int | None = None, launcher: str = DEFAULT,
    hosts: Sequence[str] | None = None, settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write a plan as the files that its software is launched with, or as traces of its step.

    Parameters
    ----------
    plan : one that ``target`` runs; what it cannot express is refused.
    target : a name of ``nest.frameworks.targets.TARGETS``, such as "megatron", of ``TRACES``, or of
        an export that another package adds (`nest.plugins`).
    gpus_per_node : devices of a node; default: those of the innermost level of the cluster, or 4
        where that is a rack (more than 16 devices).
    launcher : what starts the processes: "torchrun", on each node; "deepspeed", "mpi" (Open MPI) or
        "slurm", on one; or what asks a cluster for nodes, such as "sbatch-pyxis", "jobset" or
        "skypilot", a name of ``nest.frameworks.submitters.submitters()``.
    hosts : names of the nodes in the order of the cluster, for lists of hosts; default: node0,
        node1, ..., for Slurm those of the allocation.
    settings : of a launcher that asks a cluster for nodes, such as ``{"image": "a:1"}``; names in
        capital letters are variables of the environment.

    Returns
    -------
    Texts of the files by name: a script, what it hands to the program, and where the ranks need
    them lists of hosts or ranks; of traces also bytes.

    Raises
    ------
    InputError : no target, launcher or plan, names that are none of hosts, or nodes that do not
        divide the cluster or are larger.
    UnsupportedError : the plan does not fit, its stack is not the target's, or target or launcher
        cannot express it; one sentence for each.
    """
    need("plan", plan, (Plan,), 'nest.load_plan("plan.json")')
    need_target(target)
    need_launcher(launcher)
    if gpus_per_node is not None:
        gpus_per_node = need_count("gpus_per_node", gpus_per_node)
    if target not in TARGETS:
        if hosts is not None or gpus_per_node is not None:
            raise InputError(f"hosts, gpus_per_node: got values with {target}; allowed: with "
                             "launch scripts only")
        if target in TRACES:
            return {**TRACES[target](plan)}
        added: dict[str, Any] = _added()[target].use(
            lambda make: _files(make(plan)), (UnsupportedError,))
        return added
    software = TARGETS[target]
    refuse(software, plan, target)
    cluster, each = plan.inputs.cluster, per_node(plan.inputs.cluster, gpus_per_node)
    how = _submission(plan, launcher, settings or {}, each)
    found = places(software.order(plan), each, hosts,
                   cluster.numbers is None, (cluster.levels[0].name, cluster.whole_sizes[0]))
    if software.alone:
        found = found._replace(each=None)
    if how is not None:
        found, launcher = _handed(how, cluster, found), how.by.starts
    if found.each is None and not LAUNCHERS[launcher].ranks:
        others = ", ".join(name for name, one in LAUNCHERS.items() if one.ranks)
        reason = (f"launcher {launcher}: it numbers the ranks of a node consecutively, and this "
                  f"plan has another order; use {others} (--launcher)")
        raise UnsupportedError(f"{target} cannot launch this plan:\n{reason}", (reason,))
    return software.files(sheet(software, plan, found, launcher, how))


def _submission(plan: Plan, launcher: str, given: Mapping[str, str], each: int
                ) -> Handover | None:
    """How a plan is handed to a cluster; None: the user starts its script.

    Raises
    ------
    InputError : settings of a launcher that has none, or as of :func:`submission`.
    """
    if not isinstance(given, Mapping) or not all(
            isinstance(text, str) for pair in given.items() for text in pair):
        raise InputError(f"settings: got {shorten(given)}; allowed: texts by name")
    if launcher not in submitters():
        if given:
            raise InputError(f"settings: got {', '.join(given)} with {launcher}; allowed: with "
                             f"{', '.join(submitters())}")
        return None
    name = plan.inputs.model.name if plan.inputs.model else plan.inputs.cluster.name
    return submission(submitters()[launcher], given, plan.inputs.cluster, name, each)


def _handed(how: Handover, cluster: Cluster, found: RankPlaces) -> RankPlaces:
    """Places with the names that hosts get from a launcher.

    Raises
    ------
    InputError : names of hosts that it does not take.
    UnsupportedError : as of :meth:`nest.frameworks.submitters.Submitter.need`.
    """
    how.by.need(cluster, found)
    if found.named and not how.by.entry.get("named"):
        raise InputError(f"hosts: got names with {how.by.name}; allowed: none, because the cluster "
                         "says its hosts when it has them")
    known = how.by.hosts(len(found.nodes), how.settings["name"])
    if known is None:
        return found
    used = dict(zip(sorted(found.nodes), known, strict=True))
    names = tuple(used.get(node, name) for node, name in enumerate(found.names))
    return found._replace(names=names, named=True)


def launch_files(plan: Plan) -> tuple[str, dict[str, str]] | None:
    """The first target that runs a plan, and the texts of its files; None: there is none."""
    for target in TARGETS:
        try:
            return target, export(plan, target)
        except (InputError, UnsupportedError):
            continue
    return None


def need_target(target: object) -> None:
    """Refuse what is no target.

    Raises
    ------
    InputError : it is none; lists those there are.
    """
    own = {**TARGETS, **TRACES}
    if target not in own:
        _need("target", target, {**own, **_added()})


def _added() -> dict[str, plugins.Registration]:
    """Exports of other packages by name."""
    return plugins.registered(plugins.EXPORTS, (*TARGETS, *TRACES))


def _files(made: object) -> dict[str, str | bytes]:
    """What an export of another package returns.

    Raises
    ------
    ValueError : it is not files by name.
    """
    if not isinstance(made, Mapping) or not made:
        raise ValueError(f"got {shorten(made)}; needed: texts or bytes by file name")
    for name, text in made.items():
        if not isinstance(name, str) or not _FILE.fullmatch(name) or not isinstance(
                text, (str, bytes)):
            raise ValueError(f"got {type(text).__name__} for {shorten(name)}; needed: texts or "
                             "bytes by a file name without folders")
    return {**made}


def need_launcher(launcher: object) -> None:
    """Refuse what is no launcher.

    Raises
    ------
    InputError : it is none; lists those there are.
    """
    _need("launcher", launcher, {**LAUNCHERS, **submitters()})


def _need(what: str, given: object, known: Mapping[str, object]) -> None:
    if not isinstance(given, str) or given not in known:
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        raise InputError(f"{what}: got {shorten(given)}; {near}allowed: {', '.join(known)}")


TRACES: Mapping[str, Callable[[Plan], Mapping[str, str | bytes]]] = {
    "chakra": chakra.files, "simai": simai.files}
"""Inputs of simulators by name: files of one step, which launch nothing."""

"""Launchers that ask a cluster for nodes and start a launch script there.

What each writes is data (`submitters.yaml`): batch scripts of Slurm, documents of Kubernetes, tasks
of SkyPilot, programs for NeMo-Run and Ray. Each starts the script that a launcher of
:mod:`nest.frameworks.launchers` has, once or on each node. Hosts are those that the cluster gives:
node n of the plan is the n-th of them, in the order of the launcher's own numbers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError, UnsupportedError, did_you_mean
from nest.frameworks.hosts import RankPlaces
from nest.inputs.cluster import Cluster
from nest.inputs.files import read_description, yaml_of_others
from nest.units import shorten

_WHOLE, _NAMED = re.compile(r"\{([a-z_]+)\}"), re.compile(r"\{([a-z_]+)\}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
_PLAIN = re.compile(r"[^\s'\"`$\\;|&<>(){}*?!]{1,300}", re.ASCII)
_LABEL = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
MOST_FILES = 1_000_000
"""Bytes of the files of a ConfigMap (kubernetes: 1 MiB with its fields)."""


class Submitter(NamedTuple):
    """A launcher of the table."""

    name: str
    entry: Mapping[str, Any]

    @property
    def starts(self) -> str:
        """The launcher whose script it starts."""
        return str(self.entry["starts"])

    def settings(self, given: Mapping[str, str], device: str, model: str) -> dict[str, str]:
        """Its settings, those that are not given by default.

        Raises
        ------
        InputError : one that it does not have, that is not allowed, or that is missing.
        """
        allowed, kinds = self.entry["settings"], _table()["settings"]
        found = {one: str(kinds[one].get("default", "")) for one in kinds}
        found |= _of(_table()["devices"], device)
        found["name"] = _label(model)
        if "accelerator" in allowed:
            found["accelerator"] = _of(_table()["accelerators"], device) or ""
        for key, value in given.items():
            if key not in allowed and not _VARIABLE.fullmatch(key):
                raise InputError(f"settings: {self.name} has no {shorten(key)}; "
                                 f"{did_you_mean(key, allowed)}allowed: {', '.join(allowed)}, and "
                                 "names of environment variables in capital letters")
            form = _LABEL if key == "name" else _PLAIN
            if key in allowed and not form.fullmatch(value):
                what = "small letters, digits and hyphens" if key == "name" else (
                    "one word without quotes and other signs of shells")
                raise InputError(f"settings: {key}: got {shorten(value)}; allowed: {what}")
            if key not in allowed and not value.isprintable():
                raise InputError(f"settings: {key}: got {shorten(value)}; allowed: one line")
        found |= {key: value for key, value in given.items() if key in allowed}
        missing = [f"{key} ({kinds[key]['is']})" for key in allowed if not found[key] and (
            kinds[key].get("needed") or key in self.entry.get("needed", ()))]
        if missing:
            raise InputError(f"settings: {self.name} needs {', '.join(missing)}: --set "
                             f"{missing[0].split()[0]}=VALUE")
        return found

    def hosts(self, count: int, name: str) -> list[str] | None:
        """Names that the hosts will have, by their number; None: they are not known."""
        form = self.entry.get("host")
        return None if form is None else [
            _text(form, {"name": name, "at": at}) for at in range(count)]

    def need(self, cluster: Cluster, found: RankPlaces) -> None:
        """Refuse what it cannot start.

        Raises
        ------
        UnsupportedError : devices of several types.
        """
        if cluster.types:
            types = ", ".join(device.name for device in cluster.device_types)
            reason = (f"launcher {self.name}: its nodes are all alike, and the cluster has several "
                      f"types of device ({types}); use torchrun or mpi (--launcher)")
            raise UnsupportedError(f"{self.name} cannot launch this plan:\n{reason}", (reason,))

    def container(self, settings: Mapping[str, str]) -> str:
        """What starts each process, in words of shell."""
        form = self.entry.get("process", "")
        known = {**settings, "comma": "," if settings["mounts"] else "",
                 "image": shlex.quote(settings["image"])}
        return _text(form, known)


class Handover(NamedTuple):
    """How a plan is handed to a cluster."""

    by: Submitter
    settings: Mapping[str, str]
    variables: Mapping[str, str]
    """Of the environment, as given."""
    per_node: int
    """Devices of a node."""


@cache
def _table() -> Mapping[str, Any]:
    return read_description(Path(__file__).with_name("submitters.yaml"))


@cache
def submitters() -> dict[str, Submitter]:
    """All of them by name."""
    return {name: Submitter(name, entry) for name, entry in _table()["launchers"].items()}


def submission(
    by: Submitter, given: Mapping[str, str], cluster: Cluster, model: str, per_node: int
) -> Handover:
    """How a plan is handed to a cluster.

    Raises
    ------
    InputError : as of :meth:`Submitter.settings`.
    """
    return Handover(by, by.settings(given, cluster.device.name, model),
                      {key: value for key, value in given.items() if _VARIABLE.fullmatch(key)},
                      per_node)


def submitted(
    how: Handover, found: RankPlaces, title: str, asked: Mapping[str, str],
    files: Mapping[str, str],
) -> dict[str, str]:
    """The files that hand a script to a cluster, by name.

    Parameters
    ----------
    title : a line.
    asked : variables of the environment that the script needs, with what they are.
    files : the script, and what it reads.

    Raises
    ------
    UnsupportedError : files that are too large for a ConfigMap.
    """
    entry = how.by.entry
    known = _known(how, found, title, asked)
    extra = {name: _text(text, known) for name, text in entry.get("extra", {}).items()}
    known["texts"] = {**files, **extra}
    size = sum(len(text.encode()) for text in known["texts"].values())
    if "{files}" in entry.get("documents", ()) and size > MOST_FILES:
        reason = (f"launcher {how.by.name}: the plan's files have {size:,} bytes, and a ConfigMap "
                  f"{MOST_FILES:,}; use sbatch or torchrun (--launcher)")
        raise UnsupportedError(f"{how.by.name} cannot launch this plan:\n{reason}", (reason,))
    for name, part in _table()["parts"].items():
        known[name] = part
    if "text" in entry:
        text = _text(known["sbatch"] if entry["text"] == "{sbatch}" else entry["text"], known)
    else:
        head = f"# {title}\n# For {entry['software']}.\n"
        made = [yaml_of_others(_filled(one, known)) for one in entry["documents"]]
        text = head + "---\n".join(made)
    return {entry["file"]: text, **extra}


def _known(how: Handover, found: RankPlaces, title: str, asked: Mapping[str, str]
           ) -> dict[str, Any]:
    """What names in the table stand for."""
    entry, used = how.by.entry, sorted(found.nodes)
    first = found.nodes[0]
    if entry.get("first"):  # number 0 has rank 0
        used = [first, *(node for node in used if node != first)]
    at = used.index(first)
    variables = {**dict.fromkeys(asked, ""), **how.variables}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    known: dict[str, Any] = {
        **how.settings, "title": title, "file": entry["file"], "nodes": len(used),
        "others": len(used) - 1, "ranks": len(found.at), "per_node": how.per_node,
        "at": at, "line": at + 1, "container": entry.get("container", "train"),
        "env": env, "env_mapping": variables, "env_text": repr(variables),
        "env_named": [*env, {"name": "NODE_NAME", "valueFrom": {
            "fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "per_node_text": str(how.per_node),
        "hosts_text": repr([found.names[node] for node in used] if found.named else []),
        "exports": "\n".join(f"export {name}={shlex.quote(value)}"
                             for name, value in how.variables.items())}
    known["subdomain"] = _text(entry.get("subdomain", ""), known)
    index, lines = entry.get("index", ""), []
    if used != [*range(len(used))]:
        lines = [f"nodes=({' '.join(map(str, used))})"]
        index = "${nodes[" + index + "]}"
    folder = entry.get("folder", "/plan")
    known["start"] = "\n".join([
        *lines, f"export NODE={index} MASTER_ADDR={_text(entry.get('address', ''), known)}",
        f"exec bash {folder}/launch.sh" + (' "$@"' if entry.get("extra") else "")])
    known |= {f"{name}_text": repr(known[name]) for name in (
        "start", "name", "image", "mounts", "partition", "account", "time")}
    known["address_text"] = repr(_text(entry.get("setup", ""), known))
    return known


def _text(form: str, known: Mapping[str, Any]) -> str:
    """A text with what its names stand for; of several lines those that name what is empty are left
    out."""
    lines = [line for line in form.split("\n") if "\n" not in form or not any(
        known.get(name) == "" for name in _NAMED.findall(line))]
    return _NAMED.sub(lambda name: str(known[name[1]]) if name[1] in known else name[0],
                      "\n".join(lines))


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """Data with what its names stand for; None: it is left out."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        if whole and whole[1] in _table()["parts"]:
            return _filled(known[whole[1]], known)
        return known[whole[1]] if whole else _text(value, known)
    if isinstance(value, (list, tuple)):
        items = [_filled(one, known) for one in value]
        return [one for one in items if one is not None]
    if not isinstance(value, Mapping):
        return value
    if "if" in value and not _filled(value["if"], known):
        return None
    found = {_text(str(key), known): _filled(one, known) for key, one in value.items()
             if key != "if"}
    return {key: one for key, one in found.items()
            if one not in ("", None) and one != {} and one != []}


def _of(table: Mapping[str, Any], device: str) -> Any:
    """The entry of the longest beginning of a device's name."""
    return table.get(max((start for start in table if device.startswith(start)), key=len,
                         default="-"))


def _label(name: str) -> str:
    """A name as Kubernetes takes them."""
    text = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    return (text if text[:1].isalpha() else f"plan-{text}")[:40].strip("-")

"""Files of Kubernetes that hold the command line of a job: its script, variables and devices.

Jobs, JobSets (kubernetes-sigs/jobset api/jobset/v1alpha2/jobset_types.go), PyTorchJobs and MPIJobs
of Kubeflow (kubeflow/training-operator pkg/apis/kubeflow.org/v1/pytorch_types.go), TrainJobs
(kubeflow/trainer pkg/apis/trainer/v1alpha1/trainjob_types.go), and Pods. The container is the one
that asks for devices; a script of a ConfigMap in the same file is read in place of its name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.units import shorten

_DEVICES = re.compile(r"(?:nvidia|amd|intel|habana|google|aws\.amazon|gpu\.intel)\.com/\w+")
_REPLICAS = ("replicas", "parallelism", "completions", "numNodes")
"""Fields that say how many Pods there are, each of the one above."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
MOST = 10**6


class ContainerScript(NamedTuple):
    """What a Pod of a job runs."""

    text: str
    """Of a script."""
    variables: Mapping[str, str]
    """Of its environment."""
    devices: int | None
    """Of all Pods; None: they ask for none."""


class _Container(NamedTuple):
    fields: Mapping[str, Any]
    pods: int
    devices: int
    """Of a Pod."""


def is_kubernetes(data: Any) -> bool:
    return isinstance(data, dict) and {"apiVersion", "kind"} <= {*data}


def script_of(documents: list[Any], where: str) -> ContainerScript:
    """The script of a job's containers.

    Parameters
    ----------
    documents : of the file; those that are no job may hold scripts (ConfigMap).

    Raises
    ------
    InputError : no container asks for devices or has a command, or several have different ones.
    """
    found = [one for data in documents if isinstance(data, dict) and data.get("kind") != "ConfigMap"
             for one in _containers(data, 1)]
    asking = [one for one in found if one.devices] or found
    commands = {" ".join(_words(one.fields)): one for one in asking if _words(one.fields)}
    if not commands:
        raise InputError(f"{where}: a file of Kubernetes without a container that has a command; "
                         "allowed: the job whose container starts the training, or its command "
                         "line in a file")
    if len(commands) > 1:
        shown = ", ".join(shorten(text) for text in [*commands][:4])
        raise InputError(f"{where}: containers have different commands ({shown}); allowed: one, in "
                         "a file of its own")
    one = next(iter(commands.values()))
    variables = _environment(one.fields)
    words = [_REFERENCE.sub(lambda name: variables.get(name[1], name[0]), word)
             for word in _words(one.fields)]
    devices = sum(each.pods * each.devices for each in asking) or None
    if devices is not None and devices > MOST:
        raise InputError(f"{where}: its Pods ask for {devices} devices; allowed: {MOST}")
    return ContainerScript(_text(words, documents), variables, devices)


def _containers(data: Any, pods: int) -> Iterator[_Container]:
    """Containers with the number of their Pods; numbers of the parts above multiply."""
    if isinstance(data, list):
        for one in data:
            yield from _containers(one, pods)
    if not isinstance(data, Mapping):
        return
    counts = {name: data[name] for name in _REPLICAS if type(data.get(name)) is int}
    pods = min(pods * max(1, *counts.values(), 1), MOST)  # parallelism and completions are alike
    for name, value in data.items():
        if name == "containers" and isinstance(value, list):
            yield from (_Container(one, pods, _asked(one.get("resources")))
                        for one in value if isinstance(one, Mapping))
        elif name == "trainer" and isinstance(value, Mapping):
            nodes = value.get("numNodes")
            yield _Container(value, nodes if type(nodes) is int and 0 < nodes <= MOST else 1,
                             _asked(value.get("resourcesPerNode")))
        elif name != "initContainers":
            yield from _containers(value, pods)


def _asked(resources: Any) -> int:
    """Devices that a Pod asks for."""
    given = resources if isinstance(resources, Mapping) else {}
    for part in (given.get("limits"), given.get("requests")):
        for name, value in (part.items() if isinstance(part, Mapping) else ()):
            if _DEVICES.fullmatch(str(name)) and re.fullmatch(r"\d{1,4}", str(value), re.ASCII):
                return int(value)
    return 0


def _words(fields: Mapping[str, Any]) -> list[str]:
    return [str(word) for name in ("command", "args") for word in (
        fields[name] if isinstance(fields.get(name), list) else ())]


def _environment(fields: Mapping[str, Any]) -> dict[str, str]:
    """Variables with values; those of other sources are not known."""
    given = fields.get("env")
    return {one["name"]: str(one["value"]) for one in (given if isinstance(given, list) else ())
            if isinstance(one, Mapping) and isinstance(one.get("name"), str)
            and _NAME.fullmatch(one["name"]) and isinstance(one.get("value"), (str, int, float))}


def _text(words: list[str], documents: list[Any]) -> str:
    """The script: behind ``-c``, of a ConfigMap, or the command line itself."""
    shell = words[0].rpartition("/")[2] in ("bash", "sh")
    option = next((n for n, word in enumerate(words[:4]) if re.fullmatch(r"-\w*c", word)), None)
    scripts = {str(name): text for data in documents
               if isinstance(data, dict) and data.get("kind") == "ConfigMap"
               and isinstance(data.get("data"), Mapping)
               for name, text in data["data"].items() if isinstance(text, str)}
    if shell and option is not None and option + 1 < len(words):
        text = words[option + 1]
        started = re.findall(r"exec bash \S*/(\S+)", text)
        return next((scripts[name] for name in started if name in scripts), text)
    for word in words[:2] if shell else words[:1]:
        if (name := word.rpartition("/")[2]) in scripts:
            return scripts[name]
    return shlex.join(words) + "\n"

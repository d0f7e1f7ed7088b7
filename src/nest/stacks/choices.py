"""Values that a job's stack lets a person choose, such as what CUDA graphs capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nest.errors import InputError, did_you_mean
from nest.inputs.choices import CHOICES, ChoiceName
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace


def values(cluster: Cluster, job: Job, name: ChoiceName) -> list[str]:
    """Values that all devices of a cluster have; the one that the stack's figures say is first."""
    now = job.stack.chosen(name)
    found = [value for value, choice in (job.stack.choices.get(name) or {}).items()
             if all(choice.is_on(device.name) for device in cluster.device_types)]
    return [*([] if now is None else [now]), *(one for one in found if one != now)]


def allowed(cluster: Cluster, job: Job, space: SearchSpace, name: ChoiceName) -> list[str]:
    """Of these, the ones that a space allows."""
    return [one for one in values(cluster, job, name) if space.allows(name, one)]


def tried(cluster: Cluster, job: Job, space: SearchSpace, name: ChoiceName) -> list[str]:
    """Of these, without those that need other software unless the space names some."""
    listed = job.stack.choices.get(name) or {}
    return [one for one in allowed(cluster, job, space, name)
            if getattr(space, name) is not None or one not in listed or not listed[one].named
            or one == job.stack.chosen(name)]


def choice_problems(cluster: Cluster, job: Job, space: SearchSpace) -> Iterator[str]:
    """Bounds of a space that no value of the job's stack keeps."""
    for name in CHOICES:
        asked = getattr(space, name)
        for one in asked or () if asked and not allowed(cluster, job, space, name) else ():
            yield _problem(cluster, job, name, one)


def _problem(cluster: Cluster, job: Job, name: ChoiceName, value: str) -> str:
    known = values(cluster, job, name)
    elsewhere = value in (job.stack.choices.get(name) or {})
    devices = ", ".join(one.name for one in cluster.device_types)
    where = f" on {devices}" if elsewhere else ""
    return (f"{name}: got {value}; {did_you_mean(value, known)}allowed with stack "
            f"{job.stack.name}{where}: {', '.join(known) or 'nothing, it has no such choice'}")


def choosing(cluster: Cluster, job: Job, choices: Mapping[ChoiceName, str]) -> Job:
    """The job with values of its stack's choices.

    Raises
    ------
    InputError : a value that the stack has not, or has not on these devices.
    """
    stack = job.stack
    problems = tuple(_problem(cluster, job, name, value) for name, value in choices.items()
                     if value not in values(cluster, job, name))
    if problems:
        raise InputError("\n".join(problems), problems)
    for name, value in choices.items():
        if stack.chosen(name) != value:
            stack = stack.choosing(name, value)
    return job if stack is job.stack else job.replace(stack=stack)


def settled(cluster: Cluster, job: Job, space: SearchSpace) -> Job:
    """The job with the first value that a space allows for each choice."""
    first = {name: allowed(cluster, job, space, name)[:1] for name in CHOICES
             if getattr(space, name) is not None}
    return choosing(cluster, job, {name: found[0] for name, found in first.items() if found})

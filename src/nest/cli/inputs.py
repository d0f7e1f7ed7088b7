"""From arguments and options to descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nest.cli.naming import COMMAND_LINE
from nest.cli.output import say
from nest.errors import InputError
from nest.limits import count_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nest.inputs import Cluster, Job, Model, Profile, SearchSpace
    from nest.inputs.space import Module


def subject_and_cluster(
    names: Sequence[str], profile: str | None, as_type: str | None = None, **changes: Any
) -> tuple[Model | Profile, Cluster]:
    """What is trained and where, from the positional arguments.

    Parameters
    ----------
    names : MODEL CLUSTER, or CLUSTER.
    profile : file in the place of MODEL.
    as_type : model type to read a config.json as.
    changes : keyword arguments of `nest.load_network`.

    Raises
    ------
    InputError : too few or too many arguments, or one of them is not usable.
    LimitError : the cluster is a graph that is no hierarchy.
    """
    from nest.inputs import load_model, load_profile
    from nest.network.network import read_network

    wanted = ("CLUSTER",) if profile is not None else ("MODEL", "CLUSTER")
    if len(names) != len(wanted):
        why = " (--profile stands for MODEL)" if profile is not None else ""
        given = " ".join(names) or "none"
        raise InputError(f"arguments: got {given}; allowed: {' '.join(wanted)}{why}")
    if profile is not None and as_type is not None:
        raise InputError(f"--as: got {as_type[:60]!r}; allowed: nothing with --profile")
    subject: Model | Profile
    subject = load_profile(profile) if profile is not None else load_model(
        names[0], as_type)
    cluster, notes = read_network(names[-1], **changes)
    for note in notes:
        say(f"nest: note: {note}")
    return subject, cluster


def job_from(file: str | None, stack: str | None, **given: Any) -> Job:
    """The job of a file, of options, or of both; options win.

    Raises
    ------
    InputError : a field is missing in both, or not allowed.
    """
    from nest.inputs import Job, load_job, load_stack, read_description

    options = {name: value for name, value in given.items() if value is not None}
    if stack is not None:
        options["stack"] = load_stack(stack)
    data: dict[str, Any] = {}
    where = COMMAND_LINE
    if file is not None:
        data, where = read_description(file), file
        if not options or not set(data) & set(Job.model_fields):
            return load_job(file)  # which also reports a file of another type
    merged = {**data, **options}
    missing = [name for name in ("global_batch", "seq_len") if name not in merged]
    if missing:
        hints = [f"{COMMAND_LINE}: {name}: missing; needed: a number, or a --job file that has it"
                 for name in missing]
        raise InputError("\n".join(hints), tuple(hints))
    try:
        return Job.parse(merged, where)
    except InputError as error:
        lines = tuple(
            COMMAND_LINE + line.removeprefix(where) if field in options else line
            for line in error.problems
            for field in [line.removeprefix(f"{where}: ").partition(":")[0]])
        raise InputError("\n".join(lines), lines) from None


def space_from(file: str | None, **given: str | None) -> SearchSpace:
    """The search space of a file, of options, or of both; options win.

    Raises
    ------
    InputError : a field is not allowed.
    """
    from nest.inputs import SearchSpace, load_space

    base = load_space(file) if file is not None else SearchSpace()
    options = {name: value for name, value in given.items() if value is not None}
    if not options:
        return base
    fixed = {name: getattr(base, name) for name in base.model_fields_set}
    return SearchSpace.parse({**fixed, **options}, COMMAND_LINE)


def modules_from(text: str | None) -> tuple[Module, ...] | None:
    """Modules of selective recompute from text such as `core_attn+norm`, in their fixed order.

    Raises
    ------
    InputError : an unknown module, one given twice, or several combinations.
    """
    from nest.inputs import SearchSpace

    if text is None:
        return None
    found = SearchSpace.parse({"recompute_modules": text}, COMMAND_LINE).recompute_modules
    if found is None or len(found) != 1:
        raise InputError(f"{COMMAND_LINE}: recompute_modules: got {text[:60]!r}; allowed: one "
                         "combination, its modules joined by +")
    return tuple(found[0].split("+"))  # type: ignore[arg-type]


def check_counts(**given: int | None) -> None:
    """Refuse counts below 1 or above their limit; see :mod:`nest.limits`.

    Raises
    ------
    InputError : one is not allowed.
    """
    problems = tuple(filter(None, (count_problem(*item) for item in given.items())))
    if problems:
        raise InputError("\n".join(problems), problems)

"""From a catalog name, a file or plain data to a validated description."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from nest.errors import InputError
from nest.inputs import catalog
from nest.inputs.arguments import takes
from nest.inputs.base import Description, noun_of
from nest.inputs.cluster import Cluster, inner_sizes, size_template, without_sizes
from nest.inputs.configuration import Configuration
from nest.inputs.device import Device, resolve_device
from nest.inputs.failures import Failures
from nest.inputs.files import read_description, read_text
from nest.inputs.job import TRAINABLE, Job, Stack, resolve_stack
from nest.inputs.model import Model
from nest.inputs.profile import Profile, profile_from_csv
from nest.inputs.sources import FILES, Catalog, Source, check_source
from nest.inputs.space import SearchSpace
from nest.units import shorten

D = TypeVar("D", bound=Description)

# fields that no other type of file has, to name the type of a file given by mistake
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("plan", ("schema", "parallelism")),
    ("cluster", ("levels", "device")),
    ("model", ("model_type",)),
    ("model", ("architectures",)),
    ("model", ("hidden", "heads")),
    ("device", ("peak_flops",)),
    ("job", ("global_batch",)),
    ("profile", ("layers", "name")),
    ("configuration", ("stages", "micro_batch")),
    ("stack", ("overlap_grad_reduce",)),
)
_WORDS = {
    "model": "a NEST model, a Hugging Face config.json or a catalog name",
    "cluster": "a NEST cluster or a catalog name",
}


@takes(sources="sources")
def load_model(
    source: Source | Model, as_type: str | None = None, *, sources: Catalog = FILES
) -> Model:
    """Read a model from the catalog, a NEST file, a Hugging Face config.json or plain data.

    Parameters
    ----------
    source : catalog name (any case), path of a file or of a folder with a config.json, mapping, or
        a Model, which is returned unchanged. A mapping or file with `base` changes fields of that
        model: `{base: llama3-70b, trainable: {lora: {rank: 16}}}`.
    as_type : model type to read a config.json as, in place of its own (`llama`).
    sources : what a text may name; default: files too.

    Raises
    ------
    InputError : an unknown name, an unreadable file, or fields that are missing or not allowed.
    """
    if isinstance(source, Model):
        return source
    data, where, path = sources.entry(source, "models", "model")
    if "peft_type" in data:
        base = shorten(data.get("base_model_name_or_path"))
        raise InputError(f"{where}: peft_type: got {shorten(data['peft_type'])}; allowed: the "
                         f"config.json of the whole model ({base}): {TRAINABLE}")
    if "base" in data:
        changes = {name: value for name, value in data.items() if name != "base"}
        start = load_model(data["base"], as_type, sources=sources)
        own = {name: getattr(start, name) for name in start.model_fields_set}
        return _validated(Model, {**own, **changes}, where)
    if "model_type" in data or "architectures" in data:
        from nest.inputs.huggingface.config import from_huggingface

        return from_huggingface(data, where, path, as_type)
    if as_type is not None:
        raise InputError(f"{where}: as: got {shorten(as_type)}; allowed: with a Hugging Face "
                         "config.json only")
    return _validated(Model, data, where)


@takes(sources="sources")
def load_cluster(
    source: Source | Cluster, devices: int | None = None, filling: int | None = None, *,
    sources: Catalog = FILES,
) -> Cluster:
    """Read a cluster from the catalog, a file or plain data, and size it.

    Parameters
    ----------
    source : catalog name (any case), path, mapping, or a Cluster.
    devices : number of devices; None = as the description says.
    filling : devices used in each group of the level that it fits into, such as 64 of racks of 72;
        None = as even as can be.
    sources : what a text may name; default: files too.

    Raises
    ------
    InputError : an unknown name, an unreadable file, fields that are missing or not allowed, or a
        number of devices or a filling that is not allowed.
    """
    if isinstance(source, Cluster):
        return _sized(source, devices, filling)
    data, where, _ = sources.entry(source, "clusters", "cluster")
    _refuse_bare_bandwidths(data, where)
    if devices is not None:
        sizes = inner_sizes(data)
        if sizes is not None:
            data = size_template(data, 1)
        data = without_sizes(data, where)
    cluster = _validated(Cluster, data, where)
    return _sized(cluster, devices, filling)


def _refuse_bare_bandwidths(data: dict[str, Any], where: str) -> None:
    """Refuse a level's bandwidth without unit that nobody can mean: `450` is 450 bytes/s."""
    levels = data.get("levels")
    for n, level in enumerate(levels if isinstance(levels, (list, tuple)) else ()):
        rate = level.get("bandwidth") if isinstance(level, Mapping) else None
        if isinstance(rate, (int, float)) and rate is not True and 1 <= rate < 1e6:
            raise InputError(
                f"{where}: levels.{n}.bandwidth: got {rate:g}, in bytes/s as no unit is given; "
                f"allowed: at least 1 MB/s, such as '{rate:g} GB/s'")


def _sized(cluster: Cluster, devices: int | None, filling: int | None) -> Cluster:
    if devices is None and filling is None:
        return cluster
    return cluster.with_devices(cluster.size if devices is None else devices, filling)


@takes(sources="sources")
def load_device(source: Source | Device, *, sources: Catalog = FILES) -> Device:
    """Read a device from the catalog, a file or plain data.

    Raises
    ------
    InputError : an unknown name, an unreadable file, or fields that are missing or not allowed.
    """
    if isinstance(source, Device):
        return source
    data, where, _ = sources.entry(source, "devices", "device")
    return _validated(Device, _resolved(resolve_device, data, where), where)


def load_stack(source: Source | Stack) -> Stack:
    """Read a software stack from the catalog, a file or plain data.

    Raises
    ------
    InputError : an unknown name, an unreadable file, or fields that are missing or not allowed.
    """
    if isinstance(source, Stack):
        return source
    data, where, _ = FILES.entry(source, "stacks", "stack")
    return _validated(Stack, _resolved(resolve_stack, data, where), where)


catalog.CHECKS.update({"models": load_model, "clusters": load_cluster, "devices": load_device,
                       "stacks": load_stack})


def load_job(source: Source | Job) -> Job:
    """Read a job from a file or plain data.

    Raises
    ------
    InputError : an unreadable file, or fields that are missing or not allowed.
    """
    return source if isinstance(source, Job) else _from_file(Job, source)


def load_space(source: Source | SearchSpace) -> SearchSpace:
    """Read a search space from a file or plain data.

    Raises
    ------
    InputError : an unreadable file, or fields that are not allowed.
    """
    return source if isinstance(source, SearchSpace) else _from_file(SearchSpace, source)


def load_failures(source: Source | Failures | None) -> Failures:
    """Read how often parts fail from a file or plain data; of nothing the defaults.

    Raises
    ------
    InputError : an unreadable file, or fields that are not allowed.
    """
    if source is None:
        return Failures()
    return source if isinstance(source, Failures) else _from_file(Failures, source)


def load_configuration(source: Source | Configuration) -> Configuration:
    """Read a configuration from a file or plain data.

    Raises
    ------
    InputError : an unreadable file, or fields that are missing or not allowed.
    """
    return source if isinstance(source, Configuration) else _from_file(Configuration, source)


def load_profile(source: Source | Profile) -> Profile:
    """Read a profile of measured layers from YAML, JSON, TOML, CSV or plain data.

    Raises
    ------
    InputError : an unreadable file, or fields or columns that are missing or not allowed.
    """
    if isinstance(source, Profile):
        return source
    if not isinstance(source, Mapping):
        check_source(source, "profile")
    if not isinstance(source, Mapping) and Path(source).suffix.lower() == ".csv":
        where = shorten(os.fspath(source), 300)[1:-1]
        data = profile_from_csv(read_text(source), Path(source).stem or "profile", where)
        return _validated(Profile, data, where)
    return _from_file(Profile, source)


def _from_file(cls: type[D], source: Source) -> D:
    noun = noun_of(cls)
    if isinstance(source, Mapping):
        return _validated(cls, dict(source), noun)
    check_source(source, noun)
    return _validated(cls, read_description(source), shorten(os.fspath(source), 300)[1:-1])


def _validated(cls: type[D], data: dict[str, Any], where: str) -> D:
    wanted = noun_of(cls)
    try:
        return cls.parse(data, where)
    except InputError as error:
        found = next((k for k, marks in _MARKS if all(mark in data for mark in marks)), None)
        if found is None or found == wanted or _looks_right(cls, data):
            raise
        needed = _WORDS.get(wanted, f"a {wanted}")
        message = f"{where}: got a {found} description; allowed: {needed}"
        raise InputError(message, (message,)) from error


def _looks_right(cls: type[Description], data: Mapping[str, Any]) -> bool:
    """Whether most of the fields given are fields of the wanted type."""
    known = sum(key in cls.model_fields for key in data)
    return 2 * known > len(data)


def _resolved(resolve: Any, data: dict[str, Any], where: str) -> Any:
    try:
        return resolve(data)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None

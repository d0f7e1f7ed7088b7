"""From the file of a study to plain data that no other file is needed for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs import load_model, read_description
from nest.inputs.arguments import need_path
from nest.inputs.files import document_of
from nest.inputs.sources import Catalog, Files
from nest.studies.questions import Resolver
from nest.studies.study import Study
from nest.units import shorten


def load_study(
    source: str | os.PathLike[str] | Mapping[str, Any] | Study, *, sources: Catalog | None = None
) -> Study:
    """Read a study from YAML, JSON, TOML or plain data.

    Parameters
    ----------
    source : path, mapping, or a Study, which is returned unchanged. Files that it names are
        relative to its own folder, and read now.
    sources : what its texts may name; default: files too.

    Raises
    ------
    InputError : an unreadable file, or fields that are missing or not allowed, one line each.
    """
    if isinstance(source, Study):
        return source
    where, folder = "study", Path()
    if isinstance(source, Mapping):
        data = dict(source)
    else:
        need_path("study", source, ", or a mapping")
        where, folder = shorten(os.fspath(source), 300)[1:-1], Path(source).parent
        data = {"name": Path(source).stem, **read_description(source)}
    _need_study(data, where, "FILE" if isinstance(source, Mapping) else where)
    study = Study.parse(data, where)
    problems: list[str] = []
    plain = _plain_data(study, sources or Files(folder), where, problems)
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    found = study.unchecked(**plain)
    _try(found, where)
    return found


def _need_study(data: Mapping[str, Any], where: str, file: str) -> None:
    """Refuse a document of another kind: one line, instead of one for each of its fields."""
    document = document_of(data)
    if document is not None:
        hint = f"; `nest evaluate {file}` prices a plan" if document == "plan" else ""
        raise InputError(f"{where}: schema: got {shorten(data['schema'])}, a {document} file; "
                         "allowed: a study, which has job and axes and no schema (docs/sweeps.md)"
                         f"{hint}")


def _plain_data(
    study: Study, sources: Catalog, where: str, problems: list[str]
) -> dict[str, Any]:
    """Fields of a study with names and files of models and clusters replaced by their content."""

    def plain(path: str, value: Any, place: str) -> Any:
        try:
            return _PLAIN[path](value, sources) if path in _PLAIN and value is not None else value
        except InputError as error:
            problems.extend(f"{where}: {place}: {line}" for line in error.problems)
            return value

    axes = {}
    for name, axis in study.axes.items():
        if axis.choices is not None:
            axes[name] = axis.unchecked(choices={
                label: {path: plain(path, value, f"axes.{name}.{label}")
                        for path, value in fields.items()}
                for label, fields in axis.choices.items()})
        elif axis.values is not None and name in _PLAIN:  # labels stay what was written
            labels = [choice.label for choice in study.listed(name)]
            axes[name] = axis.unchecked(values=None, choices={
                str(label): {name: plain(name, value, f"axes.{name}")}
                for label, value in zip(labels, axis.values, strict=True)})
        else:
            axes[name] = axis
    return {"model": plain("model", study.model, "model"),
            "cluster": plain("cluster", study.cluster, "cluster"), "axes": axes, "_listed": {}}


def _model(value: Any, sources: Catalog) -> Any:
    if isinstance(value, dict) and "base" in value:
        return _changed(_model(value["base"], sources), value)
    return load_model(value, sources=sources).as_dict()


def _cluster(value: Any, sources: Catalog) -> Any:
    """Plain data of a cluster; a catalog's or a file's template stays one, for any size."""
    if isinstance(value, dict) and "base" in value:
        return _changed(_cluster(value["base"], sources), value)
    if isinstance(value, dict):
        return value
    from nest.network.network import network_data

    return network_data(value, sources)


def _changed(base: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a base with changes."""
    return {**base, **{name: one for name, one in value.items() if name != "base"}}


_PLAIN = {"model": _model, "cluster": _cluster}


def _try(study: Study, where: str) -> None:
    """Refuse a section without an axis that is wrong, and a path that no value can be set at.

    Raises
    ------
    InputError : what is wrong with the section; the path, and why the first value of its axis
        cannot be set there.
    """
    resolver = Resolver(study)
    varied = {path.split(".")[0] for name in study.axes for path in study.paths(name)}
    first = {name: (study.axes[name].at(name, 0.5) if study.axes[name].continuous
                    else study.listed(name)[0]) for name in study.axes}
    problems = [f"{where}: {problem}" for problem in resolver.fixed_problems(varied)]
    for name in study.axes:
        for problem in resolver.unknown_fields(name, first):
            problems.append(f"{where}: axes.{name}: {problem}")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))

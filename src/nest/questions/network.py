"""Models and clusters of a question: a name, a change of one, or written out. No file is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nest.errors import InputError, NestError
from nest.inputs import Cluster, Model, catalog, load_cluster, load_model
from nest.inputs.base import Problems, in_field
from nest.inputs.sources import CATALOG
from nest.units import shorten

T = TypeVar("T")
SIZES = ("devices", "filling", "without", "degrade")
"""What a cluster with ``base`` may say besides fields: arguments of :func:`nest.load_network`."""


def model_of(value: Any, validated: Callable[[Any], Model]) -> Model:
    """A model of a catalog name, a mapping with `base`, the content of a config.json, or fields."""
    if isinstance(value, str):
        value = catalog.load("models", value)
    elif isinstance(value, dict) and "base" in value:
        with in_field("base"):
            base = catalog.load("models", value["base"])
        value = {**base, **_without(value, ("base",))}
    elif isinstance(value, dict) and ("model_type" in value or "architectures" in value):
        value = _told("model", lambda: load_model(value, sources=CATALOG))
    return validated(value)


def cluster_of(value: Any, validated: Callable[[Any], Cluster]) -> Cluster:
    """A cluster of a name, a network to generate, a mapping with `base`, a graph, or fields."""
    if isinstance(value, str):
        _check_name(value)
        return validated(_named(value, {}))
    if not isinstance(value, dict):
        return validated(value)
    if "base" in value:
        changes = _without(value, ("base", *SIZES))
        sizes = {name: value[name] for name in SIZES if value.get(name) is not None}
        base = value["base"]
        if changes:  # fields of a cluster of the catalog, which is sized afterwards
            with in_field("base"):
                fields = catalog.load("clusters", base)
            found = validated({**fields, **changes})
            return _told("cluster", lambda: _network(found, sizes))
        with in_field("base"):
            _check_name(base)
        return validated(_named(base, sizes))
    if "levels" not in value:
        from nest.network.readers.format import describes_graph, topology_from

        if describes_graph(value):
            return validated(_told("cluster", lambda: _network(
                topology_from(value, "cluster", None), {})))
    return validated(value)


def _check_name(name: Any) -> None:
    """Refuse what is neither a cluster of the catalog nor one to generate."""
    hint = "a name"
    if isinstance(name, str):
        if catalog.find("clusters", name) is not None:
            return
        # Networks take a fifth of a second to import, which most questions do not need.
        from nest.network import names_generator

        if names_generator(name):
            return
        hint = catalog.suggestions("clusters", name)
    raise ValueError(f"got {shorten(name)}; allowed: {hint}; or a network to generate, such as "
                     "fat-tree:k=8")


def _named(name: str, sizes: dict[str, Any]) -> Cluster:
    """A cluster of the catalog, or one to generate."""
    return _told("cluster", lambda: _network(name, sizes))


def _network(source: Any, sizes: dict[str, Any]) -> Cluster:
    from nest.network.network import load_network

    if isinstance(source, str) and set(sizes) <= {"devices", "filling"} and (
            catalog.find("clusters", source)):
        return load_cluster(source, **sizes, sources=CATALOG)
    return load_network(source, **sizes, sources=CATALOG)


def _without(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def _told(noun: str, make: Callable[[], T]) -> T:
    """Tell the problems of a part as those of its field."""
    try:
        return make()
    except InputError as error:
        raise Problems([("", line.removeprefix(f"{noun}: ")) for line in error.problems]) from None
    except NestError as error:
        raise ValueError(str(error)) from None

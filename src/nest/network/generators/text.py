"""Generated networks by name and parameters, as on the command line.

    fat-tree:k=8,oversubscription=2,device=h100-sxm,bandwidth=400 Gb/s
    torus:dims=4x4x4
    mixed:8xa100-sxm-80gb,4x8xh100-sxm,bandwidth=400G
    data-centres:centres=3,latency=5 ms,fabric=[spine-leaf:leaves=4,per_leaf=32]
"""

from __future__ import annotations

from typing import Any

from nest import plugins
from nest.errors import InputError, did_you_mean
from nest.inputs import Device
from nest.network.generators.composed import DataCentres, Mixed
from nest.network.generators.direct import FullyConnected, Torus
from nest.network.generators.fabric import Generator
from nest.network.generators.switched import (
    Dragonfly,
    FatTree,
    NvlDomains,
    RailOptimized,
    SpineLeaf,
)
from nest.network.readers.format import topology_from
from nest.network.topology import Topology
from nest.units import shorten

LONGEST = 10_000  # characters
MOST_NESTED = 4  # data centres of data centres
_MIXED, _CENTRES = "mixed", "data-centres"

FABRICS: dict[str, type[Generator]] = {
    "fat-tree": FatTree,
    "spine-leaf": SpineLeaf,
    "rail-optimized": RailOptimized,
    "dragonfly": Dragonfly,
    "torus": Torus,
    "fully-connected": FullyConnected,
    "nvl-domains": NvlDomains,
}
"""The description of each basic network; its fields are the parameters."""
NAMES = (*FABRICS, _MIXED, _CENTRES)


def every_name() -> tuple[str, ...]:
    """Names of generators, those of other packages last."""
    return (*NAMES, *plugins.usable(plugins.NETWORKS, NAMES))


def names_generator(text: str) -> bool:
    """Whether a text begins with the name of a generator, alone or with a colon behind."""
    name = text.partition(":")[0].strip()
    return name in NAMES or name in every_name()


def parse_generator(text: str, device: Device | None = None) -> Topology:
    """Topology of a text NAME:FIELD=VALUE,FIELD=VALUE.

    Parameters
    ----------
    text : as above; values may have units, and stand in [brackets] where they hold commas.
    device : type of the devices in the place of the text's, whose links follow it; not of `mixed`.

    Raises
    ------
    InputError : an unknown name or field, a value that is not allowed, or too many nodes or links.
    """
    return _parse(text, 1, device)


def _parse(text: str, depth: int, device: Device | None) -> Topology:
    if len(text) > LONGEST or depth > MOST_NESTED:
        allowed = f"{LONGEST} characters, {MOST_NESTED} networks inside one another"
        raise InputError(f"network: got {shorten(text)}; allowed: at most {allowed}")
    name, _, rest = text.partition(":")
    name = name.strip()
    given = _fields(name, rest)
    if name in FABRICS:
        if device is not None:
            given["device"] = device
        return FABRICS[name].parse(given, name).topology()
    if name == _MIXED:
        return Mixed.parse(given, name).topology()
    if name == _CENTRES:
        fabric = given.pop("fabric", None)
        if not isinstance(fabric, str):
            needed = "the network of one of them, such as fabric=[fat-tree:k=8]"
            raise InputError(f"{name}: fabric: missing; needed: {needed}")
        centres = DataCentres.parse(given, name)
        return centres.topology(_parse(fabric, depth + 1, device))
    if (added := plugins.registered(plugins.NETWORKS, NAMES).get(name)) is not None:
        made: Topology = added.use(
            lambda make: topology_from(make(**given), name, device), (InputError,))
        return made
    raise InputError(f"network: got {shorten(name)}; {did_you_mean(name, every_name())}allowed: "
                     f"{', '.join(every_name())}")


def _fields(name: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in _split(name, text):
        if name == _MIXED and "=" not in part:
            found.setdefault("nodes", []).append(part.strip())
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise InputError(f"{name}: got {shorten(part)}; allowed: FIELD=VALUE")
        if key in found:
            raise InputError(f"{name}: {shorten(key)}: given twice; allowed: once")
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        whole = value.isascii() and value.isdigit() and len(value) < 20
        found[key] = int(value) if whole else value
    return found


def _split(name: str, text: str) -> list[str]:
    """Parts between the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    if depth:
        raise InputError(f"{name}: got {shorten(text)}; allowed: as many [ as ]")
    parts.append(text[start:])
    return parts if text.strip() else []

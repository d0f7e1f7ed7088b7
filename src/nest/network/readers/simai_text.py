"""Topology text of SimAI and of ASTRA-sim's ns-3 back end with NVSwitches.

    nodes gpus_per_server nv_switches switches links gpu_type
    ids of the NVSwitches, then of the other switches
    source target bandwidth latency error_rate        (a line for each link)

Format: aliyun/SimAI, astra-sim-alibabacloud/inputs/topo/gen_Topo_Template.py, and the reader
SetupNetwork in astra-sim's network_frontend/ns3/common.h, which takes words apart by white space
alone. A link carries its bandwidth in each direction. Error rates are read and left out.

With NVSwitches, the port of a GPU to another switch is a separate node: paths over an NVSwitch are
then shorter than those over a switch of the same GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from nest.errors import InputError
from nest.inputs import Device
from nest.network.draft import Draft
from nest.network.readers.entries import DeviceTypes
from nest.network.topology import MOST_LINKS, MOST_NODES, Topology
from nest.units import parse_bandwidth, parse_seconds, shorten

HEADER = re.compile(r"\s*(\d+[ \t]+){5}[A-Za-z]\S*([ \t]+\d+)?[ \t]*(\n|$)", re.ASCII)
"""First line of such a file; one dialect adds the GPUs of a node."""
_TYPES = {
    "A100": "a100-sxm-80gb",
    "A800": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "H800": "h800",
    "H200": "h200-sxm",
}
"""Types in the catalog; the A800 differs from the A100 in its NVLinks only, which the text has."""


class _Words:
    """Words of a text in order, with their lines."""

    def __init__(self, text: str, where: str) -> None:
        self._left: Iterator[tuple[int, str]] = (
            (number, word)
            for number, line in enumerate(text.splitlines(), 1)
            for word in line.split()
        )
        self.where = where
        self.line = 1

    def next(self, meaning: str) -> str:
        """Give the next word."""
        found = next(self._left, None)
        if found is None:
            raise InputError(f"{self.where}: line {self.line}: ends early; needed: {meaning}")
        self.line, word = found
        return word

    def refuse(self, meaning: str, problem: str) -> InputError:
        """Give the error for the word that was read last."""
        return InputError(f"{self.where}: line {self.line}: {meaning}: {problem}")

    def whole(self, meaning: str, low: int, high: int) -> int:
        """Give the next word as a whole number."""
        word = self.next(meaning)
        value = int(word) if word.isascii() and word.isdigit() and len(word) < 12 else -1
        if not low <= value <= high:
            raise self.refuse(meaning, f"got {shorten(word)}; allowed: {low} to {high}")
        return value

    def rest(self) -> str | None:
        """Give the next word, if there is one."""
        found = next(self._left, None)
        if found is not None:
            self.line = found[0]
        return found[1] if found else None


def from_simai_text(text: str, name: str, where: str, device: Device | None) -> Topology:
    """Topology of a text.

    Parameters
    ----------
    text : the file's text.
    name : of the topology.
    where : name of the file.
    device : type of all GPUs, in the place of the one that the file names.

    Raises
    ------
    InputError : a word that is missing or not allowed, with its line, or a bad network.
    """
    words = _Words(text, where)
    nodes = words.whole("number of nodes", 1, MOST_NODES)
    words.whole("GPUs per server", 1, MOST_NODES)
    nv_switches = words.whole("number of NVSwitches", 0, nodes)
    switches = words.whole("number of switches", 0, nodes)
    links = words.whole("number of links", 0, MOST_LINKS // 2)
    device_type = _device(words, words.next("type of GPU"), device)
    if len(text[: text.find("\n")].split()) == 7:
        words.whole("GPUs of a node", 1, MOST_NODES)
    draft = Draft(name, where)
    roles = _roles(words, nodes, nv_switches, switches)
    for number, role in enumerate(roles):
        if role:
            draft.switch(f"{role}{number}")
        else:
            draft.device(f"gpu{number}", device_type)
    for _ in range(links):
        source = words.whole("source of a link", 0, nodes - 1)
        target = words.whole("target of a link", 0, nodes - 1)
        place = f"line {words.line}"
        bandwidth = _quantity(words, "bandwidth", parse_bandwidth, 1.0, 1e18)
        latency = _quantity(words, "latency", parse_seconds, 0.0, 100.0)
        _error_rate(words)
        if nv_switches and {roles[source], roles[target]} == {"", "switch"}:
            gpu, switch = (source, target) if roles[target] else (target, source)
            port_name = f"gpu{gpu}/port{switch}"
            if draft.find(port_name) is not None:
                problem = f"got a second link between {gpu} and {switch}; allowed: one, with the "
                raise draft.refuse(place, f"{problem}bandwidth of all its cables")
            port = draft.switch(port_name, place)
            draft.cable(gpu, port, bandwidth, 0.0, place)
            source, target = port, switch
        draft.cable(source, target, bandwidth, latency, place)
    extra = words.rest()
    if extra is not None:
        problem = f"got {shorten(extra)} after {links} links; allowed: as many as line 1 says"
        raise words.refuse("links", problem)
    return draft.build()


def _device(words: _Words, text: str, device: Device | None) -> Device:
    if device is not None:
        return device
    if text not in _TYPES:
        hint = f"{', '.join(_TYPES)}, or a type of device given besides"
        raise words.refuse("type of GPU", f"got {shorten(text)}; allowed: {hint}")
    return DeviceTypes({}, None).get(_TYPES[text])


def _roles(words: _Words, nodes: int, nv_switches: int, switches: int) -> list[str]:
    roles = [""] * nodes
    for role, count in (("nvswitch", nv_switches), ("switch", switches)):
        for _ in range(count):
            number = words.whole(f"id of a {role}", 0, nodes - 1)
            if roles[number]:
                raise words.refuse(f"id of a {role}", f"got {number} twice; allowed: once")
            roles[number] = role
    return roles


def _quantity(
    words: _Words, meaning: str, parse: Callable[[object], float], low: float, high: float
) -> float:
    word = words.next(f"{meaning} of a link")
    try:
        value = parse(word)
    except ValueError as error:
        raise words.refuse(meaning, str(error)) from None
    if not low <= value <= high:
        raise words.refuse(meaning, f"got {shorten(word)}; allowed: {low:g} to {high:g}")
    return value


def _error_rate(words: _Words) -> None:
    word = words.next("error rate of a link")
    try:
        rate = float(word)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise words.refuse("error rate", f"got {shorten(word)}; allowed: 0 to 1")

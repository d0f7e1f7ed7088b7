"""Whatever a file or a text holds, only InputError escapes."""

from __future__ import annotations

import copy
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from network_files import ASTRA, GRAPHML, NCCL, NEST, NODE_LINK, SIMAI
from topologies import put

from nest.errors import InputError
from nest.network import Topology, degrade, levels_of, parse_generator, read_topology, without

QUICK = settings(
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TEXTS = {
    "net.yaml": NEST, "net.graphml": GRAPHML, "net.json": json.dumps(NODE_LINK),
    "topo.xml": NCCL, "topo": SIMAI, "astra.yml": ASTRA,
}
NETWORK = parse_generator("spine-leaf:leaves=2,per_leaf=4,node=2")


def only_input_errors(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for device in (None, "h100-sxm"):
            try:
                topology = read_topology(path, device)
            except InputError as error:
                assert str(error).strip()
            else:
                assert isinstance(topology, Topology)
                levels_of(topology)


@QUICK
@given(content=st.binary(max_size=300), name=st.sampled_from([*TEXTS, "a.toml", "a"]))
def test_random_bytes(content: bytes, name: str, tmp_path: Path) -> None:
    only_input_errors(put(tmp_path, content, name))


@QUICK
@given(start=st.sampled_from(["", "<system>", "<graphml>", "{", "6 2 1 1 6 H100\n4 5 "]),
       content=st.text(max_size=200), name=st.sampled_from([*TEXTS, "a.toml", "a"]))
def test_random_text(start: str, content: str, name: str, tmp_path: Path) -> None:
    only_input_errors(put(tmp_path, (start + content).encode("utf-8", "replace"), name))


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_good_files_with_bytes_changed(name: str, seed: int, tmp_path_factory: Any) -> None:
    draw = random.Random(seed)
    content = bytearray(TEXTS[name].encode())
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(content))
        kind = draw.choice(["swap", "cut", "double", "digit"])
        if kind == "swap":
            content[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
        elif kind == "cut":
            del content[place : place + draw.randint(1, 60)]
        elif kind == "double":
            content[place:place] = content[place : place + draw.randint(1, 60)]
        else:
            content[place : place + 1] = draw.choice([b"0", b"-1", b"9e99", b"nan", b"'", b"<"])
        if not content:
            break
    only_input_errors(put(tmp_path_factory.mktemp("fuzz"), bytes(content), name))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.integers(min_value=10**18, max_value=10**30),
    st.sampled_from(["1 GB/s", "5 us", "gpu0", "sw", "device", "switch", "h100-sxm"]))
TREE = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=8)


def places(data: object, path: tuple = ()) -> list[tuple]:
    items: Any = data.items() if isinstance(data, dict) else (
        enumerate(data) if isinstance(data, list) else ())
    found = [path] if path else []
    for key, value in items:
        found += places(value, (*path, key))
    return found


@pytest.mark.parametrize("kind", ["nest", "node link", "astra"])
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), value=TREE)
def test_good_data_with_one_thing_changed(
    kind: str, seed: int, value: Any, tmp_path_factory: Any
) -> None:
    sources = {"nest": yaml.safe_load(NEST), "node link": NODE_LINK, "astra": yaml.safe_load(ASTRA)}
    data = copy.deepcopy(sources[kind])
    draw = random.Random(seed)
    *parents, last = draw.choice(places(data))
    at: Any = data
    for part in parents:
        at = at[part]
    change = draw.choice(["set", "delete", "rename"])
    if change == "set" or isinstance(at, list):
        at[last] = value
    elif change == "delete":
        del at[last]
    else:
        at[f"{last}_"] = at.pop(last)
    only_input_errors(put(tmp_path_factory.mktemp("fuzz"), json.dumps(data), "net.json"))


PIECES = st.lists(st.sampled_from([
    "fat-tree", "torus", "data-centres", "dragonfly", "spine-leaf", ":", ",", "=", "[", "]", "k",
    "dims", "2", "4", "4x4", "x", "fabric", "leaves", "per_leaf", "device", "h100-sxm", "a", "p",
    "h", "bandwidth", "1 GB/s", "-1", " ", "nan", "centres", "node"]), max_size=14)


@settings(max_examples=300, deadline=None)
@given(text=PIECES.map("".join) | st.text(max_size=30))
def test_random_generators(text: str) -> None:
    try:
        assert isinstance(parse_generator(text), Topology)
    except InputError as error:
        assert str(error).strip()


PARTS = st.lists(st.sampled_from([
    "node0", "node1", "/gpu0", "/", "gpu", "0", "..", "3", "link:", "leaf0", "-", "spine1", ",",
    "=", "0.5", "2", "9999999", " ", "nan", "1e-400"]), max_size=10)


@settings(max_examples=300, deadline=None)
@given(text=PARTS.map("".join) | st.text(max_size=30))
@example(text="=\x1f0")  # white space that strip() takes off and float() does not
def test_random_changes(text: str) -> None:
    for change in (without, degrade):
        try:
            assert isinstance(change(NETWORK, text), Topology)
        except InputError as error:
            assert str(error).startswith(change.__name__)

"""What docs/topologies.md says still holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nest.network import levels_of, parse_generator, read_topology
from nest.network.generators.composed import DataCentres, Mixed
from nest.network.generators.text import FABRICS, NAMES
from nest.network.readers import xml_text
from nest.network.readers.graphs import LinkEntry, NodeEntry, TopologyDescription
from nest.network.topology import MOST_LINKS, MOST_NODES

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\w+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
LINES = re.search(r"<!-- generators -->\n```text\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


@pytest.mark.parametrize(("kind", "body"), EXAMPLES)
def test_examples_load(kind: str, body: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(body, encoding="utf-8")
    network = read_topology(path, device="h100-sxm" if kind == "astra" else None)
    assert len(network.device_N) == {"topology": 4, "astra": 64}[kind]


def test_every_generator_has_a_line_and_is_what_the_page_says() -> None:
    assert [line.partition(":")[0] for line in LINES] == list(NAMES)
    hierarchies = [line.partition(":")[0] for line in LINES if levels_of(parse_generator(line))]
    assert hierarchies == ["fat-tree", "spine-leaf", "nvl-domains", "data-centres"]


def test_every_field_is_mentioned() -> None:
    for cls in (*FABRICS.values(), Mixed, DataCentres, NodeEntry, LinkEntry, TopologyDescription):
        assert [name for name in cls.model_fields if f"`{name}`" not in PAGE
                and f"\n{name}:" not in PAGE] == []


def test_the_limits_are_those_of_the_code() -> None:
    for limit in (MOST_NODES, MOST_LINKS, xml_text.MOST_ELEMENTS):
        assert f"{limit:,}" in PAGE


def test_the_defaults_are_those_of_the_code() -> None:
    def default(name: str, field: str) -> object:
        field_of = FABRICS[name].model_fields
        given = {} if field == "device" else {
            "device": field_of["device"].get_default(call_default_factory=True)}
        return field_of[field].get_default(call_default_factory=True, validated_data=given)

    assert default("spine-leaf", "bandwidth") == 400e9 / 8
    assert default("spine-leaf", "latency") == 4e-6
    assert (default("torus", "bandwidth"), default("torus", "latency")) == (50e9, 1e-6)
    assert default("fully-connected", "bandwidth") == 64e9
    assert default("fully-connected", "latency") == 2e-6
    assert default("fat-tree", "switch_latency") == 1e-6
    assert default("fat-tree", "node_bandwidth") == 450e9
    assert default("nvl-domains", "node_bandwidth") == 900e9
    assert default("nvl-domains", "node_latency") == 1.4e-6
    assert default("nvl-domains", "size") == 72
    assert (default("dragonfly", "node"), default("rail-optimized", "node")) == (1, 8)
    assert default("spine-leaf", "spines") == 4
    devices = {name: default(name, "device").name for name in FABRICS}
    assert devices == {
        "fat-tree": "h100-sxm", "spine-leaf": "h100-sxm", "rail-optimized": "h100-sxm",
        "dragonfly": "h100-sxm", "torus": "tpu-v4", "fully-connected": "mi300x",
        "nvl-domains": "gb200"}

"""The links of a network as data: what is kept, and what is refused."""

from __future__ import annotations

import pytest

from nest.errors import InputError
from nest.inputs import Cluster


def linked(**changes: object) -> dict[str, object]:
    """Two devices at a switch, as a file would have them."""
    links = {"switches": 1, "source": [0, 2, 1, 2], "target": [2, 0, 2, 1],
             "bandwidth": ["8 Gb/s", 1e9, 1e9, 1e9], "latency": ["1 us", 0, 0, 0], **changes}
    level = {"name": "all", "size": 2, "bandwidth": "1 GB/s", "latency": 0}
    return {"name": "two", "device": "h100-sxm", "levels": [level],
            "links": {name: value for name, value in links.items() if value is not None}}


def test_a_cluster_with_links_comes_back_from_its_data() -> None:
    cluster = Cluster.parse(linked())
    assert cluster.links is not None and cluster.links.bandwidth[0] == 1e9
    assert Cluster.parse(cluster.as_dict()) == cluster
    assert cluster.with_devices(2) == cluster
    with pytest.raises(InputError, match="devices: got 4; allowed: 2, those of its links"):
        cluster.with_devices(4)


@pytest.mark.parametrize(("changes", "message"), [
    ({"source": [0, 2, 1]}, "links.target: got 4 entries; allowed: 3, as in source"),
    ({"bandwidth": [1e9]}, "links.bandwidth: got 1 entries; allowed: 4, as in source"),
    ({"source": None}, "links.source: missing"),
    ({"source": [], "target": [], "bandwidth": [], "latency": []}, "links.source: got"),
    ({"target": [2, 2, 2, 1]}, "links.target: got a link from a node to itself"),
    ({"source": [0, 2, 0, 2], "target": [2, 0, 2, 1]}, "got two links from one node to another"),
    ({"source": [0, 3, 1, 2]}, "links: got a node beyond the 2 devices and 1 switches"),
    ({"source": [0, 2, 1, 1], "target": [2, 0, 2, 0]}, "got no path both ways between node 0"),
    ({"switches": 2}, "links: got no path both ways between node 0 and node 3"),
    ({"bandwidth": [1e9, 0, 1e9, 1e9]}, "links.bandwidth.1: got 0"),
    ({"bandwidth": [1e9, "fast", 1e9, 1e9]}, "links.bandwidth.1: got 'fast'"),
    ({"latency": [0, -1, 0, 0]}, "links.latency.1: got -1"),
    ({"source": [0, 2, 1, -1]}, "links.source.3: got -1"),
    ({"speed": 3}, "links.speed: unknown field"),
])
def test_bad_links_are_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        Cluster.parse(linked(**changes))
    assert message in str(error.value)

"""A good file of every format, with what it describes worked out by hand."""

from __future__ import annotations

NEST = """\
name: two nodes
device: h100-sxm
device_types:
  big: {base: h100-sxm, memory: 94 GiB}
nodes:
  - {name: gpu0, kind: device}
  - {name: gpu1, kind: device, device: big}
  - {name: gpu2, kind: device, device: A100-SXM-80GB}
  - {name: sw, kind: switch, base_time: 2 us, ramp: 4.1e-3, in_network_reduction: true}
links:
  - {source: gpu0, target: sw, bandwidth: 400 Gb/s, latency: 4 us}
  - {source: gpu1, target: sw, bandwidth: 50 GB/s, latency: 4 us, count: 2}
  - {source: sw, target: gpu2, bandwidth: 1.0e9, latency: 1.0e-6, one_way: true}
  - {source: gpu2, target: sw, bandwidth: 2.0e9, latency: 1.0e-6, one_way: true}
"""

GRAPHML = """\
<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="k" for="node" attr.name="kind" attr.type="string"><default>device</default></key>
  <key id="d" for="node" attr.name="device" attr.type="string"/>
  <key id="x" for="node" attr.name="colour" attr.type="string"/>
  <key id="b" for="edge" attr.name="bandwidth" attr.type="string"/>
  <key id="l" for="edge" attr.name="latency" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="a"><data key="d">h100-sxm</data><data key="x">red</data></node>
    <node id="b"><data key="d">h100-sxm</data></node>
    <node id="s"><data key="k">switch</data></node>
    <edge source="a" target="s"><data key="b">400 Gb/s</data><data key="l">2e-06</data></edge>
    <edge source="b" target="s"><data key="b">25e9</data><data key="l">2e-06</data></edge>
  </graph>
</graphml>
"""

NODE_LINK = {
    "directed": False, "multigraph": False, "graph": {},
    "nodes": [
        {"id": "a", "kind": "device", "device": "h100-sxm"},
        {"id": 7, "kind": "device", "device": "h100-sxm"},
        {"id": "s", "kind": "switch", "x": 3.5},
    ],
    "edges": [
        {"source": "a", "target": "s", "bandwidth": "400 Gb/s", "latency": "2 us", "key": 0},
        {"source": 7, "target": "s", "bandwidth": 25e9, "latency": 2e-6},
    ],
}


def _slot(bus: int, number: int, parts: str) -> str:
    return (f'<pci busid="0000:{bus:02x}:00.0" class="0x030200" vendor="0x10de" device="0x2330" '
            f'link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{number}" sm="90" '
            f'rank="{number}" gdr="1">{parts}</gpu></pci>')


def _socket(number: int, gpus: tuple[int, int]) -> str:
    links = "".join(f'<nvlink target="0000:{t}:00.0" count="{c}" tclass="0x068000"/>'
                    for t, c in (("05", 5), ("06", 5), ("07", 4), ("08", 4)))
    slots = "".join(_slot(0x20 + gpu, gpu, links) for gpu in gpus)
    nic = (f'<pci busid="0000:{0x40 + number:x}:00.0" class="0x020000" vendor="0x15b3" '
           'device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16"><nic>'
           f'<net name="mlx5_{number}" dev="{number}" speed="400000" port="1" latency="0.5" '
           'maxconn="131072" gdr="1"/></nic></pci>')
    return (f'<cpu host_hash="0x1" numaid="{number}" affinity="ff" arch="x86_64" '
            'vendor="GenuineIntel" familyid="6" modelid="143">'
            f'<pci busid="0000:{0x10 + number:x}:00.0" class="0x060400" vendor="0x1000" '
            f'device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">{slots}{nic}</pci></cpu>')


NCCL = f'<system version="1">{_socket(0, (0, 1))}{_socket(1, (2, 3))}</system>'

SIMAI = """\
6 2 1 1 6 H100
4 5
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
0 5 400Gbps 0.0005ms 0
2 5 400Gbps 0.0005ms 0
1 5 400Gbps 0.0005ms 0
3 5 400Gbps 0.0005ms 0.01
"""

ASTRA = """\
# 2 x 3 x 4
topology: [ Ring, FullyConnected, Switch ]
npus_count: [ 2, 3, 4 ]
bandwidth: [ 200.0, 100.0, 50.0 ]  # GB/s
latency: [ 50.0, 500.0, 2000.0 ]   # ns
"""

"""Shapes of nodes and fabrics, as nvidia-smi, Slurm, ibnetdiscover and NCCL print them."""

from __future__ import annotations

import pytest
from network_files import NCCL

from nest.errors import InputError
from nest.inputs import load_device
from nest.network.readers.fabric import (
    from_ibnetdiscover,
    from_slurm,
    from_topo_matrix,
    hostlist,
    of_nccl,
    uneven,
)
from nest.network.readers.graphs import NetworkFile
from nest.network.readers.nccl import from_nccl_xml
from nest.network.readers.xml_text import parse_xml


def matrix(rows: list[str], extra: str = "") -> str:
    """A matrix of GPUs, with the columns that nvidia-smi prints behind them."""
    head = "\t".join(["", *(f"GPU{n}" for n in range(len(rows))), "NIC0", "CPU Affinity"])
    return "\n".join([head, *(f"GPU{n}\t{row}\tPIX\t0-51" for n, row in enumerate(rows)), extra])


def test_a_node_with_switches_is_one_group() -> None:
    rows = [" \t".join("X" if n == m else "NV18" for m in range(8)) for n in range(8)]
    found = from_topo_matrix(matrix(rows, "NIC0\tPIX\tSYS\n\nLegend:\n  X = Self"), "t")
    assert (found.devices, found.inner, found.links) == (8, 8, 18)


def test_pairs_on_nvlink_are_groups_of_two() -> None:
    rows = ["X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"]
    found = from_topo_matrix(matrix(rows), "t")
    assert (found.devices, found.inner, found.links) == (4, 2, 4)
    assert from_topo_matrix(matrix(["X PHB", "PHB X"]), "t").inner == 1
    assert from_topo_matrix("\tGPU0\tCPU Affinity\nGPU0\t X \t0-9", "t").devices == 1


@pytest.mark.parametrize(("text", "told"), [
    (matrix(["X NV4", "NV4"]), "GPU1: got 'PIX' for GPU1"),
    (matrix(["X NV4", "NV4 NV4"]), "GPU1: got 'NV4' for GPU1"),
    (matrix(["X WIFI", "WIFI X"]), "got 'WIFI' for GPU1"),
    (matrix(["X NV4", "NV4 X"]).replace("GPU1\tNV4", "GPUx"), "got 1 rows for 2 GPUs"),
    (matrix(["X NV4 SYS", "NV4 X SYS", "SYS SYS X"]), "joins groups of 1, 2 GPUs"),
    ("\tGPU0\tGPU1\nGPU0\tX\nGPU1\tSYS X", "GPU0: got 1 cells; allowed: 2")])
def test_a_matrix_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        from_topo_matrix(text, "topo.txt")
    assert "\n" not in str(error.value) and str(error.value).startswith("topo.txt")


def test_nccls_file_has_rates_of_nvlink_and_adapters() -> None:
    topology = from_nccl_xml(parse_xml(NCCL, "n"), NetworkFile("n", "n", load_device("h100-sxm")))
    found = of_nccl(topology, "n")
    devices = [topology.nodes[int(n)] for n in topology.device_N]
    assert found.devices == len(devices) and found.inner == len(devices)
    # The narrowest GPU's links, each way: NCCL's 20.6 GB/s a link of sm 90.
    assert found.rate is not None and found.rate % 20.6e9 == pytest.approx(0.0)
    nets = [name for name in topology.nodes if name.startswith("net")]
    assert found.network == pytest.approx(len(nets) * 50e9 / len(devices))


def test_slurms_tree_has_leaves_and_a_spine() -> None:
    found = from_slurm("# made up\nSwitchName=l0 Nodes=n[00-15]\nswitchname=l1 nodes=n[16-31]\n"
                       "SwitchName=s Switches=l[0-1] LinkSpeed=100\n", "t")
    assert [(tier.name, tier.size, len(tier.groups)) for tier in found.tiers] == [
        ("leaf", 16, 2), ("spine", 32, 1)]
    assert found.tiers[0].group_of("n16.cluster.local") == 1 and found.hosts == 32
    assert found.tiers[0].group_of("n99") is None


def test_leaves_at_different_heights_are_all_there() -> None:
    found = from_slurm("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n"
                       "SwitchName=c Nodes=n[5-6]\nSwitchName=m Switches=a,b\n"
                       "SwitchName=top Switches=m,c", "t")
    assert [len(tier.groups) for tier in found.tiers] == [3, 2, 1]
    assert "groups of 2, 4 hosts" in uneven(found.tiers[1])


def test_slurms_blocks_are_joined_by_what_is_not_said() -> None:
    found = from_slurm("BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18",
                       "t")
    assert [(tier.name, tier.size) for tier in found.tiers] == [("block", 18), ("spine", 36)]


def test_hostlists_are_those_of_slurm() -> None:
    assert hostlist("tux[0-2,012],login", "t") == ["tux0", "tux1", "tux2", "tux012", "login"]
    assert hostlist("r[1-2]n[3-4]", "t") == ["r1n3", "r1n4", "r2n3", "r2n4"]
    assert hostlist("", "t") == []


@pytest.mark.parametrize(("text", "told"), [
    ("SwitchName=s Nodes=n[0-", "ranges such as"), ("SwitchName=s Nodes=n[5-2]", "ranges such as"),
    ("SwitchName=s Nodes=n[0-999999999]", "more than 100,000 hosts"),
    ("SwitchName=s Nodes=a[0-999]b[0-999]", "more than 100,000 hosts"),
    ("SwitchName=s Switches=t", "got no switch 't'"),
    ("SwitchName=s Switches=s", "in a circle"), ("SwitchName=s", "got no Nodes"),
    ("SwitchName=s6 Nodes=a\n" + "\n".join(f"SwitchName=s{n} Switches=s{n + 1}" for n in range(6)),
     "more than 6 switches above"),
    ("SwitchName=s Nodes", "allowed: NAME=VALUE"), ("SwitchName=s Nodes=a\n" * 2, "twice"),
    ("SwitchName=s Nodes=a,b\nSwitchName=t Nodes=b", "'b' below 2 switches")])
def test_a_tree_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        from_slurm(text, "t.conf")
    assert "\n" not in str(error.value)


def fabric(leaves: int, hosts: int, rails: int, up: int, speed: str = "4xNDR") -> str:
    """`ibnetdiscover` of rails: adapter r of each host at leaf r of its unit, ``up`` spines."""
    def guid(kind: str, number: int) -> str:
        return f'"{kind}-{number:016x}"'

    lines = ["# Topology file: generated on a day"]
    for unit in range(leaves):
        for rail in range(rails):
            own = 1 + unit * rails + rail
            lines += ["", "vendid=0x2c9", f"switchguid=0x{own:x}({own:x})",
                      f'Switch\t65 {guid("S", own)}\t\t# "leaf {own}" enhanced port 0 lid 3 lmc 0']
            lines += [f'[{n + 1}]\t{guid("H", 0x1000 + 16 * (unit * hosts + n) + rail)}[1](f{n}) '
                      f'\t\t# "node{unit * hosts + n} mlx5_{rail}" lid 10 {speed}'
                      for n in range(hosts)]
            lines += [f'[{40 + n}]\t{guid("S", 0x500 + n)}[{own}]\t\t# "spine" lid 5 {speed}'
                      for n in range(up)]
            lines += [f'[65]\t{guid("H", 0x9000 + own)}[1](9) \t\t# "Mellanox Technologies '
                      f'Aggregation Node" lid 99 {speed}']
    for n in range(up):
        lines += ["", f'Switch\t65 {guid("S", 0x500 + n)}\t\t# "spine" enhanced port 0 lid 5 lmc 0']
        lines += [f'[{own}]\t{guid("S", own)}[{40 + n}]\t\t# "leaf" lid 3 {speed}'
                  for own in range(1, 1 + leaves * rails)]
    for host in range(leaves * hosts):
        for rail in range(rails):
            lines += ["", f'Ca\t1 {guid("H", 0x1000 + 16 * host + rail)}\t\t# "node{host} '
                      f'mlx5_{rail}"', f'[1](f) \t{guid("S", 1 + host // hosts * rails + rail)}[1]'
                      f'\t\t# lid 10 lmc 0 "leaf" lid 3 {speed}']
    for own in range(1, 1 + leaves * rails):
        lines += ["", f'Ca\t1 {guid("H", 0x9000 + own)}\t\t# "Mellanox Technologies Aggregation '
                  'Node"', f'[1](9) \t{guid("S", own)}[65]\t\t# lid 9 lmc 0 "l" lid 3 {speed}']
    return "\n".join(lines)


@pytest.mark.parametrize(("rails", "up", "speed", "lane"), [
    (1, 2, "4xNDR", 100), (4, 2, "4xNDR", 100), (2, 1, "2xHDR", 50)])
def test_a_fabric_has_rates_of_hosts(rails: int, up: int, speed: str, lane: int) -> None:
    """Three units of four hosts; each leaf has ``up`` links to spines."""
    found = from_ibnetdiscover(fabric(3, 4, rails, up, speed), "ib")
    link = int(speed[0]) * lane * 1e9 / 8
    leaf, spine = found.tiers
    assert (leaf.size, len(leaf.groups), leaf.rate) == (4, 3, rails * link)
    # Of 4 hosts and `rails` leaves with `up` links each.
    assert (spine.size, spine.rate) == (12, pytest.approx(rails * up * link / 4))
    assert leaf.group_of("node5") == next(
        n for n, group in enumerate(leaf.groups) if "node5" in group)
    assert found.hosts == 12


@pytest.mark.parametrize(("change", "told"), [
    (("4xNDR", "4xWDR"), "got the rate 4xWDR"), (("4xNDR", "??NDR"), r"got the rate \?\?NDR"),
    (("[1]\t", "[1]"), "allowed: a port"), (("lid 10 4xNDR", "down"), "allowed: a port"),
    (("Ca\t1", "Cb\t1"), "no adapter")])
def test_a_fabric_that_is_none_is_refused(change: tuple[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        from_ibnetdiscover(fabric(2, 2, 1, 1).replace(*change), "ib.txt")
    assert "\n" not in str(error.value)


def test_hosts_without_switches_are_no_fabric() -> None:
    text = "\n".join(f'Ca\t1 "H-{n:016x}"\t\t# "n{n}"\n[1](f) \t"H-{1 - n:016x}"[1] (f) \t\t# lid '
                     '1 lmc 0 "n" lid 3 4xNDR' for n in range(2))
    with pytest.raises(InputError, match="got 0 tiers of switches"):
        from_ibnetdiscover(text, "ib")


def test_a_part_of_a_fabric_is_refused() -> None:
    text = fabric(2, 2, 1, 1)
    with pytest.raises(InputError, match="the whole output of ibnetdiscover"):
        from_ibnetdiscover(text.replace('Switch\t65 "S-0000000000000500"', "#"), "ib")

"""Random small instances on graphs of links; the same seed gives the same instance.

Models, jobs and spaces are those of :mod:`instances`. Cables are pairs of nodes and a width: how
many times the bandwidth of the network they have. Devices are numbered first, then switches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from random import Random

from instances import FREED, THEMES, Instance, bounded, bounds_of, described
from instances_hardware import log_uniform, need, random_cluster, random_job

from nest.inputs import Cluster, Level
from nest.inputs.links import Links

Cables = list[tuple[int, int, float]]
Drawn = tuple[int, int, Cables]
"""Devices, switches, and what joins them."""


# ---------------------------------------------------------------- networks


def any_graph(rng: Random) -> Drawn:
    """A random tree and more cables."""
    devices, switches = rng.choice((2, 3, 4, 5, 6, 6, 7, 8, 8, 9, 10, 12)), rng.randint(0, 6)
    nodes = list(range(devices + switches))
    rng.shuffle(nodes)
    cables = [(a, nodes[rng.randrange(n)], 1.0) for n, a in enumerate(nodes) if n]
    for _ in range(rng.randint(0, len(nodes))):
        a, b = rng.sample(nodes, 2)
        cables.append((a, b, 1.0))
    return devices, switches, cables


def ring(rng: Random) -> Drawn:
    devices = rng.randint(3, 12)
    return devices, 0, [(n, (n + 1) % devices, 1.0) for n in range(devices)]


def torus(rng: Random) -> Drawn:
    """A side of two has one cable, or two."""
    x, y = rng.choice(((2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (3, 3), (2, 5), (3, 4), (4, 3)))
    cables = Cables()
    for a, b in itertools.product(range(x), range(y)):
        for side, at, to in ((x, a, ((a + 1) % x) * y + b), (y, b, a * y + (b + 1) % y)):
            if side > 2 or at == 0:
                cables.append((a * y + b, to, 1.0))
    return x * y, 0, cables


def full(rng: Random) -> Drawn:
    devices = rng.randint(3, 8)
    return devices, 0, [(a, b, 1.0) for a, b in itertools.combinations(range(devices), 2)]


def star(rng: Random) -> Drawn:
    """One or two switches, each with a cable to every device."""
    devices, switches = rng.randint(2, 10), rng.choice((1, 1, 2))
    return devices, switches, [
        (n, devices + s, 1.0) for n in range(devices) for s in range(switches)]


def fat_tree(rng: Random) -> Drawn:
    """Leaves and spines, of which one cable is slow or missing."""
    leaves, each, spines = rng.choice(((2, 2, 2), (2, 3, 2), (2, 4, 2), (3, 2, 2), (4, 2, 2),
                                       (2, 4, 3), (3, 3, 2), (3, 4, 3), (2, 6, 2), (3, 4, 2)))
    devices = leaves * each
    cables = [(n, devices + n // each, 1.0) for n in range(devices)]
    up = [(devices + leaf, devices + leaves + s, rng.choice((0.5, 1.0, each / spines)))
          for leaf in range(leaves) for s in range(spines)]
    hurt = rng.randrange(len(up))
    if rng.random() < 0.5:
        up[hurt] = (*up[hurt][:2], 0.1)
    else:
        del up[hurt]
    return devices, leaves + spines, cables + up


def rails(rng: Random) -> Drawn:
    """Nodes of fully joined devices; a switch joins the first ones of all nodes, one the second."""
    nodes, each = rng.choice(((2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2), (3, 4), (2, 5)))
    devices = nodes * each
    cables = [(n * each + a, n * each + b, rng.choice((2.0, 8.0)))
              for n in range(nodes) for a, b in itertools.combinations(range(each), 2)]
    return devices, each, cables + [(n, devices + n % each, 1.0) for n in range(devices)]


def islands(rng: Random) -> Drawn:
    """Two networks of their own, of different sizes, and a thin cable between them."""
    one, devices, switches, cables = rng.randint(1, 6), rng.randint(7, 10), 0, Cables()
    for island in (range(one), range(one, devices)):
        if rng.random() < 0.5:
            cables += [(n, devices + switches, 1.0) for n in island]
            switches += 1
        elif rng.random() < 0.5:
            cables += [(a, b, 1.0) for a, b in itertools.combinations(island, 2)]
        else:
            cables += [(a, a + 1, 1.0) for a in island[:-1]]
    cables.append((rng.randrange(one), rng.randrange(one, devices), rng.choice((0.02, 0.2))))
    return devices, switches, cables


NETWORKS: dict[str, Callable[[Random], Drawn]] = {
    "graph": any_graph, "ring": ring, "torus": torus, "full": full, "star": star,
    "fat tree": fat_tree, "rails": rails, "islands": islands,
}


# ---------------------------------------------------------------- figures


def random_links(rng: Random, devices: int, switches: int, cables: Cables) -> Links:
    """Both directions of all cables: alike, each cable of its own, or each direction.

    Of several between two nodes, as in a ring of two, the last one counts.
    """
    style = rng.choice(("alike", "cables", "directions"))
    bandwidth, latency = log_uniform(rng, 1e9, 4e11), log_uniform(rng, 1e-7, 1e-5)
    spread = rng.choice((2.0, 10.0, 100.0))
    name = list(range(devices))
    if rng.random() < 0.25:
        rng.shuffle(name)
    name += range(devices, devices + switches)
    rows: list[tuple[int, int, float, float]] = []
    for a, b, width in {frozenset(cable[:2]): cable for cable in cables}.values():
        own = log_uniform(rng, 1.0 / spread, 1.0), rng.uniform(0.3, 3.0)
        for source, target in ((a, b), (b, a)):
            if style == "alike":
                own = 1.0, 1.0
            elif style == "directions":
                own = log_uniform(rng, 1.0 / spread, 1.0), rng.uniform(0.0, 3.0)
            rows.append((name[source], name[target], bandwidth * width * own[0], latency * own[1]))
    rng.shuffle(rows)
    source_, target_, bandwidth_, latency_ = zip(*rows, strict=True)
    return Links(switches=switches, source=source_, target=target_, bandwidth=bandwidth_,
                 latency=latency_)


def group_sizes(rng: Random, devices: int) -> tuple[int, ...]:
    """Sizes of one to three levels that multiply to the devices."""
    sizes = [devices]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2))):
        # The outermost level is split; a prime, seldom, into itself and 1.
        last = sizes.pop()
        divisors = [d for d in range(2, last) if last % d == 0] or [1, last]
        if divisors[0] == 1 and rng.random() < 0.8:
            sizes.append(last)
            break
        inner = rng.choice(divisors)
        sizes += [inner, last // inner]
    return tuple(sizes)


def with_types(rng: Random, cluster: Cluster) -> Cluster:
    """Two or three types of device in turn: blocks and replicas are of one type, or of several."""
    count = rng.choice((2, 2, 3))
    run = rng.choice([d for d in range(1, cluster.size + 1) if cluster.size % d == 0])
    turn = [rng.randrange(count) for _ in range(rng.choice((2, 3, 4)))]
    kinds = [turn[device // run % len(turn)] for device in range(cluster.size)]
    names = sorted(set(kinds))
    if len(names) < 2:
        return cluster
    device = cluster.device
    types = [device.replace(
        name=f"type {n}", memory=device.memory * rng.choice((0.7, 1.0, 1.5)),
        memory_bandwidth=device.memory_bandwidth * log_uniform(rng, 0.3, 3.0),
        peak_flops={dtype: peak * log_uniform(rng, 0.3, 3.0)
                    for dtype, peak in device.peak_flops.items()}) for n in names[1:]]
    return cluster.replace(types=types, type_numbers=[names.index(kind) for kind in kinds])


def without_links(cluster: Cluster) -> Cluster:
    """The same but for the links."""
    return cluster.replace(links=None, types=(), type_numbers=None)


@cache
def graph_instance(seed: int) -> Instance:
    """Instance number ``seed``, bounded so that the oracle can list its plans."""
    rng = Random(f"graph instance {seed}")
    theme, network = THEMES[seed % len(THEMES)], list(NETWORKS)[seed % len(NETWORKS)]
    devices, switches, cables = NETWORKS[network](rng)
    model, chain = described(rng, theme)
    job = random_job(rng, theme)
    cluster = random_cluster(rng, group_sizes(rng, devices), need(chain, job), theme)
    # Bandwidths of the levels price nothing.
    levels = [Level(**(level.model_dump() | {"bandwidth": 1e9, "oversubscription": None}))
              for level in cluster.levels]
    cluster = cluster.replace(
        name=network, levels=levels, links=random_links(rng, devices, switches, cables))
    mixed = Random(f"types {seed}")
    if mixed.random() < 0.4:
        cluster = with_types(mixed, cluster)
    bounds = bounds_of(rng, chain, math.prod(level.size for level in levels), theme)
    if rng.random() < 0.25:
        bounds["outer_dp"] = rng.choice(([2], [3], ["2..5"]))
    most = 10 ** rng.uniform(4.2, 5.0)
    space = bounded(rng, chain, cluster, job, bounds, most, FREED.get(theme, ()))
    return Instance(seed, theme, model, chain, cluster, job, space)

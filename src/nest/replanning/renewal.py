"""How time goes: work, checkpoints, restarts, repeated work, missing nodes.

Failures are a Poisson process of rate F while the job trains, writes or restarts. A checkpoint
follows each t seconds of work and holds it up for C; in the background its write takes a further W.
A restart takes R, in which failures count too. The expected seconds of t seconds of work, exactly:

    T(t) = (exp(F (t + C)) - 1) exp(F (R + W)) / F

This is the complete model of Daly (2006, doi:10.1016/j.future.2004.11.016) with W: a failure
during the background write falls back to the checkpoint before, so that t + C is repeated after W,
which is as if the restart took as much longer. The best t has 1 - F t = exp(-F (t + C)), whatever
R and W are. Young (1974) is sqrt(2 C / F) for small F C; Daly's equation 37 is ``daly_interval``.

Nodes that fail are repaired one by one, each in an exponential time, and are spares again. The
number k of missing nodes is a Markov chain: the flow up through each cut (a failure of a rack takes
several) is the flow down, k times the rate of a repair. With s spares the job waits where k > s, or
trains by a plan for fewer nodes. With waiting and single nodes this is Erlang's loss formula; where
it never waits k has a Poisson distribution. Neglected: a smaller plan has the share of time of the
whole one, and what it had not saved when it ended counts as its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nest.costs.memory import recipe
from nest.costs.zero import trained_share
from nest.errors import InputError
from nest.inputs import Cluster, Job
from nest.inputs.failures import Failures
from nest.model import Chain, Layer

DAY = 86400.0
MOST_SPARES = 10_000
"""Spare nodes that are tried (chosen)."""
ENOUGH = 1e-7
"""Share of the time up to which missing nodes are neglected (chosen)."""


def best_work(rate: float, pause: float) -> float:
    """Seconds of work between checkpoints with the least expected time for each.

    Parameters
    ----------
    rate : failures a second.
    pause : seconds that a checkpoint holds up training.
    """
    x, b = math.sqrt(2.0 * rate * pause), rate * pause  # x: work in times between failures
    for _ in range(100):  # Newton on the convex side, from Young's which is above the root
        step = (x - 1.0 + math.exp(-x - b)) / (1.0 - math.exp(-x - b)) if x + b else 0.0
        x -= step
        if abs(step) <= 1e-14 * x:
            break
    return x / rate


def daly_interval(rate: float, pause: float) -> float:
    """Seconds of work between checkpoints by Daly's expansion (2006, equation 37)."""
    ratio = rate * pause / 2.0
    if ratio >= 1.0:
        return 1.0 / rate
    return math.sqrt(2.0 * pause / rate) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - pause


class Rhythm(NamedTuple):
    """How time goes where nodes are never missing; shares of it add up to 1."""

    rate: float
    """Failures a second."""
    work: float
    """Seconds of work between checkpoints."""
    pause: float
    """Seconds that each holds it up."""
    trains: float
    pauses: float
    restarts: float
    repeats: float
    """Work, and checkpoints, that were lost."""


def rhythm(rate: float, work: float, pause: float, restart: float, write: float = 0.0) -> Rhythm:
    """Shares of time with a checkpoint after so many seconds of work.

    Parameters
    ----------
    rate : failures a second, above 0.
    restart : seconds.
    write : seconds of a write beside the training.
    """
    spent = rate * (work + pause), rate * (restart + write)
    if sum(spent) > 600.0:  # no work is ever saved
        trains = 0.0
    else:
        trains = work * rate / (math.expm1(spent[0]) * math.exp(spent[1]))
    # A failure comes `rate` times a second, and its restart takes (1 - exp(-rate R)) / rate.
    restarts = -math.expm1(-rate * restart)
    pauses = trains * pause / work if work else 0.0
    return Rhythm(rate, work, pause, trains, pauses, restarts,
                  max(0.0, 1.0 - trains - pauses - restarts))


class Missing(NamedTuple):
    """How nodes are lost and repaired."""

    rates: dict[int, float]
    """Failures a second that take so many nodes away."""
    repair: float
    """Seconds."""
    nodes: int
    """Of the plan."""
    spares: int

    def shares(self, speed: Callable[[int], float]) -> list[float]:
        """Shares of time with 0, 1, 2, ... nodes missing, spares included.

        Parameters
        ----------
        speed : of a plan without so many nodes, over that of the whole one; 0: it waits for a
            repair. 0 from some number on.
        """
        most, found, peak = max(self.rates, default=0), [1.0], 1.0
        if not self.repair or not most:
            return found
        while True:
            k = len(found)
            up = 0.0
            for before in range(max(0, k - most), k):
                lost = max(0, before - self.spares)
                if lost == 0 or speed(lost) > 0.0:
                    up += found[before] * (1.0 - lost / self.nodes) * sum(
                        rate for size, rate in self.rates.items() if size >= k - before)
            found.append(up * self.repair / k)
            peak = max(peak, found[-1])
            if found[-1] > 1e200:
                found, peak = [one / 1e200 for one in found], peak / 1e200
            if found[-1] <= peak * ENOUGH * 1e-3 and found[-1] <= found[-2]:
                break
        whole = math.fsum(found)
        return [one / whole for one in found]


class Staffed(NamedTuple):
    """How time goes with so many spares; shares of the time in which nodes are there or not."""

    spares: int
    whole: float
    """All devices of the plan train, pause or restart."""
    smaller: float
    """A plan for fewer nodes does."""
    waits: float
    speed: float
    """Tokens over those of the plan, were it never interrupted by failures."""


def staffed(missing: Missing, speed: Callable[[int], float], returning: float) -> Staffed:
    """Shares of time with so many spares.

    Parameters
    ----------
    speed : as of :meth:`Missing.shares`.
    returning : seconds that it takes to go on with more nodes: a checkpoint and a restart.
    """
    shares = missing.shares(speed)
    whole = math.fsum(shares[:missing.spares + 1])
    smaller = made = 0.0
    for k, share in enumerate(shares[missing.spares + 1:], missing.spares + 1):
        rate = speed(k - missing.spares)
        if rate > 0.0:
            smaller += share
            lost = k / missing.repair * returning  # seconds in each
            made += share * rate * max(0.0, 1.0 - lost)
    return Staffed(missing.spares, whole, smaller, max(0.0, 1.0 - whole - smaller), whole + made)


def never(lost: int) -> float:
    """Speed without nodes where the job waits for them."""
    return 0.0


def staffings(
    missing: Missing, wanted: int | None, ways: Sequence[Callable[[int], float]], returning: float
) -> list[Staffed]:
    """Ways to keep spares, by their number: of each number the faster of waiting and going on.

    Parameters
    ----------
    missing : with any number of spares.
    wanted : spares; None: from none to where more change nothing.
    ways : speeds without nodes, as of :func:`staffed`.
    """
    found: list[Staffed] = []
    for spares in (wanted,) if wanted is not None else range(MOST_SPARES):
        found.append(max((staffed(missing._replace(spares=spares), speed, returning)
                          for speed in ways), key=lambda one: one.speed))
        if found[-1].whole > 1.0 - ENOUGH:
            break
    return found


def best_staffing(found: Sequence[Staffed], nodes: int) -> Staffed:
    """The number of spares that gives most tokens for each node, spares included."""
    return max(found, key=lambda one: one.speed / (nodes + one.spares))


# ---------------------------------------------------------------- what a checkpoint writes


def bytes_each(job: Job) -> float:
    """Bytes of a trained parameter in a checkpoint, with its optimizer states.

    Of bf16 with Adam 14 (2 + 4 + 8; 13.8 TB of 1008 B parameters, arXiv:2104.04473, section 5.10);
    where fp32 shards are the parameters 12.
    """
    r = recipe(job)
    return r.parameter + (r.sharded_optimizer - r.merged if job.stack.fp32_shards else r.optimizer)


def saved_parameters(layer: Layer, tp: int = 1) -> float:
    """Parameters of a layer that a checkpoint has: the trained ones."""
    if layer.measured:
        tp = tp if tp in layer.measured else min(layer.measured)
        return float(layer.measured[tp].parameters * tp)
    return float(sum(op.parameters * trained_share(op) for op in layer.operators))


def saved_bytes(chain: Chain, job: Job) -> float:
    """Bytes of a checkpoint."""
    return bytes_each(job) * math.fsum(
        saved_parameters(chain.kinds[kind]) for kind in chain.stage(range(len(chain))))


class Checkpoint(NamedTuple):
    """What a checkpoint writes, and how long it takes."""

    bytes: float
    device_bytes: float
    """Of the device that writes most."""
    write: float
    """Seconds."""
    pause: float
    """Seconds that it holds up training."""
    behind: float
    """Seconds of writing beside the training."""


def checkpoint(failures: Failures, cluster: Cluster, total: float, most: float) -> Checkpoint:
    """Seconds of a checkpoint.

    Parameters
    ----------
    total, most : its bytes, and those of the device that writes most.

    Raises
    ------
    InputError : written in the background by a device whose link to the host is not known.
    """
    write = total / failures.storage_rate(cluster.size)
    if failures.node_storage is not None:
        write = max(write, most * failures.node_size(cluster) / failures.node_storage)
    if not failures.background:
        return Checkpoint(total, most, write, write, 0.0)
    links = [device.host_link for device in cluster.device_types]
    if None in links:
        raise InputError(f"failures: background: {cluster.device.name} has no host_link; allowed: "
                         "a device with one, or background: false")
    copy = most / min(link for link in links if link is not None)
    return Checkpoint(total, most, write, copy, write)


def losing(failures: Failures, cluster: Cluster) -> tuple[float, dict[int, float]]:
    """Failures a second, and those that take so many nodes away.

    Raises
    ------
    InputError : a level that the cluster does not have.
    """
    whole, rates = 0.0, dict[int, float]()
    for domain in failures.domains(cluster):
        whole += domain.rate
        if domain.nodes:
            rates[domain.nodes] = rates.get(domain.nodes, 0.0) + domain.rate
    return whole, rates


class Expected(NamedTuple):
    """What is expected of a cluster whose plan is not known."""

    productive: float
    """Share of the time that trains, above 0."""
    spares: float
    """Devices that wait, over those of the cluster."""


WHOLE = Expected(1.0, 0.0)
"""Of a cluster that never fails."""


def expected(failures: Failures, cluster: Cluster, job: Job, chain: Chain) -> Expected:
    """The share of time that trains, with checkpoints that all devices write evenly.

    Raises
    ------
    InputError : as of :func:`checkpoint` and :func:`losing`.
    """
    rate, rates = losing(failures, cluster)
    total = saved_bytes(chain, job)
    saved = checkpoint(failures, cluster, total, total / cluster.size)
    each = failures.node_size(cluster)
    nodes = -(-cluster.size // each)
    work = max(best_work(rate, saved.pause), saved.behind, 1e-6)
    shares = rhythm(rate, work, saved.pause, failures.restart, saved.behind)
    found = best_staffing(staffings(Missing(rates, failures.repair, nodes, 0), failures.spares,
                                    (never,), 0.0), nodes)
    return Expected(max(1e-9, shares.trains * found.speed), found.spares * each / cluster.size)

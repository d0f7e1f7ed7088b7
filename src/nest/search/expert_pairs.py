"""Which degrees of expert parallelism are worth trying.

Shapes: E pairs of ep and etp.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nest.costs.activations import backward_parts
from nest.costs.choices import Site, bodies, setting
from nest.costs.layer import body_costs
from nest.model import EXPERT, Traffic
from nest.search.candidates import Candidates

Bools = NDArray[np.bool_]


def useful_pairs(
    candidates: Candidates, policies: list[int], micro_batch: int, compare: bool, together: bool,
    in_parts: bool,
) -> dict[int, Bools]:
    """Expert pairs worth trying, by block: no other of the same ep x etp is better in all.

    The experts of a stage see micro_batch / block samples a device, however tp, cp and dp_in
    share them out; parameters and their traffic depend on ep x etp alone.

    Parameters
    ----------
    compare : else all legal pairs are worth it.
    together : passes may run beside each other, which needs ep above 1.
    in_parts : backwards may have two parts, so that each part has to be no longer.

    Returns
    -------
    bool (E,) for each block that a micro-batch of so many samples may have.
    """
    pairs, fabric, job = candidates.pairs, candidates.fabric, candidates.job
    blocks = candidates.blocks(micro_batch)
    legal = blocks[:, None] % pairs.width == 0
    layers = {replace(kind, name="", traffic=Traffic(), tied_parameters=0, operators=tuple(
        op for op in kind.operators if op.split in (*EXPERT, "dispatch")))
        for kind in candidates.chain.kinds if kind.experts is not None}
    # But on links the same pair is better at every start.
    if not compare or not layers or not policies or not legal.any() or fabric.by_links:
        return dict(zip(blocks.tolist(), legal, strict=True))
    at, pair = np.nonzero(legal)
    one = np.ones(len(at), dtype=np.int64)
    no = np.zeros(len(at), dtype=bool)
    # The host's time is that of a whole layer: it would hide which part of one is faster.
    alone = setting(candidates.cluster, job.replace(
        stack=job.stack.replace(layer_overhead=0.0, expert_overhead=0.0)))
    body = bodies(fabric, Site.alone(blocks[at]), micro_batch / blocks[at],
                  one, no, one, one, no, pairs.ep[pair], pairs.etp[pair],
                  recompute=np.array([policies]))
    figures = []
    for layer in layers:
        c = body_costs(layer, body, alone)
        whole = c.backward + c.recompute
        figures += [c.forward, whole, c.ep_forward, c.ep_backward, c.activations, c.work]
        if in_parts:
            weights, kept = backward_parts(layer, body, alone, c.backward, c.activations)
            figures += [weights, whole - weights, kept]
    costs = np.concatenate(figures, axis=1)
    worse = np.zeros(len(at), dtype=bool)
    for away in range(1, len(pairs.ep)):
        alike = (at[away:] == at[:-away]) & (
            pairs.width[pair[away:]] == pairs.width[pair[:-away]])
        if together:
            alike &= (pairs.ep[pair[away:]] > 1) == (pairs.ep[pair[:-away]] > 1)
        here = np.flatnonzero(alike)
        if len(here):
            first, second = costs[here], costs[here + away]
            below = (first <= second).all(axis=1)
            worse[here + away] |= below
            worse[here] |= (second <= first).all(axis=1) & ~below
    legal[at[worse], pair[worse]] = False
    return dict(zip(blocks.tolist(), legal, strict=True))

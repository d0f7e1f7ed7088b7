"""Seconds and bytes of one layer under many configurations at once.

A configuration has a *body*, which determines the costs of a micro-batch, and a *state*, which
determines those of parameters, gradients and optimizer. Many configurations share one or the other,
so that the search prices each once. Shapes: C configurations, R recompute policies, Z ways of ZeRO.
This module adds up the terms of :mod:`nest.costs.operators`, :mod:`nest.costs.activations` and the
three of traffic for a body; :mod:`nest.costs.zero` has the costs of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from nest.costs.activations import Bytes, measured_bytes, saved_bytes
from nest.costs.choices import (
    ATTN_PROJ,
    CORE_ATTN,
    FULL,
    GDN_NORM_OUT,
    MLP,
    MLP_ACT,
    MOE,
    NORM,
    PRODUCTS,
    QKV_LINEAR,
    SHARED_EXPERTS,
    UNREAD,
    Body,
    StageSetting,
    State,
)
from nest.costs.compute import Array
from nest.costs.host import waiting
from nest.costs.learned import as_learned
from nest.costs.operators import compute_seconds, shares, tokens_of
from nest.costs.traffic import context_traffic, expert_traffic, tensor_traffic
from nest.costs.zero import StateCosts, state_costs
from nest.model import Layer


@dataclass(frozen=True)
class BodyCosts:
    """Seconds and bytes per micro-batch that one layer adds; shape (C,) or (C, R)."""

    forward: Array
    backward: Array
    recompute: Array
    free_forward: Array
    """Compute that hides no context-parallel traffic and may hide other traffic."""
    free_backward: Array
    """The same backward, recompute included."""
    tp_forward: Array
    tp_backward: Array
    cp_forward: Array
    cp_backward: Array
    ep_forward: Array
    ep_backward: Array
    activations: Array
    """Bytes per micro-batch in flight."""
    work: Array
    """Largest, not summed: bytes of activations while the layer is recomputed or its loss runs."""
    offload_forward: Array
    """Wait for activations that move to the host."""
    offload_backward: Array
    """Wait for them to come back."""
    host_activations: Array
    """Bytes per micro-batch in flight in the host's memory."""


@dataclass(frozen=True)
class LayerCosts(StateCosts, BodyCosts):
    """What one layer adds to its stage; float64 arrays of shape (C,).

    ``work`` and ``buffers`` count once per stage, for its largest layer; the rest adds up.
    :mod:`nest.costs.stage` determines how much of the traffic is hidden.
    """


def layer_costs(layer: Layer, body: Body, state: State, s: StageSetting) -> LayerCosts:
    """Price one layer under C configurations; all arrays of shape (C,)."""
    return LayerCosts(**vars(body_costs(layer, body, s)), **vars(state_costs(layer, state, s)))


class LayerTerms(NamedTuple):
    """Terms of a layer's body; seconds of arrays (C,) forward, then backward."""

    ahead: Array
    back: Array
    again: Bytes
    """Seconds forward by the modules that repeat them."""
    tp: tuple[Array, Array, Array, Array]
    """See :func:`nest.costs.traffic.tensor_traffic`."""
    cp: tuple[Array, Array, Array]
    """And what a gated norm that runs again repeats of it."""
    under_cp: tuple[Array, Array]
    """Computing that hides context-parallel traffic."""
    ep: tuple[Array, Array]
    bytes_of: tuple[Bytes, Array, Array, Bytes]
    """See :func:`nest.costs.activations.saved_bytes`."""


def _measured(layer: Layer, c: Body) -> LayerTerms:
    zeros = np.zeros(len(c.samples))
    ahead, back = c.samples * np.array(
        [(layer.measured[int(t)].forward, layer.measured[int(t)].backward) for t in c.tp]).T
    none = zeros, zeros
    return LayerTerms(
        ahead, back, {0: ahead}, (*none, *none), (*none, zeros), none, none,
        measured_bytes(layer, c))


def _priced(layer: Layer, c: Body, s: StageSetting) -> LayerTerms:
    every, (tokens, rest) = shares(layer, c, s), tokens_of(layer, c, s)
    ahead, back, again = compute_seconds(layer, c, s, every, tokens)
    if layer.experts is not None:
        routed = s.machine.stack.routing_time * rest
        ahead, back = ahead + routed, back + routed
    cp, under_cp = context_traffic(layer, c, s)
    return LayerTerms(
        ahead, back, again, tensor_traffic(layer, c, s), cp, under_cp,
        expert_traffic(layer, c, s), saved_bytes(layer, c, s, every))


def _ahead_alone(layer: Layer, c: Body, s: StageSetting) -> BodyCosts:
    """Seconds of a layer through which no gradient passes: forward only, and nothing is kept."""
    gap, _, host, _ = s.machine.stack.host(layer.experts is not None, s.job.counted)
    ahead, _, _, tp, cp, under_cp, ep, _ = _priced(layer, c, s)
    forward = ahead + gap
    forward = forward + np.maximum(0.0, host - (forward + tp[0] + cp[0] + ep[0]))
    nothing = np.zeros((len(c.samples), c.recompute.shape[-1]) if c.recompute.ndim == 2
                       else len(c.samples))

    def wide(array: Array) -> Array:
        return nothing + (array[:, None] if nothing.ndim == 2 else array)

    names = dict.fromkeys((field.name for field in fields(BodyCosts)), nothing)
    return BodyCosts(**names | {
        "forward": wide(forward), "free_forward": wide(forward - under_cp[0]),
        "tp_forward": wide(tp[0]), "cp_forward": wide(cp[0]), "ep_forward": wide(ep[0])})


@as_learned
def body_costs(layer: Layer, c: Body, s: StageSetting) -> BodyCosts:
    """Seconds and bytes of a micro-batch; arrays of shape (C,), or (C, R).

    Full recompute keeps the layer's input alone (arXiv:2205.05198, section 5) and runs everything
    again, collectives included; selective recompute does so for the operators of its modules.
    """
    def wide(array: Array) -> Array:
        return array[:, None] if c.recompute.ndim == 2 else array

    if not layer.passes:
        return _ahead_alone(layer, c, s)
    policy = c.recompute if layer.checkpointed else 0 * c.recompute
    if s.machine.stack.selective_products:
        both = policy & (NORM | MLP_ACT) == NORM | MLP_ACT
        policy = policy + PRODUCTS * both
    full = policy == FULL
    ahead, back, again, tp, cp, under_cp, ep, bytes_of = (
        _measured(layer, c) if layer.measured else _priced(layer, c, s))
    saved, inputs, live, moved = bytes_of
    # A policy repeats the operators of its modules.
    named = s.machine.stack.saves_outputs
    repeated = sum(wide(time) * (full & (bits < UNREAD)
                                 | (policy & bits > 0) & (not named or bits < UNREAD))
                   for bits, time in again.items())
    kept = sum(wide(held) * (policy & bits == 0) for bits, held in saved.items())
    everything = wide(sum(saved.values(), np.zeros(len(c.samples))))
    kept = np.where(full, wide(inputs), kept)
    if s.away.layers and layer.repeated:
        moved = {bits: s.away.layers * held for bits, held in saved.items()}
    gone = np.zeros(kept.shape) + sum(
        wide(size) * (policy & bits == 0) * ~full for bits, size in moved.items())
    sent = wide(inputs) * full * s.away.checkpoints
    gone = gone + sent
    kept = kept - gone
    whole = np.ones(policy.shape)
    # Without its last product an MLP gathers alone, as projections of queries, keys and values do.
    gathers = wide(np.where(c.sp, 0.5, 0.0))
    mlp = layer.traffic.mlp * (gathers if named else 1.0)
    tp_backward = wide(tp[1]) + np.where(full, wide(tp[2]), wide(tp[0]) * (
        (policy & (MOE | SHARED_EXPERTS) > 0) * layer.traffic.experts
        + (policy & MLP > 0) * mlp
        + ((policy & QKV_LINEAR > 0) * gathers + (policy & ATTN_PROJ > 0) * (1.0 - gathers))
        * layer.traffic.attention)
        + wide(tp[3]) * (policy & NORM > 0))
    core = "core_attn" in layer.modules
    core_again = full | (policy & CORE_ATTN > 0) & core
    # What attention took from the other ranks is not kept where all but attention runs again.
    gathered = (c.gather[:, None] if c.recompute.ndim == 2 else c.gather) & (policy & NORM > 0)
    cp_backward = (wide(cp[1]) + wide(cp[0]) * (
        core_again | gathered & core & s.machine.stack.keeps_gathered)
        + wide(cp[2]) * (~full & (policy & GDN_NORM_OUT > 0)))
    ep_backward = wide(ep[1]) + wide(ep[0]) * (full | (policy & MOE > 0))
    # Kernels of a layer leave gaps of a fixed size. The device waits if the host launches kernels
    # more slowly than it runs them.
    stack = s.machine.stack
    gap, back_gap, ahead_host, back_host = (
        (0.0, 0.0, 0.0, 0.0) if layer.measured
        else stack.host(layer.experts is not None, s.job.counted))
    forward, backward = ahead + gap, wide(back) + back_gap + gap * full
    busy = backward + repeated + tp_backward + cp_backward + ep_backward
    forward = forward + np.maximum(0.0, ahead_host - (forward + tp[0] + cp[0] + ep[0]))
    backward = backward + np.maximum(0.0, back_host + ahead_host * full - busy)
    away, wait, wait_back = np.zeros(len(c.samples)), np.zeros(len(c.samples)), np.zeros(kept.shape)
    if moved:
        # As much as without recompute: the search takes it that recompute saves no time.
        away = sum(moved.values(), away)
        wait = waiting(s.machine, away, forward + tp[0] + cp[0] + ep[0])
        wait_back = waiting(s.machine, wide(away), backward + repeated + tp_backward + cp_backward
                            + ep_backward)
    if s.away.checkpoints:
        # Both ways, as part of the backward pass: a forward pass knows no policy.
        wait_back = full * (waiting(s.machine, sent, wide(forward + tp[0] + cp[0] + ep[0]))
                            + waiting(s.machine, sent, backward + repeated + tp_backward
                                      + cp_backward + ep_backward))
    return BodyCosts(
        forward=wide(forward) * whole,
        backward=backward,
        recompute=repeated * whole,
        # Other traffic moves while a device waits for the host.
        free_forward=wide(forward + wait - under_cp[0]) * whole,
        free_backward=(backward + repeated + wait_back - wide(under_cp[1])
                       - wide(under_cp[0]) * core_again),
        tp_forward=wide(tp[0]) * whole,
        tp_backward=tp_backward,
        cp_forward=wide(cp[0]) * whole,
        cp_backward=cp_backward,
        ep_forward=wide(ep[0]) * whole,
        ep_backward=ep_backward,
        activations=kept * whole,
        # What moves of one more layer is on its way back.
        work=wide(live) + everything - kept + wide(away) + sent,
        offload_forward=wide(wait) * whole,
        offload_backward=wait_back * whole,
        host_activations=gone * whole,
    )

"""Consecutive layers on a device: what passes through them take longer behind each other."""

from __future__ import annotations

from collections.abc import Sequence

# The fields of ``nest.costs.stage.ChunkCosts`` up to ``alone``, in its order (a test compares): the
# forms index it, and the kernels rows of such figures.
(C_FORWARD, C_BACKWARD, C_LATE, C_LATE_BACK, C_TURN, C_CHASE, C_QUEUE_FORWARD, C_QUEUE_BACKWARD,
 C_TRAILING, C_TRAILS_FORWARD, C_TRAILS_BACKWARD, C_LEFT, C_WAIT, C_UPDATE, C_TIED, C_SYNC,
 C_GATHER, C_SCATTERED, C_HIDES_SYNC, C_HIDES_GATHER, C_LARGEST, C_GATHERED, C_REGATHERED, C_BELOW,
 C_ABOVE, C_UNDER_FIRST, C_UNDER_LAST, C_BEGUN, C_THIRD, C_ROOM) = range(30)
# Of a backward in two parts, and of all-to-alls of experts beside another pass.
(C_INPUTS, C_WEIGHTS, C_TRAILS_INPUTS, C_TRAILS_WEIGHTS, C_HIDES_INPUTS, C_HIDES_WEIGHTS,
 C_LEFT_WEIGHTS, C_EXCHANGED_FORWARD, C_EXCHANGED_BACKWARD, C_BUSY_FORWARD,
 C_BUSY_BACKWARD) = range(30, 41)
CHUNK = 41

# Columns of ``nest.search.tables.Tables.state``: bytes of buffers, bytes of the state, and behind
# them seconds that computing loses beside the traffic.
STATE_BUFFERS, STATE_RESIDENT, STATE_SLOWED = 5, 8, 9


def empty(c: Sequence[float]) -> bool:
    """Whether the chunk has no layers: it hands over what arrives, and uses no time or traffic."""
    return bool(c[C_FORWARD] == 0.0 and c[C_BACKWARD] == 0.0 and not (
        c[C_GATHERED] or c[C_REGATHERED] or c[C_SCATTERED]))


def delayed(c: Sequence[float], alone: bool, gathered: float) -> float:
    """What the end of a backward waits for the first ``gathered`` seconds of the next pass.

    A backward of two layers or more ends when the second layer's gradients are scattered, and in
    front of them the network gathers what the next pass begins with. ``alone``: it is one layer.
    """
    if alone:
        return 0.0
    return (max(0.0, c[C_ABOVE] + gathered - c[C_UNDER_FIRST])
            - max(0.0, c[C_ABOVE] - c[C_UNDER_FIRST]))


def longer(
    before: Sequence[float], alone_before: bool, way_before: int,
    c: Sequence[float], alone: bool, way: int,
) -> float:
    """What a pass through ``c`` takes longer right behind one through ``before`` (ZeRO-3); seconds.

    Ways are 0 forward, 1 backward. Had the device waited, parameters of two layers would be there.
    Beside the last layer of the pass in front the first one's are gathered, beside that one the
    second's. The last gradients of a backward are scattered behind that; a single layer leaves
    them to the passes that follow. Computing hides traffic beside the pass that it is part of, so
    that none that grows shortens a row of passes.
    """
    first = c[C_REGATHERED] if way else c[C_GATHERED]
    if not way_before:
        own = max(0.0, c[C_BELOW] - c[C_TRAILS_BACKWARD]) if way else c[C_BEGUN]
        return max(0.0, first - before[C_UNDER_LAST]) + own
    # The end of a backward of two layers or more has waited for the first ones: ``delayed``.
    shown = max(0.0, first - before[C_UNDER_FIRST]) if alone_before else 0.0
    if alone:
        return shown
    if way:
        return shown + max(0.0, c[C_BELOW] + before[C_SCATTERED] - c[C_TRAILS_BACKWARD])
    return shown + max(c[C_BEGUN], before[C_SCATTERED] - c[C_ROOM] - c[C_THIRD])

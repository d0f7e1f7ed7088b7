"""What a plan may be made of, written again for the oracle: cuts, groups, blocks, degrees.

Everything is found by looking at explicit sets of layers and of device numbers, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from nest.inputs import Cluster, Job, SearchSpace
from nest.model import Chain

Spread = tuple[tuple[int, ...], bool]
MODULES = ("core_attn", "norm", "mlp_act", "moe")
FURTHER = ("mlp", "mla_up_proj", "shared_experts", "gdn_norm_out")
OUTPUTS = ("qkv_linear", "attn_proj")
"""With latent attention in sets with norm and mlp_act alone, else in all sets."""
NONE, FULL = 0, 16
CODES = {"core_attn": 1, "norm": 2, "mlp_act": 4, "moe": 8, "mlp": 64, "mla_up_proj": 128,
         "shared_experts": 256, "gdn_norm_out": 512, "qkv_linear": 1024, "attn_proj": 2048}
"""Recompute of a layer: none, all of it, or a sum of these."""
SHARDS = ("dp", "dp_in")


class Outer(NamedTuple):
    """What all stages of a plan have in common."""

    outer_dp: int
    micro_batch: int
    stride: int


class Split(NamedTuple):
    """How the devices of a block divide the samples and the layers among them."""

    dp_in: int
    tp: int
    sp: bool
    cp: int
    inner: int
    """Ranks of context parallelism that exchange heads by all-to-all; 1: none do."""
    gather: bool
    """The others gather keys and values; else they pass them round a ring."""
    ep: int
    etp: int


class State(NamedTuple):
    """How the holders of the same parameters divide them; ``shard`` indexes :data:`SHARDS`."""

    zero: int
    shard: int


class Policy(NamedTuple):
    """What a stage recomputes; ``first``: of so many checkpointed layers only (None: all)."""

    code: int
    first: int | None


class Choice(NamedTuple):
    """A stage but for its layers and its recompute."""

    start: int
    size: int
    split: Split
    state: State


# ---------------------------------------------------------------- layers


def cuts(chain: Chain) -> list[int]:
    """All sets of layers that may lie in front of a cut, as bit masks; the fewest layers first.

    A set may where no layer in it reads what a layer behind the cut produces.
    """
    masks = np.arange(1 << len(chain))
    legal = np.ones(len(masks), dtype=bool)
    for tensor in chain.tensors:
        for consumer in tensor.consumers:
            legal &= (masks >> consumer & 1) <= (masks >> tensor.producer & 1)
    return sorted(masks[legal].tolist(), key=lambda mask: (mask.bit_count(), mask))


def members(chain: Chain, mask: int) -> tuple[int, ...]:
    """Layers of a bit mask, ascending."""
    return tuple(n for n in range(len(chain)) if mask >> n & 1)


def checkpointed(chain: Chain, layers: Sequence[int]) -> int:
    """How many of the layers recompute applies to."""
    return sum(chain.kinds[chain.order[n]].checkpointed for n in layers)


# ---------------------------------------------------------------- devices


def alike_blocks(start: int, size: int, sizes: Sequence[int]) -> bool:
    """Whether a block lies inside one group or is whole groups, at every level."""
    devices = set(range(start, start + size))
    for g in sizes:
        groups = {d // g for d in devices}
        filled = {d for group in groups for d in range(group * g, group * g + g)}
        if len(groups) > 1 and filled != devices:
            return False
    return True


@cache
def blocks(sizes: tuple[int, ...], outer_dp: int, stride: int) -> tuple[tuple[int, int], ...]:
    """(start, size) of all blocks of a super-pipeline that are aligned in every replica."""
    origins = [r * stride for r in range(outer_dp)]
    return tuple(
        (start, size) for start in range(stride) for size in range(1, stride - start + 1)
        if all(alike_blocks(o + start, size, sizes) for o in origins)
    )


def spread(groups: list[list[int]], sizes: Sequence[int]) -> Spread:
    """Fewest members in a subgroup of each level over all groups, and whether all are even."""
    fewest, even = [], True
    for g in sizes:
        counts: list[int] = []
        for group in groups:
            found: dict[int, int] = {}
            for device in group:
                found[device // g] = found.get(device // g, 0) + 1
            counts.extend(found.values())
        fewest.append(min(counts))
        even = even and min(counts) == max(counts)
    return tuple(fewest), even


class Spreads(NamedTuple):
    """Spreads of all groups of a block and its replicas."""

    tp: Spread
    swap: Spread
    cp: Spread
    ep: Spread
    etp: Spread
    dp: Spread
    expert_dp: Spread
    inner: Spread
    inner_expert: Spread
    outer: Spread
    every: Spread


@cache
def spreads(
    sizes: tuple[int, ...], outer_dp: int, stride: int, start: int, size: int,
    tp: int, cp: int, ep: int, etp: int, swapped: int = 1,
) -> Spreads:
    """Groups of a block on which tp neighbours come first, then cp, then dp.

    Of cp ``swapped`` neighbours exchange by all-to-all, and one of each such group with the others.
    """
    origins = [r * stride + start for r in range(outer_dp)]
    folded = ep * etp

    def every(ranks: Sequence[int]) -> list[int]:
        return [o + i for o in origins for i in ranks]

    dense = [range(t, size, tp) for t in range(tp)]
    expert = [range(i, size, folded) for i in range(folded)]
    inner = []
    for groups in (
        [range(x * tp, x * tp + tp) for x in range(size // tp)],
        [range(x * tp * swapped + t, (x + 1) * tp * swapped, tp)
         for x in range(size // (tp * swapped)) for t in range(tp)],
        [range(x * tp * cp + t, (x + 1) * tp * cp, tp * swapped)
         for x in range(size // (tp * cp)) for t in range(tp * swapped)],
        [range(x * folded + z, (x + 1) * folded, etp)
         for x in range(size // folded) for z in range(etp)],
        [range(x * etp, x * etp + etp) for x in range(size // etp)],
        dense, expert,
    ):
        seen = {spread([[o + i for i in group] for group in groups], sizes) for o in origins}
        assert len(seen) == 1, "aligned replicas are alike"
        inner.append(seen.pop())
    tensor, swap, context, experts, expert_tensor, within, within_expert = inner
    return Spreads(
        tensor, swap, context, experts, expert_tensor,
        spread([every(ranks) for ranks in dense], sizes),
        spread([every(ranks) for ranks in expert], sizes),
        within, within_expert,
        spread([every([i]) for i in range(size)], sizes),
        spread([every(range(size))], sizes),
    )


def shared_level(a: int, b: int, sizes: Sequence[int]) -> int:
    """Lowest level that has both devices in one group."""
    return min(v for v, g in enumerate(sizes) if a // g == b // g)


# ---------------------------------------------------------------- what is legal


def outer_choices(cluster: Cluster, job: Job, space: SearchSpace) -> list[Outer]:
    """All ways to split devices and samples among replicas of the super-pipeline."""
    found = []
    for outer_dp in range(1, cluster.size + 1):
        share = cluster.size // outer_dp
        strides = sorted({share // g * g for g in (1, *cluster.group_sizes)} - {0})
        for micro_batch in range(1, job.global_batch + 1):
            whole = job.global_batch % (outer_dp * micro_batch) == 0
            if whole and _in(space.outer_dp, outer_dp) and _in(space.micro_batch, micro_batch):
                found += [Outer(outer_dp, micro_batch, stride) for stride in strides]
    return found


def _in(bound: Any, value: object) -> bool:
    return bound is None or value in bound


def splits(
    chain: Chain, job: Job, space: SearchSpace, micro_batch: int, size: int
) -> Iterator[Split]:
    """Every way to divide a micro-batch and its layers among the devices of a block."""
    for tp in range(1, size + 1):
        for cp in range(1, size // tp + 1):
            dp_in, left = divmod(size, tp * cp)
            if left or micro_batch % dp_in or not all((
                _in(space.tp, tp), _in(space.cp, cp), _in(space.dp_in, dp_in),
                _in(space.mbs, micro_batch // dp_in),
            )):
                continue
            for sp in (False, True):
                if tp > 1 and not _in(space.sp, sp):
                    continue
                if not tp_legal(chain, tp, sp) or not cp_legal(chain, job, tp, sp, cp):
                    continue
                for way in ways_of_cp(chain, space, tp, cp):
                    for ep, etp in expert_degrees(chain, space, size, tp):
                        yield Split(dp_in, tp, sp, cp, *way, ep, etp)


def tp_legal(chain: Chain, tp: int, sp: bool) -> bool:
    """Whether the widths of the model, or its measurements, allow this."""
    if tp == 1 and sp:
        return False
    if chain.model is None:
        return all(tp in layer.measured for layer in chain.kinds)
    if any(width % tp for _, width in chain.tensor_widths):
        return False
    if any(heads % tp != 0 and tp % heads != 0 for heads in chain.kv_heads):
        return False
    return tp == 1 or sp or chain.model.moe is None


def cp_legal(chain: Chain, job: Job, tp: int, sp: bool, cp: int) -> bool:
    """Whether every sequence can be divided this way."""
    if chain.model is None:
        return cp == 1
    lengths = chain.lengths(job.seq_len)
    if cp > 1 and any(length % (2 * cp) for length in lengths):
        return False
    if cp > 1 and (r := chain.model.recurrence) is not None:
        # Each rank has whole heads, with the queries and keys that they read: of Mamba-2 a copy.
        shared = [range(x * r.heads // (tp * cp), (x + 1) * r.heads // (tp * cp))
                  for x in range(tp * cp)]
        read = [{head * r.groups // r.heads for head in heads} for heads in shared]
        whole = all(len(heads) * tp * cp == r.heads for heads in shared)
        alone = sum(map(len, read)) == r.groups
        copied = r.form == "mamba2" and all(len(groups) == 1 for groups in read)
        if not whole or not (alone or copied):
            return False
    return not sp or all(length % (tp * cp) == 0 for length in lengths)


def ways_of_cp(
    chain: Chain, space: SearchSpace, tp: int, cp: int
) -> Iterator[tuple[int, bool]]:
    """Ranks that exchange by all-to-all, and whether the others gather."""
    if cp == 1:
        yield 1, False
        return
    if _in(space.cp_comm, "p2p"):
        yield 1, False
    if _in(space.cp_comm, "all_gather"):
        yield 1, True
    for inner in range(2, cp + 1):
        if cp % inner or any(heads % (tp * inner) for heads in chain.kv_heads):
            continue
        if inner == cp:
            if _in(space.cp_comm, "a2a"):
                yield inner, False
        elif _in(space.cp_comm, "a2a+p2p") and _in(space.cp_a2a, inner):
            yield inner, False


def comm_of(cp: int, inner: int, gather: bool) -> tuple[str, int]:
    """``cp_comm`` and ``cp_a2a`` of a configuration."""
    if gather:
        return "all_gather", 1
    if inner == 1:
        return "p2p", 1
    return ("a2a", 1) if inner == cp else ("a2a+p2p", inner)


def expert_degrees(
    chain: Chain, space: SearchSpace, size: int, tp: int
) -> Iterator[tuple[int, int]]:
    """(ep, etp) that the model and the block allow."""
    moe = chain.model.moe if chain.model is not None else None
    if moe is None:
        if _in(space.ep, 1) and _in(space.etp, tp):
            yield 1, tp
        return
    for etp in range(1, size + 1):
        for ep in range(1, moe.experts + 1):
            divides = moe.ffn % etp == 0 and moe.experts % ep == 0 and size % (ep * etp) == 0
            if divides and _in(space.etp, etp) and _in(space.ep, ep):
                yield ep, etp


def states(job: Job, space: SearchSpace, outer_dp: int, split: Split, piped: bool) -> list[State]:
    """Every ZeRO stage, alone or ``piped``: with other stages."""
    found = []
    for zero in range(4):
        if not _in(space.zero, zero) or (piped and zero not in job.stack.zero_with_pipeline):
            continue
        # The space says over whom ZeRO shards; without ZeRO it has no say.
        if zero == 0 or _in(space.shard, "dp"):
            found.append(State(zero, 0))
        if zero and outer_dp > 1 and split.dp_in * split.cp > 1 and _in(space.shard, "dp_in"):
            found.append(State(zero, 1))
    return found


def policies(chain: Chain, space: SearchSpace, count: int, named: bool = False) -> list[Policy]:
    """Every recompute of a stage with ``count`` checkpointed layers (of the most in a chunk).

    ``named``: the stack keeps outputs by their names.
    """
    found = []
    if _in(space.recompute, "none"):
        found.append(Policy(NONE, None))
    if _in(space.recompute, "selective"):
        found += [Policy(code_of("selective", chosen), None)
                  for chosen in _module_sets(chain, named)
                  if _in(space.recompute_modules, "+".join(chosen))]
    if _in(space.recompute, "full"):
        # A stage with fewer layers than named takes all of its own.
        named = space.recompute_layers
        firsts = {count, *range(1, count)} if named is None else {min(r, count) for r in named}
        if count in firsts:
            found.append(Policy(FULL, None))
        found += [Policy(FULL, r) for r in sorted(firsts - {count})]
    return found


def _module_sets(chain: Chain, named: bool) -> list[tuple[str, ...]]:
    """Sets of modules that a space holds which names none."""
    has = {tag for kind in chain.kinds if kind.checkpointed for op in kind.operators
           for tag in (*op.again, *op.dropped)}
    found: list[tuple[str, ...]] = []
    latent = "mla_up_proj" in has
    for names in (MODULES, ("norm", "mlp_act", *FURTHER)) if latent else ((*MODULES, *FURTHER),):
        here = [name for name in names if name in has]
        for n in range(1, len(here) + 1):
            found += [chosen for chosen in combinations(here, n) if chosen not in found]
    # Recompute of moe includes the shared experts.
    found = [chosen for chosen in found if not {"moe", "shared_experts"} <= {*chosen}]
    # Projections of attention run again beside norms and activations; all together are full.
    tried = [name for name in (*MODULES, "mlp", *OUTPUTS) if name in has]
    for n in range(1, len(tried) if named else 0):
        found += [chosen for chosen in combinations(tried, n)
                  if {"norm", "mlp_act"} & {*tried} <= {*chosen} and {*OUTPUTS} & {*chosen}]
    return found


def code_of(recompute: str, modules: Sequence[str]) -> int:
    """Recompute of a layer as a number."""
    if recompute == "full":
        return FULL
    return sum(CODES[name] for name in modules)


def modules_of(code: int) -> tuple[str, ...]:
    """Modules of a number that stands for selective recompute."""
    return tuple(name for name, bit in CODES.items() if code & bit and code != FULL)


def shards(split: Split, job: Job) -> int:
    """Parts of a hand-over that the devices of a stage send side by side."""
    tensor = split.sp or job.stack.scatter_gather
    return split.dp_in * split.cp * (split.tp if tensor else 1)

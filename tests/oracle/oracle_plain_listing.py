"""Every plan of a small instance: layers are dealt to stages one by one, stages to devices.

Degrees are all tuples of numbers, looked at rule by rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from instances import Instance
from oracle_listing import Question
from oracle_plans import write_stage
from oracle_rules import Choice, Outer, Split, checkpointed, policies

from nest.inputs import Configuration, SearchSpace

FEW = 120
"""Plans of an instance, finished or not, that are few enough."""
DEALT = 5000
"""Ways to deal layers to stages, legal or not."""


def stages_of(x: Instance, count: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to deal the layers to stages so that no tensor goes back."""
    for stage in product(range(count), repeat=len(x.chain)):
        flows = all(stage[t.producer] <= stage[c] for t in x.chain.tensors for c in t.consumers)
        if flows and set(stage) == set(range(count)):
            yield [tuple(n for n, s in enumerate(stage) if s == k) for k in range(count)]


def placed(
    choices: Sequence[Choice], count: int, device: int = 0
) -> Iterator[tuple[Choice, ...]]:
    """All ways to put stages on blocks, one behind the other."""
    if count == 0:
        yield ()
        return
    for c in choices:
        if c.start == device:
            for rest in placed(choices, count - 1, device + c.size):
                yield (c, *rest)


def one_range_each(
    x: Instance, schedule: str, outer: Outer, choices: Sequence[Choice]
) -> Iterator[Configuration]:
    """Plans whose stages hold one range of layers each."""
    for count in range(1, len(x.chain) + 1):
        if not x.space.allows("pp", count) or not x.space.allows("vpp", 1):
            continue
        for blocks in placed(choices, count):
            if count > 1 and any(
                    c.state.zero not in x.job.stack.zero_with_pipeline for c in blocks):
                continue
            for layers in stages_of(x, count):
                own = [policies(x.chain, x.space, checkpointed(x.chain, part),
                                x.job.stack.saves_outputs) for part in layers]
                order = tuple(n for part in layers for n in part)
                ends = [sum(map(len, layers[:k])) for k in range(count + 1)]
                for chosen in product(*own):
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, schedule=schedule,
                        order=None if x.chain.is_chain else order,
                        stages=tuple(
                            write_stage(c, policy, [(ends[k], ends[k + 1])])
                            for k, (c, policy) in enumerate(zip(blocks, chosen, strict=True))))


def dealt_out(x: Instance, outer: Outer, choices: Sequence[Choice]) -> Iterator[Configuration]:
    """Interleaved plans: chunks are dealt to the stages in turn."""
    low, high = x.chain.body
    m = x.job.global_batch // (outer.outer_dp * outer.micro_batch)
    for pp, vpp in product(range(2, len(x.chain) + 1), repeat=2):
        parts, left = divmod(high - low, pp * vpp)
        if left or not parts or m % pp or not x.chain.is_chain:
            continue
        if not (x.space.allows("pp", pp) and x.space.allows("vpp", vpp)):
            continue
        ends = [0, *range(low + parts, high, parts), len(x.chain)]
        chunks = list(zip(ends, ends[1:], strict=False))
        most = max(checkpointed(x.chain, range(*chunk)) for chunk in chunks)
        for c in choices:
            blocks = [c._replace(start=s * c.size) for s in range(pp)]
            piped = c.state.zero in x.job.stack.zero_with_pipeline
            if c.start == 0 and piped and all(block in choices for block in blocks):
                for policy in policies(x.chain, x.space, most, x.job.stack.saves_outputs):
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, schedule="interleaved", vpp=vpp,
                        stages=tuple(write_stage(block, policy, chunks[s::pp])
                                     for s, block in enumerate(blocks)))


def every_plan(x: Instance) -> Iterator[Configuration]:
    question = Question(x.chain, x.cluster, x.job, x.space)
    choices = list(question.choices())
    for number, outer in enumerate(question.outers):
        own = [c for n, c in choices if n == number]
        for schedule in x.space.schedules:
            if schedule == "interleaved":
                yield from dealt_out(x, outer, own)
            else:
                yield from one_range_each(x, schedule, outer, own)


def small(x: Instance) -> bool:
    question = Question(x.chain, x.cluster, x.job, x.space)
    return question.counts()[0] <= FEW and question.deepest ** len(x.chain) <= DEALT


def narrowed(x: Instance) -> Instance:
    """The same with so few degrees that few plans are left."""
    space = x.space.model_dump(exclude_none=True)
    if x.theme == "chunks":
        space["schedule"] = ["interleaved"]
    for name, value in (("zero", [1]), ("tp", [1, 2]), ("micro_batch", [1, 2]), ("cp", [1]),
                        ("recompute_modules", ["core_attn"]), ("sp", [False]), ("outer_dp", [1]),
                        ("recompute", ["none", "full"]), ("pp", [1, 2]), ("dp_in", [1])):
        if small(x):
            return x
        space[name] = value
        x = replace(x, space=SearchSpace(**space))
    return x


def plain_splits(x: Instance, micro_batch: int, size: int) -> set[Split]:
    """Every tuple of numbers that no rule speaks against."""
    chain, space, found = x.chain, x.space, set()
    lengths, heads = chain.lengths(x.job.seq_len), chain.kv_heads
    moe = chain.model.moe if chain.model is not None else None
    degrees = range(1, size + 1)
    for dp_in, tp, cp, ep, etp in product(degrees, repeat=5):
        if dp_in * tp * cp != size or micro_batch % dp_in or size % (ep * etp):
            continue
        for sp, gather, inner in product((False, True), (False, True), degrees):
            comm = ("all_gather" if gather else "p2p" if inner == 1 else
                    "a2a" if inner == cp else "a2a+p2p")
            rules = [
                not sp or tp > 1,
                cp % inner == 0,
                not gather or (cp > 1 and inner == 1),
                inner == 1 or all(n % (tp * inner) == 0 for n in heads),
                comm != "a2a+p2p" or space.allows("cp_a2a", inner),
                cp == 1 or chain.model is not None,
                cp == 1 or all(n % (2 * cp) == 0 for n in lengths),
                not sp or chain.model is None or all(n % (tp * cp) == 0 for n in lengths),
                all(width % tp == 0 for _, width in chain.tensor_widths),
                all(n % tp == 0 or tp % n == 0 for n in heads),
                chain.model is not None or all(tp in k.measured for k in chain.kinds),
                moe is None or tp == 1 or sp,
                moe is not None or (ep, etp) == (1, tp),
                moe is None or (moe.experts % ep == 0 and moe.ffn % etp == 0),
                *(space.allows(name, value) for name, value in (
                    ("dp_in", dp_in), ("tp", tp), ("cp", cp), ("ep", ep), ("etp", etp),
                    ("mbs", micro_batch // dp_in))),
                tp == 1 or space.allows("sp", sp),
                cp == 1 or space.allows("cp_comm", comm),
            ]
            if all(rules):
                found.add(Split(dp_in, tp, sp, cp, inner, gather, ep, etp))
    return found

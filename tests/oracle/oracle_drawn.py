"""Random legal plans of an instance, drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from instances import Instance
from oracle_listing import Question, Wrap
from oracle_plans import write_stage
from oracle_rules import Choice, Outer

from nest.inputs import Configuration, SearchSpace


def drawn(x: Instance, rng: Random) -> Configuration | None:
    """Some legal plan, whatever the space of the instance; None where the draw led nowhere."""
    question = Question(x.chain, x.cluster, x.job, SearchSpace())
    wraps = list(question.wraps())
    if wraps and rng.random() < 0.8:
        pp = rng.choice(sorted({wrap.pp for wrap in wraps}))
        return _interleaved(question, rng.choice([w for w in wraps if w.pp == pp]), rng)
    return _one_range_each(question, rng)


def _interleaved(question: Question, wrap: Wrap, rng: Random) -> Configuration | None:
    outer = question.outers[wrap.outer]
    first = _choice(question, outer, [(0, wrap.size)], True, rng)
    if first is None:
        return None
    chunks = [[range(chunk[0], chunk[-1] + 1) for chunk in question.chunks(wrap, s)]
              for s in range(wrap.pp)]
    if rng.random() < 0.5:
        chunks = _unequal(len(question.chain), wrap, rng)
    policy = rng.choice(question.policies(*(tuple(chunk) for stage in chunks for chunk in stage)))
    return Configuration(
        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch, stride=outer.stride,
        schedule="interleaved", vpp=wrap.vpp, stages=tuple(
            write_stage(first._replace(start=s * wrap.size), policy,
                        [(chunk.start, chunk.stop) for chunk in stage])
            for s, stage in enumerate(chunks)))


def _unequal(layers: int, wrap: Wrap, rng: Random) -> list[list[range]]:
    """Any chunks, of which many are empty where there are many."""
    cuts = [0, *sorted(rng.randint(0, layers) for _ in range(wrap.pp * wrap.vpp - 1)), layers]
    return [[range(cuts[c * wrap.pp + s], cuts[c * wrap.pp + s + 1]) for c in range(wrap.vpp)]
            for s in range(wrap.pp)]


def _one_range_each(question: Question, rng: Random) -> Configuration | None:
    """Stages and their blocks from the first to the last, of whatever is left."""
    outer = rng.choice(question.outers)
    cut, device, order, stages = 0, 0, list[int](), []
    while cut != question.cuts[-1]:
        after = rng.choice([c for c in question.cuts if c != cut and c & cut == cut])
        layers = question.layers(question.cuts.index(cut), question.cuts.index(after))
        blocks = [(start, size) for start, size in question.blocks(outer) if start == device]
        piped = (cut, after) != (0, question.cuts[-1])
        c = _choice(question, outer, blocks, piped, rng)
        if c is None:
            return None
        ends = len(order), len(order) + len(layers)
        stages.append(write_stage(c, rng.choice(question.policies(layers)), [ends]))
        order += layers
        cut, device = after, device + c.size
    return Configuration(
        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch, stride=outer.stride,
        schedule=rng.choice(("1f1b", "1f1b", "gpipe")), stages=tuple(stages),
        order=None if question.chain.is_chain else tuple(order))


def _choice(
    question: Question, outer: Outer, blocks: Sequence[tuple[int, int]], piped: bool, rng: Random
) -> Choice | None:
    """Some degrees on some of the blocks; often a small one, so that others have room."""
    if not blocks:
        return None
    start, size = rng.choice(blocks[: rng.randint(1, len(blocks))])
    splits = question.splits(outer.micro_batch, size)
    if not splits:
        return None
    split = rng.choice(splits)
    return Choice(start, size, split, rng.choice(question.states(outer, split, piped)))

"""Which degrees a model, a cluster and a job allow, and why not: one rule, one sentence.

The rules are those of Megatron-Core (heads, key-value groups, experts, sequence) and of the
physical blocks of :mod:`nest.costs.groups`; the search and ``evaluate`` ask the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.space import SearchSpace
from nest.graph import Chain


def tp_problem(chain: Chain, job: Job, tp: int, sp: bool) -> str | None:
    """Why a tensor-parallel degree is impossible; None when it is legal."""
    model = chain.model
    if model is None:
        missing = [kind.name for kind in chain.kinds if tp not in kind.measured]
        if missing:
            return f"tp {tp} was not measured for layer {missing[0]}"
        return None
    if tp == 1:
        return "sp needs tp above 1" if sp else None
    for name, size in _divisible(model):
        if size % tp:
            return f"tp {tp} does not divide {name} {size}"
    kv = model.kv_heads
    if kv % tp and tp % kv:
        return f"tp {tp} neither divides nor is a multiple of kv_heads {kv}"
    if sp and job.seq_len % tp:
        return f"sp needs tp {tp} to divide seq_len {job.seq_len}"
    if model.moe is not None and not sp:
        return f"tp {tp} with experts needs sp"
    return None


def _divisible(model: Model) -> Iterator[tuple[str, int]]:
    yield "heads", model.heads
    moe = model.moe
    if moe is None or moe.first_dense or moe.every > 1:
        yield "ffn", model.ffn
    if moe is not None and moe.shared_ffn:
        yield "shared_ffn", moe.shared_ffn


def ep_problem(chain: Chain, ep: int, etp: int, tp: int, block: int) -> str | None:
    """Why expert-parallel degrees are impossible on a block; None when they are legal."""
    moe = chain.model.moe if chain.model is not None else None
    if moe is None:
        if ep != 1:
            return f"ep {ep} needs a model with experts"
        return None if etp == tp else f"etp {etp} needs a model with experts (else etp = tp)"
    if moe.experts % ep:
        return f"ep {ep} does not divide experts {moe.experts}"
    if moe.ffn % etp:
        return f"etp {etp} does not divide the expert ffn {moe.ffn}"
    if block % (ep * etp):
        return f"ep {ep} x etp {etp} does not divide the block of {block} devices"
    return None


def stage_problem(
    chain: Chain, job: Job, stage: StageConfiguration, micro_batch: int, depth: int
) -> str | None:
    """Why a stage cannot be built as configured; None when it can."""
    block = stage.devices[1] - stage.devices[0]
    if stage.dp_in * stage.tp * stage.cp != block:
        return (f"dp_in {stage.dp_in} x tp {stage.tp} x cp {stage.cp} does not fill the block of "
                f"{block} devices")
    if stage.cp != 1:
        return f"cp {stage.cp} is not available; allowed: 1"
    if micro_batch % stage.dp_in:
        return f"dp_in {stage.dp_in} does not divide micro_batch {micro_batch}"
    if depth > 1 and stage.zero not in job.stack.zero_with_pipeline:
        return (f"zero {stage.zero} with a pipeline is not supported by stack {job.stack.name}; "
                f"allowed: {', '.join(map(str, job.stack.zero_with_pipeline))}")
    return (tp_problem(chain, job, stage.tp, stage.sp)
            or ep_problem(chain, stage.ep, stage.etp, stage.tp, block))


def sequence_problem(chain: Chain, job: Job) -> str | None:
    """Why the sequence length is impossible for the model; None when it is legal."""
    model = chain.model
    if model is not None and model.positions and job.seq_len > model.positions:
        return (f"seq_len: got {job.seq_len}; allowed: at most {model.positions} "
                f"(learned positions of {model.name})")
    return None


def outer_problem(cluster: Cluster, job: Job, plan: Configuration) -> str | None:
    """Why replicas, batch or blocks do not fit together; None when they do."""
    samples = plan.outer_dp * plan.micro_batch
    if job.global_batch % samples:
        return (f"outer_dp {plan.outer_dp} x micro_batch {plan.micro_batch} = {samples} does not "
                f"divide global_batch {job.global_batch}")
    used = plan.stages[-1].devices[1]
    if plan.outer_dp > 1 and used > plan.stride:
        return f"stages use {used} devices, but super-pipelines start {plan.stride} apart"
    last = (plan.outer_dp - 1) * plan.stride + used
    if last > cluster.size:
        return f"the last super-pipeline ends at device {last} of {cluster.size}"
    return None


def space_problems(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> list[str]:
    """Dimensions of a space of which no value is legal, each with the reason for its smallest."""
    size, batch = cluster.size, job.global_batch
    model = chain.model
    moe = model.moe if model is not None else None

    def tp(value: int) -> str | None:
        reasons = [tp_problem(chain, job, value, sp and value > 1)
                   for sp in (space.sp or (True, False))]
        return None if None in reasons else reasons[0]

    def ep(value: int) -> str | None:
        if moe is None:
            return None if value == 1 else "only models with experts have ep above 1"
        return None if moe.experts % value == 0 else f"not a divisor of experts {moe.experts}"

    def batch_part(value: int) -> str | None:
        return None if batch % value == 0 else f"not a divisor of global_batch {batch}"

    def depth(value: int) -> str | None:
        return None if value <= len(chain) else f"more than the {len(chain)} layers"

    rules = {"tp": tp, "ep": ep, "outer_dp": batch_part, "micro_batch": batch_part,
             "mbs": batch_part, "dp_in": batch_part, "pp": depth}
    found = []
    for name, rule in rules.items():
        given = getattr(space, name)
        if given is None:
            continue
        most = batch if name in ("micro_batch", "mbs") else size
        legal = [value for value in given.values(most) if rule(value) is None]
        if not legal:
            low = given.smallest
            why = rule(low) if low <= most else None
            found.append(f"{name}: got {given}; {why or f'allowed: at most {most}'}")
    return found

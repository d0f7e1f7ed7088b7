"""Which degrees a model, a cluster and a job allow, and why not: one rule, one sentence.

The rules are those of Megatron-Core (heads, key-value groups, experts, sequence) and of the
physical blocks of :mod:`nest.costs.network.placement`; the search and ``evaluate`` ask the same
functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job, Stack
from nest.inputs.offload import OFFLOAD_MODULES, Offload
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.operators import OUTPUT_MODULES
from nest.model.schedules import chunk_problem, group_problems, path_problems
from nest.schedules.registry import PLAIN, chunks_at


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending: the degrees that divide something."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def tensor_degrees(chain: Chain, most: int) -> tuple[int, ...]:
    """Tensor-parallel degrees up to ``most`` that divide all widths, or were measured."""
    widths = [width for _, width in chain.tensor_widths]
    if "mamba" in chain.mixers:
        return (1,) if most else ()
    found = divisors(math.gcd(*widths)) if chain.profile is None else chain.profile.degrees
    return tuple(tp for tp in found if tp <= most)


def module_sets(chain: Chain, space: SearchSpace, stack: Stack) -> tuple[tuple[str, ...], ...]:
    """Sets of modules of selective recompute: those that a space names and the model has, else
    those that a search tries."""
    if space.recompute_modules is None:
        return chain.sets_under(stack)
    every = chain.modules_under(stack)
    return tuple(names for count in range(1, len(every) + 1)
                 for names in combinations(every, count)
                 if space.allows("recompute_modules", "+".join(names)))


def tp_problem(chain: Chain, job: Job, tp: int, sp: bool, cp: int = 1) -> str | None:
    """Why a tensor-parallel degree is impossible; None when it is legal."""
    if chain.model is None:
        missing = [kind.name for kind in chain.kinds if tp not in kind.measured]
        if missing:
            return f"tp {tp} was not measured for layer {missing[0]}"
        return None
    if tp == 1:
        return "sp needs tp above 1" if sp else None
    if "mamba" in chain.mixers:
        return (f"tp {tp} with layers of recurrence.form mamba: the ranks would exchange time "
                "steps, B and C within a layer, which is not priced")
    for name, size in chain.tensor_widths:
        if size % tp:
            return f"tp {tp} does not divide {name} {size}"
    for kv in chain.kv_heads:
        if kv % tp and tp % kv:
            return f"tp {tp} neither divides nor is a multiple of kv_heads {kv}"
    for length in chain.lengths(job.seq_len):
        if sp and length % (tp * cp):
            times = f"tp {tp} x cp {cp}" if cp > 1 else f"tp {tp}"
            return f"sp needs {times} to divide the sequence of {length} tokens"
    if chain.experts is not None and not sp:
        return f"tp {tp} with experts needs sp"
    return None


def cp_problem(
    chain: Chain, job: Job, cp: int, cp_comm: str, tp: int, cp_a2a: int = 1
) -> str | None:
    """Why a context-parallel degree is impossible; None when it is legal.

    Causal attention is divided into 2 cp pieces, one early and one late for each rank; an
    all-to-all divides heads instead (Megatron-Core and Transformer Engine, context parallelism).
    """
    if cp == 1 and cp_comm != "p2p":
        return f"cp_comm {cp_comm} needs cp above 1"
    if cp_comm != "a2a+p2p" and cp_a2a != 1:
        return f"cp_a2a {cp_a2a} needs cp_comm a2a+p2p"
    if cp_comm == "a2a+p2p" and (cp_a2a in (1, cp) or cp % cp_a2a):
        return (f"cp_comm a2a+p2p needs cp_a2a that divides cp {cp}, above 1 and below it; here "
                f"{cp_a2a}")
    if cp == 1:
        return None
    if chain.model is None:
        return f"cp {cp} needs a model: a profile is measured without"
    if states := sorted(chain.mixers & {"sparse attention", "mamba"}):
        return (f"cp {cp}: some layers have {states[0]}, whose exchange between the parts of a "
                "sequence is not priced; allowed: cp 1, with tp, pp or recompute where a device "
                "holds too many tokens")
    if found := recurrence_problem(chain, tp, cp):
        return found
    for length in chain.lengths(job.seq_len):
        if length % (2 * cp):
            return f"2 x cp {cp} does not divide the sequence of {length} tokens"
    for kv in chain.kv_heads:
        if cp_comm == "a2a" and kv % (tp * cp):
            return f"cp_comm a2a needs tp {tp} x cp {cp} to divide kv_heads {kv}"
        if cp_comm == "a2a+p2p" and kv % (tp * cp_a2a):
            return f"cp_comm a2a+p2p needs tp {tp} x cp_a2a {cp_a2a} to divide kv_heads {kv}"
    return None


def recurrence_problem(chain: Chain, tp: int, cp: int) -> str | None:
    """Why a recurrence's heads cannot be divided over ranks; None when they can.

    Groups of Mamba-2 that are fewer than ranks are repeated, those of others never
    (NVIDIA/Megatron-LM@d98e8a6 megatron/core/ssm/mamba_context_parallel.py:84-114,
    megatron/core/transformer/transformer_config.py:1501-1509).
    """
    r = chain.model.recurrence if chain.model is not None else None
    if r is None or r.form not in chain.mixers:
        return None
    ranks = tp * cp
    if r.heads % ranks:
        return f"cp {cp} needs tp {tp} x cp {cp} to divide recurrence.heads {r.heads}"
    if r.groups % ranks == 0:
        return None
    if r.form != "mamba2":
        return f"cp {cp} needs tp {tp} x cp {cp} to divide recurrence.groups {r.groups}"
    return None if ranks % r.groups == 0 else (
        f"cp {cp} needs tp {tp} x cp {cp} to divide recurrence.groups {r.groups}, or to be a "
        "multiple of them")


def expert_problem(chain: Chain, ep: int, etp: int) -> str | None:
    """Why expert-parallel degrees are impossible; None when they are legal."""
    moe = chain.experts
    if moe is None:
        return f"ep {ep} needs a model with experts" if ep != 1 else None
    if moe.experts % ep:
        return f"ep {ep} does not divide experts {moe.experts}"
    if moe.ffn % etp:
        return f"etp {etp} does not divide the expert ffn {moe.ffn}"
    return None


def stage_problem(
    chain: Chain, job: Job, stage: StageConfiguration, plan: Configuration
) -> str | None:
    """Why a stage is illegal as configured; None when it is legal."""
    block = stage.devices[1] - stage.devices[0]
    if stage.dp_in * stage.tp * stage.cp != block:
        return (f"dp_in {stage.dp_in} x tp {stage.tp} x cp {stage.cp} does not fill the block of "
                f"{block} devices")
    if plan.micro_batch % stage.dp_in:
        return f"dp_in {stage.dp_in} does not divide micro_batch {plan.micro_batch}"
    if plan.pp > 1 and stage.zero not in job.stack.zero_with_pipeline:
        return (f"zero {stage.zero} with a pipeline is not supported by stack {job.stack.name}; "
                f"allowed: {', '.join(map(str, job.stack.zero_with_pipeline))}")
    if stage.shard == "dp_in" and not (
            stage.zero and plan.outer_dp > 1 and stage.dp_in * stage.cp > 1):
        return ("shard dp_in needs zero above 0, several replicas and dp_in x cp above 1; here "
                f"zero {stage.zero}, outer_dp {plan.outer_dp}, dp_in x cp "
                f"{stage.dp_in * stage.cp}")
    if found := excluded(plan.offload, "recompute", stage.recompute):
        return found
    every = chain.modules_under(job.stack)
    for module in stage.recompute_modules:
        if module in OUTPUT_MODULES and not job.stack.saves_outputs:
            return (f"recompute_modules {module} needs a stack that keeps named outputs "
                    f"(saves_outputs), which {job.stack.name} does not; allowed: "
                    f"{', '.join(every) or 'none'}")
        if module not in every:
            return (f"recompute_modules {module} is in no layer of {chain.name}; allowed: "
                    f"{', '.join(every) or 'none'}")
    found = (tp_problem(chain, job, stage.tp, stage.sp, stage.cp)
             or cp_problem(chain, job, stage.cp, stage.cp_comm, stage.tp, stage.cp_a2a)
             or expert_problem(chain, stage.ep, stage.etp))
    if found:
        return found
    if chain.experts is None:
        return None if stage.etp == stage.tp else (
            f"etp {stage.etp} needs a model with experts (else etp = tp)")
    if block % (stage.ep * stage.etp):
        default = " (tp, where it is not given)" if stage.etp == stage.tp > 1 else ""
        return (f"ep {stage.ep} x etp {stage.etp}{default} does not divide the block of {block} "
                "devices")
    return None


def schedule_problems(chain: Chain, job: Job, plan: Configuration) -> Iterator[str]:
    """Requirements of the pipeline schedule that a plan violates."""
    name, vpp, pp = plan.schedule, plan.vpp, plan.pp
    if name not in PLAIN:
        yield from path_problems(chain, job, plan)
        return
    if name != "interleaved":
        if plan.group is not None:
            yield f"group: got {plan.group} with schedule {name}, which has none"
        if vpp != 1:
            yield f"vpp: got {vpp} with schedule {name}; allowed: 1"
        for number, stage in enumerate(plan.stages):
            if len(stage.chunks) > 1:
                yield f"stages.{number}.chunks: several chunks need the schedule interleaved"
        return
    micro_batches = job.global_batch // (plan.outer_dp * plan.micro_batch)
    if vpp < 2 or pp < 2:
        yield (f"schedule interleaved needs vpp and pp above 1; here vpp {vpp}, pp {pp}")
    elif not chain.is_chain:
        yield f"schedule interleaved needs a chain; {chain.name} has branches"
    elif problem := next(group_problems(plan, micro_batches), None):
        yield problem
    else:
        first = plan.stages[0]
        size = first.devices[1] - first.devices[0]
        if problem := chunk_problem(chain, plan):
            yield problem
        for number, stage in enumerate(plan.stages):
            same = {"layers": stage.layers, "chunks": stage.chunks,
                    "devices": (number * size, (number + 1) * size)}
            if stage != first.unchecked(**same):
                yield (f"stages.{number}: differs from stage 0; interleaved stages have equal "
                       "blocks and degrees")


def interleaved_chunks(chain: Chain, pp: int, vpp: int) -> list[tuple[tuple[int, int], ...]]:
    """Layers [i, j) of every chunk of every stage: repeated layers in equal parts, round-robin."""
    first, last = chain.body
    size = (last - first) // (pp * vpp)
    cuts = [0, *(first + n * size for n in range(1, pp * vpp)), len(chain)]
    return chunks_at(cuts, pp, "interleaved")


def sequence_problem(chain: Chain, job: Job) -> str | None:
    """Why the sequence length is impossible for the model; None when it is legal."""
    model = chain.model
    if model is not None and model.vision and job.seq_len < model.vision.merged_tokens:
        return (f"seq_len: got {job.seq_len}; allowed: at least {model.vision.merged_tokens} "
                f"(places that the image takes in {model.name})")
    if model is not None and model.positions and job.seq_len > model.positions:
        return (f"seq_len: got {job.seq_len}; allowed: at most {model.positions} "
                f"(learned positions of {model.name})")
    return None


def offload_problem(chain: Chain, cluster: Cluster, text: str) -> str | None:
    """Why something cannot be kept in the memory of the hosts; None where it can."""
    wanted = Offload.of(text)
    if wanted.layers and wanted.layers >= chain.repeated:
        return (f"offload: got layers:{wanted.layers}; allowed: below the {chain.repeated} "
                "transformer layers")
    has = {op.offloaded for kind in chain.kinds for op in kind.operators} - {""}
    for module in wanted.modules:
        if module not in has:
            return (f"offload: {module} is in no layer of {chain.name}; allowed: "
                    f"{', '.join(name for name in OFFLOAD_MODULES if name in has) or 'none'}")
    for device in cluster.device_types if text != "none" else ():
        missing = [name for name in ("host_link", "host_memory", "host_memory_bandwidth")
                   if getattr(device, name) is None]
        if missing:
            return (f"offload: got {text}, but {', '.join(missing)} of device {device.name} are "
                    "not known; needed: a device file that has them")
    return None


def excluded(text: str, dimension: str, value: object) -> str | None:
    """Why a value of another dimension is impossible with what is kept in the hosts' memory."""
    allowed = Offload.of(text).needs.get(dimension, (value,))
    return None if value in allowed else (
        f"{dimension} {value} with offload {text}; allowed: {', '.join(map(str, allowed))}")


def outer_problem(cluster: Cluster, job: Job, plan: Configuration) -> str | None:
    """Why replicas, batch and blocks are inconsistent; None when they are consistent."""
    samples = plan.outer_dp * plan.micro_batch
    if job.global_batch % samples:
        return (f"outer_dp {plan.outer_dp} x micro_batch {plan.micro_batch} = {samples} does not "
                f"divide global_batch {job.global_batch}")
    used = plan.stages[-1].devices[1]
    if used > plan.stride:
        return f"stages use {used} devices, but replicas start {plan.stride} apart"
    if plan.stride > cluster.size:
        return f"stride: got {plan.stride}; allowed: at most the {cluster.size} devices"
    last = plan.outer_dp * plan.stride  # also of devices that each leaves idle
    if last > cluster.size:
        return f"the last replica ends at device {last} of {cluster.size}"
    return None


def space_problems(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> list[str]:
    """Dimensions of a space without a legal value, each with the reason for its smallest one."""
    size, batch, moe = cluster.size, job.global_batch, chain.experts

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

    def cp(value: int) -> str | None:
        return cp_problem(chain, job, value, "p2p", 1)

    devices = (size, f"devices of {cluster.name}")
    samples = (batch, f"samples of global_batch {batch}")
    stages = min(devices, (len(chain), f"layers of {chain.name}"))
    rules = {
        "tp": (tp, devices), "cp": (cp, devices), "ep": (ep, devices),
        "outer_dp": (batch_part, devices), "dp_in": (batch_part, devices),
        "micro_batch": (batch_part, samples), "mbs": (batch_part, samples),
        "pp": (None, stages), "group": (None, samples),
    }
    found = []
    for name, (rule, (most, bound)) in rules.items():
        given = getattr(space, name)
        if given is None:
            continue
        inside = given.values(most)
        why = rule(inside[0]) if rule and inside else f"allowed: 1 to {most}, the {bound}"
        if not inside or (rule and all(rule(value) for value in inside)):
            found.append(f"{name}: got {given}; {why}")
    for text in space.offload:
        found += filter(None, [offload_problem(chain, cluster, text)])
        found += [f"offload: got {text}; allowed: with {name} {', '.join(map(str, values))}"
                  for name, values in Offload.of(text).needs.items()
                  if not any(space.allows(name, value) for value in values)]
    return found

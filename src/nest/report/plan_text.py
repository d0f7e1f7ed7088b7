"""The text of a plan: decisions first, then reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Unpack

from nest.evaluation.plans import Evidence, Plan
from nest.inputs import Cluster, GemmEfficiency
from nest.inputs.configuration import Configuration
from nest.inputs.device import default_gemm
from nest.inputs.lengths import mean_length
from nest.inputs.space import SearchSpace
from nest.model import build_chain
from nest.report.page import Page, PageOptions
from nest.report.stages import Table, memory_table, stage_tables, time_table
from nest.schedules.registry import SCHEDULES
from nest.stacks import offload_settings
from nest.units import format_bytes, format_seconds, runs_text

BAR = 24
MOST_PROBLEMS = 8
ROUNDING = 1e-9
"""Share of a step below which a part is a rounding error."""
WORDS = {
    "forward": "forward", "backward": "backward", "recompute": "recompute", "tp": "tensor parallel",
    "cp": "context parallel", "ep": "expert parallel",
    "offload": "host transfers", "maxima": "maxima of fp8", "zero": "ZeRO",
    "bubble": "pipeline bubble", "finish": "end of step", "step": "step",
}
LAYERS = {
    "embedding": "embedding", "layer": "transformer layers", "moe_layer": "transformer layers",
    "mtp_layer": "multi-token prediction", "head": "vocabulary head and loss",
    "encoder_embedding": "embedding of the encoder", "encoder_layer": "encoder layers",
    "encoder_end": "end of the encoder", "decoder_embedding": "embedding of the decoder",
    "decoder_layer": "decoder layers", "patch_embedding": "embedding of image patches",
    "vision_layer": "image layers", "projector": "projector", "merge": "merge of images and text",
    "window_layer": "transformer layers", "window_moe_layer": "transformer layers",
}
"""Layers of a model by the names of their kinds."""


def plan_text(plan: Plan, simulated: float | None = None, **options: Unpack[PageOptions]) -> str:
    """Give the report of a plan.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.
    options : as of :class:`nest.report.page.Page`.
    simulated : seconds of the step as `simulate` finds them; None: not simulated.
    """
    page = Page(**options)
    problems(page, plan)
    page.paragraph(plan.headline, "bold")
    page.blank()
    _choices(page, plan)
    page.blank()
    for number, table in enumerate(stage_tables(plan, page.width)):
        if number:
            page.blank()
        _table(page, table)
    page.paragraph(_layers(plan), "dim")
    page.blank()
    for table in (time_table(plan), memory_table(plan)):
        _table(page, table)
        page.blank()
    breakdown(page, plan)
    page.blank()
    if plan.alternatives:
        alternatives(page, plan)
        page.blank()
    if simulated is not None:
        page.fact("Simulated", f"{format_seconds(simulated)} per step by discrete-event "
                  "simulation; the priced step time differs by "
                  f"{percent(plan.step_time_s / simulated - 1.0, 1)}")
    if (most := plan.inputs.job.expert_imbalance) > 1.0:
        page.fact("Imbalance", "the busiest device of an expert-parallel group gets "
                  f"{most:g} times the mean of the tokens (expert_imbalance)")
    elif any(stage.ep > 1 for stage in plan.stages):
        page.fact("Routing", "experts are assumed to get equally many tokens, as in benchmarks "
                  "that force them; trained with a balancing loss a step takes longer "
                  "(--routing loss), without one much longer (--routing none)")
    if (limit := plan.inputs.job.expert_capacity) is not None:
        page.fact("Capacity", "an expert takes "
                  f"{'exactly' if plan.inputs.job.expert_padding else 'at most'} {limit:g} times "
                  "the mean of the tokens of a device; others are dropped (expert_capacity)")
    if plan.search is not None:
        page.fact("Optimal", proved(plan))
        if plan.search.left_out:
            page.fact("Left out", "; ".join(
                f"{one.figure}: {one.sentence}" for one in plan.search.left_out))
    if better := other_batch(plan):
        page.fact("Other batch", better)
    page.fact("Search", searched(plan))
    return page.text()


def other_batch(plan: Plan) -> str:
    """A batch that takes less time per sequence; empty: none is known."""
    better = plan.better_batch
    if better is None:
        return ""
    return (f"{better.global_batch:,} sequences take at least {int(100 * better.faster)} % less "
            f"time per sequence, at most {format_seconds(better.step_time_s)} per step "
            f"(--global-batch {better.global_batch})")


def searched(plan: Plan) -> str:
    """Scope and effort of the search."""
    s = plan.search
    if s is None:
        return "none: only this configuration was priced"
    usual = SearchSpace().describe()
    bound = [f"{name} {text}" for name, text in s.space.items() if text != usual.get(name)]
    every = "every plan that the stack can run" if s.within_stack else "every legal plan"
    scope = every + (f" with {', '.join(bound)}" if bound else "")
    scope += ", but those left out" if s.left_out else ""
    threads = f"{s.threads} thread" + ("" if s.threads == 1 else "s")
    return (f"{scope}; {s.solved:,} combinations of replicas and micro-batch solved, "
            f"{s.pruned:,} excluded by a bound, in {format_seconds(s.seconds, 3)} on {threads}; "
            f"kernels compiled or loaded in {format_seconds(s.compile_seconds, 3)}; "
            f"peak memory {format_bytes(s.peak_bytes, 3)}")


def sure(plan: Plan) -> list[tuple[str, str]]:
    """What speaks for the price of a plan, and the range of step times that follows from it."""
    found = []
    if text := evidence(plan):
        found.append(("Evidence", text))
    if likely := expected(plan):
        found.append(("Expected", f"{likely} per step in 9 of 10 cases"))
    return found


def evidence(plan: Plan) -> str:
    """The measured runs like a plan, and doubts of its price; empty: nothing is known."""
    words = [] if plan.evidence is None else [*_spoken(plan, plan.evidence)]
    return "; ".join([*words, *plan.doubts])


def expected(plan: Plan) -> str:
    """The range that 9 of 10 steps lie in; empty: not known."""
    known = plan.confidence
    return "" if known is None else (
        f"{format_seconds(known.low_s, 3)} to {format_seconds(known.high_s, 3)}")


def _spoken(plan: Plan, known: Evidence) -> Iterator[str]:
    """The measured runs like a plan, in words."""
    name = plan.inputs.job.stack.name
    beyond = plan.confidence.beyond if plan.confidence is not None else ()
    if beyond:
        yield f"{known.word}, because not among {known.configurations} measured configurations " \
              f"of {name}: {', '.join(beyond)}"
    elif known.configurations:
        yield f"{known.word}: {known.like} of {known.configurations} measured configurations of " \
              f"{name} are like it"
    else:
        yield known.word
    for near in known.nearest[:1]:
        degrees = ", ".join(f"{degree} {value}" for degree in ("tp", "pp", "cp", "ep")
                            if (value := getattr(near, degree)) > 1)
        yield f"nearest: {near.model} on {near.devices:,} {near.device}, {near.precision}" + (
            f", {degrees}" if degrees else "")
    if known.missed is not None:
        yield f"prices of {'these' if known.like else 'all'} missed {100 * known.missed:.1f} % " \
              f"in the median{'' if known.fitted else ', fitted to none of them'}"


def proved(plan: Plan) -> str:
    """How far the plan may be from the optimum."""
    if plan.optimal:
        found = "yes: no plan in the searched space is faster"
        narrowed = plan.search is not None and plan.search.left_out
        return f"{found}; one left out may be" if narrowed else found
    after = format_seconds(plan.search.seconds, 3) if plan.search is not None else "a search"
    if plan.gap is None or plan.lower_bound_s is None:
        return f"not known: the search ended after {after}"
    return (f"not proved: within {100 * plan.gap:.2g} % of the best possible (lower bound "
            f"{format_seconds(plan.lower_bound_s)}). The search ended after {after}, at its "
            "limit")


def span_text(values: Iterable[int]) -> str:
    """One number, or the least and the largest."""
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def blocks(way: Configuration) -> str:
    """Devices of the blocks, from the smallest to the largest."""
    sizes = sorted({s.devices[1] - s.devices[0] for s in way.stages})
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}..{sizes[-1]}"


def percent(share: float, decimals: int) -> str:
    """A difference as `+1.25 %`; zero has no minus."""
    return f"{round(100 * share, decimals) + 0.0:+.{decimals}f} %"


def scale(seconds: float) -> tuple[float, int, str]:
    """Factor, decimals and unit for a table of times of about this length."""
    unit = format_seconds(seconds).split()[-1]
    return *{"s": (1.0, 3), "ms": (1e3, 2), "us": (1e6, 1)}.get(unit, (1e9, 0)), unit


def problems(page: Page, plan: Plan) -> None:
    """Why the plan does not fit; nothing where it does."""
    if plan.feasible:
        return
    page.paragraph("DOES NOT FIT", "bold red")
    for problem in plan.problems[:MOST_PROBLEMS]:
        page.fact("-", problem, 1)
    more = len(plan.problems) - MOST_PROBLEMS
    if more > 0:
        page.fact("-", f"and {more} more stages; --json lists them all", 1)
    page.blank()


def _choices(page: Page, plan: Plan) -> None:
    p, job = plan.parallelism, plan.inputs.job
    for name, text in sure(plan):
        page.fact(name, text)
    what = f"pp {p.pp} x blocks of {blocks(plan.configuration)} x outer_dp {p.outer_dp}"
    virtual = f", vpp {p.vpp}" if p.vpp > 1 else ""
    groups = f" in groups of {p.group} micro-batches" if p.group is not None else ""
    page.fact("Parallelism", f"{what}{virtual}, schedule {SCHEDULES[p.schedule].label}{groups}; "
              f"{p.devices_used:,} of {plan.inputs.cluster.size:,} devices used")
    page.fact("Batch", f"{p.global_batch:,} sequences of {job.seq_len:,} tokens = outer_dp "
              f"{p.outer_dp} x micro-batch {p.micro_batch} x {p.micro_batches:,} micro-batches")
    if text := samples(plan):
        page.fact("Samples", text)
    page.fact("Training", f"{job.precision}, {job.optimizer}, stack {job.stack.name}, device "
              f"{', '.join(device.name for device in plan.inputs.cluster.device_types)}")
    if p.choices:
        page.fact("Software", ", ".join(f"{name} {value}" for name, value in p.choices.items()))
    for name, text in launch(plan):
        page.fact(name, text)
    if assumed := defaults(plan.inputs.cluster):
        page.fact("Defaults", f"{assumed}: not measured, or not stated")
    if plan.layout is not None and p.pp > 1:
        page.fact("Layout", plan.layout)
    if p.offload != "none":
        page.fact("Hosts", _hosts(plan))
    page.fact("Replicas", _replicas(plan.replicas))
    if text := numbers(plan.inputs.cluster):
        page.fact("Devices", text)
    if parts := _partly(plan.inputs.cluster):
        page.fact("Groups", parts)
    page.fact("Bound by", plan.bottleneck.replace("%", " %"))
    used: dict[str, dict[str, None]] = {}
    for group, name in (item for s in plan.stages for item in s.collectives.items()):
        used.setdefault(group, {})[name] = None
    if used:
        text = "; ".join(f"{group} {' or '.join(used[group])}" for group in used)
        page.fact("Collectives", text.replace("hierarchical", "hierarchical (level by level)"))


def samples(plan: Plan) -> str:
    """Samples of many lengths, and what they do to steps; empty: each sequence is one."""
    job = plan.inputs.job
    if job.lengths is None:
        return ""
    mean, most = mean_length(job.lengths), max(job.lengths)
    text = f"{mean:,.0f} tokens in the mean, up to {most:,}; {job.packing}"
    if job.packing == "padded":
        return f"{text}: {100 * (1.0 - mean / job.seq_len):.0f} % of all tokens are padding"
    if plan.step_spread_s is None:
        return f"{text}, but attention sees whole sequences"
    return (f"{text}, attention stays within them; steps differ by "
            f"{format_seconds(plan.step_spread_s)} (standard deviation)")


def launch(plan: Plan) -> list[tuple[str, str]]:
    """Whether the stack can run the plan, and what not, one line a finding."""
    stack = plan.inputs.job.stack
    known = stack.capabilities
    if known is None:
        return [("Launch", f"not known: stack {stack.name} does not say what it can run")]
    broken = [found.sentence for found in plan.not_runnable]
    model = plan.inputs.model
    if not broken and plan.runnable is None and model is not None:
        parts = ", ".join(build_chain(model).unlisted)
        return [("Launch", f"not known: the table of {known.title} does not cover {parts}")]
    if broken:
        verb = "cannot run this:"
    else:
        broken = [found.sentence for found in plan.launch_needs]
        verb = "can run this;" if broken else "can run this"
    shown = broken[:MOST_PROBLEMS]
    if len(broken) > len(shown):
        shown.append(f"and {len(broken) - len(shown)} more; --json lists them all")
    if plan.runnable and (words := offload_settings(plan.inputs.job, plan.parallelism.offload)):
        verb += " with" if verb.endswith("this") else ""
        shown.append(" ".join(words))
    if len(shown) == 1:
        return [("Launch", f"{known.title} {verb} {shown[0]}")]
    return [("Launch", f"{known.title} {verb}"), *(("", f"- {text}") for text in shown)]


def launch_in_short(plan: Plan) -> str:
    """The same in one sentence, with the number of its needs."""
    known, needs = plan.inputs.job.stack.capabilities, len(plan.launch_needs)
    if known is None or not plan.runnable or not needs:
        return " ".join(text for _, text in launch(plan))
    return f"{known.title} can run this, with {needs} need{'s' if needs > 1 else ''} for its launch"


def numbers(cluster: Cluster) -> str:
    """The devices that a plan numbers; empty: those of its description, in their order."""
    found = cluster.numbers
    return "" if found is None else (
        f"in network order: {runs_text(found)} (--ranks FILE names them)")


def _hosts(plan: Plan) -> str:
    """What is kept in the memory of the hosts."""
    fullest = max(plan.stages, key=lambda stage: stage.host_bytes)
    limit = fullest.host_limit_bytes or 0.0
    return (f"offload {plan.parallelism.offload}: at most {format_bytes(fullest.host_bytes)} of "
            f"{format_bytes(limit)} for each device in the memory of its host")


def _replicas(starts: tuple[int, ...]) -> str:
    if len(starts) == 1:
        return f"one pipeline, starting at device {starts[0]}"
    shown = [str(start) for start in starts]
    if len(shown) > 6:
        shown = [*shown[:4], "...", shown[-1]]
    text = ", ".join(shown).replace("..., ", "... ")
    return f"{len(starts):,} identical pipelines, starting at devices {text}"


def _partly(cluster: Cluster) -> str:
    """Groups that are partly used; empty if all are whole."""
    parts, sizes = [], cluster.group_sizes
    for level, size, inner in zip(cluster.levels, sizes, (1, *sizes), strict=False):
        groups, left = divmod(cluster.size, size)
        if level.whole is not None and groups:
            parts.append(f"{size:,} of {inner * level.whole:,} devices of each {level.name}")
        if left and groups:
            parts.append(f"{left:,} of {size:,} devices of the last {level.name}")
    return "; ".join(parts)


def _layers(plan: Plan) -> str:
    """The names of the numbered layers."""
    p, model, profile = plan.parallelism, plan.inputs.model, plan.inputs.profile
    notes = [f"first and last of {p.vpp} chunks shown"] if p.vpp > 2 else []
    notes += ["each stage in ascending order"] if p.order is not None else []
    start = f"layers ({', '.join(notes)})" if notes else "layers"
    if model is None:
        assert profile is not None
        return f"{start}: 0..{profile.length - 1} of the profile, in its order"
    chain = build_chain(model)
    named, first = [], 0
    words = (LAYERS.get(chain.kinds[kind].name, "transformer layers") for kind in chain.order)
    for word, members in groupby(words):
        count = len(list(members))
        named.append(f"{first if count == 1 else f'{first}..{first + count - 1}'} {word}")
        first += count
    tensor = [s for s in plan.stages if s.tp > 1]
    sequence = "; sp where tp > 1" if tensor and all(s.sp for s in tensor) else ""
    return f"{start}: {'; '.join(named)}{sequence}{_chunks(plan)}"


def _chunks(plan: Plan) -> str:
    """What `10 x 2..3` means, where stages have chunks."""
    if plan.parallelism.vpp == 1:
        return ""
    return "; chunks: virtual stages of a stage x layers of each"


def _table(page: Page, table: Table) -> None:
    page.table(table.title, table.heads, table.rows, table.left)


def alternatives(page: Page, plan: Plan) -> None:
    """The next best plans, if they were asked for."""
    best = (plan.step_time_s, 0.0, plan.configuration)
    others = [(a.step_time_s, a.slower, a.configuration) for a in plan.alternatives]
    rows = [
        (str(rank), format_seconds(seconds), percent(slower, 2) if rank > 1 else "",
         str(way.outer_dp), str(way.micro_batch), str(way.pp), str(way.vpp),
         SCHEDULES[way.schedule].label, blocks(way))
        for rank, (seconds, slower, way) in enumerate((best, *others), 1)
    ]
    heads = ("", "step", "slower", "outer_dp", "micro_batch", "pp", "vpp", "schedule", "blocks")
    page.table("Best plans (1: the plan above)", heads, rows, (7,))
    if not plan.alternatives_proved:
        page.paragraph("Not proved: plans better than some of these may have been missed.", "dim")
    error = plan.error or 0.0
    near = sum(a.slower < error for a in plan.alternatives)
    if near:
        page.paragraph(f"{near} of them slower by less than the error of prices, "
                       f"{100 * error:.1f} %: measure these before choosing.", "dim")
    for text in _in_doubt(plan):
        page.paragraph(text, "dim")


def _in_doubt(plan: Plan) -> Iterator[str]:
    """What the ranges of the alternatives leave open."""
    own = plan.memory_share
    doubtful = [(n, a) for n, a in enumerate(plan.alternatives, 2) if a.overlaps]
    if not doubtful:
        return
    safest, least = min(((n, a.memory or 1.0) for n, a in doubtful), key=lambda one: one[1])
    yield (f"The ranges of {len(doubtful)} of them overlap with that of the plan. Safest in "
           f"memory of these and the plan: {safest if least < own else 1}, with "
           f"{100 * min(least, own):.0f} % of the limit.")


def breakdown(page: Page, plan: Plan, small: float = 0.0) -> None:
    """The seconds of a step by cause; what takes a smaller share than ``small`` is added up."""
    total = plan.step_time_s
    parts = {name: value for name, value in plan.breakdown_s.model_dump().items()
             if abs(value) > ROUNDING * total}
    shown = {WORDS[name]: value for name, value in parts.items() if abs(value) >= small * total}
    if len(shown) + 1 < len(parts):
        shown["other"] = sum(parts.values()) - sum(shown.values())
    else:
        shown = {WORDS[name]: value for name, value in parts.items()}
    factor, decimals, unit = scale(total)
    rows = []
    for name, seconds in (*shown.items(), ("step", total)):
        share = seconds / total if total else 0.0
        bar = "" if name == "step" else "█" * round(BAR * share)
        rows.append((name, f"{factor * seconds:,.{decimals}f} {unit}", f"{100 * share:.1f} %", bar))
    page.table("", ("Where the step goes", "time", "share", ""), rows, (0, 3))


def defaults(cluster: Cluster) -> str:
    """Figures of a cluster that are defaults: nobody measured or stated them for it.

    Efficiencies of products, and figures by kind of link; empty: none.
    """
    usual: GemmEfficiency = default_gemm()["default"]
    found = [f"products of {device.name} at most {100 * usual.peak_fraction:.0f} % of the peak"
             for device in cluster.device_types if device.gemm["default"] == usual]
    found += [f"{', '.join(names)} of level {level.name} ({level.link})"
              for level in cluster.levels if (names := level.defaults(cluster.device))]
    return "; ".join(found)

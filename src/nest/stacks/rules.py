"""Compare a configuration with the rules of a job's stack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, cast

from pydantic import Field

from nest.inputs import catalog
from nest.inputs.base import Written
from nest.inputs.capabilities import FIGURES, FigureProduct, Rule
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import DEFAULT_STACK, UNKNOWN_STACK, Job
from nest.inputs.loading import load_stack
from nest.inputs.offload import Offload
from nest.inputs.space import IntSet, Module
from nest.model import Chain
from nest.stacks.figures import (
    Figures,
    Value,
    chunks_of,
    layer_counts,
    model_figures,
    offload_figures,
    plan_figures,
    stage_figures,
)

MOST_COUNTS = 8
"""Layer counts of chunks that a sentence lists."""


DEFAULT_STACKS = {DEFAULT_STACK: "", "maxtext": "", "neuronx-distributed": "trainium",
                  "mindspeed": "ascend"}
"""Stacks for clusters whose question names none, the most usual first, each with the beginning of
the names of the devices that it is made for."""


class Finding(Written):
    """A rule of a stack that a configuration breaks."""

    sentence: str = Field(description="what is not as the rule wants it, and why")
    field: str = Field(description="the figure that breaks it")
    rule: str = Field(description="name of the rule in the stack's table")
    source: str = Field(description="where the software says so")


def wrong_devices(cluster: Cluster, job: Job) -> tuple[Finding, ...]:
    """Types of device that the job's stack does not run on."""
    known = job.stack.capabilities
    if known is None or known.hardware is None:
        return ()
    return tuple(
        Finding(sentence=f"device {device.name}: {known.hardware.sentence} (stacks that run on it: "
                f"{', '.join(_running_on(device.name))})", field="device",
                rule="hardware", source=known.hardware.source)
        for device in cluster.device_types if known.hardware.excludes(device.name))


def _running_on(device: str) -> Iterator[str]:
    for name in catalog.names("stacks"):
        known, begins = load_stack(name).capabilities, DEFAULT_STACKS.get(name, "")
        if device.casefold().startswith(begins) and (
                known is None or known.hardware is None or not known.hardware.excludes(device)):
            yield name


def default_stack(cluster: Cluster) -> str:
    """The first of :data:`DEFAULT_STACKS` that runs on all devices of a cluster."""
    def runs(name: str, begins: str) -> bool:
        job = Job(global_batch=1, seq_len=1, stack=load_stack(name))
        return all(device.name.casefold().startswith(begins) for device in cluster.device_types
                   ) and not wrong_devices(cluster, job)

    return next((name for name, begins in DEFAULT_STACKS.items() if runs(name, begins)),
                UNKNOWN_STACK)


def not_runnable(chain: Chain, job: Job, plan: Configuration) -> tuple[Finding, ...]:
    """What the job's stack cannot run of a legal configuration, whatever the devices.

    Returns
    -------
    One finding for each field and rule that is broken, in the order of the stack's table. Empty:
    the stack can run it, or nothing is known of the stack.
    """
    known = job.stack.capabilities
    return () if known is None else tuple(_broken(known.rules, chain, job, plan))


def cannot_offload(job: Job, texts: Iterable[str]) -> Iterator[str]:
    """Why the job's stack can keep some of these in the memory of the hosts in no configuration."""
    known = job.stack.capabilities
    for text in texts:
        figures = offload_figures(text)
        for rule in known.rules.values() if known is not None else ():
            for field in rule.fields if not rule.alike and applies(rule, figures) else ():
                if field in figures and (why := wrong(rule, field, figures)):
                    yield f"offload: got {text}; {field} {why}: {rule.sentence}{_allowed(rule)}"


def offload_settings(job: Job, text: str) -> tuple[str, ...]:
    """Flags or fields of the job's stack for each part of an offload text, in its own words.

    Parts that the stack's table has no words for are left out.
    """
    known, away = job.stack.capabilities, Offload.of(text)
    if known is None:
        return ()
    separator = "," if "[" in known.offload.get("modules", "") else " "
    values = {"optimizer": f"{away.optimizer:g}" if away.optimizer else "",
              "layers": str(away.layers or ""), "modules": separator.join(away.modules)}
    return tuple(known.offload[part].replace("VALUE", value)
                 for part, value in values.items() if value and part in known.offload)


def selective_modules(job: Job) -> tuple[Module, ...] | None:
    """Modules of the stack's selective recompute where it has them only together; else None."""
    known = job.stack.capabilities
    sets = [rule.allowed for rule in known.rules.values()
            if rule.fields == ("module_set",) and not rule.when] if known is not None else []
    if not sets or not isinstance(sets[0], tuple):
        return None
    return cast(tuple[Module, ...], tuple(sets[0][0].split("+")))


def launch_needs(chain: Chain, job: Job, plan: Configuration) -> tuple[Finding, ...]:
    """What the job's stack needs to run a configuration, such as a list of hosts."""
    known = job.stack.capabilities
    return () if known is None else tuple(_broken(known.needs, chain, job, plan, "needs "))


def impossible(chain: Chain, job: Job) -> list[str]:
    """What of a model and a job its stack cannot run, whatever the configuration."""
    known, figures = job.stack.capabilities, model_figures(chain, job)
    return [f"{field} {text}: {rule.sentence}{_allowed(rule)}"
            for rule in (known.rules.values() if known is not None else ())
            if rule.allowed is not None and {*rule.fields, *rule.when} <= {*figures}
            and applies(rule, figures)
            for field in rule.fields if (text := wrong(rule, field, figures))]


def _broken(
    rules: Mapping[str, Rule], chain: Chain, job: Job, plan: Configuration, verb: str = ""
) -> Iterator[Finding]:
    if not rules:
        return
    whole = plan_figures(chain, job, plan)
    stages = [{**whole, **stage_figures(stage, plan.micro_batch)} for stage in plan.stages]
    for name, rule in rules.items():
        concerned = [n for n, figures in enumerate(stages) if applies(rule, figures)]
        for field in rule.fields if concerned else ():
            if rule.alike:
                text = _unlike(field, [stages[n][field] for n in concerned], concerned)
            else:
                found = [(n, text) for n in concerned if (text := wrong(rule, field, stages[n]))]
                text = _stated(field, found, len(stages))
            if text and field == "cuts":
                text = _cuts(chain, plan)
            if text:
                end = "" if verb or field == "cuts" else _allowed(rule)
                yield Finding(sentence=f"{text}: {verb}{rule.sentence}{end}", field=field,
                              rule=name, source=rule.source)


def applies(rule: Rule, figures: Figures) -> bool:
    """Whether all conditions of a rule hold for these figures; one without a figure does not."""
    return all(name in figures and _among(figures[name], values)
               for name, values in rule.when.items())


def _among(value: Value, values: Any) -> bool:
    """Whether a value, or one of several, is among those of a rule."""
    return value in values if isinstance(value, (int, str)) else any(v in values for v in value)


def wrong(rule: Rule, field: str, figures: Figures) -> str | None:
    """What is wrong with a field, as text behind its name; None: nothing."""
    value = figures[field]
    if rule.allowed is not None:
        return outside(value, rule.allowed)
    assert isinstance(value, int)
    for product, right, words in (
        (rule.multiple_of, _multiple, "is no multiple of"), (rule.at_least, int.__ge__, "is below"),
        (rule.equal_to, int.__eq__, "is not"),
    ):
        if product is not None and not right(value, _times(product, figures)):
            return f"{value} {words} {_text(product, figures)}"
    return None


def _multiple(value: int, of: int) -> bool:
    return value % of == 0 if of else value == 0


def _allowed(rule: Rule) -> str:
    """The values that a rule allows, for people; nothing where it does not list them."""
    if rule.allowed is None:
        return ""
    values = rule.allowed if isinstance(rule.allowed, tuple) else [str(rule.allowed)]
    return f"; allowed: {', '.join(values)}"


def outside(value: Value, allowed: IntSet | tuple[str, ...]) -> str | None:
    """What of a value is not allowed; None: nothing."""
    if isinstance(value, frozenset):  # one of its forms is enough
        return None if value & set(allowed) else "differ"
    if isinstance(value, tuple):  # all of them
        return "+".join(one for one in value if one not in allowed) or None
    return None if value in allowed or value == "" else str(value)


def _times(product: FigureProduct, figures: Figures) -> int:
    factors = [part if isinstance(part, int) else figures[part] for part in product]
    return math.prod(factor for factor in factors if isinstance(factor, int))


def _text(product: FigureProduct, figures: Figures) -> str:
    """A product and its value: `2 x pp = 8`, `pp 4`."""
    if len(product) == 1:
        part, = product
        return f"{part}" if isinstance(part, int) else f"{part} {figures[part]}"
    return f"{product} = {_times(product, figures)}"


def _unlike(field: str, values: list[Value], stages: list[int]) -> str | None:
    """How a field differs between stages; None: it does not."""
    if len(set(values)) < 2:
        return None
    runs = [(value, [n for n, _ in members]) for value, members in groupby(
        zip(stages, values, strict=True), key=lambda pair: pair[1])]
    first = [f"{_value(value)} in {_span(numbers)}" for value, numbers in runs[:2]]
    more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
    return f"{field} differs between stages ({', '.join(first)}{more})"


def _stated(field: str, found: list[tuple[int, str]], stages: int) -> str | None:
    """A field that is wrong, and in which stages where not in all."""
    if not found:
        return None
    texts = list(dict.fromkeys(text for _, text in found))
    numbers = [n for n, _ in found]
    alone = len(numbers) < stages and FIGURES[field].staged
    return f"{field} {', '.join(texts)}" + (f" in {_span(numbers)}" if alone else "")


def _cuts(chain: Chain, plan: Configuration) -> str:
    counts = layer_counts(chain, chunks_of(chain, plan))
    more = ", ..." if len(counts) > MOST_COUNTS else ""
    return f"cuts of {', '.join(map(str, counts[:MOST_COUNTS]))}{more} transformer layers"


def _value(value: Value) -> str:
    return (str(value) if isinstance(value, (int, str)) else "+".join(value)) or "none"


def _span(stages: list[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {IntSet.of(stages)}"


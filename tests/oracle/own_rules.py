"""Random rules of a user's own stack: any figures, any number of conditions, every kind of verdict.
"""

from __future__ import annotations

from random import Random
from typing import Any

from nest.inputs.capabilities import FIGURES, YES_NO, Capabilities, Rule
from nest.inputs.space import MODULES

NUMBERS = {
    "pp": 4, "vpp": 3, "micro_batches": 12, "rounds": 6, "group": 6, "missing": 3, "outer_dp": 4,
    "gap": 3, "block": 8, "dp_in": 4, "tp": 4, "cp": 3, "ep": 4, "etp": 3, "expert_ranks": 6,
    "model_ranks": 6, "zero": 3, "recompute_layers": 3, "kv_heads": 8,
}
"""Figures that are numbers, and up to what they are drawn."""
WORDS: dict[str, tuple[str, ...]] = {
    "schedule": ("1f1b", "gpipe", "interleaved", "zb1p", "dualpipev", "combined"),
    "sp": YES_NO, "cp_comm": ("p2p", "a2a", "all_gather", "a2a+p2p"), "shard": ("dp", "dp_in"),
    "recompute": ("none", "selective", "full"), "recompute_modules": MODULES,
    "module_set": ("core_attn", "norm+mlp_act", "core_attn+norm+mlp_act", "moe"),
    "experts": YES_NO, "tied": YES_NO,
}
CUTS = ("even", "front", "whole", "back", "ends")
PIPELINES = ("pp", "vpp", "schedule")
COMMON = ("pp", "tp", "zero", "recompute", "micro_batches", "block", "dp_in", "outer_dp")
"""Figures that differ in most instances; drawn more often."""


def own_rules(rng: Random, rules: Capabilities, cuts: bool = False) -> Capabilities:
    """A table with one to three more rules; ``cuts``: one is about cuts under conditions."""
    own = {f"mine {n}": _rule(rng) for n in range(rng.choice((1, 1, 2)))}
    if cuts:
        own["cuts"] = _about_cuts(rng)
    return rules.replace(name="", rules={**rules.rules, **own})


def _rule(rng: Random) -> Rule:
    field = _figure(rng)
    names = {_figure(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))} - {field}
    return _made(rng, field, {name: _some(rng, name, 0.7) for name in sorted(names)})


def _about_cuts(rng: Random) -> Rule:
    names = {_figure(rng) for _ in range(rng.choice((0, 1, 2)))}
    when = {name: _some(rng, name, 0.7) for name in sorted(names)}
    name = rng.choice(("cuts", "cuts", "mtp_chunks", "vision_chunks"))
    values = {"cuts": rng.sample(CUTS, rng.choice((1, 2))), "mtp_chunks": rng.choice(("1", "0,2")),
              "vision_chunks": rng.choice(("1", "2.."))}[name]
    if rng.random() < 0.4:
        field = _figure(rng)
        when.pop(field, None)
        return _made(rng, field, {**when, name: values})
    return _stated(fields=name, when=when, allowed=values)


def _made(rng: Random, field: str, when: dict[str, Any]) -> Rule:
    if FIGURES[field].words is not None or rng.random() < 0.6:
        return _stated(fields=field, when=when, allowed=_some(rng, field, 0.75))
    kind = rng.choice(("multiple_of", "at_least", "equal_to"))
    parts = [str(rng.choice((1, 2, 2, 3)))] if rng.random() < 0.5 else []
    parts += rng.sample(sorted(NUMBERS), rng.choice((0, 1, 1, 2)) if parts else 1)
    return _stated(fields=field, when=when, **{kind: " x ".join(parts)})


def _stated(**given: Any) -> Rule:
    return Rule(sentence="mine", source="own", **given)


def _figure(rng: Random) -> str:
    return rng.choice(COMMON if rng.random() < 0.6 else (*sorted(NUMBERS), *sorted(WORDS)))


def _some(rng: Random, name: str, share: float) -> Any:
    """About a ``share`` of the values of a figure, at least one."""
    words = WORDS.get(name)
    if words is not None:
        return [word for word in words if rng.random() < share] or [rng.choice(words)]
    most = NUMBERS[name]
    if rng.random() < 0.5:
        return f"{rng.randint(0, max(1, most // 2))}.."
    found = [n for n in range(most + 1) if rng.random() < share] or [rng.randint(0, most)]
    return ",".join(map(str, found))

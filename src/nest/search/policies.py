"""Recompute policies that a space and the rules of a stack allow."""

from __future__ import annotations

from nest.costs.choices import FULL, policy
from nest.inputs.capabilities import Capabilities
from nest.inputs.job import Stack
from nest.inputs.space import MODULES, SearchSpace
from nest.model import Chain
from nest.model.legality import module_sets
from nest.search.query import Query
from nest.stacks.figures import model_figures, offload_figures
from nest.stacks.rules import applies, wrong


def policies_of(chain: Chain, space: SearchSpace, stack: Stack) -> list[int]:
    """Recompute policies of a space, full last; none is always first, if only to compare with."""
    found = [0]
    if space.allows("recompute", "selective"):
        found += dict.fromkeys(policy("selective", names)
                               for names in module_sets(chain, space, stack))
    if space.allows("recompute", "full"):
        found.append(FULL)
    return found if len(found) > 1 or space.allows("recompute", "none") else []


def runnable_policies(found: list[int], rules: Capabilities, query: Query) -> list[int]:
    """Policies without those that the rules of a stack forbid whatever else a plan is, which need
    no prices; all of them where only none would be left, to which others are compared."""
    known = {**model_figures(query.chain, query.job), **offload_figures(query.offload)}

    def may(bits: int) -> bool:
        if bits in (0, FULL):
            return True
        modules = tuple(name for name in MODULES if bits & policy("", [name]))
        figures = {**known, "recompute": "selective", "recompute_modules": modules,
                   "module_set": "+".join(modules)}
        return not any(
            wrong(rule, field, figures) for rule in rules.rules.values()
            if rule.allowed is not None and applies(rule, figures)
            for field in rule.fields if field in figures and not rule.alike)

    kept = [bits for bits in found if may(bits)]
    return kept if len(kept) > 1 else found

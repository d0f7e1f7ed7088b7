"""What the tables of the catalog allow, at a glance: one row a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nest.inputs import catalog
from nest.inputs.capabilities import FIGURES, Capabilities, Rule
from nest.inputs.job import ZERO_STAGES
from nest.inputs.loading import load_stack
from nest.inputs.space import SearchSpace
from nest.stacks.figures import Figures, Value
from nest.stacks.rules import applies, wrong

HEADS = ("software", "stacks", "stages may differ in", "cuts", "schedules", "ZeRO",
         "ZeRO with pp", "HSDP", "cp", "recompute", "modules, dense", "modules, experts",
         "precisions", "source")
_DENSE: Figures = {"pp": 1, "experts": "no", "mla": "no", "window": "no", "sinks": "no", "zero": 0,
                   "tp": 1, "cp": 1, "ep": 1}
_PIPELINE: Figures = {**_DENSE, "pp": 2}
_OF_EXPERTS = ("moe", "shared_experts")
_SETTINGS = ("cp", "cp_comm", "ep", "etp", "dp_in", "recompute", "recompute_layers", "sp", "tp",
             "zero", "shard")


def overview() -> list[tuple[str, ...]]:
    """Rows under ``HEADS``, one for each table of the catalog."""
    return [_row(known, stacks) for known, stacks in tables()]


def tables() -> list[tuple[Capabilities, list[str]]]:
    """Each table of the catalog, with the stacks that it is for."""
    users: dict[str, tuple[Capabilities, list[str]]] = {}
    for name in catalog.names("stacks"):
        known = load_stack(name).capabilities
        if known is not None:
            users.setdefault(known.name, (known, []))[1].append(name)
    return list(users.values())


def lacking(known: Capabilities, space: SearchSpace) -> Iterator[str]:
    """Bounds of a space that no plan of a table keeps, why, and which stacks of the catalog do.

    Of single dimensions with few values: what several together rule out is not found here.
    """
    for name in ("schedule", "zero", "recompute", "cp_comm", "shard"):
        values = getattr(space, name)
        piped = name == "schedule" or (space.pp is not None and space.pp.smallest > 1)
        base = {**(_PIPELINE if piped else _DENSE), "cp": 2 if name == "cp_comm" else 1}
        asked = [{**base, name: value} for value in values or ()]
        if asked and not any(allows(known, name, figures) for figures in asked):
            why = next(rule.sentence for rule in known.rules.values()
                       if name in rule.fields and _breaks(rule, name, asked[0]))
            others = [stack for table, stacks in tables() for stack in stacks if any(
                all(allows(table, field, figures) for field in (name, "pp", "cp"))
                for figures in asked)]
            yield (f"{name} {', '.join(map(str, values))}: {why}; stacks that have it: "
                   f"{', '.join(others) or 'none'}")


def _row(known: Capabilities, stacks: Iterable[str]) -> tuple[str, ...]:
    def words(field: str, figures: Figures) -> list[str]:
        return [word for word in FIGURES[field].words or ()
                if allows(known, field, {**figures, field: word})]

    def modules(figures: Figures) -> str:
        one = [name for name in FIGURES["recompute_modules"].words or ()
               if allows(known, "recompute_modules", {**figures, "recompute_modules": (name,)})]
        together = [rule.wants for rule in known.rules.values() if rule.fields == ("module_set",)]
        one = [name for name in one if figures["experts"] == "yes" or name not in _OF_EXPERTS]
        return "-" if "selective" not in words("recompute", _DENSE) else _joined(together or one)

    def may_differ(field: str) -> bool:
        own = FIGURES[field].words or (0, 1, 2)
        return sum(allows(known, field, {**_PIPELINE, field: value}) for value in own) > 1

    piped = allows(known, "pp", _PIPELINE)
    alike = {name for rule in known.rules.values() if rule.alike for name in rule.fields}
    ring = {**_DENSE, "cp": 2}
    ways = words("cp_comm", ring) if allows(known, "cp", ring) else []
    fixed = alike if ways else alike | {"cp_comm"}
    hybrid = [zero for zero in _zeros(known, _DENSE) if zero != "0"]
    unlike = [name for name in _SETTINGS if name not in fixed and may_differ(name)]
    return (
        known.title, _joined(stacks), _joined(unlike if piped else ()),
        _joined(_cuts(words("cuts", _PIPELINE)) if piped else ()),
        _joined(words("schedule", _PIPELINE) if piped else ()),
        _joined(_zeros(known, _DENSE)), _joined(_zeros(known, _PIPELINE) if piped else ()),
        _joined(hybrid if allows(known, "shard", {**_DENSE, "shard": "dp_in"}) else ()),
        _joined(ways), _joined(words("recompute", _DENSE)),
        modules(_DENSE), modules({**_DENSE, "experts": "yes"}),
        _joined(words("precision", _DENSE)),
        _joined(sorted({rule.source.split()[0].rstrip(",") for rule in known.rules.values()})),
    )


def allows(known: Capabilities, field: str, figures: Figures) -> bool:
    """Whether no rule about a field forbids these figures; rules on other figures are left out."""
    return not any(field in rule.fields and _breaks(rule, field, figures)
                   for rule in known.rules.values())


def _breaks(rule: Rule, field: str, figures: Figures) -> bool:
    """Whether figures break what a rule says of one of its fields."""
    return not rule.alike and applies(rule, figures) and bool(
        wrong(rule, field, {**_ONES, **figures}))


_ONES: dict[str, Value] = {name: 1 for name, figure in FIGURES.items() if figure.words is None}


def _zeros(known: Capabilities, figures: Figures) -> list[str]:
    return [str(zero) for zero in ZERO_STAGES if allows(known, "zero", {**figures, "zero": zero})]


def _cuts(forms: list[str]) -> list[str]:
    """``free`` includes all other forms."""
    return ["free"] if "free" in forms else forms


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words) or "-"

"""What training software can run: rules about the figures of a configuration, as data.

A rule names a figure, what it may be, when that holds, why, and where the software says so. Tables
of rules are in the catalog (``capabilities.yaml``); a stack names one, or holds one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from nest.inputs import catalog
from nest.inputs.base import (
    Description,
    Flag,
    Freeze,
    FrozenDict,
    Name,
    Problems,
    at_most,
    in_field,
)
from nest.inputs.lengths import PACKINGS
from nest.inputs.offload import CHECKPOINTS, OFFLOAD_MODULES
from nest.inputs.space import (
    LARGEST,
    MODULES,
    Capacity,
    CpComm,
    Dispatcher,
    Graphs,
    IntSet,
    Loss,
    Optimizer,
    Precision,
    Recompute,
    Shard,
)
from nest.schedules.registry import Schedule
from nest.units import shorten

CUTS = ("even", "front", "whole", "back", "ends", "free")
"""How layers may be divided, see ``cuts`` in ``FIGURES``."""


class Figure(NamedTuple):
    """A property of a configuration that rules may name."""

    meaning: str
    words: tuple[str, ...] | None = None
    """Its values; None: whole numbers."""
    staged: bool = False
    """Each stage has its own."""


YES_NO = ("yes", "no")
FIGURES: Mapping[str, Figure] = {
    "pp": Figure("pipeline stages"),
    "vpp": Figure("virtual stages per device"),
    "schedule": Figure("order of passes", (
        *get_args(Schedule), "circular")),
    "micro_batches": Figure("micro-batches of a super-pipeline per step"),
    "rounds": Figure("micro_batches // pp, at least 1: PyTorch's groups of micro-batches"),
    "round": Figure("micro-batches of a round"),
    "group": Figure("consecutive micro-batches of a virtual stage"),
    "missing": Figure("micro-batches that the last group has fewer than stages"),
    "outer_dp": Figure("replicas of the super-pipeline"),
    "gap": Figure("devices between a replica's last device and the next one's first"),
    "cuts": Figure(
        "transformer layers of the chunks: even (equal), front (one more in the first chunks), "
        "whole (the same, counting every layer, embedding and head too), back (one more in the "
        "last chunks), ends (equal, but for the first and the last chunk), free; of front, whole "
        "and back no chunk is without such layers", CUTS),
    "mtp_chunks": Figure("chunks with layers of multi-token prediction"),
    "misplaced": Figure(
        "first and last chunks without layers, and layers of multi-token prediction outside the "
        "last chunk of their stage"),
    "vision_chunks": Figure("chunks with layers of an image tower"),
    "empty_chunks": Figure("chunks without layers"),
    "precision": Figure("number format of matrix products", get_args(Precision)),
    "optimizer": Figure("optimizer", get_args(Optimizer)),
    "cuda_graphs": Figure("what CUDA graphs capture", get_args(Graphs)),
    "loss": Figure("how the loss runs", get_args(Loss)),
    "fused_experts": Figure("activation functions are part of the experts' products", YES_NO),
    "fp8_attention": Figure("the attention core is in 8 bits", YES_NO),
    "fp8_head": Figure("the head is in 8 bits", YES_NO),
    "fp8_gather": Figure("ZeRO gathers parameters in 8 bits", YES_NO),
    "offload_optimizer": Figure("percentage of the optimizer's states in the memory of the hosts"),
    "offload_layers": Figure("transformer layers whose activations are in the memory of the hosts"),
    "offload_modules": Figure("modules whose activations are in the memory of the hosts",
                              ("none", *OFFLOAD_MODULES, CHECKPOINTS)),
    "dispatcher": Figure("how tokens reach their experts; models without experts have none", (
        *get_args(Dispatcher), "none")),
    "capacity": Figure("how experts of limited capacity are filled, or that none is",
                       get_args(Capacity)),
    "kind": Figure("type of model", ("decoder", "encoder", "encoder-decoder", "profile")),
    "experts": Figure("the model has experts", YES_NO),
    "mla": Figure("the model has latent attention", YES_NO),
    "recurrence": Figure("what layers have instead of attention", (
        "none", "gated_delta", "kimi_delta", "lightning", "mamba", "mamba2")),
    "window": Figure("attention of some layers has a sliding window", YES_NO),
    "sinks": Figure("attention has a trained score for each head", YES_NO),
    "vision": Figure("the model has an image tower", YES_NO),
    "tied": Figure("embedding and head share a table", YES_NO),
    "kv_heads": Figure("key-value heads"),
    "trains": Figure("what is trained: all, parts (or biases), adapters (lora), or adapters beside "
                     "weights kept in 4 bits or int8 (qlora)", ("all", "parts", "lora", "qlora")),
    "lora_rank": Figure("rank of adapters; 0: there are none"),
    "samples": Figure("how samples of stated lengths fill sequences; none: no lengths are stated",
                      ("none", *PACKINGS)),
    "block": Figure("devices of a stage", staged=True),
    "dp_in": Figure("data parallel degree inside a block", staged=True),
    "mbs": Figure("sequences of a device in a micro-batch", staged=True),
    "tp": Figure("tensor parallel degree", staged=True),
    "sp": Figure("sequence parallelism", YES_NO, staged=True),
    "cp": Figure("context parallel degree", staged=True),
    "cp_comm": Figure("how cp exchanges keys and values", get_args(CpComm), staged=True),
    "ep": Figure("expert parallel degree", staged=True),
    "etp": Figure("expert tensor parallel degree", staged=True),
    "expert_ranks": Figure("ep x etp", staged=True),
    "model_ranks": Figure("tp x cp", staged=True),
    "zero": Figure("ZeRO stage", staged=True),
    "shard": Figure("ZeRO shards over", get_args(Shard), staged=True),
    "recompute": Figure("recompute policy", get_args(Recompute), staged=True),
    "recompute_modules": Figure("modules of selective recompute", MODULES, staged=True),
    "module_set": Figure("all modules of selective recompute, joined by +", (), staged=True),
    "recompute_layers": Figure("layers of full recompute; 0: all", staged=True),
}
FigureName = Annotated[str, BeforeValidator(lambda name: _known(name))]


def _known(name: object) -> str:
    if isinstance(name, str) and name in FIGURES:
        return name
    raise ValueError(f"got {shorten(name)}; allowed: {', '.join(FIGURES)}")


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class FigureProduct(tuple[int | str, ...]):
    """Numbers and figures that are multiplied, such as `2 x pp`."""

    def __str__(self) -> str:
        return " x ".join(map(str, self))


def _product(value: object) -> FigureProduct | None:
    if value is None or isinstance(value, FigureProduct):
        return value
    parts = str(value).split(" x ")
    found = [int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else part for part in parts]
    numbers = [name for name, figure in FIGURES.items() if figure.words is None]
    if isinstance(value, (bool, float)) or not all(
            isinstance(part, int) or part in numbers for part in found):
        raise ValueError(f"got {shorten(value)}; allowed: numbers and figures joined by ' x ', of "
                         f"{', '.join(numbers)}")
    return FigureProduct(found)


Values = IntSet | tuple[str, ...]
AsGiven = PlainSerializer(
    lambda v: {name: _plain(of) for name, of in v.items()} if isinstance(v, dict) else _plain(v))
ProductText = Annotated[
    Any, BeforeValidator(_product), PlainSerializer(lambda v: None if v is None else str(v))]
Sentence = Annotated[str, Field(min_length=1, max_length=400)]
OffloadPart = Literal["optimizer", "layers", "modules"]


def _plain(value: Any) -> Any:
    return shown(value) if isinstance(value, IntSet) else value


def values_of(name: str, given: object) -> Values:
    """Values of a figure: numbers, as a search space takes them or `2..`, or words.

    Raises
    ------
    ValueError : not values of the figure.
    """
    words = FIGURES[name].words
    if words is None:
        endless = isinstance(given, str) and given.endswith("..")
        return IntSet.of(f"{given}{LARGEST}" if endless else given)
    listed: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    # YAML reads yes and no as flags
    found = tuple(YES_NO[not one] if isinstance(one, bool) else one for one in listed)
    if found and all(isinstance(one, str) and _is_word(one, words) for one in found):
        return found
    allowed = f"some of {', '.join(words)}" if words else (
        f"modules joined by +, of {', '.join(MODULES)}")
    raise ValueError(f"got {shorten(given)}; allowed: {allowed}")


def _is_word(text: str, words: tuple[str, ...]) -> bool:
    return text in words if words else all(part in MODULES for part in text.split("+"))


def shown(values: Values) -> str:
    """Values as people write them: `0,1`, `2..`, `p2p, a2a`."""
    if isinstance(values, IntSet):
        return str(values).replace(f"..{LARGEST}", "..")
    return ", ".join(values)


class Rule(Description):
    """What the figures of a configuration may be, where all conditions of ``when`` hold.

    Exactly one of ``allowed``, ``alike``, ``multiple_of``, ``at_least`` and ``equal_to`` is given.
    Of several stages each is asked, with its own figures.
    """

    fields: Annotated[
        tuple[FigureName, ...], BeforeValidator(_listed), Field(min_length=1, max_length=50)
    ] = Field(description="figures that the rule is about, one or a list")
    when: Annotated[dict[FigureName, Any], Freeze, AsGiven, at_most(20)] = Field(
        default_factory=FrozenDict, description="values of other figures for which the rule holds"
    )
    allowed: Annotated[Any, AsGiven] = Field(None, description="values that the figures may take")
    alike: Flag = Field(False, description="all stages have the same value")
    multiple_of: ProductText = Field(None, description="a number that divides the figure")
    at_least: ProductText = Field(None, description="the smallest value")
    equal_to: ProductText = Field(None, description="the only value")
    sentence: Sentence = Field(description="why, for people")
    source: Sentence = Field(description="where the software says so: repository, file, line")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """Values of known figures in one form."""
        if not isinstance(data, Mapping):
            return data
        found, problems = dict(data), []
        when = data.get("when")
        if isinstance(when, Mapping):
            found["when"] = {}
            for name, given in when.items():
                try:
                    found["when"][name] = values_of(name, given) if name in FIGURES else given
                except ValueError as error:
                    problems.append((f"when.{name}", str(error)))
        fields = _listed(data.get("fields"))
        if data.get("allowed") is not None and isinstance(fields, (list, tuple)):
            names = [name for name in fields if isinstance(name, str) and name in FIGURES]
            try:  # as each of the fields takes them
                forms = {values_of(name, data["allowed"]) for name in names}
                found["allowed"] = forms.pop() if forms else None
            except ValueError as error:
                problems.append(("allowed", str(error)))
        if problems:
            raise Problems(problems)
        return found

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kinds = ("allowed", "alike", "multiple_of", "at_least", "equal_to")
        given = [kind for kind in kinds if getattr(self, kind) not in (None, False)]
        problems = []
        if len(given) != 1:
            problems.append(("", f"got {', '.join(given) or 'none'}; allowed: one of "
                             f"{', '.join(kinds)}"))
        for name in self.fields:
            figure = FIGURES[name]
            if self.alike and not figure.staged:
                problems.append(("fields", f"got {name} with alike; allowed: a figure of stages"))
            if given and given[0] in kinds[2:] and figure.words is not None:
                problems.append(("fields", f"got {name} with {given[0]}; allowed: a number"))
        if problems:
            raise Problems(problems)
        return self

    @property
    def wants(self) -> str:
        """What the rule asks for: `0,1`, `a multiple of pp`, `alike in all stages`."""
        if self.alike:
            return "alike in all stages"
        if self.allowed is not None:
            return shown(self.allowed)
        found = ((self.multiple_of, "a multiple of"), (self.at_least, "at least"),
                 (self.equal_to, "equal to"))
        return next(f"{words} {product}" for product, words in found if product is not None)

    @property
    def conditions(self) -> str:
        """When the rule holds: `pp 2.., experts yes`; empty: always."""
        return ", ".join(f"{name} {shown(values)}" for name, values in self.when.items())


class Hardware(Description):
    """The devices that software does not run on."""

    never_on: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)] = Field(
        description="beginnings of names of devices that it does not run on"
    )
    sentence: Sentence = Field(description="why, for people")
    source: Sentence = Field(description="where the software says so: repository, file, line")

    def excludes(self, device: str) -> bool:
        """Whether it does not run on a device of this name."""
        return device.casefold().startswith(tuple(one.casefold() for one in self.never_on))


class Capabilities(Description):
    """What a version of training software can run; what no rule forbids, it can."""

    name: str = Field("", description="its name in the catalog; empty: a table of one's own")
    software: Name = Field(description="name of the software, as people write it")
    version: Name = Field(description="version whose source was read")
    hardware: Hardware | None = Field(
        None, description="devices that it does not run on; null: it may run on all"
    )
    rules: Annotated[dict[Name, Rule], Freeze, at_most(200)] = Field(
        description="rules by name; a configuration that breaks one cannot be launched"
    )
    needs: Annotated[dict[Name, Rule], Freeze, at_most(50)] = Field(
        default_factory=FrozenDict,
        description="rules by name; a configuration that breaks one needs what it says",
    )
    offload: Annotated[dict[OffloadPart, Sentence], Freeze] = Field(
        default_factory=FrozenDict,
        description="settings that keep a part in the memory of the hosts; VALUE stands for the "
        "share, the layers or the modules",
    )

    def __hash__(self) -> int:
        return hash((self.name, self.software, self.version))

    @property
    def title(self) -> str:
        """Software and version."""
        return f"{self.software} {self.version}"


def resolve_capabilities(value: Any) -> Any:
    """Plain data of a table, its `base` filled in: own rules replace those of the same name.

    Raises
    ------
    ValueError : an unknown name of a table; `Problems` with the field `base` if that has it.
    """
    if not isinstance(value, Mapping) or "base" not in value:
        return value
    with in_field("base"):
        base = resolve_capabilities(catalog.load_table(value["base"]))
    found = {**base, "name": "", **{key: given for key, given in value.items() if key != "base"}}
    for part in ("rules", "needs", "offload"):
        own = value.get(part)
        if own is None or isinstance(own, Mapping):
            both = {**base.get(part, {}), **(own or {})}
            found[part] = {name: rule for name, rule in both.items() if rule is not None}
    return found


@cache
def load_capabilities(name: str) -> Capabilities:
    """The table of a name in the catalog.

    Raises
    ------
    InputError : no such table.
    """
    known = catalog.table_name(name)
    data = resolve_capabilities(catalog.load_table(known))
    return Capabilities.parse({**data, "name": known}, f"capabilities {known}")


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return load_capabilities(catalog.table_name(value, ", or a table of rules"))
    return resolve_capabilities(value)


def _written(value: Capabilities | None) -> str | dict[str, Any] | None:
    """A table of the catalog by its name, another one in full."""
    if value is None:
        return None
    known = value.name and value == load_capabilities(value.name)
    return value.name if known else value.as_dict()


CapabilitiesOf = Annotated[
    Capabilities | None,
    BeforeValidator(_read, json_schema_input_type=Capabilities | str | dict[str, Any] | None),
    PlainSerializer(_written),
]
"""A table by name, or one of one's own, with all rules or with a `base`."""

"""A study as a person writes it: one problem, the axes along which it varies, what is wanted.

Beside it the price list of the user's own, which says what an hour of a cluster costs and what
power it takes, and what sets one field of plain data by its dotted path.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from nest.errors import InputError, did_you_mean
from nest.inputs.base import Description, Flag, Freeze, Name, Number, Problems, Whole, at_most
from nest.inputs.cluster import Cluster
from nest.inputs.failures import Failures
from nest.studies.axes import AnyAxis, Choice, Expression
from nest.units import Bandwidth, shorten

HOURS = 8766.0
"""Of a year."""
NAMES = ("model", "cluster", "job", "devices")
"""What the expressions of a price list may name: descriptions, and the number of devices."""


def _one_price(value: Any) -> Any:
    """A number from 0 on, or an expression."""
    if isinstance(value, str):
        Expression(value, NAMES)
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not (
            0 <= value < math.inf):
        raise ValueError(f"got {shorten(value)}; allowed: a number from 0 on, or an expression "
                         f"over {', '.join(NAMES)}")
    return value


def _price(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _one_price(one) for name, one in value.items()}
    return _one_price(value)


Price = Annotated[Any, AfterValidator(_price), at_most(1000)]
"""A number, an expression, or either by the beginning of a device's name."""


class PriceList(Description):
    """A price list; whatever is not given costs nothing.

    Each price is a number, an expression such as ``2.1 + 0.3 * (cluster.levels[0].size > 8)``, or a
    mapping from names of devices to such; the longest beginning of the device's name counts.
    """

    currency: Name = Field("USD", description="name of the money")
    device_hour: Price = Field(0, description="money for an hour of a device, with its host")
    adapter: Price = Field(0, description="money for a network adapter")
    adapters: Price = Field(1, description="adapters for each device")
    switch: Price = Field(0, description="money for a switch of the network beyond level 0")
    switch_ports: Price = Field(64, description="ports of a switch")
    port_bandwidth: Bandwidth = Field(50e9, description="bytes/s of a port, each direction")
    optic: Price = Field(0, description="money for an optical module: two for each link between "
                         "switches, at `port_bandwidth`")
    years: Annotated[Number, Field(gt=0, le=100)] = Field(
        4.0, description="years over which adapters and switches are written off")
    power: Price = Field(0, description="money for a kWh")
    device_watts: Price = Field(0, description="watts of a device in training, with its host's "
                                "share")
    adapter_watts: Price = Field(0, description="watts of an adapter")
    switch_watts: Price = Field(0, description="watts of a switch")
    optic_watts: Price = Field(0, description="watts of an optical module")
    pue: Annotated[Number, Field(ge=1, le=10)] = Field(
        1.0, description="power of the building over that of the devices, adapters and switches")


class Bill(NamedTuple):
    """What a cluster costs and takes."""

    hour: float
    """Money for an hour of the whole cluster."""
    watts: float
    switches: int


def switches_of(cluster: Cluster, ports: float, port_bandwidth: float) -> int:
    """Switches of all levels above the innermost, which is part of the devices.

    A switch of a level has ports down for the bandwidth of its level, and up for that of the next:
    the ports of a level are devices x (own + next bandwidth) / bandwidth of a port.
    """
    through = (*cluster.nominal_bandwidth[1:], 0.0)
    return sum(math.ceil(cluster.size * (own + up) / port_bandwidth / ports - 1e-9)
               for own, up in zip(through, through[1:], strict=False))


def optics_of(cluster: Cluster, port_bandwidth: float) -> int:
    """Optical modules at both ends of the links between switches, which levels from 2 on have."""
    return sum(2 * math.ceil(cluster.size * bandwidth / port_bandwidth - 1e-9)
               for bandwidth in cluster.nominal_bandwidth[2:])


def bill(prices: PriceList, names: Mapping[str, Any]) -> Bill:
    """Money and power of a cluster.

    Parameters
    ----------
    names : what the names in expressions stand for, see :data:`NAMES`.

    Raises
    ------
    InputError : no price for the device, an expression without a number, or prices of a network for
        a cluster with links.
    """
    cluster: Cluster = names["cluster"]

    def price(field: str) -> float:
        given = getattr(prices, field)
        if isinstance(given, Mapping):
            given = _of_device(field, given, cluster.device.name)
        value = Expression(given, NAMES).value(names) if isinstance(given, str) else given
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (
                0 <= value < math.inf):
            raise InputError(f"prices: {field}: got {shorten(value)} of {shorten(given)}; "
                             "allowed: a number from 0 on")
        return float(value)

    count, adapters, switches, optics = cluster.size, cluster.size * price("adapters"), 0, 0
    if any(price(name) for name in ("switch", "switch_watts", "optic", "optic_watts")):
        if cluster.links is not None:
            raise InputError("prices: switch: got a price for a cluster with links; allowed: for "
                             "clusters with levels alone")
        ports = price("switch_ports")
        if ports < 1:
            raise InputError(f"prices: switch_ports: got {ports:g}; allowed: from 1 on")
        switches = switches_of(cluster, ports, prices.port_bandwidth)
        optics = optics_of(cluster, prices.port_bandwidth)
    watts = prices.pue * (count * price("device_watts") + adapters * price("adapter_watts")
                          + switches * price("switch_watts") + optics * price("optic_watts"))
    bought = (adapters * price("adapter") + switches * price("switch")
              + optics * price("optic"))
    hour = (count * price("device_hour") + bought / (prices.years * HOURS)
            + watts / 1000.0 * price("power"))
    return Bill(hour, watts, switches)


def _of_device(field: str, given: Mapping[str, Any], device: str) -> Any:
    found = [start for start in given if device.casefold().startswith(start.casefold())]
    if not found:
        raise InputError(f"prices: {field}: got none for {device}; allowed: one for each device of "
                         f"the study (given: {', '.join(given)})")
    return given[max(found, key=len)]


SECTIONS = ("model", "cluster", "job", "space", "search")
"""Parts of a question that paths begin with."""
MOST_POINTS = 10**6
"""Points of one study; larger grids are sampled."""
ObjectiveName = Literal["tokens_per_s", "tokens_per_day", "tokens_per_money", "tokens_per_joule",
                        "mfu", "step_time_s", "devices", "days", "money"]

_NEEDS: Mapping[str, Mapping[str, str]] = {
    "prices": {"money": "{device_hour: 2.5}", "tokens_per_money": "{device_hour: 2.5}",
               "tokens_per_joule": "{device_watts: 1000}"},
    "train": {"money": "{tokens: 15e12}", "days": "{tokens: 15e12}"},
}
"""Parts of a study that objectives need, and an example of each."""


class Sample(Description):
    """Some points instead of the whole grid."""

    method: Literal["random", "latin-hypercube"] = Field(
        "latin-hypercube", description="random, or one sample in each of `count` equal parts of "
        "every axis")
    count: Annotated[Whole, Field(ge=1, le=MOST_POINTS)] = Field(
        description="samples; those drawn twice and those that a constraint excludes drop out")
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = Field(
        0, description="of the random numbers: the same seed gives the same points")


class Train(Description):
    """The whole training that the step is part of."""

    tokens: Annotated[Number, Field(gt=0, le=1e18)] = Field(description="tokens to train on")
    days: Annotated[Number, Field(gt=0, le=1e5)] | None = Field(
        None, description="days it may take; null: any. Slower plans are out of the race")
    productive: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        None, description="share of the time that trains: the rest is failures and restarts; null: "
        "that of `failures`, or 1 without them")
    failures: Failures | None = Field(
        None, description="how often parts fail: the share of each point follows, and `money` is "
        "that of its spare nodes too; {}: rates of Llama 3 405B")

    smaller: Flag = Field(
        False, description="with `failures`: where nodes are missing and no spare is, a plan for "
        "those that are left trains, which is searched too; else the job waits")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.productive is not None and self.failures is not None:
            raise Problems([("productive", f"got {self.productive:g} beside failures; allowed: one "
                             "of the two")])
        if self.smaller and self.failures is None:
            raise Problems([("smaller", "got true; allowed: false without failures")])
        return self


class Together(Description):
    """Several trainings, one after another on the same cluster."""

    axis: Name = Field(description="axis of the models or jobs that are trained")
    tokens: Annotated[dict[Name, Annotated[Number, Field(gt=0, le=1e18)]], Field(min_length=1),
                      Freeze, at_most(100)] = Field(
        description="tokens to train on, by the values of the axis that are trained")


class Study(Description):
    """Questions to the planner that differ along axes.

    ``model``, ``cluster``, ``job``, ``space`` and ``search`` are the problem; each key of ``axes``
    is the path of a field of it, such as ``cluster.levels.0.bandwidth``, or a name of choices that
    set several fields each.
    """

    name: Name = Field("study", description="name of the study; default: that of its file")
    model: Any = Field(None, description="catalog name, file, or mapping; may say `base`")
    cluster: Any = Field(None, description="catalog name, file, network to generate, or mapping; "
                         "may say `base`, `devices` and `filling`")
    job: Annotated[dict[str, Any], Freeze] = Field(description="fields of a job")
    space: Annotated[dict[str, Any], Freeze] = Field(
        default_factory=dict, description="bounds of the search space")
    search: Annotated[dict[str, Any], Freeze] = Field(
        default_factory=dict, description="how the planner searches")
    axes: Annotated[dict[Name, AnyAxis], Field(min_length=1), Freeze, at_most(30)] = Field(
        description="values of fields, by path, or choices by a name")
    constraints: Annotated[tuple[str, ...], at_most(100)] = Field(
        (), description="expressions that hold at each point; others are left out")
    sample: Sample | None = Field(None, description="some points; null: the whole grid")
    prices: PriceList | None = Field(None, description="price list; null: no figures of money")
    train: Train | None = Field(None, description="the whole training; null: steps alone")
    together: Together | None = Field(
        None, description="trainings that share a cluster; null: each has its own")
    objectives: Annotated[tuple[ObjectiveName, ...], Field(min_length=1), at_most(8)] | None = (
        Field(None, description="what is wanted; null: tokens_per_s, and with prices "
              "tokens_per_money"))
    groups: Annotated[tuple[Name, ...], at_most(30)] = Field(
        (), description="axes: the front and the best are found for each of their values")
    _listed: dict[str, tuple[Choice, ...]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        for name, axis in self.axes.items():
            for path in self.paths(name):
                if path.split(".")[0] not in SECTIONS:
                    near = did_you_mean(path.split(".")[0], SECTIONS)
                    problems.append((f"axes.{name}", f"got the path {shorten(path)}; {near}"
                                     f"allowed: fields of {', '.join(SECTIONS)}"))
            if axis.continuous and self.sample is None:
                problems.append((f"axes.{name}", "got a range without values of its own; allowed: "
                                 "count, step or times, or a sample of the study"))
        names = self.names
        for number, text in enumerate(self.constraints):
            try:
                Expression(text, names)
            except InputError as error:
                problems.append((f"constraints.{number}", str(error)))
        problems += [("groups", f"got {shorten(name)}; {did_you_mean(name, self.axes)}allowed: "
                      f"{', '.join(self.axes)}") for name in self.groups if name not in self.axes]
        problems += [*self._wanting(), *self._apart()]
        if not problems and self.sample is None and self.size > MOST_POINTS:
            problems.append(("axes", f"got a grid of {self.size} points; allowed: at most "
                             f"{MOST_POINTS}, or a sample"))
        if problems:
            raise Problems(problems)
        return self

    def _wanting(self) -> Iterator[tuple[str, str]]:
        """Objectives that need what is not given."""
        for name in self.objectives or ():
            needs = [part for part, wanted in _NEEDS.items()
                     if name in wanted and getattr(self, part) is None]
            if needs:
                added = " and ".join(f"{part} (such as {part}: {_NEEDS[part][name]})"
                                     for part in needs)
                yield "objectives", (f"got {name} without {' and '.join(needs)}; allowed: {name} "
                                     f"in a study with {added}, or other objectives")

    def _apart(self) -> Iterator[tuple[str, str]]:
        """Trainings that cannot share a cluster."""
        if self.together is None:
            return
        name = self.together.axis
        if name not in self.axes:
            yield "together.axis", (f"got {shorten(name)}; {did_you_mean(name, self.axes)}allowed: "
                                    f"{', '.join(self.axes)}")
        elif self.axes[name].continuous or any(
                path.split(".")[0] == "cluster" for path in self.paths(name)):
            yield "together.axis", (f"got {shorten(name)}; allowed: an axis with values of its own "
                                    "that changes no field of the cluster")
        else:
            labels = [str(choice.label) for choice in self.listed(name)]
            for label in self.together.tokens:
                if label not in labels:
                    yield f"together.tokens.{label}", (
                        f"got {shorten(label)}; {did_you_mean(label, labels)}allowed: values of "
                        f"the axis {name}, such as {', '.join(labels[:5])}")

    def paths(self, name: str) -> set[str]:
        """Paths of the fields that an axis sets, by its name."""
        choices = self.axes[name].choices
        return {name} if choices is None else {path for one in choices.values() for path in one}

    @property
    def names(self) -> tuple[str, ...]:
        """What constraints may name: sections, the number of devices, axes of choices."""
        return (*SECTIONS, "devices", *(name for name in self.axes if name.isidentifier()))

    @property
    def wanted(self) -> tuple[ObjectiveName, ...]:
        """The objectives, or those by default."""
        if self.objectives is not None:
            return self.objectives
        return ("tokens_per_s",) if self.prices is None else ("tokens_per_s", "tokens_per_money")

    def listed(self, name: str) -> tuple[Choice, ...]:
        """All values of an axis, by its name."""
        if name not in self._listed:
            self._listed[name] = self.axes[name].listed(name)
        return self._listed[name]

    @property
    def size(self) -> int:
        """Points of the grid, or samples, before constraints."""
        if self.sample is not None and any(axis.continuous for axis in self.axes.values()):
            return self.sample.count
        whole = math.prod(len(self.listed(name)) for name in self.axes)
        return whole if self.sample is None else min(whole, self.sample.count)

    def need_waiting(self, what: str) -> None:
        """Refuse a study whose shares of time follow from plans, where they are needed before.

        Raises
        ------
        InputError : its runs go on with smaller plans.
        """
        if self.train is not None and self.train.smaller:
            raise InputError(f"{what}: got a study with train.smaller, whose shares of time follow "
                             "from plans; allowed: without")

    @property
    def digest(self) -> str:
        """SHA-256 of the whole study and the version of NEST, as 64 hexadecimal digits."""
        data = self.as_dict()
        if self.together is None:
            del data["together"]  # as before there was such a field
        if self.train is not None and not self.train.smaller:
            del data["train"]["smaller"]
        if self.train is not None and self.train.failures is None:
            del data["train"]["failures"]  # likewise, when `productive` was 1
            data["train"]["productive"] = self.train.productive or 1.0
        for name in ("optic", "optic_watts"):
            if self.prices is not None and not data["prices"][name]:
                del data["prices"][name]  # likewise
        text = json.dumps([VERSION, data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


NAMED = ("device", "stack")
"""Fields whose text is the name of a description that single fields of it may change."""
INSTEAD = {"bandwidth": "oversubscription", "oversubscription": "bandwidth"}
"""Setting the first takes the second away: a level has one of them."""


def with_field(data: Any, path: str, value: Any) -> Any:
    """A copy of plain data with one field set.

    Parameters
    ----------
    data : mappings and lists; what is on the path is copied, all else shared.
    path : names, joined by points; entries of a list by number, from the end if negative, or by
        their name.
    value : plain data.

    Raises
    ------
    InputError : the path leads through something that has no fields; the text names the place.
    """
    name, _, rest = path.partition(".")
    if isinstance(data, list):
        number = _entry(data, name)
        return [with_field(one, rest, value) if rest and place == number
                else value if place == number else one for place, one in enumerate(data)]
    if not isinstance(data, dict):
        raise InputError(f"{name}: got {shorten(data)}, which has no fields; allowed: a field of "
                         "a mapping, or the whole value")
    if not rest:
        return {key: one for key, one in data.items() if key != INSTEAD.get(name)} | {name: value}
    inner = data.get(name)
    if name in NAMED and isinstance(inner, str):
        inner = {"base": inner}
    return {**data, name: with_field({} if inner is None else inner, rest, value)}


def _entry(data: list[Any], name: str) -> int:
    """The place of an entry by its number or its name."""
    if name.lstrip("-").isdigit() and -len(data) <= int(name) < len(data):
        return int(name) % len(data)
    names = [str(one.get("name")) if isinstance(one, dict) else "" for one in data]
    if name in names:
        return names.index(name)
    known = ", ".join(filter(None, names))
    raise InputError(f"got no entry {shorten(name)}; {did_you_mean(name, names)}allowed: "
                     f"0 to {len(data) - 1}" + (f", or {known}" if known else ""))


VERSION: str = sys.modules["nest"].__version__
"""Not imported by name: the package hands names of this folder on, which would be a circle."""

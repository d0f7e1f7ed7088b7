"""A cluster: device types, levels from the innermost outwards, and possibly links."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, create_model, model_validator

from nest.errors import InputError
from nest.inputs import link_kinds
from nest.inputs.base import (
    Description,
    Flag,
    Fraction,
    Name,
    Number,
    Problems,
    Whole,
    at_most,
    whole_number,
)
from nest.inputs.device import Device, resolve_device
from nest.inputs.filling import used_sizes
from nest.inputs.links import Links
from nest.units import Bandwidth, Delay, shorten

MOST_DEVICES, MOST_TYPES = 10**6, 8
MOST_PER_NODE = 16
"""Devices of a node, at most; a larger group of the innermost level is a rack (NVL72)."""
TRAY = 4
"""Devices of a node of such a rack: the trays of NVIDIA's NVL72."""
DeviceCount = Annotated[Whole, Field(ge=1, le=MOST_DEVICES)]
LinkKind = Literal["nvlink3", "nvlink4", "nvlink5", "pcie4", "pcie5", "xgmi", "infiniband", "roce",
                   "efa", "ici", "neuronlink3", "nvlink6", "ualink", "neuronlink4", "ub"]
DeviceNumber = Annotated[Whole, Field(ge=0, lt=MOST_DEVICES)]


CUBE = 64
"""Devices of a cube of 4 x 4 x 4, of which tori of three axes are made; its optical switches close
the rings of whole cubes alone (docs.cloud.google.com/tpu/docs/v5p)."""


class Level(Description):
    """One tier of the network; level 0 joins devices, every further level joins groups."""

    name: Name = Field(description="name of the level")
    size: Annotated[
        int,
        BeforeValidator(whole_number, json_schema_input_type=int | Literal["n"]),
        Field(ge=1, le=MOST_DEVICES),
    ] = Field(
        description="groups of the level below that make one group (level 0: devices); "
        "the outermost level of a file may say n"
    )
    whole: Annotated[Whole, Field(ge=1, le=MOST_DEVICES)] | None = Field(
        None, description="size of a whole group, where only `size` of it is used; null: all is",
    )
    link: LinkKind | None = Field(
        None, description="kind of link, whose defaults stand for bandwidth, latency, efficiency, "
        "base_time and ramp where these are left out",
    )
    bandwidth: Bandwidth | None = Field(
        None, description="bytes/s that one device can send through this level, nominal"
    )
    latency: Delay = Field(
        description="seconds of one message through this level, or a kind of link that says it"
    )
    base_time: Delay = Field(
        0.0, description="seconds that a collective takes through this level whatever its size"
    )
    ramp: Annotated[Number, Field(ge=0, le=1)] = Field(
        0.0,
        description="root of seconds: a collective takes this times the square root of the seconds "
        "that its buffer takes through the level, besides",
    )
    oversubscription: Annotated[Number, Field(ge=1, le=1e6)] | None = Field(
        None, description="instead of bandwidth: the level below has this many times as much"
    )
    efficiency: Fraction = Field(
        1.0, description="share of the nominal bandwidth that collectives reach"
    )
    in_network_reduction: Flag = Field(
        False, description="switches of this level add up all-reduces (NVLS, SHARP)"
    )
    axes: Annotated[Whole, Field(ge=0, le=8)] = Field(
        0, description="the level is a torus of so many axes, and bandwidth is that along one of "
        "them: a group of all its devices uses all axes; 0: it has switches"
    )
    source: Annotated[str, Field(max_length=4000)] = Field("", description="source of the figures")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill in what the kind of link says and the data leave out."""
        if not isinstance(data, dict) or not isinstance(data.get("link"), str):
            return data
        figures = link_kinds.figures(data["link"])
        if data.get("oversubscription") is not None:
            figures.pop("bandwidth", None)
        return {**figures, **{name: value for name, value in data.items() if value is not None}}

    def defaults(self, device: Device) -> tuple[str, ...]:
        """Figures that are those of its kind of link for a device, and that have no source."""
        if self.link is None or self.source:
            return ()
        usual = Level.parse({"name": self.name, "size": 1, "link": self.link,
                             **link_kinds.figures(self.link, device.name)})
        return tuple(name for name in link_kinds.FIGURES if name in usual.model_fields_set
                     and getattr(usual, name) == getattr(self, name))

    def follows(self, device: Device) -> bool:
        """Whether the bandwidth is the one that a device has on this kind of link."""
        return self.link is not None and self.bandwidth is not None and (
            self.bandwidth == link_kinds.device_rate(self.link, device.name))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.whole is not None and self.whole < self.size:
            text = f"got {self.whole}; allowed: at least size = {self.size}"
            raise Problems([("whole", text)])
        if (self.bandwidth is None) == (self.oversubscription is None):
            given = "neither" if self.bandwidth is None else "both"
            text = f"got {given}; allowed: exactly one of bandwidth and oversubscription"
            raise Problems([("bandwidth", text)])
        return self


def around(level: Level, whole: int) -> float:
    """Share of a torus's bandwidth that is left where a part of it has open lines for rings.

    An open line has one direction for what a ring sends both ways. Of two axes, each is a ring
    where it is as long as in the whole torus of ``whole`` devices
    (docs.cloud.google.com/tpu/docs/v6e: 16 x 16); of three, where the part has whole cubes.
    """
    if level.axes == 3:
        return 1.0 if level.size >= CUBE else 0.5
    if level.axes != 2 or level.size >= whole:
        return 1.0
    return 0.75 if 2 * level.size >= whole else 0.5


class Cluster(Description):
    """Equal devices on a network; devices are numbered along the innermost level.

    With ``links`` the network is not a hierarchy: its levels define groups, with which blocks are
    aligned, and transfers are priced by the links.
    """

    name: Name = Field(description="name of the cluster")
    device: Annotated[
        Device,
        BeforeValidator(resolve_device, json_schema_input_type=Device | str | dict[str, Any]),
    ] = Field(
        description="device type: a catalog name, a mapping, or a mapping with `base` and changes"
    )
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=8), at_most(8)] = Field(
        description="tiers of the network, innermost first"
    )
    devices: DeviceCount | None = Field(
        None, description="number of devices; null: all that the levels hold; fewer: the last "
        "groups are partly filled"
    )
    default_devices: DeviceCount | None = Field(
        None, description="number of devices where the outermost size is n and none is asked for"
    )
    order: Annotated[tuple[DeviceNumber, ...], at_most(MOST_DEVICES)] | None = Field(
        None,
        description="number, in the graph that the cluster was given as, of each device; null: the "
        "same numbers",
    )
    names: Annotated[tuple[Name, ...], at_most(MOST_DEVICES)] | None = Field(
        None, description="name of each device"
    )
    links: Links | None = Field(
        None, description="links of a network that is no hierarchy; null: the levels say it all"
    )
    types: Annotated[
        tuple[Annotated[Device, BeforeValidator(resolve_device)], ...], at_most(MOST_TYPES)
    ] = Field((), description="types of device besides `device`")
    type_numbers: Annotated[
        tuple[Annotated[Whole, Field(ge=0, le=MOST_TYPES)], ...], at_most(MOST_DEVICES)
    ] | None = Field(
        None,
        validation_alias=AliasChoices("kinds", "type_numbers"),  # files say `kinds`
        serialization_alias="kinds",
        description="type of each device: 0 is `device`, 1 the first of `types`, and so on; null: "
        "all are alike",
    )
    source: Annotated[str, Field(max_length=4000)] = Field("", description="source of the figures")

    @model_validator(mode="before")
    @classmethod
    def _rates_of_device(cls, data: Any) -> Any:
        """Give levels with a kind of link, and no bandwidth, the one that the device has on it."""
        if not isinstance(data, dict) or not isinstance(data.get("levels"), (list, tuple)):
            return data
        names = _names_of(data.get("device"))
        return {**data, "levels": [_rated(level, names) for level in data["levels"]]}

    @model_validator(mode="before")
    @classmethod
    def _size_outermost(cls, data: Any) -> Any:
        """Replace size n of a file's outermost level by the size for default_devices."""
        inner = inner_sizes(data)
        if inner is None:
            return data
        wanted, product = data.get("default_devices", data.get("devices")), math.prod(inner)
        if not isinstance(wanted, int) or isinstance(wanted, bool):
            text = f"got {shorten(wanted)}; allowed: a whole number where the outermost size is n"
            raise Problems([("default_devices", text)])
        if wanted < product:
            allowed = f"at least {product} (sizes of the inner levels)"
            raise Problems([("default_devices", f"got {shorten(wanted)}; allowed: {allowed}")])
        some = {"devices": wanted} if wanted % product else {}
        return size_template(data, -(-wanted // product)) | some

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.levels[0].bandwidth is None:
            text = "got none; allowed: a bandwidth at the innermost level"
            problems.append(("levels.0.bandwidth", text))
        pairs = itertools.combinations(self.levels, 2)
        repeated = {a.name for a, b in pairs if a.name == b.name}
        if repeated:
            text = (f"got the name {shorten(sorted(repeated)[0])} twice; allowed: a name of its "
                    "own for each")
            problems.append(("levels", text))
        sizes = " x ".join(str(level.size) for level in self.levels)
        most = math.prod(level.size for level in self.levels)
        least = most - most // self.levels[-1].size + 1
        if self.size > MOST_DEVICES:
            text = f"got {sizes} = {self.size} devices; allowed: at most {MOST_DEVICES}"
            problems.append(("levels", text))
        if not least <= self.size <= most:
            text = (f"got {self.devices}; allowed: {most} = {sizes} (sizes of the levels), or from "
                    f"{least} on with a last group that is partly filled")
            problems.append(("devices", text))
        elif self.size < most and self.links is not None:
            text = f"got {self.devices} of a cluster with links; allowed: {most}"
            problems.append(("devices", text))
        for field in ("order", "names", "type_numbers"):
            values = getattr(self, field)
            if values is not None and len(values) != self.size:
                text = f"got {len(values)} entries; allowed: {self.size}, as many as devices"
                problems.append((field.replace("type_numbers", "kinds"), text))
            elif field != "type_numbers" and values is not None and len(set(values)) < len(values):
                problems.append((field, "got an entry twice; allowed: each once"))
        numbers = self.type_numbers
        if (numbers is None) != (not self.types):
            problems.append(("kinds", "got one of types and kinds; allowed: both or neither"))
        elif numbers is not None and self.links is None:
            problems.append(("kinds", "got types of a cluster without links; allowed: with links"))
        elif numbers is not None and set(numbers) != set(range(len(self.types) + 1)):
            text = f"got {sorted(set(numbers))}; allowed: all of 0 to {len(self.types)}"
            problems.append(("kinds", text))
        if self.links is not None and not problems:
            apart = self.links.problem(self.size)
            problems += [("links", f"{apart}; allowed: paths between all nodes")] if apart else []
        if problems:
            raise Problems(problems)
        return self

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.devices or math.prod(level.size for level in self.levels)

    @property
    def device_types(self) -> tuple[Device, ...]:
        """All types of device, by the numbers of ``type_numbers``."""
        return (self.device, *self.types)

    def type_at(self, device: int) -> int:
        """Type of a device, by its number in ``device_types``."""
        return 0 if self.type_numbers is None else self.type_numbers[device]

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Devices in one group of each level, innermost first; the last group may have fewer.

        That of the last level holds the cluster.
        """
        return tuple(itertools.accumulate((level.size for level in self.levels), int.__mul__))

    @property
    def nominal_bandwidth(self) -> tuple[float, ...]:
        """Bytes/s of each level as given, or by oversubscription of the narrowest below it."""
        result: list[float] = []
        for level in self.levels:
            if level.bandwidth is not None:
                result.append(level.bandwidth * around(level, level.whole or level.size))
            else:
                assert level.oversubscription is not None and result  # kept by the validators
                result.append(min(result) / level.oversubscription)
        return tuple(result)

    @property
    def resolved_bandwidth(self) -> tuple[float, ...]:
        """Bytes/s that one device can deliver to a peer reached through each level.

        Transfers are priced at their narrowest link: the minimum over this and all inner levels of
        nominal bandwidth times efficiency.
        """
        pairs = zip(self.nominal_bandwidth, self.levels, strict=True)
        reached = (nominal * level.efficiency for nominal, level in pairs)
        return tuple(itertools.accumulate(reached, min))

    @property
    def whole_sizes(self) -> tuple[int, ...]:
        """Sizes of the levels where all groups are whole."""
        return tuple(level.whole or level.size for level in self.levels)

    @property
    def node_devices(self) -> int:
        """Devices of a node: the innermost level, or a tray of a larger one, which is a rack."""
        inner = self.whole_sizes[0]
        return inner if inner <= MOST_PER_NODE else TRAY

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """``order``, or the numbers that the devices have where all groups are whole; None: same.

        Devices that are not used have numbers of their own.
        """
        if self.order is not None or all(level.whole in (None, level.size)
                                         for level in self.levels):
            return self.order
        inner = [1, *self.group_sizes]
        whole = [1, *itertools.accumulate(self.whole_sizes, int.__mul__)]
        return tuple(sum(device // below % level.size * far for below, level, far in
                         zip(inner, self.levels, whole, strict=False))
                     for device in range(self.size))

    def with_devices(self, devices: int, filling: int | None = None) -> Cluster:
        """The same cluster with another number of devices.

        The outermost level takes the new size. If the devices are fewer than one of its groups,
        outer levels are removed. Where the devices are no whole groups, each group has as many, or
        all but the last are whole. Of a torus they are a part, whose lines may be open
        (:func:`around`). The devices are numbered in order and have no names.

        Parameters
        ----------
        filling : devices used in each group of the level that it fits into, but the last group.

        Raises
        ------
        InputError : a number that is not allowed; the message says which are.
        """
        if self.links is not None and (devices != self.size or filling is not None):
            raise InputError(f"{self.name}: devices: got {shorten(devices)}; allowed: {self.size}, "
                             "those of its links, without a filling")
        try:
            devices = whole_number(devices)
            filling = None if filling is None else whole_number(filling)
        except ValueError as error:
            raise InputError(f"devices: {error}") from None
        if not 1 <= devices <= MOST_DEVICES:
            raise InputError(f"devices: got {shorten(devices)}; allowed: 1 to {MOST_DEVICES}")
        whole = [*self.whole_sizes]
        sizes = used_sizes(whole, devices, filling)
        last = len(sizes) - 1
        whole[last] = max(sizes[-1], whole[last] if self.levels[last].axes else 0)
        levels = [level.replace(size=size, whole=None if size == most else most)
                  for level, size, most in zip(self.levels, sizes, whole, strict=False)]
        some = devices if devices < math.prod(sizes) else None
        return self.replace(
            levels=levels, devices=some, default_devices=None, order=None, names=None)

    def with_device(self, device: Device) -> Cluster:
        """The same network with devices of another type.

        A bandwidth that is the one of the old device on its kind of link becomes that of the new
        one, if the catalog has it; all other figures are kept.
        """
        rates = [link_kinds.device_rate(level.link, device.name)
                 if level.link is not None and level.follows(self.device) else None
                 for level in self.levels]
        return self.replace(device=device, levels=[
            level if rate is None else level.replace(bandwidth=rate)
            for level, rate in zip(self.levels, rates, strict=True)])

    def size_from(self, devices: int) -> int:
        """The least number of devices, from a number on, that are whole groups but for the last
        level."""
        below = (1, *self.group_sizes[:-1])
        inner = next((small for small, size in zip(below, self.group_sizes[:-1], strict=False)
                      if devices <= size), below[-1])
        return -(-devices // inner) * inner


def _names_of(device: Any) -> tuple[str, ...]:
    """Names of a device given in any way, the nearest first: its own, and that of its base."""
    if isinstance(device, Device):
        return (device.name,)
    fields = device if isinstance(device, dict) else {"base": device}
    found = (fields.get("name"), fields.get("base"))
    return tuple(name.strip().casefold() for name in found if isinstance(name, str))


def _rated(level: Any, devices: tuple[str, ...]) -> Any:
    """A level's data with the rate of the first device that has one on its kind of link."""
    if not isinstance(level, dict) or not isinstance(level.get("link"), str) or any(
            level.get(name) is not None for name in ("bandwidth", "oversubscription")):
        return level
    rates = (link_kinds.device_rate(level["link"], device) for device in devices)
    rate = next((rate for rate in rates if rate is not None), None)
    return level if rate is None else {**level, "bandwidth": rate}


_Sizes = create_model(  # type: ignore[call-overload]
    "_Sizes", __base__=Description,
    **{name: (field.annotation, field) for name, field in Cluster.model_fields.items()
       if name in ("devices", "default_devices", "order", "names")})


def without_sizes(data: dict[str, Any], where: str) -> dict[str, Any]:
    """A file's data without what another number of devices replaces, which is checked first.

    Raises
    ------
    InputError : one line per problem.
    """
    _Sizes.parse({name: data[name] for name in _Sizes.model_fields if name in data}, where)
    return {name: value for name, value in data.items() if name not in _Sizes.model_fields}


def inner_sizes(data: Any) -> list[int] | None:
    """Sizes of all levels but the outermost where the outermost is n; None for other data."""
    if not isinstance(data, dict) or not isinstance(data.get("levels"), (list, tuple)):
        return None
    levels = data["levels"]
    if not levels or not isinstance(levels[-1], dict) or levels[-1].get("size") not in ("n", "N"):
        return None
    sizes = [level.get("size") if isinstance(level, dict) else None for level in levels[:-1]]
    usable = [
        s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and 0 < s <= MOST_DEVICES
    ]
    return usable if len(usable) == len(sizes) else None


def size_template(data: dict[str, Any], size: int) -> dict[str, Any]:
    """Copy of a file's data with the outermost level's size set."""
    levels = list(data["levels"])
    levels[-1] = {**levels[-1], "size": size}
    return {**data, "levels": levels}

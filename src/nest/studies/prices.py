"""What an hour of a cluster costs and what power it takes, from a price list of the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from nest.errors import InputError
from nest.inputs.base import Description, Name, Number, at_most
from nest.inputs.cluster import Cluster
from nest.studies.expressions import Expression
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
    years: Annotated[Number, Field(gt=0, le=100)] = Field(
        4.0, description="years over which adapters and switches are written off")
    power: Price = Field(0, description="money for a kWh")
    device_watts: Price = Field(0, description="watts of a device in training, with its host's "
                                "share")
    adapter_watts: Price = Field(0, description="watts of an adapter")
    switch_watts: Price = Field(0, description="watts of a switch")
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

    count, adapters, switches = cluster.size, cluster.size * price("adapters"), 0
    if price("switch") or price("switch_watts"):
        if cluster.links is not None:
            raise InputError("prices: switch: got a price for a cluster with links; allowed: for "
                             "clusters with levels alone")
        ports = price("switch_ports")
        if ports < 1:
            raise InputError(f"prices: switch_ports: got {ports:g}; allowed: from 1 on")
        switches = switches_of(cluster, ports, prices.port_bandwidth)
    watts = prices.pue * (count * price("device_watts") + adapters * price("adapter_watts")
                          + switches * price("switch_watts"))
    bought = adapters * price("adapter") + switches * price("switch")
    hour = (count * price("device_hour") + bought / (prices.years * HOURS)
            + watts / 1000.0 * price("power"))
    return Bill(hour, watts, switches)


def _of_device(field: str, given: Mapping[str, Any], device: str) -> Any:
    found = [start for start in given if device.casefold().startswith(start.casefold())]
    if not found:
        raise InputError(f"prices: {field}: got none for {device}; allowed: one for each device of "
                         f"the study (given: {', '.join(given)})")
    return given[max(found, key=len)]

"""The description of an accelerator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from nest.errors import InputError
from nest.inputs import catalog
from nest.inputs.base import (
    Description,
    Fraction,
    Freeze,
    FrozenDict,
    Name,
    Number,
    Problems,
    Share,
    at_most,
    in_field,
)
from nest.inputs.formats import number_format
from nest.units import Bandwidth, Bytes, BytesOrZero, Delay, Flops, format_bytes

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4"]
GemmKey = Literal[
    "default", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4"]
E = TypeVar("E")
Half = Annotated[Number, Field(ge=0, le=1e6)]


class GemmEfficiency(Description):
    """Share of the peak that an m x n x k matrix product reaches, and its overheads.

    peak_fraction * m/(m + m_half) * n/(n + n_half) * k/(k + k_half)
    / (1 + decline * log2(1 + 2mnk / 10**12))

    The halves describe products too small to fill the device. ``decline`` describes products so
    large that power and caches limit them: the time grows by this share at 10**12 FLOP, and by
    about the same share for every further doubling. The seconds of a product rise with m, n and k
    for all figures.
    """

    peak_fraction: Fraction = Field(description="share of the peak that large products reach")
    m_half: Half = Field(description="rows (tokens) at which half of it is reached")
    n_half: Half = Field(description="columns (outputs) at which half of it is reached")
    k_half: Half = Field(description="inner size at which half of it is reached")
    decline: Share = Field(
        0.0, description="share more time per doubling of the FLOP, for products above 1 TFLOP"
    )
    cast_bytes: Annotated[Number, Field(ge=0, le=1000)] = Field(
        0.0,
        description="bytes of memory traffic per element of the first operand that products "
        "measured alone spend on casting it (8 bits and fewer); training casts otherwise, and "
        "plans ignore it",
    )

    def fraction(self, m: float, n: float, k: float) -> float:
        """Share of the peak for one product, 0 to 1."""
        shape = m / (m + self.m_half) * n / (n + self.n_half) * k / (k + self.k_half)
        return self.peak_fraction * shape / (1 + self.decline * math.log2(1 + 2 * m * n * k / 1e12))


HALF_WIDTH = 26_600.0
"""Width of an expert's MLP at which grouped products are half way from their rate to the wide one.

With a wide rate of 0.964, that of dense products in training, the experts of Grok-1 (32,768) reach
0.85 and those of Mixtral (14,336) 0.75, as 18 runs of Grok-1 in bf16 on 8 to 2,048 H100
(NVIDIA/dgxc-benchmarking@v24.11.1, @v25.04.02 grok1/README_314b.md) and one of Mixtral ask for;
those of 3,000 and less stay where they are.
"""


class GroupedEfficiency(Description):
    """Rates of a grouped product, that is of equal products of experts in one call.

    A group takes max(FLOP / (share x the rate of one such product alone), bytes /
    (memory_share x memory_bandwidth)) + group_time, where the share is :meth:`share` of the
    experts' width.
    """

    rate: Fraction = Field(description="rate of a group's product over that of the product alone")
    memory_share: Fraction = Field(description="share of memory_bandwidth that its bytes move at")
    group_time: Delay = Field(description="seconds of each group besides")
    fused_rate: Fraction = Field(
        default_factory=lambda data: data["rate"],
        description="the rate where the stack has fused_experts; default: rate",
    )
    wide_rate: Fraction = Field(
        default_factory=lambda data: data["rate"],
        description="what rate approaches where experts are wide; default: rate",
    )
    half_width: Annotated[Number, Field(gt=0, le=1e9)] = Field(
        HALF_WIDTH, description="width of an expert's MLP half way from rate to wide_rate"
    )

    def share(self, width: float, fused: bool) -> float:
        """Rate of experts with MLPs of a width over that of their products alone."""
        if fused:
            return self.fused_rate
        wide = width**2 / (width**2 + self.half_width**2)
        return self.rate + wide * (self.wide_rate - self.rate)


def default_grouped() -> dict[GemmKey, GroupedEfficiency]:
    """Grouped products of a device without figures of its own: those of a B200, assumed.

    Fitted to 108 products of Transformer Engine in bf16 (MooreThreads/SimuMax@4dcaae513b
    configs/system/b200_bf16_ceperm.json): 0.685 +- 0.035, 0.76 +- 0.06, 4.1 +- 0.7 us; median
    error 9.1 %, and 9.2 % with either of their two models left out. ``fused_rate``: 0.92 +- 0.05,
    fitted to 308 expert MLPs of inference kernels in fp8, with 512 tokens an expert and more, on
    B200, B300, GB200 and GB300 (the fastest kernel of each shape;
    ai-dynamo/aiconfigurator@095f58a51c systems/data/*/moe); 0.91 to 0.95 with each device left out.
    ``wide_rate``: :data:`HALF_WIDTH`.
    """
    measured = GroupedEfficiency(
        rate=0.685, memory_share=0.76, group_time=4.1e-6, fused_rate=0.92, wide_rate=0.964)
    return FrozenDict({"default": measured})


def default_gemm() -> dict[GemmKey, GemmEfficiency]:
    """Efficiency of a device without figures of its own (assumed)."""
    usual = GemmEfficiency(peak_fraction=0.75, m_half=128, n_half=128, k_half=128)
    return FrozenDict({"default": usual})


class Device(Description):
    """An accelerator: memory, peaks and efficiencies."""

    name: Name = Field(description="name of the device")
    memory: Bytes = Field(description="bytes of device memory")
    memory_bandwidth: Bandwidth = Field(description="bytes/s of device memory, nominal")
    peak_flops: Annotated[dict[Dtype, Flops], Field(min_length=1), Freeze, at_most(100)] = Field(
        description="dense peak FLOP/s of matrix products per number format"
    )
    gemm: Annotated[dict[GemmKey, GemmEfficiency], Field(min_length=1), Freeze, at_most(100)] = (
        Field(
            default_factory=lambda: default_gemm(),
            description="efficiency of matrix products per number format, or `default`",
        )
    )
    grouped: Annotated[dict[GemmKey, GroupedEfficiency], Field(min_length=1), Freeze,
                       at_most(100)] = Field(
        default_factory=lambda: default_grouped(),
        description="grouped products of experts per number format, or `default`; measured on "
        "b200-sxm in bf16, assumed elsewhere",
    )
    attention_fraction: Fraction = Field(
        0.55, description="share of the peak that flash attention reaches, forward and backward"
    )
    attention_formats: Annotated[dict[GemmKey, Fraction], Freeze, at_most(100)] = Field(
        default_factory=FrozenDict,
        description="the same, also of the peak in 16 bit, where the stack has fp8_attention, per "
        "number format of products; default: attention_fraction",
    )
    attention_edge: Annotated[Number, Field(ge=0, le=1e5)] = Field(
        0.0, description="keys that each query computes beside those that a causal mask or a "
        "window leaves it"
    )
    attention_narrow: Fraction = Field(
        1.0, description="rate of attention with heads of 64 over that of 128 and more; heads of "
        "32 have its square",
    )
    recurrence_fraction: Fraction = Field(
        0.103, description="share of the peak in 16 bit that recurrences of the gated delta rule "
        "reach forward (linear attention; other forms relative to it)"
    )
    memory_efficiency: Fraction = Field(
        0.8, description="share of memory_bandwidth that element-wise kernels reach"
    )
    launch_overhead: Delay = Field(3e-6, description="seconds from one kernel to the next")
    memory_reserved: BytesOrZero = Field(
        0.0, description="bytes that the driver and its context take"
    )
    host_link: Bandwidth | None = Field(
        None, description="bytes/s between device and host, each way, nominal; null: not known"
    )
    host_memory: Bytes | None = Field(
        None, description="bytes of the host's memory for each device; null: not known"
    )
    host_memory_bandwidth: Bandwidth | None = Field(
        None, description="bytes/s of the host's memory for each device, nominal; null: not known"
    )
    source: Annotated[str, Field(max_length=4000)] = Field("", description="source of the figures")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.memory_reserved >= self.memory:
            given = format_bytes(self.memory_reserved)
            allowed = f"less than memory = {format_bytes(self.memory)}"
            problems.append(("memory_reserved", f"got {given}; allowed: {allowed}"))
        for name, given_for in (("gemm", self.gemm), ("grouped", self.grouped)):
            if "default" not in given_for:
                text = f"got {', '.join(given_for)}; allowed: also default, for all other formats"
                problems.append((name, text))
        if problems:
            raise Problems(problems)
        return self

    def peak(self, dtype: Dtype) -> float:
        """Peak FLOP/s of a number format.

        Raises
        ------
        InputError : the device has no figure for it.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(self.peak_flops)
            raise InputError(f"device {self.name}: peak_flops: got no {dtype}; allowed: {known}")
        return self.peak_flops[dtype]

    def gemm_for(self, dtype: Dtype) -> GemmEfficiency:
        """Efficiency of matrix products in a number format."""
        return _figures(self.gemm, dtype)

    def attention_for(self, dtype: Dtype, narrow: bool) -> float:
        """Share of the peak that attention reaches beside products of a format, or in it."""
        return _figures({"default": self.attention_fraction,
                         **(self.attention_formats if narrow else {})}, dtype)

    def grouped_for(self, dtype: Dtype) -> GroupedEfficiency:
        """Efficiency of grouped products in a number format."""
        return _figures(self.grouped, dtype)


def _figures(given: Mapping[GemmKey, E], dtype: Dtype) -> E:
    """Those of a format, else those of the format that it is like, else the default."""
    names = (dtype, number_format(dtype).like, "default")
    return next(given[name] for name in names if name in given)  # type: ignore[index]


def resolve_device(value: Any) -> Any:
    """Plain data of a device given by catalog name, as a mapping, or as a mapping with `base`.

    Raises
    ------
    ValueError : an unknown catalog name; `Problems` with the field `base` if that has it.
    """
    if isinstance(value, str):
        return resolve_device(catalog.load("devices", value))
    if not isinstance(value, dict) or "base" not in value:
        return value
    with in_field("base"):
        base = resolve_device(catalog.load("devices", value["base"]))
    changes = {key: given for key, given in value.items() if key != "base"}
    for key, given in changes.items():
        if isinstance(given, dict) and isinstance(base.get(key), dict):
            given = {**base[key], **given}
        base[key] = given
    if "name" not in changes:
        base["name"] = f"{base['name']} (changed)"
    return base

"""The training job, and the properties of the training software."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from nest.inputs import catalog
from nest.inputs.base import (
    Description,
    Flag,
    Fraction,
    Freeze,
    FrozenDict,
    Name,
    Number,
    Problems,
    Share,
    Whole,
    at_most,
    in_field,
    percent,
)
from nest.inputs.capabilities import CapabilitiesOf
from nest.inputs.choices import ChoiceName, Values, parsed
from nest.inputs.formats import number_format
from nest.inputs.lengths import Lengths, Packing, mean_length
from nest.inputs.space import Capacity, Dispatcher, Graphs, Loss, Optimizer, Precision
from nest.units import BytesOrZero, Delay, shorten

DEFAULT_STACK = "megatron-core"
UNKNOWN_STACK = "unknown"
"""The stack of software that no other describes."""

Routing = Literal["forced", "loss", "none"]
IMBALANCE: dict[Routing, float] = {"forced": 1.0, "loss": 1.1, "none": 2.0}
"""Tokens of the busiest device of an expert-parallel group over the mean, by what balances experts.

Of MLPerf Training v6.0: DeepSeek-V3 with a balancing loss on 256, 512 and 8,192 GB300 (without this
figure 3, 4 and 8 % too fast, with it within 1 % on the first two), GPT-OSS-20B with none and ep 4
(32 % too fast, 5 % with it). Natural routing of Qwen3-235B took 1.09 to 1.24 times as long as
forced routing (Megatron-MoE-ModelZoo).
"""
MEMORY_MARGIN = 0.1
UNMEASURED_MARGIN = 0.2
"""Default margin with a stack that was never measured: of 15 sweeps of a code that no stack
describes, the first pick runs in 15 with it, in 13 with 0.15 and in 9 with 0.1, and takes 2.6, 4.2
and 6.9 % longer than the fastest that ran (arXiv:2311.05610, priced as the stack unknown)."""
GradientDtype = Literal["fp32", "bf16"]
Elementary = Literal["norm", "mlp_act"]
ZERO_STAGES = (0, 1, 2, 3)
ZeroStage = Annotated[Whole, Field(ge=0, le=3)]
LogitBytes = Annotated[Number, Field(ge=0, le=100)]

TRAINABLE = ("what is trained is `trainable` of the model (adapters: --lora-rank, parts: "
             "--trained, 4-bit weights: --frozen-precision)")


def is_adapter(text: object) -> bool:
    """Whether a word asks for training of adapters or of a part: `lora`, `--lora-rank`, `QLoRA`."""
    words = text.casefold() if isinstance(text, str) else ""
    return any(word in words for word in ("lora", "peft", "adapter", "freeze", "frozen"))


def _no_adapter(value: object) -> object:
    if is_adapter(value):
        raise ValueError(f"got {shorten(value)}; allowed: {', '.join(get_args(Optimizer))}: "
                         f"{TRAINABLE}")
    return value


class Rates(Description):
    """Rates in training relative to those of single kernels."""

    gemm_derate: Fraction = Field(
        description="rate of matrix products in training over their rate alone"
    )
    attention_derate: Fraction = Field(
        default_factory=lambda data: data["gemm_derate"],
        description="the same of the attention core; default: gemm_derate",
    )
    memory_derate: Fraction = Field(
        description="rate of element-wise kernels in training over their rate alone"
    )
    wide_derate: Fraction = Field(
        1.0, description="rate of products whose inputs and outputs are both 12,288 wide or more, "
        "in the model, over that of others, besides gemm_derate",
    )
    tp_exposed: Share = Field(
        1.0, description="of the tensor-parallel traffic that overlap_tp leaves, the share that "
        "parts of the products do not run beside",
    )


Ratio = Annotated[Number, Field(gt=0, le=100)]


class Calibration(Description):
    """Errors of prices with a stack against measured runs, and the range of those runs."""

    configurations: Annotated[Whole, Field(ge=1, le=10**7)] = Field(
        description="configurations measured"
    )
    low: Ratio = Field(
        description="measured over priced seconds of a model without experts, 5th percentile"
    )
    high: Ratio = Field(description="95th percentile")
    expert_low: Ratio | None = Field(
        None, description="the same of a mixture of experts; null: none was measured"
    )
    expert_high: Ratio | None = Field(None, description="95th percentile")
    devices: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)] = Field(
        description="devices measured"
    )
    most_devices: Annotated[Whole, Field(ge=1, le=10**7)] = Field(
        description="devices of the largest run"
    )
    precisions: Annotated[tuple[Precision, ...], Field(min_length=1, max_length=20)] = Field(
        description="number formats measured"
    )
    experts: Flag = Field(description="mixtures of experts were measured too")
    pipelines: Flag = Field(True, description="pipelines were measured too")


Factor = Annotated[Number, Field(ge=0.01, le=100)]


class Factors(Description):
    """How many times what is priced each cause takes, as runs taught."""

    compute: Factor = Field(1.0, description="seconds of products and kernels, recompute included")
    tp: Factor = Field(1.0, description="seconds of tensor-parallel traffic")
    exchange: Factor = Field(
        1.0, description="seconds of context-parallel and expert traffic and of transfers to hosts")
    reduction: Factor = Field(
        1.0, description="seconds of ZeRO, gradient reduction, parameter gathers and the optimizer")
    activations: Factor = Field(1.0, description="bytes of activations")
    states: Factor = Field(
        1.0, description="bytes of parameters, gradients, optimizer and buffers")


class Stack(Rates):
    """Training software: its overlap, its efficiency, and its restrictions."""

    name: Name = Field(description="name of the software")
    overlap_grad_reduce: Share = Field(
        description="share of the last micro-batch's backward that gradient reduction hides under"
    )
    late_reduction: Flag = Field(
        False, description="with a pipeline no backward pass hides gradient reduction",
    )
    reduces_maxima: Flag = Field(
        False, description="with fp8-delayed all devices of a stage reduce maxima after each pass",
    )
    overlap_param_gather: Share = Field(
        description="share of the first forward that the gather of updated parameters hides under"
    )
    overlap_zero3: Share = Field(
        description="share of a layer's compute that ZeRO-2 and ZeRO-3 collectives hide under"
    )
    overlap_slowdown: Share = Field(
        0.0, description="seconds that compute loses for each second of ZeRO-2 and ZeRO-3 "
        "collectives, which run beside it",
    )
    overlap_tp: Share = Field(description="share of tensor-parallel traffic hidden under compute")
    sequence_copies: Flag = Field(
        False, description="all-gathers and reduce-scatters of tensor parallelism copy what they "
        "gather or scatter, since they divide the second dimension of samples x tokens x hidden",
    )
    wide_ring: Flag = Field(
        False, description="the ring of cp moves keys and values of all query heads, and gradients "
        "in fp32, and merges outputs and gradients in fp32, as PyTorch's does",
    )
    keeps_gathered: Flag = Field(
        False, description="what tp and cp gather, inputs of products and keys and values, is kept "
        "for the backward pass, unless norms are recomputed, instead of gathered again, as by "
        "PyTorch's DTensor and FlexAttention",
    )
    fsdp_copies: Flag = Field(
        False, description="what ZeRO-3 gathers is copied out of the gathered buffer, and without "
        "ZeRO-2 and 3 gradients of each micro-batch are added to whole ones, as by FSDP2",
    )
    saves_outputs: Flag = Field(
        False, description="selective recompute keeps named outputs, as JAX: that of the attention "
        "core drops the core's output too, that of an MLP leaves its last product out, and "
        "projections of attention are modules",
    )
    stops_early: Flag = Field(
        False, description="full recompute does not run again what the backward pass does not "
        "read: the last product of a dense MLP, its traffic, and the sum behind it",
    )
    receives_all: Flag = Field(
        False, description="a stage of a pipeline has buffers for what it receives of all "
        "micro-batches, as PyTorch's pipelines",
    )
    split_inputs: Flag = Field(
        False, description="tensor-parallel ranks divide the inputs of layers that full recompute "
        "keeps, and gather them again",
    )
    overlap_p2p: Share = Field(description="share of pipeline hand-overs hidden under compute")
    overlap_ep: Share = Field(
        1.0, description="share of experts' traffic that another micro-batch's computing hides, "
        "with the schedules combined and dualpipe",
    )
    overlap_cp: Share = Field(
        0.0, description="share of the attention core that the ring exchange of cp hides under"
    )
    flash_attention: Flag = Field(description="fused attention that keeps no score matrix")
    devices: Annotated[dict[Name, Rates], Freeze, at_most(100)] = Field(
        default_factory=FrozenDict,
        description="derates on devices whose names begin so; the longest beginning counts",
    )
    layer_gap: Delay = Field(
        0.0,
        description="seconds that a layer's kernels wait for each other and start up, each way: a "
        "layer takes so much longer",
    )
    layer_overhead: Delay = Field(
        0.0,
        description="seconds that the host takes to issue one layer's kernels, each way: a layer "
        "takes no less",
    )
    overlap_offload: Flag = Field(
        False,
        description="the host updates its share of the parameters while others are on their way",
    )
    dispatcher: Dispatcher = Field(
        "alltoall",
        description="how tokens reach their experts: alltoall sends a copy for each expert, "
        "allgather all tokens to all; deepep and hybridep send a token once to each node and rank",
    )
    dispatch_fp8: Flag = Field(
        False, description="deepep and hybridep send tokens to experts, and gradients, in fp8"
    )
    dispatch_processors: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        20, description="multiprocessors of a device that deepep takes"
    )
    cuda_graphs: Graphs = Field(
        "none", description="captured in CUDA graphs: nothing, parts of layers, or the whole step"
    )
    graph_memory: BytesOrZero = Field(
        0.0, description="bytes of a device that CUDA graphs take, whatever they capture"
    )
    expert_gap: Delay = Field(
        0.0, description="seconds that the forward of a layer with experts waits for the host to "
        "learn how many tokens each has, unless the whole step is captured",
    )
    routing_time: Delay = Field(
        0.0, description="seconds for each token of a device that choosing its experts and "
        "ordering tokens by them takes besides the operators of the layer, each way",
    )
    expert_overhead: Delay = Field(
        0.0, description="seconds that the host takes to issue the forward of a layer with "
        "experts, and twice that backward, unless the whole step is captured: it takes no less",
    )
    captured_gap: Delay = Field(
        default_factory=lambda data: data["layer_gap"],
        description="seconds that a layer with experts takes longer each way, instead of "
        "layer_gap, where the whole step is captured; default: layer_gap",
    )
    captured_share: Share = Field(
        0.0, description="how much of what that changes of layer_gap and expert_overhead is "
        "reached where parts of layers are captured, among them attention and the router",
    )
    fused_experts: Flag = Field(
        False, description="activation functions, clamps and casts of experts are part of their "
        "grouped products",
    )
    fp8_attention: Flag = Field(
        False, description="where products are in 8 bits, so are those of the attention core, "
        "whose backward pass then computes the keys outside of a window too",
    )
    fp8_head: Flag = Field(
        False, description="where products are in 8 bits, so is that of the head, which else stays "
        "in 16",
    )
    fp8_gather: Flag = Field(
        False, description="ZeRO gathers parameters in 8 bits, with fp8, fp8-delayed and "
        "fp8-blockwise",
    )
    choices: Annotated[dict[ChoiceName, Values | None], Freeze] = Field(
        default_factory=FrozenDict, description="values that a person may choose instead of "
        "figures above; null: none",
    )
    scatter_gather: Flag = Field(
        False,
        description="hand-overs without sequence parallelism are scattered over tp and gathered",
    )
    workspace: BytesOrZero = Field(
        description="bytes of communication and matrix-product buffers per device"
    )
    fragmentation: Annotated[Number, Field(ge=0.0, lt=1.0)] = Field(
        description="fraction of device memory that the allocator cannot use"
    )
    zero_with_pipeline: Annotated[
        tuple[ZeroStage, ...], Field(min_length=1, max_length=4), at_most(4)
    ] = Field((0, 1, 2, 3), description="ZeRO stages allowed together with pipeline stages")
    reshard_after_forward: Flag = Field(
        True, description="ZeRO-3 gathers parameters again for the backward"
    )
    gradient_dtype: GradientDtype = Field(
        "fp32", description="number format that gradients are kept and reduced in"
    )
    fp8_gradient_dtype: GradientDtype = Field(
        default_factory=lambda data: data["gradient_dtype"],
        description="the same where products are in 8 bits or fewer; default: gradient_dtype",
    )
    narrow_gradients: Flag = Field(
        False, description="gradients of 16-bit parameters are kept in 16 bits, whatever they are "
        "reduced in",
    )
    moment_dtype: GradientDtype = Field(
        "fp32", description="number format that Adam's moments are kept in",
    )
    master_copy: Flag = Field(
        True, description="parameters in 16 bits or fewer have a copy in fp32, which the optimizer "
        "updates; false: not in bf16 and 8 bits, whose gradients are kept in 16",
    )
    master_remainders: Flag = Field(
        False, description="ZeRO keeps of the fp32 copies of bf16 parameters only the 16 bits that "
        "these lack",
    )
    fp32_shards: Flag = Field(
        False, description="the parameters that ZeRO-3 shards are the fp32 copies, with none in 16 "
        "bit beside them",
    )
    dropout: Flag = Field(
        False, description="dropout behind embedding, attention and MLP keeps a mask of 1 byte an "
        "element",
    )
    fp8_inputs: Flag = Field(
        False,
        description="where products are in 8 bits or fewer, their inputs are kept so, not in 16",
    )
    selective_products: Flag = Field(
        False, description="recompute of norms and activation functions together runs every second "
        "product of a dense layer again too",
    )
    loss: Loss = Field(
        "whole", description="the loss runs over all tokens of a micro-batch (whole), with the "
        "head over parts of them, one after the other (chunks; liger: of about as many bytes as "
        "the head's input), or without logits in memory, which are computed twice (cut)",
    )
    loss_chunks: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        8, description="number of these parts where loss is chunks"
    )
    elementary: Annotated[tuple[Elementary, ...], at_most(2)] = Field(
        (), description="kernels that run as elementary operations of PyTorch, which keep what "
        "lies between them: RMSNorm (norm), gated activation functions (mlp_act)",
    )
    gathers_logits: Flag = Field(
        False, description="tensor parallelism gathers the logits, and every rank runs the loss of "
        "all of them; the traffic of that is not priced",
    )
    loss_kept: LogitBytes = Field(
        6.0, description="bytes a logit kept from the forward of the loss to its backward"
    )
    loss_peak: LogitBytes = Field(
        6.0, description="bytes a logit at the most while the loss runs; at least loss_kept"
    )
    loss_peak_split: LogitBytes = Field(
        default_factory=lambda data: data["loss_peak"],
        description="the same where tensor parallelism divides the logits; default: loss_peak",
    )
    capabilities: CapabilitiesOf = Field(
        None, description="what it can run: a table of the catalog by name, or one of its own; "
        "null: not known",
    )
    learned: Factors | None = Field(
        None, description="what runs of this job's kind said of its prices; null: nothing")
    runs: Name | None = Field(
        None, description="the stack of the catalog whose measured runs speak for it; null: none do"
    )
    runs_on: Annotated[tuple[Name, ...], at_most(100)] = Field(
        (), description="they speak for devices whose names begin so, and for its steps alone, not "
        "for its memory; empty: for all"
    )
    calibration: Calibration | None = Field(
        None, description="how near its prices were to measured runs that the catalog lacks; it "
        "takes the place of runs; null: not known"
    )
    source: Annotated[str, Field(max_length=4000)] = Field("", description="source of the figures")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("loss_peak", "loss_peak_split"):
            if getattr(self, name) < self.loss_kept:
                allowed = f"at least loss_kept = {self.loss_kept:g}"
                raise Problems([(name, f"got {getattr(self, name):g}; allowed: {allowed}")])
        for name in ("master_remainders", "fp32_shards"):
            if getattr(self, name) and not self.master_copy:
                raise Problems([(name, "got true; allowed: false where master_copy is false")])
        for name, values in self.choices.items():
            for value, choice in (values or {}).items():
                for figure in choice.figures or ():
                    if figure not in type(self).model_fields:
                        raise Problems([(f"choices.{name}.{value}.figures", f"got {shorten(figure)}"
                                         "; allowed: figures of a stack")])
        return self

    def choosing(self, name: ChoiceName, value: str) -> Stack:
        """The same with a value of one of its choices.

        Raises
        ------
        KeyError : it has no such value.
        InputError : a figure of the value is not allowed.
        """
        choice = (self.choices[name] or {})[value]
        figures: dict[str, Any] = (
            {name: parsed(value)} if choice.figures is None else choice.figures)
        return self.replace(**figures) if figures else self

    def chosen(self, name: ChoiceName) -> str | None:
        """The value of a choice that its figures are those of; None: none is."""
        return _chosen(self, name)

    @property
    def reserved(self) -> float:
        """Bytes of a device that buffers and CUDA graphs take."""
        return self.workspace + (self.graph_memory if self.cuda_graphs != "none" else 0.0)

    def of_stages(self, stages: int) -> Stack:
        """The same, as it overlaps traffic with so many stages."""
        return self if stages == 1 or not self.late_reduction else _reducing_late(self)

    @property
    def is_measured(self) -> bool:
        """Whether measured runs speak for its prices on all devices."""
        return self.calibration is not None or (
            not self.runs_on and self.runs in catalog.measured_stacks())

    def measured_on(self, device: str) -> bool:
        """Whether they do on a device."""
        return self.is_measured or (self.runs in catalog.measured_stacks()
                                    and device.casefold().startswith(self.runs_on))

    def host(self, experts: bool, counted: bool = False) -> tuple[float, float, float, float]:
        """Seconds that a layer takes longer forward and backward; and no less than, the same.

        ``counted``: the host knows how many tokens each expert has, so that nothing waits for it.
        """
        gap, floor = self.layer_gap, self.layer_overhead
        if not experts:
            return gap, gap, floor, floor
        captured = {"none": 0.0, "layers": self.captured_share, "step": 1.0}[self.cuda_graphs]
        gap += captured * (self.captured_gap - gap)
        if counted:
            return gap, gap, floor, floor
        wait = 0.0 if self.cuda_graphs == "step" else self.expert_gap
        each = (1.0 - captured) * self.expert_overhead
        return gap + wait, gap, max(floor, each), max(floor, 2.0 * each)

    def rates(self, device: str) -> Rates:
        """Derates on a device, by its name."""
        name = device.casefold()
        found = [start for start in self.devices if name.startswith(start.casefold())]
        return self.devices[max(found, key=len)] if found else self


def resolve_stack(value: Any) -> Any:
    """Plain data of a stack given by catalog name, as a mapping, or as a mapping with `base`.

    Raises
    ------
    ValueError : an unknown catalog name; `Problems` with the field `base` if that has it.
    """
    if isinstance(value, str):
        return resolve_stack(catalog.load("stacks", value))
    if not isinstance(value, dict) or "base" not in value:
        return value
    with in_field("base"):
        base = resolve_stack(catalog.load("stacks", value["base"]))
    changes = {key: given for key, given in value.items() if key != "base"}
    return {**base, "name": f"{base['name']} (changed)", **changes}


def default_margin(stack: Stack | None) -> float:
    """The margin of a job that states none."""
    return MEMORY_MARGIN if stack is None or stack.is_measured else UNMEASURED_MARGIN


@lru_cache(maxsize=256)
def _chosen(stack: Stack, name: ChoiceName) -> str | None:
    values = stack.choices.get(name) or {}
    return next((one for one in reversed(values) if stack.choosing(name, one) == stack), None)


@lru_cache(maxsize=64)
def _reducing_late(stack: Stack) -> Stack:
    return stack.replace(overlap_grad_reduce=0.0)


class Job(Description):
    """One training step: amount of data, number format, optimizer and software."""

    global_batch: Annotated[Whole, Field(ge=1, le=10**7)] = Field(
        description="sequences in one training step"
    )
    seq_len: Annotated[Whole, Field(ge=1, le=10**8)] = Field(description="tokens in one sequence")
    lengths: Lengths | None = Field(
        None, description="lengths of samples and their shares, such as {512: 0.3, 8192: 0.7}, or "
        "a text like 512:30,8192:70 or lognormal:900:1.1:8192 (median, sigma, longest); "
        "null: each sequence is one sample",
    )
    packing: Packing = Field(
        "packed", description="sequences are full of samples, which see only themselves (packed), "
        "or are one sample each and padding (padded); without lengths it changes nothing",
    )
    precision: Precision = Field(
        "bf16", description="number format of matrix products"
    )
    optimizer: Annotated[Optimizer, BeforeValidator(_no_adapter)] = Field(
        "adam", description="optimizer"
    )
    routing: Routing = Field(
        "forced", description="what balances the experts: forced (each gets as many tokens, as "
        "benchmarks do), loss (a balancing loss or bias), none",
    )
    expert_imbalance: Annotated[Number, Field(ge=1, le=1000)] = Field(
        default_factory=lambda data: IMBALANCE[data["routing"]],
        description="token copies that the busiest device of an expert-parallel group gets, "
        "over the mean; default: 1, 1.1 or 2, by routing",
    )
    expert_capacity: Annotated[Number, Field(gt=0, le=1000)] | None = Field(
        None, description="the most token copies that an expert takes of a device, over the mean; "
        "those beyond are dropped; null: none are",
    )
    expert_padding: Flag = Field(
        False, description="each expert is padded to its capacity, so that all take exactly that",
    )
    stack: Annotated[
        Stack, BeforeValidator(resolve_stack, json_schema_input_type=Stack | str | dict[str, Any])
    ] = Field(
        default_factory=lambda: Stack.parse(resolve_stack(DEFAULT_STACK)),
        description="training software: a catalog name, a mapping, or a mapping with `base`; "
        f"default: {DEFAULT_STACK}",
    )
    memory_margin: Annotated[Number, BeforeValidator(percent), Field(ge=0.0, lt=1.0)] = Field(
        default_factory=lambda data: default_margin(data.get("stack")),
        description="fraction of each device's memory that no plan may use; docs/costs.md has the "
        f"evidence for its default, {MEMORY_MARGIN:g}, or {UNMEASURED_MARGIN:g} with a stack that "
        "was never measured",
    )

    @model_validator(mode="after")
    def _padded_to_something(self) -> Self:
        if self.expert_padding and self.expert_capacity is None:
            text = "got true without expert_capacity; allowed: with it, or false"
            raise Problems([("expert_padding", text)])
        return self

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.lengths is not None and (longest := max(self.lengths)) > self.seq_len:
            text = f"got a sample of {longest} tokens; allowed: at most seq_len = {self.seq_len}"
            raise Problems([("lengths", text)])
        return self

    @property
    def samples(self) -> FrozenDict[int, float] | None:
        """Lengths of the samples that attention stays within; None: it sees whole sequences."""
        return self.lengths if self.packing == "packed" else None  # type: ignore[return-value]

    @property
    def uneven(self) -> bool:
        """Whether attention takes some sequences longer than others."""
        return self.stack.flash_attention and len(self.samples or ()) > 1

    @property
    def tokens(self) -> float:
        """Those of the samples of a step, without padding."""
        padded = self.lengths is not None and self.packing == "padded"
        length = mean_length(self.lengths) if padded else self.seq_len  # type: ignore[arg-type]
        return float(self.global_batch * length)

    @property
    def capacity(self) -> Capacity:
        """How experts of limited capacity are filled: none (no limit), limited or padded."""
        if self.expert_capacity is None:
            return "none"
        return "padded" if self.expert_padding else "limited"

    @property
    def counted(self) -> bool:
        """Whether the host knows how many tokens each expert has, without asking the device.

        That is so where experts are padded (drop_and_pad in NVIDIA/Megatron-LM@core_v0.16.1
        megatron/core/transformer/moe/token_dispatcher.py:485, all-to-all, and 1007, HybridEP; its
        all-gather asks all the same, 295).
        """
        return self.expert_padding and self.stack.dispatcher in ("alltoall", "hybridep")

    @property
    def reduces_maxima(self) -> bool:
        """Whether all devices of a stage reduce maxima after each pass."""
        return self.precision == "fp8-delayed" and self.stack.reduces_maxima

    @property
    def narrow(self) -> bool:
        """Whether operands of products are cast to 8 bits or fewer."""
        return number_format(self.precision).narrow

    @property
    def gradient_dtype(self) -> GradientDtype:
        """Number format in which the stack keeps and reduces gradients of this precision."""
        return self.stack.fp8_gradient_dtype if self.narrow else self.stack.gradient_dtype

"""The result: a configuration with its prices and inputs, which can be priced again.

Units: seconds, bytes, samples (sequences). Ranges are half-open.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nest import texts
from nest.errors import InputError
from nest.evaluation.ranks import Rank, ranks
from nest.inputs.base import Description, Freeze, FrozenDict, Shown, Written
from nest.inputs.choices import ChosenValues
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.stacks import Finding
from nest.units import format_seconds, shorten

Pair = tuple[int, int]
Positive = Annotated[float, Field(gt=0.0)]
SCHEMA = "nest.plan/1.2"
"""What is written, MAJOR.MINOR; read are all of this major version, a missing minor is 0."""
SCHEMAS = r"^nest\.plan/1(\.\d+)?$"


class StageTime(Written):
    """Seconds of one micro-batch on a stage, by cause; ``total`` is their sum."""

    forward: float = Field(description="computing forward")
    backward: float = Field(description="computing backward, without recompute")
    recompute: float = Field(description="recomputing activations that were not kept")
    tp: float = Field(description="tensor-parallel collectives, forward and backward")
    cp: float = Field(description="context-parallel exchange")
    ep: float = Field(description="expert dispatch and combine, expert-tensor collectives")
    offload: float = Field(0.0, description="waiting for activations to and from the host")
    maxima: float = Field(0.0, description="all devices' maxima, of fp8 with delayed scaling")
    zero: float = Field(description="ZeRO-2 and ZeRO-3 collectives that compute does not hide")
    handover: float = Field(description="round trip to the next stage")
    total: float = Field(description="all of them")


class StageMemory(Written):
    """Bytes on each device of a stage, by category; ``total`` is their sum."""

    parameters: float = Field(description="of the layers")
    gradients: float = Field(description="of the parameters")
    optimizer: float = Field(description="states and master copies")
    activations: float = Field(description="all micro-batches in flight, and work within a layer")
    buffers: float = Field(description="gathered parameters and unsharded gradients")
    total: float = Field(description="all of them")


class Stage(Written):
    """One stage of the super-pipeline."""

    layers: Pair = Field(description="layers [i, j) of the chain")
    devices: Pair = Field(description="devices [k, k+a) of super-pipeline 0")
    dp_in: int = Field(description="data-parallel ranks inside")
    tp: int = Field(description="tensor parallelism")
    sp: bool = Field(description="sequence parallelism beside it")
    cp: int = Field(description="context parallelism")
    cp_comm: str = Field(description="how keys and values travel")
    cp_a2a: int = 1
    ep: int = Field(description="expert parallelism")
    etp: int = Field(description="tensor parallelism of experts")
    zero: int = Field(description="ZeRO stage")
    shard: str = Field(description="ranks that ZeRO shards over")
    recompute: str = Field(description="what is recomputed")
    recompute_modules: tuple[str, ...] = Field(description="of selective")
    recompute_layers: int | None = Field(description="of full; null: all")
    chunks: tuple[Pair, ...] = Field(description="layers [i, j) of each virtual stage")
    in_flight: int = Field(description="micro-batches whose activations are held at once; with "
                           "vpp above 1, of one chunk")
    time_s: StageTime = Field(description="of a micro-batch, by cause")
    param_wait_s: float = Field(0.0, description="wait of the first micro-batch for "
                                "parameters that are gathered after the optimizer, or by ZeRO-3, "
                                "if it came at once")
    grad_sync_s: float = Field(description="gradient reduction that the stage's backward "
                               "does not hide")
    finish_s: float = Field(description="all after the last backward, if no other stage were "
                            "waited for: grad_sync_s, tied embeddings, optimizer")
    memory_bytes: StageMemory = Field(description="of a device, by use")
    memory_limit_bytes: float = Field(description="of a device")
    logits_bytes: float = Field(0.0, description="of the activations, the head's and the loss's "
                                "of one micro-batch, all of whose logits are there at once")
    host_bytes: float = Field(0.0, description="in the memory of the host, for each device")
    host_limit_bytes: float | None = Field(
        None, description="memory of the host for each device; null: not known")
    collectives: Annotated[dict[str, str], Freeze] = Field(
        description="algorithm priced for each dimension"
    )


class Parallelism(Written):
    """Properties that all stages share."""

    pp: int = Field(description="stages of the pipeline")
    vpp: int = Field(description="chunks of a stage")
    outer_dp: int = Field(description="replicas of the pipeline")
    micro_batch: int = Field(description="samples that a super-pipeline takes at once")
    micro_batches: int = Field(description="of a replica and step")
    global_batch: int = Field(description="samples of a step")
    devices_used: int = Field(description="of the cluster")
    stride: int = Field(description="devices from one replica's first device to the next one's")
    schedule: str = Field(description="order of the passes")
    group: int | None = Field(
        None, description="consecutive micro-batches of a virtual stage; null: pp"
    )
    order: tuple[int, ...] | None = Field(
        None, description="order of the layers that ranges refer to; null: as the model lists them"
    )
    offload: str = Field("none", description="what is kept in the memory of the hosts")
    choices: ChosenValues = Field(
        default_factory=FrozenDict, description="values of the stack's choices; the job of the "
        "inputs has their figures")


class Breakdown(Written):
    """Where the step goes; no part is below 0, their sum is step_time_s.

    Compute and communication are those of the stage whose micro-batches take longest, times the
    micro-batches; ``zero`` leaves out what the first and the last micro-batch do not wait for;
    ``bubble`` is the extra time of the pipeline.
    """

    forward: float = Field(description="computing forward")
    backward: float = Field(description="computing backward")
    recompute: float = Field(description="computing again")
    tp: float = Field(description="tensor-parallel traffic")
    cp: float = Field(description="context-parallel traffic")
    ep: float = Field(description="traffic of experts")
    offload: float = Field(0.0, description="waiting for the host")
    maxima: float = Field(0.0, description="maxima of fp8 with delayed scaling")
    zero: float = Field(description="gathers of ZeRO")
    bubble: float = Field(description="waiting for other stages and for hand-overs")
    finish: float = Field(description="gradients, optimizer and parameters after the pipeline")


class LeftOut(Written):
    """Plans that a search leaves out though `evaluate` prices them and the stack may run them."""

    figure: str = Field(description="what they are about")
    sentence: str = Field(description="which plans they are")


class SearchReport(Written):
    """Statistics of the search."""

    seconds: float = Field(description="of the search")
    compile_seconds: float = Field(description="of compiling kernels before")
    threads: int = Field(description="that searched")
    solved: int = Field(description="outer choices that a kernel worked on")
    pruned: int = Field(description="outer choices that a bound ruled out")
    cells: int = Field(description="cells of the dynamic program that held a label")
    labels: int = Field(description="partial plans that were kept")
    transitions: int = Field(description="extensions that were tried")
    peak_bytes: int = Field(description="largest memory of the process so far")
    space: Annotated[dict[str, str], Freeze] = Field(description="what was searched, by dimension")
    within_stack: bool = Field(
        False, description="only what the stack of the job can run was searched")
    left_out: tuple[LeftOut, ...] = Field(
        (), description="what was not searched, so that `optimal` says nothing about it")


class Alternative(Written):
    """A plan of another configuration that is slower than the best."""

    step_time_s: float
    slower: float = Field(
        description="step_time_s / that of the plan, less 1; below 0 where a measured plan is "
        "preferred to it")
    word: Word | None = Field(
        None, description="of its evidence; null: of an older version")
    overlaps: bool = Field(
        False, description="its range of step times overlaps with that of the plan")
    memory: float | None = Field(
        None, description="share of the limit that its fullest device holds; null: of an older "
        "version")
    configuration: Configuration


class BetterBatch(Written):
    """A batch near that of the plan which takes less time per sequence."""

    global_batch: int
    step_time_s: float = Field(description="of a plan that was found for it; there may be faster")
    faster: float = Field(description="share of the plan's seconds per sequence that it saves")


Word = Literal["measured", "between", "extrapolated", "never measured"]


class LikeRun(Written):
    """A measured configuration near to a plan."""

    group: str = Field(description="of the table of runs: the source of the measurement")
    model: str
    device: str
    devices: int
    tp: int
    pp: int
    cp: int
    ep: int
    precision: str
    distance: float = Field(description="from the plan; docs/accuracy.md says what it counts")
    error: float = Field(description="priced over measured seconds, less 1")


class Evidence(Written):
    """The measured runs that speak for a price."""

    word: Word = Field(
        description="measured: a run is like the plan; between: the stack has runs with each of "
        "its properties, but none like it; extrapolated: it has a property that no run of the "
        "stack has; never measured: the stack has no runs")
    configurations: int = Field(description="measured configurations of the stack")
    like: int = Field(description="of these, like the plan")
    nearest: tuple[LikeRun, ...] = Field(description="the nearest, nearest first")
    missed: float | None = Field(
        description="median error of the prices of runs like it, else of all of the stack; null: "
        "there are none")
    fitted: bool = Field(
        False, description="figures were fitted to some of these; false: to none of them")


class Confidence(Written):
    """The range of the seconds of a step."""

    low_s: float = Field(description="nine of ten measured steps are expected above it and below "
                         "high_s")
    high_s: float
    configurations: int = Field(description="configurations measured")
    beyond: tuple[str, ...] = Field(description="properties of the plan that none of them had; "
                                    "each widens the range")


class Inputs(Description):
    """Model, cluster and job as resolved: sufficient to price the plan again."""

    model: Model | None = None
    profile: Profile | None = None
    cluster: Cluster
    job: Job

    @property
    def subject(self) -> Model | Profile:
        """What is trained.

        Raises
        ------
        InputError : neither is there.
        """
        found = self.model or self.profile
        if found is None:
            raise InputError("inputs: got neither of model and profile; allowed: one of them")
        return found


class Plan(Shown):
    """A way to train, priced."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    step_time_s: Positive = Field(description="of one training step")
    step_spread_s: float | None = Field(
        None, description="standard deviation between steps, of samples of many lengths; null: all "
        "steps are alike"
    )
    samples_per_s: Positive = Field(description="sequences, of the whole cluster")
    tokens_per_s: Positive = Field(description="of the whole cluster, without padding of samples")
    mfu: float = Field(description="model FLOP of a step / (peak of all devices x step_time_s)")
    feasible: bool = Field(description="every device has the memory that it needs")
    problems: tuple[str, ...] = Field(description="shortages of memory, a sentence each")
    optimal: bool = Field(description="no plan of search.space is faster")
    lower_bound_s: float | None = Field(description="no plan of search.space takes less")
    gap: float | None = Field(
        None, description="step_time_s / lower_bound_s, less 1; 0 where the search ran to its "
        "end, null where nothing was searched"
    )
    evidence: Evidence | None = Field(
        None, description="which measured runs are like the plan; null: of an older version"
    )
    confidence: Confidence | None = Field(
        None, description="how far off the price may be; null: of an older version"
    )
    doubts: tuple[str, ...] = Field(
        (), description="why the price may be far off, a sentence each; empty: see confidence"
    )
    runnable: bool | None = Field(
        None, description="the job's stack can run the plan; null: not known what it can run"
    )
    not_runnable: tuple[Finding, ...] = Field(
        (), description="rules of the stack that the plan breaks"
    )
    launch_needs: tuple[Finding, ...] = Field(
        (), description="what the stack needs to run the plan, such as a list of hosts"
    )
    host_order: tuple[int, ...] | None = Field(
        None, description="where launch_needs has anything, the device of each rank of software "
        "that numbers its ranks stage by stage; null: no list is needed"
    )
    bottleneck: str = Field(description="what bounds the step, a sentence")
    parallelism: Parallelism = Field(description="how the whole is divided")
    layout: str | None = Field(
        None, description="Megatron-Core's text of the layers of all chunks; null: it has none"
    )
    stages: tuple[Stage, ...] = Field(description="first stage first")
    replicas: tuple[int, ...] = Field(description="first device of every super-pipeline")
    breakdown_s: Breakdown = Field(description="where the step goes; adds up to it")
    alternatives: tuple[Alternative, ...] = Field(
        (), description="the next best distinct plans, best first, where several were asked for"
    )
    alternatives_proved: bool = Field(
        True, description="no plan of search.space, in this order of the devices, that differs "
        "from all of these is faster than the last"
    )
    better_batch: BetterBatch | None = Field(
        None, description="a batch that fits the devices better; null: none was found or looked for"
    )
    search: SearchReport | None = Field(None, description="null: only priced")
    inputs: Inputs

    @property
    def fullest(self) -> int:
        """Number of the stage whose devices hold the largest share of their limit."""
        return max(range(len(self.stages)), key=lambda n: _share(self.stages[n]))

    @property
    def memory_share(self) -> float:
        """Share of its limit that the fullest device holds."""
        return _share(self.stages[self.fullest])

    def alternative(self, other: Plan) -> Alternative:
        """Another plan of the same question as an alternative to this one."""
        own, its = self.confidence, other.confidence
        return Alternative(
            step_time_s=other.step_time_s, slower=other.step_time_s / self.step_time_s - 1.0,
            configuration=other.configuration,
            word=None if other.evidence is None else other.evidence.word,
            overlaps=own is not None and its is not None
            and its.low_s <= own.high_s and own.low_s <= its.high_s,
            memory=other.memory_share)

    @property
    def broken_rules(self) -> tuple[Finding, ...]:
        """What the stack cannot run of the configuration, on whatever devices."""
        return tuple(one for one in self.not_runnable if one.rule != "hardware")

    @property
    def error(self) -> float | None:
        """Standard deviation of measured over priced seconds; None: not known.

        Nine of ten values of a normal distribution lie within 3.29 of it.
        """
        known = self.confidence
        return None if known is None else (known.high_s - known.low_s) / self.step_time_s / 3.29

    @property
    def configuration(self) -> Configuration:
        """The plan without its prices."""
        p = self.parallelism
        names = StageConfiguration.model_fields
        return Configuration(
            outer_dp=p.outer_dp, micro_batch=p.micro_batch, stride=p.stride, vpp=p.vpp,
            schedule=p.schedule, group=p.group, order=p.order, offload=p.offload,
            choices=p.choices,
            stages=tuple(
                StageConfiguration(**{name: getattr(s, name) for name in names})
                for s in self.stages
            ),
        )

    def ranks(self) -> tuple[Rank, ...]:
        """The place of each rank of a launcher: device, replica, stage, position in each group."""
        return ranks(self.configuration, self.inputs.cluster)

    @property
    def headline(self) -> str:
        """Model, cluster, and how fast: the plan in a sentence."""
        inputs = self.inputs
        subject = inputs.model or inputs.profile
        name = subject.name if subject is not None else "chain"
        speed = [f"{format_seconds(self.step_time_s)} per step"]
        if inputs.model is not None:
            speed.append(f"{_rate(self.tokens_per_s)}tokens/s")
            speed.append(f"{100 * self.mfu:.1f} % MFU")
        else:  # a profile has no tokens and FLOP
            speed.append(f"{_rate(self.samples_per_s)}samples/s")
        count = inputs.cluster.size
        devices = f"{count} device" + ("" if count == 1 else "s")
        return f"{name} on {inputs.cluster.name}, {devices}: {', '.join(speed)}"

    def __repr__(self) -> str:
        return f"<Plan: {self.headline}>"

    def report(
        self, width: int = 80, colour: bool = False, unicode: bool = True, details: bool = False,
    ) -> str:
        """The report as text, as the command prints it.

        Parameters
        ----------
        width : columns, at least 80.
        colour : with escape codes for a terminal.
        unicode : with lines and bars that are not ASCII.
        details : with each stage, and all that was searched; else what fits a screen.
        """
        return texts.report(self, width, colour, unicode, details=details)

    def to_html(self) -> str:
        """The report as one HTML file, which sends no request, as `nest report` writes it."""
        return texts.page(self) or ""

    def against(self, other: Plan) -> texts.HtmlReport:
        """Both plans side by side: what differs, and why one is faster, as `nest report` of two.

        Raises
        ------
        InputError : ``other`` is no plan.
        """
        if not isinstance(other, Plan):
            raise InputError(f"other: got {shorten(other)}; allowed: a plan")
        return texts.against(self, other)

    def to_json(self, indent: int | None = 2) -> str:
        """The plan as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


def _share(stage: Stage) -> float:
    return stage.memory_bytes.total / stage.memory_limit_bytes


def _rate(value: float) -> str:
    """A rate with three digits and the prefix of its unit: `1.10 M `, `32.4 k `, `7.90 `."""
    factor, prefix = next((one for one in ((1e9, "G "), (1e6, "M "), (1e3, "k "))
                           if value >= 0.9995 * one[0]), (1.0, ""))
    scaled = value / factor
    decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{decimals}f} {prefix}"

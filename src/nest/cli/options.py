"""Arguments and options that several commands have."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from nest.schedules.registry import SCHEDULES


def _whole(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        shown = repr(text[:60]) if isinstance(text, str) else repr(text)
        raise typer.BadParameter(f"got {shown}; allowed: a whole number") from None


def number(text: str, metavar: str = "N") -> typer.models.OptionInfo:
    """An option that takes a whole number; the descriptions check its range."""
    found: typer.models.OptionInfo = typer.Option(metavar=metavar, help=text, parser=_whole)
    return found


def _fraction(text: str | float) -> float:
    from nest.inputs.base import percent

    try:
        return float(percent(text))  # type: ignore[arg-type]
    except ValueError:
        raise typer.BadParameter(
            f"got {text!r:.62}; allowed: a number, such as 0.05, or 5%") from None


def fraction(text: str, metavar: str = "SHARE") -> typer.models.OptionInfo:
    """An option that takes a number; the descriptions check its range."""
    found: typer.models.OptionInfo = typer.Option(metavar=metavar, help=text, parser=_fraction)
    return found


def _seconds(text: str | float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found < math.inf:
        shown = repr(text[:60]) if isinstance(text, str) else repr(text)
        raise typer.BadParameter(f"got {shown}; allowed: seconds, above 0")
    return found


def seconds(text: str) -> typer.models.OptionInfo:
    """An option that takes a length of time."""
    found: typer.models.OptionInfo = typer.Option(metavar="SECONDS", help=text, parser=_seconds)
    return found


TimeLimit = Annotated[
    float | None, seconds("Stop after this time of searching with the best plan so far and its "
                          "gap; compiling the kernels, once, comes before.")]
AsType = Annotated[
    str | None,
    typer.Option("--as", metavar="TYPE", help="Model type to read MODEL's config.json as, such as "
                 "llama, if its own is not known."),
]
Devices = Annotated[int | None, number("Number of devices; sets the size of the outermost level.")]
Filling = Annotated[
    int | None,
    number("Devices used in each group of the smallest level that holds F, such as 64 of the 72 in "
           "each rack; default: equally many, or whole groups and a partial last one.", "F"),
]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME",
                 help="Use this device in place of the cluster's: a name (`nest list "
                 "devices`) or a file."),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="PARTS",
                 help="Failed parts of the network, such as node3,gpu8..15,link:a-b; may be "
                 "repeated."),
]
Degrade = Annotated[
    list[str] | None,
    typer.Option("--degrade", metavar="PARTS",
                 help="Slow parts and the share of their speed that is left, such as "
                 "link:a-b=0.5,node3=0.8; may be repeated."),
]
GlobalBatch = Annotated[int | None, number("Sequences in one training step.", "B")]
def _batches(text: str | int | range) -> int | range:
    low, dots, high = str(text).partition("..")
    if isinstance(text, range) or not dots:
        return text if isinstance(text, range) else _whole(text)
    return range(_whole(low), _whole(high) + 1)


GlobalBatches = Annotated[
    str | None,
    typer.Option("--global-batch", metavar="B", parser=_batches,
                 help="Sequences in one training step, or a range such as 4000..4200, of which the "
                 "batch with the least time per sequence is taken."),
]
SeqLen = Annotated[int | None, number("Tokens in one sequence.", "S")]
Precision = Annotated[
    str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16, fp32, fp8, fp8-delayed, "
                             "fp8-blockwise, mxfp8 or nvfp4.")
]
Optimizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="adam (default), sgd, sgd-momentum or muon.")
]
Routing = Annotated[
    str | None, typer.Option(metavar="NAME", help="What balances experts: forced (default), loss "
                             "or none.")
]
ExpertImbalance = Annotated[
    float | None,
    fraction("Tokens of the busiest expert-parallel rank over the mean; default 1, 1.1 or 2, by "
             "--routing.", "FACTOR"),
]
ExpertCapacity = Annotated[
    float | None,
    fraction("The most tokens that an expert takes of a device, over the mean; those beyond are "
             "dropped; default: none are.", "FACTOR"),
]
ExpertPadding = Annotated[
    bool | None,
    typer.Option("--expert-padding/--no-expert-padding",
                 help="Pad each expert to --expert-capacity; default: no."),
]
MemoryMargin = Annotated[
    float | None,
    fraction("Share of each device's memory that no plan may use; default 0.1."),
]
StackName = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME",
                 help="Training software: a name (`nest list stacks`) or a file; default "
                 "megatron-core."),
]
JobFile = Annotated[
    str | None,
    typer.Option("--job", metavar="FILE", help="File with the job; options override it."),
]
ProfileFile = Annotated[
    str | None,
    typer.Option("--profile", metavar="FILE", help="File with measured layers; replaces MODEL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE",
                 help="Also write the plan as JSON; an error leaves the file unchanged."),
]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="FILE.csv",
                 help="Also write the place of each rank: device name, replica, stage, tp, cp, "
                 "dp, ep, etp."),
]
Map = Annotated[
    str | None,
    typer.Option("--map", metavar="FILE",
                 help="Also draw the network with the stages in colour, as .png or .svg."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print neither the report nor progress.")
]
Threads = Annotated[
    int | None, number("Number of threads; does not change the plan.")
]


def _set(text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(metavar="SET", help=text)
    return found


# The search space: a file, and a set of values for each dimension.
SpaceFile = Annotated[
    str | None,
    typer.Option("--space", metavar="FILE",
                 help="File with the search space; options override it."),
]
Tp = Annotated[str | None, _set("Tensor-parallel degrees, such as 8, 1,2,4 or 1..16.")]
Pp = Annotated[str | None, _set("Numbers of pipeline stages.")]
Cp = Annotated[str | None, _set("Context-parallel degrees.")]
CpComm = Annotated[
    str | None, _set("Exchange of keys and values in cp: p2p (ring), all_gather, a2a (all-to-all), "
                     "a2a+p2p (both).")
]
CpA2a = Annotated[str | None, _set("Ranks of cp that exchange by all-to-all in a2a+p2p.")]
Zero = Annotated[str | None, _set("ZeRO stages, 0 to 3.")]
Shard = Annotated[
    str | None, _set("ZeRO shards over all replicas (dp) or within the block (dp_in, HSDP).")
]
Recompute = Annotated[str | None, _set("Recompute: none, selective, full.")]
RecomputeModules = Annotated[
    str | None, _set("Module combinations for selective recompute, such as core_attn,"
                     "core_attn+norm; also mlp_act, moe; with latent attention mla_up_proj, mlp; "
                     "only if named here shared_experts, and mlp of other models.")
]
RecomputeLayers = Annotated[
    str | None, _set("Full recompute of only the first N layers of a stage.")
]
Sp = Annotated[str | None, _set("Sequence parallelism: true, false or both.")]
OuterDp = Annotated[str | None, _set("Numbers of replicas.")]
DpIn = Annotated[str | None, _set("Data-parallel degrees in a block.")]
Ep = Annotated[str | None, _set("Expert-parallel degrees.")]
Etp = Annotated[str | None, _set("Expert-tensor-parallel degrees.")]
Vpp = Annotated[str | None, _set("Virtual stages per device; more than 1 needs interleaved.")]
Group = Annotated[
    str | None, _set("Consecutive micro-batches of a virtual stage; default: pp, or the smallest "
                     "legal numbers of at least pp and of at least 2 pp.")
]
MicroBatch = Annotated[str | None, _set("Samples per micro-batch of a replica.")]
Mbs = Annotated[str | None, _set("Samples per micro-batch of a device.")]
Schedules = Annotated[
    str | None,
    _set(f"Schedules: {', '.join(SCHEDULES)}; default: those of the stack; with --beyond-stack "
         "also 1f1b and interleaved.")
]
BeyondStack = Annotated[
    bool,
    typer.Option("--beyond-stack", help="Also search plans that the job's stack cannot run: each "
                 "stage may have its own block size and degrees."),
]
Offloads = Annotated[
    str | None,
    _set("What is kept in host memory: none (default), optimizer, optimizer:0.5, "
         "layers:8, core_attn+moe_act and so on (docs/offloading.md).")
]

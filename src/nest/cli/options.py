"""Arguments and options that several commands have."""

from __future__ import annotations

import math
from typing import Annotated

import typer


def _whole(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        shown = repr(text[:60]) if isinstance(text, str) else repr(text)
        raise typer.BadParameter(f"got {shown}; allowed: a whole number") from None


def number(text: str, metavar: str = "N") -> typer.models.OptionInfo:
    """An option that takes a whole number; its range is for the descriptions to check."""
    found: typer.models.OptionInfo = typer.Option(metavar=metavar, help=text, parser=_whole)
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


Devices = Annotated[int | None, number("Number of devices; sizes the outermost level.")]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME",
                 help="Device instead of the cluster's: `nest list devices`, or a file."),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="PARTS",
                 help="Failed parts of the network, as node3,gpu8..15,link:a-b; may be repeated."),
]
Degrade = Annotated[
    list[str] | None,
    typer.Option("--degrade", metavar="PARTS",
                 help="Slow parts, as link:a-b=0.5,node3=0.8; may be repeated."),
]
GlobalBatch = Annotated[int | None, number("Sequences in one training step.", "B")]
SeqLen = Annotated[int | None, number("Tokens in one sequence.", "S")]
Precision = Annotated[
    str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16, fp32 or fp8.")
]
Optimizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="adam (default), sgd or sgd-momentum.")
]
StackName = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME",
                 help="Training software: `nest list stacks`, or a file; default megatron-core."),
]
JobFile = Annotated[
    str | None,
    typer.Option("--job", metavar="FILE", help="Job as a file; options given win over it."),
]
ProfileFile = Annotated[
    str | None,
    typer.Option("--profile", metavar="FILE", help="Measured layers instead of MODEL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE",
                 help="Also write the plan as JSON, whole or not at all; only on success."),
]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="FILE.csv",
                 help="Also write which device does what: rank, name, replica, stage, tp, cp, "
                 "dp_in."),
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
    int | None, number("Outer choices solved at once; does not change the plan.")
]


def _set(text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(metavar="SET", help=text)
    return found


# The search space: a file, and a set of values for each dimension.
SpaceFile = Annotated[
    str | None,
    typer.Option("--space", metavar="FILE",
                 help="Search space as a file; options given win over it."),
]
Tp = Annotated[str | None, _set("Tensor-parallel degrees, as 8, 1,2,4 or 1..16.")]
Pp = Annotated[str | None, _set("Numbers of pipeline stages.")]
Cp = Annotated[str | None, _set("Context-parallel degrees.")]
CpComm = Annotated[str | None, _set("How cp exchanges keys and values: of p2p (ring), a2a.")]
Zero = Annotated[str | None, _set("ZeRO stages, of 0 to 3.")]
Shard = Annotated[str | None, _set("ZeRO shards over: dp (all), dp_in (the block's, HSDP).")]
Recompute = Annotated[str | None, _set("Of none, selective, full.")]
RecomputeModules = Annotated[
    str | None, _set("For selective, as core_attn,core_attn+norm; also mlp_act, moe.")
]
RecomputeLayers = Annotated[str | None, _set("For full: of how many first layers of a stage.")]
Sp = Annotated[str | None, _set("Sequence parallelism: true, false or both.")]
OuterDp = Annotated[str | None, _set("Numbers of replicas.")]
DpIn = Annotated[str | None, _set("Data-parallel degrees in a block.")]
Ep = Annotated[str | None, _set("Expert-parallel degrees.")]
Etp = Annotated[str | None, _set("Expert-tensor-parallel degrees.")]
Vpp = Annotated[str | None, _set("Virtual stages per device; above 1: interleaved.")]
MicroBatch = Annotated[str | None, _set("Samples that a super-pipeline takes at once.")]
Mbs = Annotated[str | None, _set("Samples that a device takes at once.")]
Schedules = Annotated[str | None, _set("Of 1f1b, interleaved (both unless given), gpipe.")]

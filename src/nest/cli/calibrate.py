"""`nest calibrate`: figures of a device, a network and a software stack from measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nest.cli import options, output
from nest.cli.examples import epilog
from nest.cli.naming import App
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.inputs import Stack

app = App(
    help="Fit a device, a network or a software stack to measurements.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _calibrate(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        output.emit(context.get_help())

Target = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE.yaml",
                 help="Also write the figures, for `nest plan` and `nest evaluate`."),
]


def _size(text: str | float) -> float:
    from nest.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("gemm", epilog=epilog("calibrate gemm"))
def gemm(
    file: Annotated[
        str, typer.Argument(metavar="FILE.csv",
                            help="Columns dtype, m, n, k, latency_us (or _ms, _s), gpu.")
    ],
    device: Annotated[
        str, typer.Option("--device", metavar="NAME",
                          help="Measured device: a name (`nest list devices`) or a file.")
    ],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use only rows of this gpu.")
    ] = None,
    apart: Annotated[
        bool, typer.Option("--separate-halves", help="Fit m_half and n_half separately (16 bit).")
    ] = False,
    target: Target = None,
) -> None:
    """Fit a device to matrix products measured alone."""
    from nest.inputs import Device, load_device
    from nest.inputs.device import resolve_device
    from nest.measured.calibration.gemms import fit_products, read_products
    from nest.measured.calibration.written import device_data
    from nest.report.calibration_text import device_text

    _check(target)
    found = fit_products(load_device(device), read_products(file, gpu), apart)
    data = device_data(found, device, [file])
    Device.parse(resolve_device(data), target or "device")
    _hand_over(device_text(found, **output.page()),
               (target, lambda: data, "nest plan MODEL CLUSTER --device {} ..."))


@app.command("collectives", epilog=epilog("calibrate collectives"))
def collectives(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...",
                       help="Output of nccl-tests, its -J files, or CSV (collective, n_ranks, "
                       "message_bytes, latency_us)."),
    ],
    *,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME",
                          help="Measured cluster: a name (`nest list clusters`) or a file.")
    ],
    smallest: Annotated[
        float | None,
        typer.Option("--from", metavar="SIZE", parser=_size,
                     help="Smallest message to fit; default 1 MiB."),
    ] = None,
    node_size: Annotated[
        int | None,
        options.number("Devices of a node; default: those of the innermost level."),
    ] = None,
    collective: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Collective, if the output does not name it."),
    ] = None,
    ranks: Annotated[
        int | None, options.number("Number of devices, if the output does not name it.")
    ] = None,
    nodes: Annotated[
        int | None, options.number("Number of nodes, if the output does not name it.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use only CSV rows of this gpu; * is any text."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use only CSV rows of this system; * is any text."),
    ] = None,
    target: Target = None,
    as_json: options.Json = False,
) -> None:
    """Fit the levels of a cluster to measured collectives."""
    from nest.inputs import Cluster, load_cluster
    from nest.measured.calibration.collectives import SMALLEST, fit_collectives, to_json
    from nest.measured.calibration.timings import TimingSelection, read_collectives
    from nest.measured.calibration.written import cluster_data
    from nest.report.calibration_text import network_text

    _check(target)
    for name, value in (("node-size", node_size), ("ranks", ranks), ("nodes", nodes)):
        if value is not None and value < 1:
            raise InputError(f"{name}: got {value}; allowed: 1 and more")
    measured, notes = read_collectives(
        files, TimingSelection(collective, ranks, nodes, gpu, system))
    found = fit_collectives(load_cluster(cluster), measured,
                            SMALLEST if smallest is None else smallest, node_size)
    data = cluster_data(found, cluster, files)
    Cluster.parse(data, target or "cluster")
    text = to_json(found, notes) if as_json else network_text(found, notes, **output.page())
    _hand_over(text, (target, lambda: data, "nest plan MODEL {} ..."))


@app.command("runs", epilog=epilog("calibrate runs"))
def runs(
    file: Annotated[
        str, typer.Argument(metavar="RUNS.csv",
                            help="Measured training runs, a row each; columns: docs/accuracy.md.")
    ],
    stack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use only runs of this stack; a file: all runs.")
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option("--fit", metavar="NAMES",
                     help="Figures to fit, such as gemm_derate,overlap_tp; default: those that "
                     "the runs determine.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Price all runs on this device, a name or a file.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use only runs of this source_group; * is any text."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use only runs on this gpu; * is any text.")
    ] = None,
    target: Target = None,
    device_target: Annotated[
        str | None,
        typer.Option("--output-device", metavar="FILE.yaml",
                     help="Also write the device, if --fit names figures of it."),
    ] = None,
) -> None:
    """Fit a software stack to measured training runs."""
    from nest.inputs import load_device, load_stack
    from nest.measured import validation
    from nest.measured.calibration.runs import DEVICE_FIGURES, choose, fit_runs
    from nest.measured.calibration.written import run_device_data, stack_data
    from nest.report.calibration_text import runs_text

    _check(target)
    _check(device_target)
    names = None if figures is None else [name.strip() for name in figures.split(",")]
    given, known = _stack_of(stack)
    chosen = choose(validation.read(file), given, known,
                    None if device is None else load_device(device), group, gpu)
    if device_target is not None and not set(names or ()) & set(DEVICE_FIGURES):
        raise InputError("output-device: no figure of a device is fitted; needed: --fit with one "
                         f"of {', '.join(DEVICE_FIGURES)}")
    found = fit_runs(chosen, names)
    data = stack_data(found, stack, file)
    load_stack(data)
    told = {each.parameter.name for each in found.fit.estimates if each.determined}
    if device_target is not None and not told & set(DEVICE_FIGURES):
        output.say(f"nest: {device_target} is not written: the runs do not determine its figures")
        device_target = None
    _hand_over(runs_text(found, **output.page()),
               (device_target, lambda: run_device_data(found, device, file),
                "nest plan MODEL CLUSTER --device {} ..."),
               (target, lambda: data, "nest plan MODEL CLUSTER --stack {} ..."))


def _stack_of(text: str | None) -> tuple[Stack | None, str | None]:
    """A stack from a file for all runs; or the name of a stack whose runs to use."""
    from nest.inputs import catalog, load_stack

    if text is None:
        return None, None
    known = catalog.find("stacks", text)
    return (None, known) if known is not None else (load_stack(text), None)


def _check(target: str | None) -> None:
    """Refuse a file name that descriptions cannot be read from."""
    from nest.cli.present import check_target

    check_target(target)
    if target is not None and not target.endswith((".yaml", ".yml")):
        raise InputError(f"output: got {target[-60:]!r}; allowed: a name that ends in .yaml")


Written = tuple[str | None, Callable[[], Mapping[str, Any]], str]
"""A file or none, what to write, and a command that uses it, with {} for its name."""


def _hand_over(text: str, *files: Written) -> None:
    output.deliver(lambda: text, *(partial(_write, *file) for file in files))


def _write(target: str | None, data: Callable[[], Mapping[str, Any]], use: str) -> None:
    from nest.inputs.files import write_text_atomic, yaml_text

    if target is not None:
        write_text_atomic(target, yaml_text(data()))
        output.say(f"nest: {target} is written; use it as: {use.format(target)}")

"""`nest validate`, `nest calibrate` and `nest profile`: what others have measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter

from nest.cli import options, output
from nest.cli.naming import App
from nest.cli.options import argument, bytes_of, number, text
from nest.cli.present import check_target
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.inputs import Profile, Stack


# ---------------------------------------------------------------- nest validate


def validate(
    file: Annotated[str | None, argument(
        "Measured runs; default: the table that comes with NEST.", "[RUNS.csv]")] = None,
    annotations: Annotated[str | None, text(
        "Further columns of the runs, matched by run_id, such as dispatchers.", "FILE.csv")] = None,
    group: Annotated[list[str] | None, text(
        "Use only this group of runs; may be repeated.", "NAME")] = None,
    result: Annotated[str | None, text(
        "Also write every run with its price as a table.", "FILE.csv", "--output", "-o")] = None,
    plot: Annotated[str | None, text(
        "Also draw priced against measured seconds, as .png or .svg.", "FILE")] = None,
    as_json: options.Json = False,
) -> None:
    """Compare prices of step time and memory with measured runs."""
    from nest.report.figure import check_picture, save_figure

    check_picture("plot", plot)
    for target in (result, plot):
        check_target(target)
    from nest.inputs import write_text_atomic
    from nest.measured import validation
    from nest.measured.validation.score import to_csv, to_json

    runs = validation.read(file, annotations)
    if group:
        known = dict.fromkeys(run.group for run in runs)
        for name in group:
            if name not in known:
                raise InputError(f"group: got {name[:60]!r}; allowed: {', '.join(known)}")
        runs = tuple(run for run in runs if run.group in group)
    report = validation.score(validation.price(runs))
    where = file or "measured runs of NEST"

    def tabulate() -> None:
        if result is not None:
            write_text_atomic(result, to_csv(report))

    def draw() -> None:
        from nest.report.validation_text import parity_figure

        if plot is not None:
            save_figure(plot, parity_figure(report, "Priced against measured step time"))

    def text() -> str:
        from nest.report.validation_text import validation_text

        return to_json(report) if as_json else validation_text(report, where, **output.page())

    output.deliver(text, tabulate, draw)


# ---------------------------------------------------------------- nest calibrate

calibrate = App("calibrate", help="Fit a device, a network or a software stack to measurements.")
Target = Annotated[str | None, text(
    "Also write the figures, for `nest plan` and `nest evaluate`.", "FILE.yaml", "--output", "-o")]


def _size(text: str | float) -> float:
    from nest.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise BadParameter(str(error)) from None


@calibrate.command("gemm")
def gemm(
    file: Annotated[str, argument(
        "Columns dtype, m, n, k, latency_us (or _ms, _s), gpu.", "FILE.csv")],
    device: Annotated[str, text(
        "Measured device: a name (`nest list devices`) or a file.", "NAME", "--device")],
    gpu: Annotated[str | None, text("Use only rows of this gpu.", "NAME")] = None,
    apart: Annotated[bool, text(
        "Fit m_half and n_half separately (16 bit).", None, "--separate-halves")] = False,
    target: Target = None,
) -> None:
    """Fit a device to matrix products measured alone."""
    from nest.inputs import Device, load_device
    from nest.inputs.device import resolve_device
    from nest.measured.calibration.gemms import fit_products, read_products
    from nest.measured.calibration.written import device_data
    from nest.report.calibration_text import device_text

    check_yaml(target)
    found = fit_products(load_device(device), read_products(file, gpu), apart)
    data = device_data(found, device, [file])
    Device.parse(resolve_device(data), target or "device")
    hand_over(device_text(found, **output.page()),
               (target, lambda: data, "nest plan MODEL CLUSTER --device {} ..."))


@calibrate.command("collectives")
def collectives(
    files: Annotated[list[str], argument(
        "Output of nccl-tests, its -J files, or CSV (collective, n_ranks, message_bytes, "
        "latency_us).", "FILE...")],
    *,
    cluster: Annotated[str, text(
        "Measured cluster: a name (`nest list clusters`) or a file.", "NAME", "--cluster")],
    smallest: Annotated[float | None, text(
        "Smallest message to fit; default 1 MiB.", "SIZE", "--from", parser=_size)] = None,
    node_size: Annotated[int | None, number(
        "Devices of a node; default: those of the innermost level.")] = None,
    collective: Annotated[str | None, text(
        "Collective, if the output does not name it.", "NAME")] = None,
    ranks: Annotated[int | None, number(
        "Number of devices, if the output does not name it.")] = None,
    nodes: Annotated[int | None, number("Number of nodes, if the output does not name it.")] = None,
    gpu: Annotated[str | None, text(
        "Use only CSV rows of this gpu; * is any text.", "NAME")] = None,
    system: Annotated[str | None, text(
        "Use only CSV rows of this system; * is any text.", "NAME")] = None,
    target: Target = None,
    as_json: options.Json = False,
) -> None:
    """Fit the levels of a cluster to measured collectives."""
    from nest.inputs import Cluster, load_cluster
    from nest.measured.calibration.collectives import SMALLEST, fit_collectives, to_json
    from nest.measured.calibration.timings import TimingSelection, read_collectives
    from nest.measured.calibration.written import cluster_data
    from nest.report.calibration_text import network_text

    check_yaml(target)
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
    hand_over(text, (target, lambda: data, "nest plan MODEL {} ..."))


@calibrate.command("runs")
def runs(
    file: Annotated[str, argument(
        "Measured training runs, a row each; columns: docs/accuracy.md.", "RUNS.csv")],
    stack: Annotated[str | None, text(
        "Use only runs of this stack; a file: all runs.", "NAME")] = None,
    figures: Annotated[str | None, text(
        "Figures to fit, such as gemm_derate,overlap_tp; default: those that the runs determine.",
        "NAMES", "--fit")] = None,
    device: Annotated[str | None, text(
        "Price all runs on this device, a name or a file.", "NAME")] = None,
    group: Annotated[str | None, text(
        "Use only runs of this source_group; * is any text.", "NAME")] = None,
    gpu: Annotated[str | None, text("Use only runs on this gpu; * is any text.", "NAME")] = None,
    target: Target = None,
    device_target: Annotated[str | None, text(
        "Also write the device, if --fit names figures of it.", "FILE.yaml",
        "--output-device")] = None,
) -> None:
    """Fit a software stack to measured training runs."""
    from nest.inputs import load_device, load_stack
    from nest.measured import validation
    from nest.measured.calibration.runs import DEVICE_FIGURES, choose, fit_runs
    from nest.measured.calibration.written import run_device_data, stack_data
    from nest.report.calibration_text import runs_text

    check_yaml(target)
    check_yaml(device_target)
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
    hand_over(runs_text(found, **output.page()),
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


def check_yaml(target: str | None) -> None:
    """Refuse a file name that descriptions cannot be read from."""
    check_target(target)
    if target is not None and not target.endswith((".yaml", ".yml")):
        raise InputError(f"output: got {target[-60:]!r}; allowed: a name that ends in .yaml")


Written = tuple[str | None, Callable[[], Mapping[str, Any]], str]
"""A file or none, what to write, and a command that uses it, with {} for its name."""


def hand_over(text: str, *files: Written) -> None:
    output.deliver(lambda: text, *(partial(_write, *file) for file in files))


def _write(target: str | None, data: Callable[[], Mapping[str, Any]], use: str) -> None:
    from nest.inputs.files import write_text_atomic, yaml_text

    if target is not None:
        write_text_atomic(target, yaml_text(data()))
        output.say(f"nest: {target} is written; use it as: {use.format(target)}")


# ---------------------------------------------------------------- nest profile

profile = App("profile", help="Turn layers that other software measured into a profile.\n\n"
              "`nest plan --profile FILE.yaml` takes it.")
ProfileTarget = Annotated[str, text("The profile.", "FILE.yaml", "--output", "-o")]
Batch = Annotated[int | None, number(
    "Samples of a micro-batch, of which times are taken; default: the largest measured.")]


@profile.command("metis")
def metis(
    folder: Annotated[str, argument("Folder with DeviceType.A100_tp1_bs1.json and so on.", "DIR")],
    target: ProfileTarget,
    output_bytes: Annotated[str, text(
        "Bytes that a layer hands on per sample, which Metis does not measure: 2 x sequence length "
        "x hidden size in bf16.", "SIZE")],
    device: Annotated[str | None, text("Device type, where DIR has several.", "NAME")] = None,
    batch: Batch = None,
) -> None:
    """Read profiles of Metis.

    A backward is assumed to take twice as long as a forward.
    """
    from nest.measured.profiles import from_metis

    size = bytes_of("--output-bytes", output_bytes)
    _write_profile(from_metis(folder, size, device, batch), target)


@profile.command("galvatron")
def galvatron(
    computation: Annotated[str, argument("computation_profiling_*.json.", "TIMES.json")],
    memory: Annotated[str, argument("memory_profiling_*.json.", "MEMORY.json")],
    target: ProfileTarget,
    layers: Annotated[str, text("How many layers of each type the model has.", "N,...")],
    hidden: Annotated[int, number("Hidden size.")],
    seq_len: Annotated[int | None, number(
        "Tokens of a sequence; default: the only length measured.")] = None,
    batch: Batch = None,
    messages: Annotated[str | None, text(
        "sp_time_*.json of the hardware, for tp above 1; times of layers are measured at tp 1 "
        "alone.", "FILE.json")] = None,
) -> None:
    """Read profiles of Galvatron, by the rules of its own cost model."""
    from nest.measured.profiles import from_galvatron

    counts = layers.split(",")
    if not all(one.isascii() and one.isdigit() and len(one) < 6 for one in counts):
        raise InputError(f"--layers: got {layers[:60]!r}; allowed: numbers such as 32 or 24,24")
    found = from_galvatron(computation, memory, [int(one) for one in counts], hidden, seq_len,
                           batch, messages)
    _write_profile(found, target)


@profile.command("trace")
def trace(
    file: Annotated[str, argument(
        "Trace of torch.profiler with with_stack=True or with_modules=True.", "TRACE.json[.gz]")],
    model: Annotated[str, argument(
        "What was traced, a catalog name or a file; gives the bytes.", "MODEL")],
    target: ProfileTarget,
    layer: Annotated[list[str], text(
        "Class of a module that is a layer, such as LlamaDecoderLayer; may be repeated.", "CLASS")],
    seq_len: Annotated[int, number("Tokens of a sequence.")],
    samples: Annotated[int, number("Sequences of a micro-batch.")] = 1,
    tp: Annotated[int, number("Tensor-parallel ranks, of which one was traced.")] = 1,
    as_type: options.AsType = None,
) -> None:
    """Add up the kernels of each layer in a trace of PyTorch.

    Bytes are those of MODEL.
    """
    from nest.inputs import load_model
    from nest.measured.profiles import from_trace

    found = from_trace(file, load_model(model, as_type), layer, seq_len, samples, tp)
    _write_profile(found, target)


def _write_profile(profile: Profile, target: str) -> None:
    """Write a profile, and show its layers."""
    from nest.inputs.files import write_text_atomic
    from nest.measured.profiles.planners import table_of, text_of

    output.deliver(lambda: table_of(profile),
                   lambda: write_text_atomic(target, text_of(profile)))

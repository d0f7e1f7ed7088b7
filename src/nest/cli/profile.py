"""`nest profile`: layers that other software has measured, as a profile for `--profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nest.cli import options, output
from nest.cli.examples import epilog
from nest.cli.naming import App
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.inputs import Profile

app = App(
    help="Turn layers that other software measured into a profile.\n\n"
    "`nest plan --profile FILE.yaml` takes it.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Target = Annotated[str, typer.Option("--output", "-o", metavar="FILE.yaml", help="The profile.")]
Batch = Annotated[int | None, options.number(
    "Samples of a micro-batch, of which times are taken; default: the largest measured.")]


@app.callback(invoke_without_command=True)
def _profile(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        output.emit(context.get_help())


@app.command("metis", epilog=epilog("profile metis"))
def metis(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder with DeviceType.A100_tp1_bs1.json and so "
                            "on.")
    ],
    target: Target,
    output_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes that a layer hands on per sample, which "
                          "Metis does not measure: 2 x sequence length x hidden size in bf16.")
    ],
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device type, where DIR has several.")
    ] = None,
    batch: Batch = None,
) -> None:
    """Read profiles of Metis.

    A backward is assumed to take twice as long as a forward.
    """
    from nest.measured.profiles import from_metis
    from nest.units import parse_bytes

    try:
        size = parse_bytes(output_bytes)
    except ValueError as error:
        raise InputError(f"--output-bytes: {error}") from None
    _write(from_metis(folder, size, device, batch), target)


@app.command("galvatron", epilog=epilog("profile galvatron"))
def galvatron(
    computation: Annotated[
        str, typer.Argument(metavar="TIMES.json", help="computation_profiling_*.json.")
    ],
    memory: Annotated[str, typer.Argument(metavar="MEMORY.json", help="memory_profiling_*.json.")],
    target: Target,
    layers: Annotated[
        str, typer.Option(metavar="N,...", help="How many layers of each type the model has.")
    ],
    hidden: Annotated[int, options.number("Hidden size.")],
    seq_len: Annotated[int | None, options.number(
        "Tokens of a sequence; default: the only length measured.")] = None,
    batch: Batch = None,
    messages: Annotated[
        str | None, typer.Option(metavar="FILE.json", help="sp_time_*.json of the hardware, for tp "
                                 "above 1; times of layers are measured at tp 1 alone.")
    ] = None,
) -> None:
    """Read profiles of Galvatron, by the rules of its own cost model."""
    from nest.measured.profiles import from_galvatron

    counts = layers.split(",")
    if not all(one.isascii() and one.isdigit() and len(one) < 6 for one in counts):
        raise InputError(f"--layers: got {layers[:60]!r}; allowed: numbers such as 32 or 24,24")
    _write(from_galvatron(computation, memory, [int(one) for one in counts], hidden, seq_len, batch,
                          messages), target)


@app.command("trace", epilog=epilog("profile trace"))
def trace(
    file: Annotated[
        str, typer.Argument(metavar="TRACE.json[.gz]", help="Trace of torch.profiler with "
                            "with_stack=True or with_modules=True.")
    ],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="What was traced, a catalog name or a file; "
                            "gives the bytes.")
    ],
    target: Target,
    layer: Annotated[
        list[str], typer.Option(metavar="CLASS", help="Class of a module that is a layer, such as "
                                "LlamaDecoderLayer; may be repeated.")
    ],
    seq_len: Annotated[int, options.number("Tokens of a sequence.")],
    samples: Annotated[int, options.number("Sequences of a micro-batch.")] = 1,
    tp: Annotated[int, options.number("Tensor-parallel ranks, of which one was traced.")] = 1,
    as_type: options.AsType = None,
) -> None:
    """Add up the kernels of each layer in a trace of PyTorch.

    Bytes are those of MODEL.
    """
    from nest.inputs import load_model
    from nest.measured.profiles import from_trace

    _write(from_trace(file, load_model(model, as_type), layer, seq_len, samples, tp), target)


def _write(profile: Profile, target: str) -> None:
    """Write a profile, and show its layers."""
    from nest.inputs.files import write_text_atomic
    from nest.measured.profiles.planners import table_of, text_of

    output.deliver(lambda: table_of(profile),
                   lambda: write_text_atomic(target, text_of(profile)))

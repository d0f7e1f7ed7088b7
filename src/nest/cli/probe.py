"""`nest probe`: a device, a cluster and a stack of what a cluster measures of itself."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated

from nest.cli import output
from nest.cli.options import argument, number, text
from nest.cli.present import check_target
from nest.errors import InputError

STARTS = """torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
    --rdzv-endpoint FIRST_HOST:29500 {file} --out probe.json   # on each node
srun --nodes 2 --ntasks-per-node 8 python {file} --out probe.json
"""


def probe(
    files: Annotated[list[str] | None, argument(
        "What was measured, and what tools print: probe.json of the program; output of nccl-tests; "
        "tables of products or collectives (.csv); `nvidia-smi topo -m`; NCCL_TOPO_DUMP_FILE; "
        "Slurm's topology.conf; `ibnetdiscover`.", "[FILE...]")] = None,
    *,
    program: Annotated[str | None, text(
        "Write the program that measures, to copy to the nodes; needs PyTorch alone.",
        "PROBE.py", "--write")] = None,
    device: Annotated[str | None, text(
        "Type of the devices, a name (`nest list devices`) or a file; default: by the name of the "
        "GPU.", "NAME")] = None,
    cluster: Annotated[str | None, text(
        "Cluster whose levels the fit starts from, a name or a file; default: levels that the "
        "files say.", "NAME")] = None,
    stack: Annotated[str | None, text(
        "Software to start from, a name (`nest list stacks`) or a file; default: fsdp.",
        "NAME")] = None,
    collective: Annotated[str | None, text(
        "Collective, if an output does not name it.", "NAME")] = None,
    ranks: Annotated[int | None, number(
        "Number of devices, if an output does not name it.")] = None,
    nodes: Annotated[int | None, number("Number of nodes, if an output does not name it.")] = None,
    folder: Annotated[str | None, text(
        "Also write device.yaml, cluster.yaml and stack.yaml; created if missing.", "DIR",
        "--output", "-o")] = None,
) -> None:
    """Measure a new cluster, and describe it by what was measured.

    First `nest probe --write probe.py`, and start it on one or two nodes (15 minutes). Then `nest
    probe probe.json -o mine`. Files of other tools add to it, or stand alone. What was not
    measured keeps the catalog's figures and is said to be assumed.
    """
    if program is not None:
        if files:
            raise InputError("--write: got files too; allowed: first the program, then `nest probe "
                             "probe.json` with what it measured")
        _write_program(program)
        return
    if not files:
        raise InputError("probe: got no file; allowed: --write PROBE.py for the program that "
                         "measures, or files with what was measured")
    for name, value in (("ranks", ranks), ("nodes", nodes)):
        if value is not None and value < 1:
            raise InputError(f"{name}: got {value}; allowed: 1 and more")
    from nest.inputs.files import write_text_atomic, yaml_text
    from nest.measured.calibration.timings import TimingSelection
    from nest.measured.probe.described import describe
    from nest.measured.probe.sources import read_evidence
    from nest.report.probe_text import probe_text

    told = read_evidence(files, TimingSelection(collective, ranks, nodes))
    found = describe(told, device, cluster, stack)

    def write() -> None:
        if folder is None:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, part in found.items():
            write_text_atomic(Path(folder) / f"{name}.yaml", yaml_text(part.data))

    output.deliver(partial(probe_text, told, found, folder, **output.page()), write)


def _write_program(path: str) -> None:
    from nest.inputs.files import write_text_atomic

    check_target(path)
    if not path.endswith(".py"):
        raise InputError(f"--write: got {path[-60:]!r}; allowed: a name that ends in .py")
    text = (resources.files("nest") / "measured/probe/program.py").read_text("utf-8")
    write_text_atomic(path, text)
    output.emit("Start it on one node, or on two for the network between nodes, such as with\n\n"
                + STARTS.format(file=path)
                + "\nThen: nest probe probe.json -o mine")

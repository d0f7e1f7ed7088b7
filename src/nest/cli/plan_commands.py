"""What is done with a plan that `nest plan -o` wrote, and with one that ran."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from nest.cli import options, output
from nest.cli.options import text
from nest.cli.output import note
from nest.cli.present import check_target, plan_writes, write_page
from nest.cli.progress import Follow, progress
from nest.cli.read import variables
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan
    from nest.simulation.step import Traced


def plan_of(command: str, file: str) -> Plan:
    """The plan of a file.

    Raises
    ------
    InputError : there is no file of this name, or it holds no plan.
    """
    from nest.evaluation.plan_file import looks_like_file, reread

    if not looks_like_file(file):
        raise InputError(f"{command}: got {file[:60]!r}, which is not a file; allowed: PLAN.json "
                         "as `nest plan -o` writes it")
    plan, notes = reread(file)
    note(notes)
    return plan


def explain(
    file: options.PlanFile,
    time_limit: Annotated[float | None, options.seconds(
        "Limit for all searches together; default 30.")] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Show which resources limit a plan, and what simpler plans lose.

    Memory, FLOP/s and the bandwidth of each level grow by 1 %, one at a time. If `nest plan` proved
    the plan optimal, the search is repeated under each change; any other plan is priced unchanged.
    """
    from nest.evaluation.problems import told

    options.check_counts(threads=threads)
    plan = plan_of("explain", file)
    from nest.explanation import explanation
    from nest.report.explanation_text import explanation_text

    with progress(quiet=False), told(file):
        found = explanation.explain(plan, threads=threads,
                                    time_limit=time_limit or explanation.TIME_LIMIT)
    output.emit(found.to_json() if as_json else explanation_text(plan, found, **output.page()))


def diagnose(
    file: Annotated[str, options.argument(
        "The plan that ran, as `nest plan -o` writes it.", "PLAN.json")],
    log: Annotated[str | None, options.argument(
        "What the run printed (docs/read.md); may be left out beside a trace or a snapshot.",
        "train.log")] = None,
    trace: Annotated[list[str] | None, text(
        "A trace of some steps of one rank: .json or .json.gz of torch.profiler, or .sqlite of "
        "`nsys export --type sqlite`; may be repeated for other ranks.", "FILE")] = None,
    memory: Annotated[list[str] | None, text(
        "A snapshot of torch.cuda.memory._dump_snapshot; may be repeated.", "FILE")] = None,
    learned: Annotated[str | None, text(
        "Price the plan with what runs taught, as `nest learn -o` writes it.", "FILE")] = None,
    page_file: options.Page = None,
    as_json: options.Json = False,
) -> None:
    """Say why a run is slow, or short of memory.

    From the priced step to the measured one, cause by cause, with the evidence and what to try; and
    priced memory beside the measured. What the evidence does not tell apart stays "unexplained".
    """
    check_target(page_file)
    plan = plan_of("diagnose", file)
    from nest.measured.diagnosis import diagnose as explained
    from nest.report.diagnosis_text import diagnosis_text

    found = explained(plan, log, trace or (), memory or (), learned)

    def write() -> None:
        from nest.report.web.diagnosed import diagnosis_document

        if page_file is not None:
            write_page(page_file, diagnosis_document(found, os.path.basename(log or file)))

    output.deliver(lambda: found.to_json() if as_json else diagnosis_text(found, **output.page()),
                   write)


def replan(
    file: Annotated[str, options.argument(
        "The plan that runs, as `nest plan -o` writes it.", "PLAN.json")],
    *,
    without: Annotated[list[str] | None, text(
        "What is lost, such as node17, node3..5, leaf2, gpu8 or link:a-b; may be repeated.",
        "PARTS")] = None,
    cluster: Annotated[str | None, text(
        "Name or file of the whole cluster, if devices have returned; --without is applied to it. "
        "Default: that of the plan.", "CLUSTER")] = None,
    devices: options.Devices = None,
    space: options.SpaceFile = None,
    beyond_stack: options.BeyondStack = False,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    file_out: options.Output = None,
    ranks: options.Ranks = None,
    quiet: options.Quiet = False,
) -> None:
    """Find the next plan for the devices that are left after a loss.

    Shows what each device must receive. -o writes the new plan, --ranks its ranks. Model and job
    are those of PLAN.json.
    """
    from nest.network.network import load_network

    check_target(file_out)
    check_target(ranks)
    options.check_counts(threads=threads)
    before = plan_of("replan", file)
    if devices is not None and cluster is None:
        raise InputError("--devices: got a number without --cluster; allowed: with it")
    if not without and cluster is None:
        raise InputError("--without: missing; needed: what is lost, such as --without node17 (or "
                         "--cluster, if all devices have returned)")
    whole = None if cluster is None else load_network(cluster, devices=devices)
    from nest.replanning.replan import replan as ask

    what = f"{before.inputs.cluster.name[:40]} without {', '.join(without or ['nothing'])}"
    with progress(quiet), Follow(what, quiet) as follow:
        found = ask(before, without or (), options.SpaceOptions(space=space).described(),
                    cluster=whole, beyond_stack=beyond_stack, threads=threads,
                    time_limit=time_limit, progress=follow)
    output.deliver(lambda: found.to_json() if as_json else found.report(**output.page()),
                   *plan_writes(found.plan, file_out, ranks), quiet=quiet and not as_json)
    follow.reraise()


def goodput(
    file: options.PlanFile,
    failures: Annotated[str | None, text(
        "How often parts fail, what a restart takes, where checkpoints go; default: rates of Llama "
        "3 405B. `nest schema failures` has the fields.", "FILE")] = None,
    spares: Annotated[int | None, options.number(
        "Spare nodes; default: those that give most tokens for each device.")] = None,
    wait: Annotated[bool, text(
        "Without a spare, wait for a repair; else plans for fewer nodes are searched.", None,
        "--wait")] = False,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show what a plan trains in a day if parts of its cluster fail.

    With the checkpoint interval and the number of spare nodes that give most.
    """
    from nest.inputs import load_failures
    from nest.replanning.goodput import goodput as expected

    options.check_counts(threads=threads)
    plan, known = plan_of("goodput", file), load_failures(failures)
    if spares is not None:
        known = known.replace(spares=spares)
    with progress(quiet):
        found = expected(plan, known, replan=not wait, threads=threads, time_limit=time_limit)
    output.emit(found.to_json() if as_json else found.report(**output.page()))


def export(
    file: options.PlanFile,
    target: Annotated[str, text(
        "What to write for: megatron, deepspeed, torchtitan, torchtitan-toml, fsdp2, "
        "megatron-bridge, maxtext; or a step for a simulator: chakra (ASTRA-sim), simai; or a name "
        "that another package adds.",
        "TARGET", "--to")],
    folder: options.Folder,
    gpus_per_node: Annotated[int | None, options.number(
        "Devices of a node; default: those of the cluster's innermost level, or 4 where that is a "
        "rack.")] = None,
    launcher: Annotated[str, text(
        "What starts the processes: torchrun, on each node; deepspeed, mpi or slurm, on one; or "
        "what asks a cluster for nodes: sbatch, sbatch-pyxis, sbatch-apptainer, nemo-run, "
        "indexed-job, jobset, pytorchjob, trainjob, mpijob, rayjob, skypilot.",
        "NAME")] = "torchrun",
    hosts: Annotated[str | None, text(
        "Names of the nodes, a line each, in the order of the cluster; default: node0, node1, ...",
        "FILE")] = None,
    given: Annotated[list[str] | None, text(
        "A setting of what asks a cluster, such as image=NAME, or a variable of the environment; "
        "may be repeated. A missing one is told.", "NAME=VALUE", "--set")] = None,
    force: options.Force = False,
) -> None:
    """Write a plan as the launch script of its training software.

    Or its step as traces for a simulator. Nothing is written if the software cannot express the
    plan. Data, tokenizer, learning rate, steps and checkpoints are in no plan. Scripts of
    Megatron-LM and Megatron-DeepSpeed ask for them as variables, those of MaxText for tokenizer
    and steps. torchtitan, Megatron-Bridge and MaxText have defaults for the rest, which you
    replace in the files or behind the script. With fsdp2 and the stack deepspeed, your own
    program decides them.
    """
    from nest.frameworks.target import check_folder, write_folder
    from nest.frameworks.targets import export, need_launcher, need_target

    need_target(target)
    need_launcher(launcher)
    options.check_counts(gpus_per_node=gpus_per_node)
    check_folder(folder, force)
    plan = plan_of("export", file)
    names = None if hosts is None else _names(hosts)
    files = export(plan, target, gpus_per_node=gpus_per_node, launcher=launcher, hosts=names,
                   settings=variables(given))
    write_folder(folder, files, force)
    output.emit("\n".join(os.path.join(folder, name) for name in files))


def _names(file: str) -> list[str]:
    """Lines of a file; empty ones and comments are left out."""
    from nest.inputs.files import read_text

    lines = (line.strip() for line in read_text(file).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def simulate(
    file: options.PlanFile,
    trace: Annotated[str | None, text(
        "Also write a trace of every stage, for ui.perfetto.dev or chrome://tracing.",
        "FILE")] = None,
    bucket: Annotated[str | None, text(
        "Size of a bucket of gradients that are reduced together, such as `160 MiB`; default: one "
        "layer.", "SIZE")] = None,
    as_json: options.Json = False,
) -> None:
    """Simulate one training step of a plan with discrete events.

    The simulation uses NEST's prices of single layers and transfers. Overlap, waiting and memory
    over time follow from its events alone. The result is compared with the plan's price.
    """
    from nest.evaluation.problems import told
    from nest.report.simulation_text import simulation_text

    check_target(trace)
    plan = plan_of("simulate", file)
    bucket_bytes = 0.0 if bucket is None else options.bytes_of("--bucket", bucket)
    from nest.simulation import step

    writes: list[Callable[[], None]] = []
    with told(file):
        if trace is None:
            found = step.simulate(plan, bucket_bytes=bucket_bytes)
        else:
            traced = step.Traced(plan, bucket_bytes=bucket_bytes)
            found = traced.simulation
            writes.append(lambda: _write_trace(trace, plan, traced))
    output.deliver(lambda: found.to_json() if as_json
                   else simulation_text(plan, found, **output.page()), *writes)


def _write_trace(file: str, plan: Plan, traced: Traced) -> None:
    from nest.inputs import write_text_atomic
    from nest.report.files import trace_text

    write_text_atomic(file, trace_text(plan, traced))
    left_out = traced.record.left_out
    if left_out:
        note([f"{file}: micro-batches {left_out[0]}..{left_out[-1]} of "
              f"{plan.parallelism.micro_batches} are left out, to keep it small"])

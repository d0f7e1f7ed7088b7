"""Options that several commands have: how each is read, and records of those that go together.

A record is a frozen class whose fields are options. A command takes records among its parameters,
and :func:`spread` replaces each of them by its fields, so that every option is described once.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nest.errors import InputError, did_you_mean
from nest.limits import count_problem
from nest.schedules.registry import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nest.inputs import Cluster, Job, Model, Profile, SearchSpace
    from nest.inputs.space import Module

COMMAND_LINE = "command line"
"""Start of messages about fields that options gave."""


# ---------------------------------------------------------------- kinds of options


def text(
    help: str, metavar: str | None = None, *names: str, parser: Callable[[Any], Any] | None = None
) -> typer.models.OptionInfo:
    """An option that takes a text, or a switch without ``metavar``; names: default its own."""
    found: typer.models.OptionInfo = typer.Option(
        *names, metavar=metavar, help=help, parser=parser)
    return found


def argument(help: str, metavar: str) -> typer.models.ArgumentInfo:
    """A positional argument."""
    found: typer.models.ArgumentInfo = typer.Argument(metavar=metavar, help=help)
    return found


def _read(kind: Callable[[Any], Any], allowed: str) -> Callable[[Any], Any]:
    """A parser that names what is allowed where ``kind`` refuses a text."""
    def parse(given: Any) -> Any:
        try:
            return kind(given)
        except ValueError:
            shown = repr(given[:60]) if isinstance(given, str) else repr(given)
            raise typer.BadParameter(f"got {shown}; allowed: {allowed}") from None

    return parse


def _percent(given: str | float) -> float:
    from nest.inputs.base import percent

    return float(percent(given))  # type: ignore[arg-type]


def _positive(given: str | float) -> float:
    if not 0.0 < float(given) < math.inf:
        raise ValueError
    return float(given)


whole = _read(int, "a whole number")
_share = _read(_percent, "a number, such as 0.05, or 5%")
_amount = _read(_positive, "a number above 0")
_seconds = _read(_positive, "seconds, above 0")


def number(help: str, metavar: str = "N", *names: str) -> typer.models.OptionInfo:
    """An option that takes a whole number; the descriptions check its range."""
    return text(help, metavar, *names, parser=whole)


def fraction(help: str, metavar: str = "SHARE") -> typer.models.OptionInfo:
    """An option that takes a number; the descriptions check its range."""
    return text(help, metavar, parser=_share)


def amount(help: str, metavar: str = "MONEY") -> typer.models.OptionInfo:
    """An option that takes a number above 0."""
    return text(help, metavar, parser=_amount)


def seconds(help: str) -> typer.models.OptionInfo:
    """An option that takes a length of time."""
    return text(help, "SECONDS", parser=_seconds)


# ---------------------------------------------------------------- single options

TimeLimit = Annotated[
    float | None, seconds("Stop after this time of searching with the best plan so far and its "
                          "gap; compiling the kernels, once, comes before.")]
AsType = Annotated[
    str | None, text("Model type to read MODEL's config.json as, such as llama, if its own is not "
                     "known.", "TYPE", "--as")]
Devices = Annotated[int | None, number("Number of devices; sets the size of the outermost level.")]
SpaceFile = Annotated[
    str | None, text("File with the search space; options override it.", "FILE", "--space")]
BeyondStack = Annotated[
    bool, text("Also search plans that the job's stack cannot run: each stage may have its own "
               "block size and degrees.", None, "--beyond-stack")]
Threads = Annotated[int | None, number("Number of threads; does not change the plan.")]
Json = Annotated[bool, text("Print one JSON document.", None, "--json")]
Output = Annotated[
    str | None, text("Also write the plan as JSON; an error leaves the file unchanged.", "FILE",
                     "--output", "-o")]
Ranks = Annotated[
    str | None, text("Also write the place of each rank: device name, replica, stage, tp, cp, dp, "
                     "ep, etp.", "FILE.csv", "--ranks")]
Page = Annotated[str | None, text("Also write it as one HTML page, as `nest report` does.",
                                  "FILE.html", "--report")]
Quiet = Annotated[bool, text("Print neither the report nor progress.", None, "--quiet", "-q")]
Details = Annotated[bool, text("Also show each stage, the layout, and what was searched.", None,
                               "--details")]
Force = Annotated[bool, text("Replace files of the same names in DIR.", None, "--force")]
Folder = Annotated[
    str, text("Folder for the files; created if missing.", "DIR", "-o", "--output")]
PlanFile = Annotated[str, argument("A plan, as `nest plan -o` writes it.", "PLAN.json")]


# ---------------------------------------------------------------- records of options


@dataclass(frozen=True, kw_only=True)
class ProblemOptions:
    """What is trained, and where: all of a planning problem but its search space."""

    as_type: AsType = None
    devices: Devices = None
    filling: Annotated[int | None, number(
        "Devices used in each group of the smallest level that holds F, such as 64 of the 72 in "
        "each rack; default: equally many, or whole groups and a partial last one.", "F")] = None
    device: Annotated[str | None, text(
        "Use this device in place of the cluster's: a name (`nest list devices`) or a file.",
        "NAME")] = None
    without: Annotated[list[str] | None, text(
        "Failed parts of the network, such as node3,gpu8..15,link:a-b; may be repeated.",
        "PARTS")] = None
    degrade: Annotated[list[str] | None, text(
        "Slow parts and the share of their speed that is left, such as link:a-b=0.5,node3=0.8; may "
        "be repeated.", "PARTS")] = None
    global_batch: Annotated[int | None, number("Sequences in one training step.", "B")] = None
    seq_len: Annotated[int | None, number("Tokens in one sequence.", "S")] = None
    lengths: Annotated[str | None, text(
        "Lengths of samples and their shares, such as 512:30,8192:70, or "
        "lognormal:MEDIAN:SIGMA:LONGEST; default: each sequence is one sample.", "LENGTHS")] = None
    packing: Annotated[str | None, text(
        "Sequences are full of samples of --lengths (packed, default) or padded.", "NAME")] = None
    precision: Annotated[str | None, text(
        "bf16 (default), fp16, fp32, fp8, fp8-delayed, fp8-blockwise, mxfp8 or nvfp4.",
        "NAME")] = None
    optimizer: Annotated[str | None, text(
        "adam (default), sgd, sgd-momentum, muon, adam-8bit or adafactor.", "NAME")] = None
    memory_margin: Annotated[float | None, fraction(
        "Share of each device's memory that no plan may use; default 0.1.")] = None
    routing: Annotated[str | None, text(
        "What balances experts: forced (default), loss or none.", "NAME")] = None
    expert_imbalance: Annotated[float | None, fraction(
        "Tokens of the busiest expert-parallel rank over the mean; default 1, 1.1 or 2, by "
        "--routing.", "FACTOR")] = None
    expert_capacity: Annotated[float | None, fraction(
        "The most tokens that an expert takes of a device, over the mean; those beyond are "
        "dropped; default: none are.", "FACTOR")] = None
    expert_padding: Annotated[bool | None, text(
        "Pad each expert to --expert-capacity; default: no.", None,
        "--expert-padding/--no-expert-padding")] = None
    stack: Annotated[str | None, text(
        "Training software: a name (`nest list stacks`) or a file; default megatron-core.",
        "NAME")] = None
    learned: Annotated[str | None, text(
        "What runs taught of the stack, as `nest learn -o` writes it.", "FILE")] = None
    job: Annotated[str | None, text("File with the job; options override it.", "FILE")] = None
    profile: Annotated[str | None, text(
        "File with measured layers; replaces MODEL.", "FILE")] = None
    lora_rank: Annotated[int | None, number(
        "Train adapters of this rank (LoRA); all else is frozen.", "R")] = None
    lora_targets: Annotated[str | None, text(
        "Modules with adapters, such as linear_qkv or q_proj,v_proj; default all-linear.",
        "NAMES")] = None
    trained: Annotated[str | None, text(
        "Train these parts alone, such as projector, head or biases; with --lora-rank them too.",
        "PARTS")] = None
    trained_layers: Annotated[str | None, text(
        "Transformer layers, from 0, such as 16..31, that --trained and --lora-rank mean; default: "
        "all.", "SET")] = None
    frozen_precision: Annotated[str | None, text(
        "Number format in which frozen weights are kept, such as nf4 (QLoRA); default: as products "
        "take them.", "NAME")] = None

    def _as_trained(self, model: Model) -> Model:
        """The model, with what options say is trained; they replace what it says itself."""
        from nest.inputs.trainable import Trainable

        lora = {"rank": self.lora_rank, "targets": self.lora_targets}
        own = {"lora": {name: value for name, value in lora.items() if value is not None},
               "parts": self.trained, "layers": self.trained_layers,
               "frozen_precision": self.frozen_precision}
        found = {name: value for name, value in own.items() if value not in (None, {})}
        if not found:
            return model
        return model.replace(trainable=Trainable.parse(found, f"{COMMAND_LINE}: trainable"))

    def subject_and_cluster(self, names: Sequence[str]) -> tuple[Model | Profile, Cluster]:
        """What is trained and where, from the positional arguments too.

        Parameters
        ----------
        names : MODEL CLUSTER, or CLUSTER where a profile stands for the model.

        Raises
        ------
        InputError : too few or too many arguments, or one of them is not usable.
        LimitError : the cluster is a graph that is no hierarchy.
        """
        from nest.cli.output import note
        from nest.inputs import load_model, load_profile
        from nest.network.network import load_network

        wanted = ("CLUSTER",) if self.profile is not None else ("MODEL", "CLUSTER")
        if len(names) != len(wanted):
            why = " (--profile stands for MODEL)" if self.profile is not None else ""
            raise InputError(f"arguments: got {' '.join(names) or 'none'}; allowed: "
                             f"{' '.join(wanted)}{why}")
        if self.profile is not None and self.as_type is not None:
            raise InputError(f"--as: got {self.as_type[:60]!r}; allowed: nothing with --profile")
        subject: Model | Profile
        subject = (load_profile(self.profile) if self.profile is not None
                   else self._as_trained(load_model(names[0], self.as_type)))
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", UserWarning)
            cluster = load_network(
                names[-1], devices=self.devices, filling=self.filling, device=self.device,
                without=self.without or None, degrade=self.degrade or None)
        note(str(one.message) for one in notes)
        return subject, cluster

    def described_job(self, cluster: Cluster) -> Job:
        """The job of a file, of options, or of both; options win.

        A question without a stack is asked of the usual one for the devices of the cluster.

        Raises
        ------
        InputError : a field is missing in both, or not allowed.
        """
        from nest.inputs import Job, load_job, load_stack, read_description
        from nest.stacks import default_stack

        options = {name: value for name, value in given(self).items() if name in Job.model_fields}
        if self.stack is not None:
            options["stack"] = load_stack(self.stack)
        if self.learned is not None:
            options |= self._taught(options)
        data: dict[str, Any] = {}
        where = COMMAND_LINE
        if self.job is not None:
            data, where = read_description(self.job), self.job
            if not set(data) & set(Job.model_fields) or ("stack" in data and not options):
                return load_job(self.job)  # which also reports a file of another type
        merged = {**data, **options}
        if "stack" not in merged:
            merged["stack"] = default_stack(cluster)
        missing = [name for name in ("global_batch", "seq_len") if name not in merged]
        if missing:
            hints = [f"{COMMAND_LINE}: {name}: missing; needed: a number, or a --job file that has "
                     "it" for name in missing]
            raise InputError("\n".join(hints), tuple(hints))
        try:
            return Job.parse(merged, where)
        except InputError as error:
            lines = tuple(
                COMMAND_LINE + line.removeprefix(where) if field in options else line
                for line in error.problems
                for field in [line.removeprefix(f"{where}: ").partition(":")[0]])
            raise InputError("\n".join(lines), lines) from None

    def _taught(self, options: dict[str, Any]) -> dict[str, Any]:
        """The stack of the file of --learned, and the margin that its runs ask for."""
        from nest.measured.learning import load_learned

        if self.stack is not None:
            raise InputError(f"--stack: got {self.stack[:60]!r} with --learned; allowed: one of "
                             "them; what was learned has its stack")
        known = load_learned(self.learned or "")
        return {"memory_margin": options.get("memory_margin", known.margin),
                "stack": known.taught()}


def set_of(help: str) -> typer.models.OptionInfo:
    """An option that takes a set of values of one dimension of the search."""
    return text(help, "SET")


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """The search space: a file, and a set of values for each dimension."""

    space: SpaceFile = None
    tp: Annotated[str | None, set_of("Tensor-parallel degrees, such as 8, 1,2,4 or 1..16.")] = None
    pp: Annotated[str | None, set_of("Numbers of pipeline stages.")] = None
    cp: Annotated[str | None, set_of("Context-parallel degrees.")] = None
    cp_comm: Annotated[str | None, set_of(
        "Exchange of keys and values in cp: p2p (ring), all_gather, a2a (all-to-all), a2a+p2p "
        "(both).")] = None
    cp_a2a: Annotated[
        str | None, set_of("Ranks of cp that exchange by all-to-all in a2a+p2p.")] = None
    zero: Annotated[str | None, set_of("ZeRO stages, 0 to 3.")] = None
    shard: Annotated[str | None, set_of(
        "ZeRO shards over all replicas (dp) or within the block (dp_in, HSDP).")] = None
    recompute: Annotated[str | None, set_of("Recompute: none, selective, full.")] = None
    recompute_modules: Annotated[str | None, set_of(
        "Module combinations for selective recompute, such as core_attn,core_attn+norm; also "
        "mlp_act, moe; with latent attention mla_up_proj, mlp; only if named here shared_experts, "
        "gdn_norm_out, and mlp of other models; under MaxText qkv_linear, attn_proj.")] = None
    recompute_layers: Annotated[
        str | None, set_of("Full recompute of only the first N layers of a stage.")] = None
    sp: Annotated[str | None, set_of("Sequence parallelism: true, false or both.")] = None
    outer_dp: Annotated[str | None, set_of("Numbers of replicas.")] = None
    dp_in: Annotated[str | None, set_of("Data-parallel degrees in a block.")] = None
    ep: Annotated[str | None, set_of("Expert-parallel degrees.")] = None
    etp: Annotated[str | None, set_of("Expert-tensor-parallel degrees.")] = None
    vpp: Annotated[
        str | None, set_of("Virtual stages per device; more than 1 needs interleaved.")] = None
    group: Annotated[str | None, set_of(
        "Consecutive micro-batches of a virtual stage; default: pp, or the smallest legal numbers "
        "of at least pp and of at least 2 pp.")] = None
    micro_batch: Annotated[str | None, set_of("Samples per micro-batch of a replica.")] = None
    mbs: Annotated[str | None, set_of("Samples per micro-batch of a device.")] = None
    schedule: Annotated[str | None, set_of(
        f"Schedules: {', '.join(SCHEDULES)}; default: those of the stack; with --beyond-stack "
        "also 1f1b and interleaved.")] = None

    cuda_graphs: Annotated[str | None, set_of(
        "CUDA graphs of nothing (none), parts of layers (layers) or the whole step (step); default "
        "of this and the next seven: all that the stack has on the devices.")] = None
    dispatcher: Annotated[str | None, set_of(
        "How tokens reach experts: alltoall, allgather, deepep, hybridep.")] = None
    fused_experts: Annotated[str | None, set_of(
        "Activation functions as part of experts' products: true, false.")] = None
    fp8_attention: Annotated[str | None, set_of("Attention core in 8 bits: true, false.")] = None
    fp8_head: Annotated[str | None, set_of("Head in 8 bits: true, false.")] = None
    fp8_gather: Annotated[str | None, set_of(
        "ZeRO gathers parameters in 8 bits: true, false.")] = None
    tp_overlap: Annotated[str | None, set_of(
        "Tensor-parallel traffic overlaps with products: true, false.")] = None
    loss: Annotated[str | None, set_of(
        "How the loss runs: whole, or with the head in chunks, as liger, or as cut "
        "cross-entropy.")] = None

    def described(self) -> SearchSpace:
        """The search space of the file, of the sets, or of both; sets win.

        Raises
        ------
        InputError : a field is not allowed.
        """
        from nest.inputs import SearchSpace, load_space

        base = load_space(self.space) if self.space is not None else SearchSpace()
        sets = {name: value for name, value in given(self).items() if name != "space"}
        if not sets:
            return base
        fixed = {name: getattr(base, name) for name in base.model_fields_set}
        return SearchSpace.parse({**fixed, **sets}, COMMAND_LINE)


def given(record: Any) -> dict[str, Any]:
    """The options of a record that the command line gives, by the names of their fields."""
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: value for name, value in values.items() if value is not None and value != []}


def spelled(names: Iterable[str]) -> str:
    """Options by the names of their fields, as they are spelled."""
    return ", ".join(f"--{name.removesuffix('_type').replace('_', '-')}" for name in names)


def modules_from(text: str | None) -> tuple[Module, ...] | None:
    """Modules of selective recompute from text such as `core_attn+norm`, in their fixed order.

    Raises
    ------
    InputError : an unknown module, one given twice, or several combinations.
    """
    from nest.inputs import SearchSpace

    if text is None:
        return None
    found = SearchSpace.parse({"recompute_modules": text}, COMMAND_LINE).recompute_modules
    if found is None or len(found) != 1:
        raise InputError(f"{COMMAND_LINE}: recompute_modules: got {text[:60]!r}; allowed: one "
                         "combination, its modules joined by +")
    return tuple(found[0].split("+"))  # type: ignore[arg-type]


def chosen(option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """Names joined by commas, each once; None or `all`: all known names.

    Raises
    ------
    InputError : a name is not known.
    """
    names = list(known)
    if text is None or text.strip() == "all":
        return names
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in found:
        if name not in names:
            raise InputError(f"{option}: got {name[:60]!r}; {did_you_mean(name, names)}allowed: "
                             f"all, or some of {', '.join(names)}")
    return found


def one_of(option: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known.

    Raises
    ------
    InputError : the name is not known; it offers a near one.
    """
    names = list(known)
    if name not in names:
        raise InputError(f"{option}: got {name[:60]!r}; "
                         f"{did_you_mean(name, names)}allowed: {', '.join(names)}")


def check_counts(**given: int | None) -> None:
    """Refuse counts below 1 or above their limit; see :mod:`nest.limits`.

    Raises
    ------
    InputError : one is not allowed.
    """
    problems = tuple(filter(None, (count_problem(*item) for item in given.items())))
    if problems:
        raise InputError("\n".join(problems), problems)


def bytes_of(option: str, text: str) -> float:
    """Bytes from text such as `160 MiB`.

    Raises
    ------
    InputError : the text is no size.
    """
    from nest.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


# ---------------------------------------------------------------- records as options


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the fields of its records of options in their places, for Typer.

    Raises
    ------
    ValueError : two options have one name.
    """
    written = inspect.signature(command, eval_str=True)
    records: dict[str, Any] = {name: one.annotation for name, one in written.parameters.items()
                               if is_dataclass(one.annotation)}
    if not records:
        return command
    parameters: list[inspect.Parameter] = []
    for name, one in written.parameters.items():
        parameters += _options_of(records[name]) if name in records else [one]

    @functools.wraps(command)
    def taken(**values: Any) -> Any:
        for name, record in records.items():
            values[name] = record(**{one.name: values.pop(one.name) for one in fields(record)})
        return command(**values)

    taken.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
    taken.__annotations__ = {}
    return taken


def _options_of(record: Any) -> list[inspect.Parameter]:
    described = get_type_hints(record, include_extras=True)
    return [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default,
                              annotation=described[one.name]) for one in fields(record)]

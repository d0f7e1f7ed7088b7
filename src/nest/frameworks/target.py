"""What each target says of itself, why a plan is refused, and the files that it is written as.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from nest.errors import InputError, OutputError, UnsupportedError
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.hosts import RankPlaces
from nest.frameworks.launchers import LaunchScript, places_files, script_text
from nest.frameworks.submitters import Handover, submitted
from nest.inputs import load_model
from nest.inputs.lengths import mean_length
from nest.inputs.model import Model
from nest.inputs.sources import CATALOG
from nest.units import format_seconds, shorten

Files = dict[str, str]
LAUNCH = "launch.sh"
_STATES = {"moment_dtype": "fp32", "master_copy": "true", "loss": "whole"}
"""What optimizers keep of parameters in 16 bits, and how the loss runs, as files are written."""
LOW_BIT = ("adam-8bit", "adafactor")
"""Optimizers that keep little, of programs of their own."""
PLAIN: Mapping[str, object] = {
    "relative_positions": 0, "token_types": 0, "layer_norms": 2, "final_norm": True,
    "embedding_norm": False, "head_transform": False, "head_bias": False, "pooler": False,
    "vision": None, "chunked": False, "recurrence": None, "layer_types": (), "unrotated": False,
    "parallel": False, "output_bias": False, "mlp_bias": False, "attention_gate": False,
    "head_gate": False, "value_dim": None, "layer_inputs": 0,
    "sinks": False, "patch_width": 0, "compression": None, "indexer": None, "value_norm": False,
    "streams": 1, "residual_block": 0, "mtp_kind": None}
"""Properties of a decoder that targets have no settings for, and what they must be."""
PLAIN_EXPERTS: Mapping[str, object] = {"latent": 0, "norms": 0, "router_scale": False}
"""The same of its experts."""
PLAIN_ATTENTION: Mapping[str, object] = {
    **PLAIN, "kind": "decoder", "qk_norm": False, "qkv_bias": False, "mla": None, "window": None,
    "mtp_layers": 0}
"""The same of targets whose attention has no settings either."""


def unlike(fields: object, plain: Mapping[str, object]) -> list[str]:
    """Names of properties that are not what they must be."""
    return [name for name, value in plain.items() if getattr(fields, name) != value]


class Sheet(NamedTuple):
    """What the files of a plan are written from."""

    plan: Plan
    title: str
    """What is launched, for which version; one line."""
    priced: str
    """The price; one line."""
    places: RankPlaces
    launcher: str
    submission: Handover | None = None
    """How the script is handed to a cluster; None: by the user."""


class Target(NamedTuple):
    """Software that a plan can be written for."""

    version: str
    """Name and version, as the files say them."""
    rules: tuple[tuple[str, str], ...]
    """Software and version of the tables of rules that hold for it."""
    stacks: str
    """Stacks that have these, in words."""
    inexpressible: Callable[[Plan], Iterable[str]]
    """What it has no setting for, a sentence each; the rules of the stack are not repeated. Asked
    for plans that break none of these and have a model."""
    order: Callable[[Plan], tuple[Rank, ...]]
    """Ranks as it numbers them."""
    files: Callable[[Sheet], Files]
    """Texts by name, but for the places."""
    capacity: bool = False
    """It has settings for experts of limited capacity."""
    adapters: bool = False
    """It has settings for adapters."""
    alone: bool = False
    """Each process is started by its rank, as torchrun and DeepSpeed do not know its variables."""


def refuse(target: Target, plan: Plan, name: str) -> None:
    """Raise if a target does not run a plan.

    Raises
    ------
    UnsupportedError : it does not fit, its stack is not the target's, or the target cannot
        express it; one sentence for each.
    """
    problems = [*_reasons(target, plan)]
    if problems:
        raise UnsupportedError("\n".join(
            [f"{name} cannot launch this plan:", *problems]), tuple(problems))


def _reasons(target: Target, plan: Plan) -> Iterator[str]:
    known, stack = plan.inputs.job.stack.capabilities, plan.inputs.job.stack.name
    if known is None or (known.software, known.version) not in target.rules:
        what = "not known what it runs" if known is None else f"{known.software} {known.version}"
        yield (f"stack {stack} ({what}): plan for {target.stacks} (--stack), whose prices and "
               "rules are the target's")
        return
    broken = [*(finding.sentence for finding in plan.not_runnable), *plan.problems]
    yield from broken
    if plan.inputs.model is None:
        yield "inputs.profile: measured layers are no model that settings describe"
    elif not broken:
        if plan.inputs.job.expert_capacity is not None and not target.capacity:
            yield ("job.expert_capacity: no setting of a capacity of experts is written; allowed: "
                   "null")
        if plan.inputs.model.trainable is not None and not target.adapters:
            yield ("model.trainable: no setting of adapters or frozen parts is written; allowed: "
                   "null, or the stack megatron-bridge, whose adapters are")
        if plan.inputs.job.optimizer in LOW_BIT:
            yield (f"job.optimizer {plan.inputs.job.optimizer}: what asks for it is not written; "
                   "allowed: adam, sgd, sgd-momentum, muon")
        yield from (f"stack.{name} {given}: what asks for it is not written; allowed: {usual}"
                    for name, usual in _STATES.items()
                    if (given := f"{getattr(plan.inputs.job.stack, name)}".lower()) != usual)
        yield from target.inexpressible(plan)


def sheet(
    target: Target, plan: Plan, places: RankPlaces, launcher: str,
    submission: Handover | None = None,
) -> Sheet:
    """The sheet of a plan that a target runs."""
    name = plan.inputs.model.name if plan.inputs.model else plan.inputs.cluster.name
    return Sheet(
        plan=plan, title=f"{name}, {len(places.at)} devices of {plan.inputs.cluster.name}: for "
        f"{target.version}.",
        priced=f"Priced: {format_seconds(plan.step_time_s)} per step, "
        f"{plan.tokens_per_s:,.0f} tokens/s{_data(plan)}.", places=places, launcher=launcher,
        submission=submission)


def _data(plan: Plan) -> str:
    """What the data must be, which no file says."""
    job = plan.inputs.job
    if job.lengths is None:
        return ""
    return (f", with samples of {mean_length(job.lengths):,.0f} tokens in the mean, {job.packing} "
            f"to {job.seq_len:,}, which the data must be")


def stage_by_stage(plan: Plan) -> tuple[Rank, ...]:
    """Ranks in the order of most software: the stages are outermost."""
    return tuple(sorted(plan.ranks(), key=attrgetter("stage")))


def model_of(plan: Plan) -> Model:
    """The model of a plan that was not refused."""
    assert plan.inputs.model is not None
    return plan.inputs.model


def written(given: Sheet, script: LaunchScript, files: Files) -> Files:
    """A script, what it hands to the program, and the lists of its places."""
    how = given.submission
    inside = "" if how is None else how.by.container(how.settings)
    found = {LAUNCH: script_text(script, given.places, given.launcher, inside), **files,
             **places_files(given.places, given.title, given.launcher, script.variables)}
    return found if how is None else {
        **found, **submitted(how, given.places, given.title, script.asked, found)}


def catalog_name(model: Model) -> str:
    """The name of a model of the catalog, whatever of it is trained; empty: it is none, or was
    changed."""
    try:
        kept = load_model(model.name, sources=CATALOG)
    except InputError:
        return ""
    return model.name if kept == model.unchecked(trainable=None) else ""


def plain_lines(*lines: str) -> list[str]:
    """Lines that a docstring can hold: a name of a model may hold quotes and backslashes."""
    return [json.dumps(line)[1:-1].replace('\\"', "'") for line in lines]


def check_folder(folder: str, force: bool) -> None:
    """Refuse a folder that cannot be written or holds files, before any work is done for it.

    Raises
    ------
    InputError : no name, a file, a folder that is not empty (without ``force``), or no folder to
        make it in.
    """
    shown = shorten(folder, 300)[1:-1]
    try:
        if not folder or "\0" in folder or (os.path.lexists(folder) and not os.path.isdir(folder)):
            raise InputError(f"output: got {shorten(folder, 300)}; allowed: a folder, created if "
                             "missing")
        if not os.path.isdir(folder):
            above = os.path.dirname(os.path.abspath(folder))
            if not os.path.isdir(above):
                raise InputError(f"output: {shown} cannot be created (no folder {above})")
        elif os.listdir(folder) and not force:
            raise InputError(f"output: {shown} is not empty; allowed: a new or an empty folder, or "
                             "--force, which replaces files of the same names")
    except OSError as error:
        raise OutputError(f"{shown}: cannot be read ({error.strerror or error})") from None


def write_folder(folder: str, files: Mapping[str, str | bytes], force: bool = False) -> None:
    """Write files by name; a new folder appears with all of them, or not at all.

    In a folder that has files, all are written beside their places first, and then moved there.

    Raises
    ------
    InputError : as :func:`check_folder`.
    OutputError : the disk is full, or the folder must not be changed.
    """
    check_folder(folder, force)
    target, draft = os.path.realpath(folder), ""
    inside = os.path.isdir(target)
    try:
        draft = tempfile.mkdtemp(prefix=".nest-", dir=target if inside else os.path.dirname(target))
        for name, text in files.items():
            with open(os.path.join(draft, name), "wb") as stream:
                stream.write(text.encode() if isinstance(text, str) else text)
        if inside:
            for name in files:
                os.replace(os.path.join(draft, name), os.path.join(target, name))
        else:
            os.chmod(draft, 0o777 & ~_umask())
            os.rename(draft, target)
    except OSError as error:
        shown = shorten(folder, 300)[1:-1]
        raise OutputError(f"{shown}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

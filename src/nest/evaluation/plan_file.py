"""A plan read back from its file, as written or as edited, and priced from the file alone.

Files of all minor versions of a plan are read; fields that this version does not know are ignored.

Read are: `stages` (layers, devices, degrees, ZeRO, recompute), `parallelism` (outer_dp,
micro_batch, stride, vpp, schedule, group, order, offload), `replicas` and `inputs`. Prices are
derived from these: a file may omit them, their types are checked, and their values are ignored.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from nest.errors import InputError
from nest.evaluation.plans import (
    SCHEMA,
    SCHEMAS,
    Alternative,
    BetterBatch,
    Inputs,
    Plan,
    SearchReport,
    Stage,
)
from nest.evaluation.problems import told
from nest.inputs.base import (
    Degree,
    Description,
    Flag,
    FrozenDict,
    Number,
    Whole,
    Written,
    at_most,
)
from nest.inputs.choices import ChosenValues
from nest.inputs.configuration import Configuration, Index, StageConfiguration
from nest.inputs.files import SUFFIXES, read_description
from nest.inputs.offload import OffloadText
from nest.schedules.registry import Schedule
from nest.units import shorten

Source = str | os.PathLike[str] | Mapping[str, Any]
Positive = Annotated[Number, Field(gt=0.0)]
_GIVEN = ("parallelism", "stages", "replicas", "inputs")
_PRICED = {name: field for name, field in Stage.model_fields.items()
           if name not in StageConfiguration.model_fields}


def _optional(name: str, fields: Mapping[str, FieldInfo], **others: Any) -> type[Written]:
    """A class of some fields that may all be missing, to check those that are there."""
    checked: dict[str, Any] = {
        key: (field.annotation, FieldInfo.merge_field_infos(field, default=None))
        for key, field in fields.items()}
    found: type[Written] = create_model(name, __base__=Written, **checked, **others)
    return found


_DERIVED = _optional(
    "Plan", {name: field for name, field in Plan.model_fields.items() if name not in _GIVEN},
    stages=(tuple[_optional("Stage", _PRICED), ...], ()))  # type: ignore[misc]
"""What a plan file may say of prices."""
SAME = 1e-9
"""Relative difference of step times below which a plan counts as unchanged."""


class GivenParallelism(Description):
    """Fields of a plan file about all stages; the last four follow from the rest."""

    outer_dp: Degree = Field(1, description="replicas of the super-pipeline")
    micro_batch: Degree = Field(description="samples that a super-pipeline takes at once")
    stride: Degree | None = Field(
        None, description="devices from one replica's first device to the next one's"
    )
    vpp: Degree = Field(1, description="virtual stages per device")
    schedule: Schedule | None = None
    group: Degree | None = None
    order: Annotated[tuple[Index, ...], at_most(10**4)] | None = None
    offload: OffloadText = "none"
    choices: ChosenValues = Field(default_factory=FrozenDict)
    global_batch: Whole | None = None
    pp: Whole | None = None
    micro_batches: Whole | None = None
    devices_used: Whole | None = None


class GivenPlan(Description):
    """A plan file without its prices."""

    parallelism: GivenParallelism = Field(description="properties that all stages share")
    stages: Annotated[
        tuple[StageConfiguration, ...], Field(min_length=1, max_length=10**4), at_most(10**4)
    ] = Field(description="stages, the first of the pipeline first")
    replicas: Annotated[tuple[Index, ...], at_most(10**6)] | None = Field(
        None, description="first device of every super-pipeline"
    )
    inputs: Inputs = Field(description="model or profile, cluster and job")


class Searched(Description):
    """Fields of a plan file about its search."""

    step_time_s: Positive = Field(description="seconds of a training step")
    optimal: Flag = Field(False, description="no plan of search.space is faster")
    lower_bound_s: Positive | None = None
    gap: Number | None = None
    alternatives: tuple[Alternative, ...] = ()
    alternatives_proved: Flag = True
    better_batch: BetterBatch | None = None
    search: SearchReport = Field(description="statistics of the search")


def looks_like_file(text: str) -> bool:
    """Whether a word names a file rather than a catalog entry."""
    try:
        return text.lower().endswith(SUFFIXES) or os.sep in text or os.path.exists(text)
    except (ValueError, OSError):
        return False


def load_plan(source: str | os.PathLike[str] | Mapping[str, Any] | Plan) -> Plan:
    """Read a plan from a file or plain data, and price it again.

    Parameters
    ----------
    source : path, mapping, or a Plan, which is returned unchanged.

    Returns
    -------
    Plan
        With ``search`` and what follows from it unless the plan was edited since. Fields that are
        ignored, and derived figures that no longer hold, are warnings (``UserWarning``).

    Raises
    ------
    InputError : no plan, a field that is not allowed, or the plan is not legal.
    """
    if isinstance(source, Plan):
        return source
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise InputError(f"plan: got {shorten(source)}; allowed: a path or a mapping")
    plan, notes = reread(source)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return plan


def reprice(path: str) -> tuple[Plan, tuple[str, ...]]:
    """Price the plan of a file again.

    Returns
    -------
    The plan, and notes on derived figures of the file that no longer hold.

    Raises
    ------
    InputError : the file is no plan, a field is not allowed, or the plan is not legal.
    """
    plan, _, notes = _repriced(path)
    return plan, notes


def reread(source: Source) -> tuple[Plan, tuple[str, ...]]:
    """Price a plan again, and keep the results of its search if they still hold.

    Returns
    -------
    The plan, with ``search`` and what follows from it unless the file was edited since, and notes.

    Raises
    ------
    InputError : as `reprice`.
    """
    plan, found, notes = _repriced(source)
    where = _where(source)
    if found is None:
        return plan, notes
    if abs(found.step_time_s - plan.step_time_s) > SAME * plan.step_time_s:
        note = (f"{where}: step_time_s: {found.step_time_s:.6g} in the file, "
                f"{plan.step_time_s:.6g} by its stages: edited, so its search says nothing of it")
        return plan, (*notes, note)
    kept = {name: getattr(found, name) for name in Searched.model_fields}
    return plan.model_copy(update=kept), notes


def _where(source: Source) -> str:
    return "plan" if isinstance(source, Mapping) else shorten(os.fspath(source), 300)[1:-1]


def _repriced(source: Source) -> tuple[Plan, Searched | None, tuple[str, ...]]:
    """The plan of a file, what the file says of its search, and notes."""
    from nest.evaluation.evaluate import evaluate

    where = _where(source)
    data = dict(source) if isinstance(source, Mapping) else read_description(source)
    given, ignored = _read(data, where)
    found = None
    if data.get("search") is not None:
        found, more = Searched.parse_known(
            {name: data[name] for name in Searched.model_fields if name in data}, where)
        ignored += more
    inputs = given.inputs
    subject = inputs.model or inputs.profile
    if subject is None or (inputs.model is not None and inputs.profile is not None):
        count = "neither" if subject is None else "both"
        raise InputError(f"{where}: inputs: got {count} of model and profile; allowed: one of them")
    with told(where):
        plan = evaluate(subject, inputs.cluster, inputs.job, _configuration(given))
    stale = (f"{where}: {note}" for note in _stale(given.parallelism, plan))
    return plan, found, (*ignored, *stale)


def _read(data: dict[str, Any], where: str) -> tuple[GivenPlan, tuple[str, ...]]:
    found = data.get("schema")
    if not (isinstance(found, str) and re.fullmatch(SCHEMAS, found)):
        got = "missing" if "schema" not in data else f"got {shorten(found)}"
        raise InputError(f'{where}: schema: {got}; allowed: "{SCHEMA}" or another minor version, a '
                         "plan as `nest plan -o` writes it")
    _DERIVED.parse(data, where)
    derived = {field.alias or name for name, field in Plan.model_fields.items()} - set(_GIVEN)
    kept = {name: value for name, value in data.items() if name not in derived}
    job = isinstance(kept.get("inputs"), dict) and kept["inputs"].get("job")
    if isinstance(job, dict):  # plans made before there was a margin have none
        kept["inputs"] = {**kept["inputs"], "job": {"memory_margin": 0.0, **job}}
    if isinstance(kept.get("stages"), list):
        kept["stages"] = [_stage(stage) if isinstance(stage, dict) else stage
                          for stage in kept["stages"]]
    return GivenPlan.parse_known(kept, where)


def _stage(data: dict[str, Any]) -> dict[str, Any]:
    """A stage without its prices and without fields that follow from others."""
    kept = {name: value for name, value in data.items() if name not in _PRICED}
    chunks = kept.get("chunks")
    if isinstance(chunks, list) and len(chunks) == 1:  # the layers
        del kept["chunks"]
    if kept.get("recompute_modules") == []:  # then the default of the policy
        del kept["recompute_modules"]
    return kept


def _configuration(given: GivenPlan) -> Configuration:
    """The configuration to price; replicas and stride must agree."""
    p = given.parallelism
    job_batch = given.inputs.job.global_batch
    if p.global_batch is not None and p.global_batch != job_batch:
        raise InputError(f"parallelism.global_batch: got {p.global_batch}; allowed: {job_batch}, "
                         "as inputs.job.global_batch (edit that, too)")
    stride = p.stride
    starts = given.replicas
    if starts is not None:
        if stride is None and len(starts) > 1:
            stride = starts[1] - starts[0]
        _check_replicas(starts, p.outer_dp, stride)
    data: dict[str, Any] = {"outer_dp": p.outer_dp, "micro_batch": p.micro_batch, "vpp": p.vpp,
                            "group": p.group, "order": p.order, "offload": p.offload,
                            "choices": p.choices,
                            "stages": given.stages}
    data |= {name: value for name, value in (("stride", stride), ("schedule", p.schedule))
             if value is not None}
    return Configuration.parse(data, "parallelism")


def _check_replicas(starts: tuple[int, ...], outer_dp: int, stride: int | None) -> None:
    if len(starts) != outer_dp:
        raise InputError(f"replicas: got {len(starts)} first devices; allowed: {outer_dp}, as "
                         "parallelism.outer_dp (or leave replicas out)")
    for number, start in enumerate(starts):
        wanted = number * (stride or 0)
        if start != wanted:
            raise InputError(f"replicas.{number}: got {start}; allowed: {wanted}, because replicas "
                             f"start at multiples of stride {stride} (or leave replicas out)")


def _stale(p: GivenParallelism, plan: Plan) -> list[str]:
    """Derived figures of the file that differ from the priced plan."""
    return [
        f"parallelism.{name}: {given} in the file, {now} by its stages, which counts"
        for name in ("pp", "micro_batches", "devices_used")
        if (given := getattr(p, name)) is not None
        and given != (now := getattr(plan.parallelism, name))
    ]

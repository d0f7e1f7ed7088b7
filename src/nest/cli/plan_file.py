"""A plan read back from its file, as written or as edited, and priced from the file alone.

What counts: `stages` (layers, devices, degrees, ZeRO, recompute), `parallelism` (outer_dp,
micro_batch, stride), `replicas` and `inputs`. Prices are derived, and so ignored.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field

from nest.cli.problems import told
from nest.describe.base import Degree, Description, Whole, at_most
from nest.describe.configuration import Configuration, Index, StageConfiguration
from nest.describe.files import SUFFIXES, read_description
from nest.errors import InputError
from nest.plans import Inputs, Plan, Stage
from nest.units import shorten

SCHEMA = "nest.plan/1"
_GIVEN = ("parallelism", "stages", "replicas", "inputs")


class GivenParallelism(Description):
    """What a plan file says of all stages; the last four follow from the rest."""

    outer_dp: Degree = Field(1, description="replicas of the super-pipeline")
    micro_batch: Degree = Field(description="samples that a super-pipeline takes at once")
    stride: Degree | None = Field(
        None, description="devices from one replica's first device to the next one's"
    )
    vpp: Degree = 1
    schedule: str = "1f1b"
    global_batch: Whole | None = None
    pp: Whole | None = None
    micro_batches: Whole | None = None
    devices_used: Whole | None = None


class GivenPlan(Description):
    """A plan file without its prices."""

    parallelism: GivenParallelism = Field(description="what is the same for all stages")
    stages: Annotated[
        tuple[StageConfiguration, ...], Field(min_length=1, max_length=10**4), at_most(10**4)
    ] = Field(description="stages, the first of the pipeline first")
    replicas: Annotated[tuple[Index, ...], at_most(10**6)] | None = Field(
        None, description="first device of every super-pipeline"
    )
    inputs: Inputs = Field(description="model or profile, cluster and job")


def looks_like_file(text: str) -> bool:
    """Whether a word names a file rather than a catalog entry."""
    try:
        return text.lower().endswith(SUFFIXES) or os.sep in text or os.path.exists(text)
    except (ValueError, OSError):
        return False


def reprice(path: str) -> tuple[Plan, tuple[str, ...]]:
    """Price the plan of a file again.

    Returns
    -------
    The plan, and notes on derived figures of the file that no longer hold.

    Raises
    ------
    InputError : the file is no plan, a field is unknown or not allowed, or the plan is not legal.
    """
    from nest.evaluation import evaluate

    data = read_description(path)
    where = shorten(path, 300)[1:-1]
    given = _read(data, where)
    inputs = given.inputs
    subject = inputs.model or inputs.profile
    if subject is None or (inputs.model is not None and inputs.profile is not None):
        count = "neither" if subject is None else "both"
        raise InputError(f"{where}: inputs: got {count} of model and profile; allowed: one of them")
    with told(where):
        plan = evaluate(subject, inputs.cluster, inputs.job, _configuration(given))
    return plan, tuple(f"{where}: {note}" for note in _stale(given.parallelism, plan))


def _read(data: dict[str, Any], where: str) -> GivenPlan:
    found = data.get("schema")
    if found != SCHEMA:
        got = "missing" if "schema" not in data else f"got {shorten(found)}"
        raise InputError(f'{where}: schema: {got}; allowed: "{SCHEMA}", a plan as `nest plan -o` '
                         "writes it")
    derived = {field.alias or name for name, field in Plan.model_fields.items()} - set(_GIVEN)
    kept = {name: value for name, value in data.items() if name not in derived}
    priced = set(Stage.model_fields) - set(StageConfiguration.model_fields)
    if isinstance(kept.get("stages"), list):
        kept["stages"] = [
            {name: value for name, value in stage.items() if name not in priced}
            if isinstance(stage, dict) else stage for stage in kept["stages"]
        ]
    return GivenPlan.parse(kept, where)


def _configuration(given: GivenPlan) -> Configuration:
    """What is to be priced; replicas and stride have to agree."""
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
                            "schedule": p.schedule, "stages": given.stages}
    if stride is not None:
        data["stride"] = stride
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
    """Derived figures of the file that the priced plan does not have."""
    return [
        f"parallelism.{name}: {given} in the file, {now} by its stages, which counts"
        for name in ("pp", "micro_batches", "devices_used")
        if (given := getattr(p, name)) is not None
        and given != (now := getattr(plan.parallelism, name))
    ]

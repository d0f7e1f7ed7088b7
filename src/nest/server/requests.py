"""Requests besides questions, as documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WrapValidator

from nest.inputs import Cluster, SearchSpace
from nest.inputs.base import Description, Flag, at_most
from nest.questions.network import cluster_of
from nest.questions.question import Id

Part = Annotated[str, Field(max_length=10_000)]


Address = Literal["plan", "evaluate", "compare", "replan"]
MOST_BATCH = 1000
"""Questions of one request (chosen)."""


class Submission(Description):
    """A question that nobody waits for."""

    to: Address = Field("plan", description="what is asked: the last part of /v1/plan or another")
    question: dict[str, Any] = Field(description="what that address takes")


class Batch(Description):
    """Several questions of one kind."""

    to: Address = Field("plan", description="what is asked: the last part of /v1/plan or another")
    questions: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=MOST_BATCH),
                         at_most(MOST_BATCH)] = Field(description="what that address takes, each")


class ReplanRequest(Description):
    """What :func:`nest.replan` is asked."""

    id: Id | None = Field(None, description="comes back with the answer")
    plan: dict[str, Any] = Field(description="the plan that runs, a plan document")
    without: Annotated[tuple[Part, ...], at_most(10_000)] = Field(
        description="what is lost, such as node17 or node3..5")
    cluster: Annotated[
        Cluster, WrapValidator(cluster_of, json_schema_input_type=Cluster | str | dict[str, Any])
    ] | None = Field(
        None, description="the whole cluster, as of a question, where devices have returned; null: "
        "that of the plan")
    space: SearchSpace = Field(default_factory=SearchSpace, description="bounds of the new plan")
    beyond_stack: Flag = Field(False, description="also what the job's stack cannot run")

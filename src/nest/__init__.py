"""NEST plans how to split the training of a model over a cluster: exactly, and in about a second.

>>> import nest
>>> model = nest.load_model("llama3-70b")
>>> cluster = nest.load_cluster("h100-spine-leaf", devices=1024)
>>> job = nest.Job(global_batch=4096, seq_len=4096)
>>> plan = nest.plan(model, cluster, job)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from nest import texts

__version__ = "0.2.0"

__all__ = [
    "Cluster",
    "Configuration",
    "Device",
    "Diagnosis",
    "Failures",
    "Goodput",
    "Improvement",
    "InfeasibleError",
    "InputError",
    "Job",
    "KernelError",
    "Level",
    "LimitError",
    "Model",
    "NestError",
    "NoPlanError",
    "OutputError",
    "Plan",
    "Planner",
    "Profile",
    "Reading",
    "Replan",
    "SearchSpace",
    "Simulation",
    "Stack",
    "StageConfiguration",
    "UnsupportedError",
    "diagnose",
    "evaluate",
    "explain",
    "export",
    "from_torch",
    "goodput",
    "improve",
    "learn",
    "list_clusters",
    "list_devices",
    "list_models",
    "list_stacks",
    "load_cluster",
    "load_configuration",
    "load_graph",
    "load_job",
    "load_learned",
    "load_model",
    "load_network",
    "load_plan",
    "load_profile",
    "load_space",
    "load_study",
    "plan",
    "plan_batches",
    "read",
    "replan",
    "simulate",
    "sweep",
]

# Modules of the names that are not descriptions. They are imported when first used, which keeps
# `nest --help` fast.
_HOME = {
    "Planner": "api",
    "plan": "api",
    "plan_batches": "api",
    "evaluate": "evaluation.evaluate",
    "diagnose": "measured.diagnosis",
    "explain": "explanation.explanation",
    "export": "frameworks.targets",
    "from_torch": "model.capture",
    "load_graph": "model.capture",
    "improve": "frameworks.improving",
    "Improvement": "frameworks.improvement",
    "Diagnosis": "measured.diagnosis",
    "learn": "measured.learning",
    "load_learned": "measured.learning",
    "read": "frameworks.reader",
    "Reading": "frameworks.megatron.script",
    "goodput": "replanning.goodput",
    "replan": "replanning.replan",
    "simulate": "simulation",
    "sweep": "studies.sweep",
    "load_study": "studies.sweep",
    **dict.fromkeys((name for name in __all__ if name.startswith("list_")), "inputs.catalog"),
    "load_network": "network.network",
    "load_plan": "evaluation.plan_file",
    "Plan": "evaluation.plans",
    "Goodput": "replanning.goodput",
    "Replan": "replanning.replan",
    "Simulation": "simulation",
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "errors"),
}

if TYPE_CHECKING:
    from nest.api import Planner, plan, plan_batches
    from nest.errors import (
        InfeasibleError,
        InputError,
        KernelError,
        LimitError,
        NestError,
        NoPlanError,
        OutputError,
        UnsupportedError,
    )
    from nest.evaluation.evaluate import evaluate
    from nest.evaluation.plan_file import load_plan
    from nest.evaluation.plans import Plan
    from nest.explanation.explanation import explain
    from nest.frameworks.improvement import Improvement
    from nest.frameworks.improving import improve
    from nest.frameworks.megatron.script import Reading
    from nest.frameworks.reader import read
    from nest.frameworks.targets import export
    from nest.inputs import (
        Cluster,
        Configuration,
        Device,
        Failures,
        Job,
        Level,
        Model,
        Profile,
        SearchSpace,
        Stack,
        StageConfiguration,
        load_cluster,
        load_configuration,
        load_job,
        load_model,
        load_profile,
        load_space,
    )
    from nest.inputs.catalog import list_clusters, list_devices, list_models, list_stacks
    from nest.measured.diagnosis import Diagnosis, diagnose
    from nest.measured.learning import learn, load_learned
    from nest.measured.logs import RunLog
    from nest.model.capture import from_torch, load_graph
    from nest.network.network import load_network
    from nest.replanning.goodput import Goodput, goodput
    from nest.replanning.replan import Replan, replan
    from nest.report.page import PageOptions
    from nest.simulation import Simulation, simulate
    from nest.studies.sweep import load_study, sweep


def _plan_report(
    plan: Plan, details: bool = False, **page: Unpack[PageOptions]
) -> str:
    from nest.report.plan_text import plan_text
    from nest.report.summary_text import summary_text
    from nest.simulation.step import short_step_time

    write = plan_text if details else summary_text
    return write(plan, short_step_time(plan), **page)


def _plan_page(plan: Plan, framed: bool) -> str | None:
    from nest.frameworks.targets import launch_files
    from nest.report.web.document import facts, plan_document
    from nest.report.web.pages import frame, page
    from nest.simulation.step import is_short

    if framed and not is_short(plan):
        return None
    document = plan_document(plan, facts(plan), launch=launch_files(plan)).data()
    return frame(document) if framed else page(document)


def _plan_pair(plan: Plan, other: Plan) -> texts.HtmlReport:
    from nest.report.web.compared import pair_document
    from nest.report.web.document import facts, plan_document
    from nest.report.web.pages import frame, page

    document = pair_document((plan, other), (plan_document(plan, facts(plan)),
                                             plan_document(other, facts(other))),
                             ("first plan", "second plan")).data()
    return texts.HtmlReport(page(document), frame(document))


def _diagnosis_page(found: Diagnosis, framed: bool) -> str:
    from nest.report.web.diagnosed import diagnosis_document
    from nest.report.web.pages import frame, page

    return (frame if framed else page)(diagnosis_document(found, "the run"))


def _replan_report(found: Replan, **page: Unpack[PageOptions]) -> str:
    from nest.report.replan_text import replan_text

    return replan_text(found, **page)


def _goodput_report(found: Goodput, **page: Unpack[PageOptions]) -> str:
    from nest.report.goodput_text import goodput_text

    return goodput_text(found, **page)


def _diagnosis_report(found: Diagnosis, **page: Unpack[PageOptions]) -> str:
    from nest.report.diagnosis_text import diagnosis_text

    return diagnosis_text(found, **page)


def _improvement_report(found: Improvement, **page: Unpack[PageOptions]) -> str:
    from nest.frameworks.improving import improvement_text

    return improvement_text(found, **page)


def _job_of(log: RunLog) -> Reading:
    from nest.frameworks.logs import settings_of

    return settings_of(log)


texts.PAGES.update(Plan=_plan_page, Diagnosis=_diagnosis_page)
texts.PAIRS.update(Plan=_plan_pair)
texts.JOBS.update(RunLog=_job_of)
texts.REPORTS.update(
    Plan=_plan_report, Replan=_replan_report, Goodput=_goodput_report,
    Improvement=_improvement_report, Diagnosis=_diagnosis_report)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'nest' has no attribute {name!r}")
    value = getattr(import_module(f"nest.{_HOME.get(name, 'inputs')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

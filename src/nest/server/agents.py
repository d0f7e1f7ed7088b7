"""`nest mcp`: the planner as tools of the Model Context Protocol, for assistants.

Tools take and give NEST's own documents. A plan stays on the server under a short name, which
other tools take, because its document is long; `document` gives it whole. No tool reads a file or
starts a process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from nest import __version__
from nest.api import Planner
from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs.arguments import need_count
from nest.inputs.configuration import Configuration
from nest.questions import failure, read_question

MOST = 64
"""Plans that are kept; the oldest goes first."""
SECTIONS = ("models", "clusters", "devices", "stacks")
TABLE = 8 * 2**20
"""Characters of a table or a log."""
INSTRUCTIONS = """\
NEST finds the fastest legal way to split a training job over a cluster, and proves it. Start with
`plan`. A question needs model, cluster and job, as in {"schema": "nest.question/1.0", "model":
"llama3-70b", "cluster": {"base": "dgx-h100", "devices": 64}, "job": {"global_batch": 512,
"seq_len": 8192}}; `catalog` lists names, `schema` gives every field. Bounds go into "space", as in
{"tp": [8], "pp": [1, 2, 4]}. Say how sure a price is: quote the lines Evidence and Expected."""


class Tools:
    """What assistants may call; each method is a tool, its docstring its description."""

    def __init__(
        self, schema_of: Callable[[str], dict[str, Any]], threads: int | None = None
    ) -> None:
        self._planner, self._threads, self._schema_of = Planner(), threads, schema_of
        self._plans: dict[str, Plan] = {}
        self._made = 0

    def plan(self, question: dict[str, Any]) -> dict[str, Any]:
        """Find the fastest plan that fits, with a proof. Gives its name and its report."""
        asked, notes = read_question(question)
        return self._kept(self._planner.answer(asked, self._threads), notes)

    def evaluate(self, question: dict[str, Any], configuration: dict[str, Any]) -> dict[str, Any]:
        """Price one configuration (schema: configuration) of a question, and say why it is illegal.
        """
        from nest.evaluation.evaluate import evaluate

        asked, notes = read_question(question)
        way = Configuration.parse(configuration, "configuration")
        return self._kept(evaluate(asked.subject, asked.cluster, asked.job, way), notes)

    def explain(self, plan: str) -> str:
        """What limits a plan: the effect of 1 % more memory, FLOP/s or bandwidth, and what simpler
        plans lose."""
        from nest.explanation.explanation import explain
        from nest.report.explanation_text import explanation_text

        found = self._plan(plan)
        return explanation_text(found, explain(found, threads=self._threads))

    def compare(self, question: dict[str, Any], planners: list[str] | None = None) -> str:
        """Compare NEST with other planners, such as ["nest", "manual", "alpa"]; default: all."""
        from nest.planners.compare import compare
        from nest.report.comparison_text import comparison_text

        asked = read_question(question)[0]
        return comparison_text(
            compare(asked.subject, asked.cluster, asked.job, asked.space, planners),
            f"{asked.subject.name} on {asked.cluster.name}")

    def document(self, plan: str) -> dict[str, Any]:
        """A plan as its whole JSON document (schema: plan), for a file."""
        return self._plan(plan).model_dump(mode="json", by_alias=True)

    def launch_files(self, plan: str, target: str, launcher: str = "torchrun") -> dict[str, str]:
        """The files that launch a plan, by name; target: megatron, megatron-bridge, torchtitan,
        deepspeed, fsdp2, maxtext; launcher: torchrun, deepspeed, mpi, slurm."""
        from nest.frameworks.targets import export

        return {name: str(text) for name, text in export(
            self._plan(plan), target, launcher=launcher).items()}

    def learn(self, runs: str) -> dict[str, Any]:
        """Learn from measured runs: the text of a table of runs (.csv, docs/accuracy.md), in which
        a row without a step time ran out of memory. Gives a document for `next_runs`."""
        from nest.measured.learning import learn
        from nest.report.learning_text import learned_text

        found = _from_file("runs.csv", runs, lambda path: learn([path]))
        return {"report": learned_text(found),
                "learned": found.as_data()}

    def next_runs(
        self, question: dict[str, Any], learned: dict[str, Any], runs: int = 1,
    ) -> dict[str, Any]:
        """What to run next after what was learned; the plans are kept."""
        from nest.measured.learning import Learned, following
        from nest.measured.learning.following import CANDIDATES, candidates
        from nest.report.learning_text import next_text

        need_count("runs", runs)
        known = Learned.parse(learned, "learned")
        asked = read_question(question)[0]
        job = asked.job.replace(stack=known.taught(), memory_margin=0.0)
        best = self._planner.answer(
            asked.model_copy(update={"job": job, "top": CANDIDATES}), self._threads)
        plans, points = candidates(best, known)
        found = following(known.observations, points, runs)
        return {"report": next_text(found, plans, None),
                "plans": [self._kept(plans[one.number])["plan"] for one in found]}

    def diagnose(self, plan: str, log: str) -> str:
        """Why a run of a plan is slower, or holds more memory, than priced: the text of its log."""
        from nest.measured.diagnosis import diagnose
        from nest.report.diagnosis_text import diagnosis_text

        return str(_from_file(
            "train.log", log, lambda path: diagnosis_text(diagnose(self._plan(plan), path))))

    def catalog(self, section: str) -> list[dict[str, Any]]:
        """Names that questions may use: models, clusters, devices, stacks."""
        from nest.report.catalog_text import catalog_rows

        if section not in SECTIONS:
            raise InputError(f"section: got {section[:60]!r}; allowed: {', '.join(SECTIONS)}")
        return catalog_rows(section)  # type: ignore[arg-type]

    def schema(self, name: str) -> dict[str, Any]:
        """JSON Schema of a document: question, model, cluster, job, space, configuration, plan."""
        return self._schema_of(name)

    def _kept(self, plan: Plan, notes: Sequence[str] = ()) -> dict[str, Any]:
        self._made += 1
        name = f"plan-{self._made}"
        self._plans[name] = plan
        while len(self._plans) > MOST:
            del self._plans[next(iter(self._plans))]
        return {"plan": name, "step_time_s": plan.step_time_s, "feasible": plan.feasible,
                "runnable": plan.runnable, "optimal": plan.optimal, "report": plan.report(),
                "notes": list(notes)}

    def _plan(self, name: str) -> Plan:
        if name not in self._plans:
            raise InputError(f"plan: got {name[:60]!r}; allowed: {', '.join(self._plans) or 'none'}"
                             " (made by plan, evaluate or next_runs)")
        return self._plans[name]


def _from_file(name: str, text: str, read: Callable[[str], Any]) -> Any:
    """What a reader of files makes of a text; messages name the file alone."""
    if len(text) > TABLE:
        raise InputError(f"{name}: got {len(text):,} characters; allowed: {TABLE:,}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        try:
            found = read(str(path))
            return found.replace(f"{folder}/", "") if isinstance(found, str) else found
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", "")) from None


def tools(own: Tools) -> dict[str, Callable[..., Any]]:
    """The tools by name."""
    return {name: getattr(own, name) for name in vars(Tools) if not name.startswith("_")}


def server(
    schema_of: Callable[[str], dict[str, Any]], threads: int | None = None
) -> Any:
    """A server of the protocol with the tools of one :class:`Tools`.

    Parameters
    ----------
    schema_of : JSON Schema of a document by its name; raises InputError for another.
    threads : of each search; None: all processors.

    Raises
    ------
    InputError : the package of the protocol is not installed.
    """
    try:
        protocol = import_module("mcp.server")
        exceptions = import_module("mcp.server.mcpserver.exceptions")
    except ImportError:
        raise InputError("mcp: the package mcp is not installed; it comes with: pip install "
                         "'nest-planner[mcp]'") from None
    found = protocol.MCPServer("nest", version=__version__, instructions=INSTRUCTIONS,
                               log_level="WARNING")
    for name, call in tools(Tools(schema_of, threads)).items():
        found.add_tool(_guarded(call, exceptions.ToolError), name=name, structured_output=False)
    return found


def _guarded(call: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """A tool whose errors are documents (nest.error/1), and whose results are JSON or text."""
    import functools

    @functools.wraps(call)
    def guarded(**given: Any) -> str:
        try:
            found = call(**given)
        except Exception as problem:
            raise error(failure(problem).to_json()) from None
        return found if isinstance(found, str) else json.dumps(found)

    return guarded

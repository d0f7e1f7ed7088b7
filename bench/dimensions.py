"""Print what the best plan loses when one dimension of the space is taken away, as Markdown.

    python bench/dimensions.py [SUBSTRING] > table.md

One table a cluster, and one of questions in which some dimension matters by nature. Each entry is
a search of its own over the whole space without the dimension; where the best plan does not use
it, that plan stays the best and nothing is searched. Progress goes to standard error.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from cases import SEQUENCE, SEQUENCES_PER_DEVICE, aligned

import nest
from nest.evaluation.evaluate import chain_of
from nest.inputs import Configuration, SearchSpace, StageConfiguration, load_stack
from nest.inputs.job import DEFAULT_STACK
from nest.inputs.space import LARGEST
from nest.model import Chain
from nest.search import compiled
from nest.search.branch_and_bound import search_one
from nest.search.query import Query
from nest.search.solution import SearchResult

CLUSTERS = (("h100-spine-leaf", 1024), ("dgx-h100", 512), ("gb200-nvl72", 576))
DIMENSIONS: dict[str, dict[str, Any]] = {
    "outer_dp 1": {"outer_dp": 1},
    "dp_in 1": {"dp_in": 1},
    "tp 1": {"tp": 1},
    "no sp": {"sp": False},
    "cp 1": {"cp": 1},
    "no all-to-all for cp": {"cp_comm": "p2p"},
    "ep 1": {"ep": 1},
    "etp 1": {"etp": 1},
    "pp 1": {"pp": 1},
    "vpp 1": {"vpp": 1},
    "mbs 1": {"mbs": 1},
    "zero 0": {"zero": 0},
    "no HSDP": {"shard": "dp"},
    "no recompute": {"recompute": "none"},
    "no selective": {"recompute": ["none", "full"]},
    "core_attn only": {"recompute_modules": "core_attn"},
    "no full": {"recompute": ["none", "selective"]},
    "all layers or none": {"recompute_layers": LARGEST},
}
"""What is taken away, and the space that is left."""
EXPERTS = ("ep 1", "etp 1")


class Question(NamedTuple):
    """What is planned: bf16 with Adam."""

    model: str
    cluster: str
    devices: int
    sequences: int
    seq_len: int
    stack: str = DEFAULT_STACK

    def __str__(self) -> str:
        text = (f"{self.model}, {self.devices:,} devices of {self.cluster}, "
                f"{self.sequences:,} x {self.seq_len:,} tokens")
        return text if self.stack == DEFAULT_STACK else f"{text}, {self.stack}"

    def best(self, space: SearchSpace) -> SearchResult:
        """Best plan of a space."""
        cluster = nest.load_cluster(self.cluster, devices=self.devices)
        job = nest.Job(global_batch=self.sequences, seq_len=self.seq_len,
                       stack=load_stack(self.stack).replace(capabilities=None),
                       memory_margin=0.0)
        return search_one(Query(self.chain(), cluster, job, space, beyond_stack=True))

    def chain(self) -> Chain:
        """Layers of the model."""
        return chain_of(nest.load_model(self.model))


BY_NATURE = {
    "long": Question("llama3.1-8b", "dgx-h100", 256, 32, 131072),
    "long, tight": Question("llama3.1-8b", "dgx-h100", 8, 8, 131072),
    "long, MoE": Question("mixtral-8x7b", "dgx-h100", 16, 16, 32768),
    "exposed ring": Question("llama2-7b", "dgx-h100", 64, 32, 32768, "vtrain"),
    "unfused attention": Question("gpt3-175b", "dgx-a100", 64, 64, 2048, "megatron-2021"),
    "small batch": Question("llama3-8b", "dgx-h100", 512, 512, 2048, "fsdp"),
    "one sequence": Question("mixtral-8x7b", "dgx-h100", 16, 1, 4096),
}
"""Questions in which some dimension matters by nature; vtrain and megatron-2021 hide nothing."""


def inside(plan: Configuration, space: SearchSpace) -> bool:
    """Whether a space without a dimension still holds a plan of the whole space."""
    return all((
        space.allows("outer_dp", plan.outer_dp), space.allows("pp", len(plan.stages)),
        space.allows("vpp", plan.vpp),
        *(space.allows(name, getattr(stage, name)) for stage in plan.stages
          for name in ("dp_in", "tp", "cp", "ep", "etp", "zero", "recompute")),
        *(space.allows("mbs", plan.micro_batch // stage.dp_in)
          and (stage.tp == 1 or space.allows("sp", stage.sp))
          and (stage.cp == 1 or space.allows("cp_comm", stage.cp_comm))
          and (stage.zero == 0 or space.allows("shard", stage.shard))
          and (stage.recompute != "selective"
               or space.allows("recompute_modules", "+".join(stage.recompute_modules)))
          and (stage.recompute_layers is None
               or space.allows("recompute_layers", stage.recompute_layers))
          for stage in plan.stages),
    ))


def shape(plan: Configuration, experts: bool) -> str:
    """Degrees of a plan in one line; where stages differ, from the least to the most."""
    def spread(name: str) -> str:
        values = sorted({getattr(stage, name) for stage in plan.stages})
        return f"{values[0]}" if len(values) == 1 else f"{values[0]}..{values[-1]}"

    parts = {"outer_dp": f"{plan.outer_dp}", "pp": f"{len(plan.stages)}", "vpp": f"{plan.vpp}",
             "micro_batch": f"{plan.micro_batch}"}
    degrees = ("dp_in", "tp", "cp", "ep", "etp") if experts else ("dp_in", "tp", "cp")
    parts |= {name: spread(name) for name in degrees}
    parts = {name: value for name, value in parts.items() if value != "1"}
    recompute = sorted({_recompute(stage) for stage in plan.stages})
    return ", ".join([*(f"{name} {value}" for name, value in parts.items()),
                      f"zero {spread('zero')}", "recompute " + " or ".join(recompute)])


def _recompute(stage: StageConfiguration) -> str:
    """What a stage computes again."""
    if stage.recompute == "selective":
        return "+".join(stage.recompute_modules)
    layers = stage.recompute_layers
    return stage.recompute if layers is None else f"full on {layers} layers"


def losses(question: Question) -> tuple[SearchResult, dict[str, str]]:
    """The best plan, and what it loses without each dimension."""
    started = time.perf_counter()
    whole = question.best(SearchSpace())
    entries = {}
    for name, change in DIMENSIONS.items():
        space = SearchSpace.parse(change)
        if name in EXPERTS and question.chain().experts is None:
            entries[name] = ""
        elif whole.configuration is None:
            entries[name] = "does not fit"
        elif inside(whole.configuration, space):
            entries[name] = "."
        else:
            found = question.best(space)
            lost = 100.0 * (found.step_time / whole.step_time - 1.0)
            entries[name] = f"{lost:.1f}" if found.configuration else "does not fit"
    print(f"{question}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return whole, entries


def print_table(title: str, questions: dict[str, Question]) -> None:
    """One column a question, one row a dimension."""
    if not questions:
        return
    columns = [(head, *losses(question)) for head, question in questions.items()]
    print(f"## {title}\n")
    print(aligned([
        ("", *(head for head, _, _ in columns)),
        ("step, s", *(f"{whole.step_time:.4g}" for _, whole, _ in columns)),
        *((name, *(entries[name] for _, _, entries in columns)) for name in DIMENSIONS)]))
    print("\nBest plans:\n")
    for (head, whole, _), question in zip(columns, questions.values(), strict=True):
        plan = "does not fit"
        if whole.configuration is not None:
            plan = shape(whole.configuration, question.chain().experts is not None)
            plan = plan.removesuffix(", recompute none")
        print(f"- {head if head == question.model else f'{head} ({question})'}: {plan}")
    print(flush=True)


def main() -> None:
    part = sys.argv[1] if sys.argv[1:] else ""
    compiled.load()
    tables = {
        f"{cluster}, {devices:,} devices": {
            model: Question(model, cluster, devices, SEQUENCES_PER_DEVICE * devices, seq_len)
            for model, seq_len in SEQUENCE.items()
        } for cluster, devices in CLUSTERS
    }
    tables["Cases that need one dimension"] = BY_NATURE
    for title, questions in tables.items():
        print_table(title, {head: q for head, q in questions.items() if part in str(q)})


if __name__ == "__main__":
    main()

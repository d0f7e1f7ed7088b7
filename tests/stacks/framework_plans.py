"""Random configurations for comparisons with the frameworks' own code, and how these are asked.

``NEST_FRAMEWORKS`` names a Python with the frameworks (``.ci/frameworks`` installs one),
``NEST_FRAMEWORK_ARGUMENTS`` a folder with a Megatron-Core that has its command line.
``NEST_FRAMEWORK_CASES``: configurations a framework.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, get_args

import nest
from nest.errors import InputError, UnsupportedError
from nest.evaluation.ranks import Rank, ranks
from nest.inputs import load_stack
from nest.inputs.capabilities import Rule
from nest.inputs.space import CpComm
from nest.model import Chain, build_chain
from nest.schedules.registry import Schedule, chunks_at
from nest.stacks import launch_needs, not_runnable
from nest.stacks.rules import applies, wrong

PYTHON = os.environ.get("NEST_FRAMEWORKS", "")
CASES = int(os.environ.get("NEST_FRAMEWORK_CASES", "100"))
LETTERS = {"embedding": "E", "head": "L", "mtp": "m"}
TARGETS = {"megatron-core": "megatron", "megatron-fsdp": "megatron", "fsdp": "fsdp2",
           "megatron-deepspeed": "deepspeed", "torchtitan-eager": "torchtitan"}
"""Targets of `nest export` by stack; default: the name of the stack."""
DRAWS = 10**5
"""Declared limit of configurations that are drawn."""
TRIES = {"deepspeed": 30, "megatron-deepspeed": 30}
"""How often a stage that no plan of its stack has is drawn again; default: never. Of plans drawn
at once for DeepSpeed one in 120 is runnable, and each costs the layers of its model."""
CHUNKS = {"1f1b": (1,), "gpipe": (1,), "zb1p": (1,), "zb-v": (2,), "dualpipev": (2,)}
"""Chunks a stage that a schedule is drawn with; default: 2 or 3."""


@cache
def server() -> subprocess.Popen[str]:
    """The frameworks' Python, which asks the judges."""
    return subprocess.Popen(
        [PYTHON, str(Path(__file__).with_name("framework_server.py"))], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})


def judged(judge: str, questions: list[Any], script: str = "framework_judge") -> list[Any]:
    """Answers of a judge of a script."""
    asked = server()
    assert asked.stdin and asked.stdout
    asked.stdin.write(json.dumps([script, judge, questions]) + "\n")
    asked.stdin.flush()
    found: list[Any] = json.loads(asked.stdout.readline())
    assert isinstance(found, list), found
    return found


class Case:
    """A random configuration of a random model, and what NEST says of it."""

    def __init__(self, rng: Random, stack: str, tries: int = 1) -> None:
        known = load_stack(stack).capabilities
        assert known is not None
        self.target = TARGETS.get(stack, stack)
        allowed = known.rules["schedule"].allowed if "schedule" in known.rules else ("1f1b",)
        self.pp = rng.choice((1, 2, 2, 3, 4))
        if stack in ("megatron-fsdp", "fsdp") and rng.random() < 0.8:
            self.pp = 1
        names = tuple(name for name in (allowed or ()) if name in get_args(Schedule)
                      and (self.pp > 1 or name == "combined"))
        self.schedule = rng.choice((*names, "1f1b"))
        self.vpp = rng.choice(CHUNKS.get(self.schedule, (2, 2, 3)))
        if self.schedule == "combined" and rng.random() < 0.3 + (self.pp == 1):
            self.vpp = 1
        elif rng.random() < 0.05:
            self.vpp = rng.choice((1, 2, 3))
        self.mtp = rng.choice((0, 0, 1, 2)) if stack.startswith("megatron") else 0
        self.behind = min(rng.choice((0, 0, 0, 1, self.pp)), self.pp * self.vpp - 1)
        self.apart = self.mtp == 2 and rng.random() < 0.1  # one m stays with L
        self.parts = self._parts(rng)
        self.model = nest.Model.parse(self._model(rng))
        for _ in range(tries):
            stage = self._stage(rng)
            if not self._ruled_out(stage, known.rules.values()):
                break
        self.micro_batches = rng.choice((1, 2, 3, 4, 5, 6, 8, 9, 12, 16))
        mbs, self.outer_dp = rng.choice((1, 1, 2)), rng.choice((1, 1, 2, 4))
        if stage["zero"] and self.outer_dp > 1 and rng.random() < 0.3:
            stage["shard"] = "dp_in"
        self.job = nest.Job(
            global_batch=self.outer_dp * stage["dp_in"] * mbs * self.micro_batches, seq_len=64,
            stack=stack, precision=rng.choice(("bf16", "bf16", "fp16", "fp8", "fp32")))
        self.block = stage["tp"] * stage["cp"] * stage["dp_in"]
        group = None
        if self.vpp > 1 and self.schedule in ("interleaved", "combined", "interleaved-zb"):
            rounds = max(1, self.micro_batches // self.pp)
            group = rng.choice((None, self.micro_batches // rounds,
                                rng.randint(1, self.micro_batches)))
        self.way = nest.Configuration.parse({
            "outer_dp": self.outer_dp, "micro_batch": stage["dp_in"] * mbs, "vpp": self.vpp,
            "schedule": self.schedule, "group": group, "stages": [
                {**stage, "layers": (chunks[0][0], chunks[-1][1]), "chunks": chunks,
                 "devices": (n * self.block, (n + 1) * self.block)}
                for n, chunks in enumerate(chunks_at(self.cuts, self.pp, self.schedule))]})

    def _parts(self, rng: Random) -> list[int]:
        """Transformer layers of each chunk, in the order of the layers."""
        size, chunks = rng.randint(1, 3), self.pp * self.vpp
        more = rng.randint(0, chunks)
        found = [size + (n < more) for n in range(chunks)]
        if rng.random() < 0.4:
            found = [rng.randint(0, 4) for _ in range(chunks)]
        if self.mtp and self.behind:  # nothing but m and L is behind the last t
            found[-self.behind:] = [0] * self.behind
        found[0] += not sum(found)
        return found

    def _model(self, rng: Random) -> dict[str, Any]:
        self.experts = rng.choice((0, 8)) if self.schedule != "combined" else rng.choice((0, 8, 8))
        mla = {"mla": {"q_rank": 64, "kv_rank": 64, "nope_dim": 32, "rope_dim": 32,
                       "value_dim": 32}} if rng.random() < 0.3 else {}
        kv_heads = 8 if mla else rng.choice((8, 8, 2))
        layers = sum(self.parts)
        moe = {"moe": {
            "experts": 8, "top_k": 2, "ffn": 64, "shared_ffn": rng.choice((0, 64)),
            "first_dense": rng.choice((0, 1)) if layers > 1 else 0}} if self.experts else {}
        return {
            "name": "m", "layers": layers, "hidden": 512, "heads": 8, "kv_heads": kv_heads,
            "ffn": 512, "gated": True, "vocab": 128, "norm": "rmsnorm", "bias": False,
            "tied_embeddings": rng.random() < 0.2, "mtp_layers": self.mtp, **moe, **mla}

    def _stage(self, rng: Random) -> dict[str, Any]:
        tp, cp, dp_in = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2, 4)), rng.choice((1, 2, 4))
        cp_comm = rng.choice(get_args(CpComm)[:3 if cp < 4 else 4]) if cp > 1 else "p2p"
        ep, etp = 1, tp
        if self.experts:
            ep, etp = rng.choice([(e, t) for e in (1, 2, 4, 8) for t in (1, 2, 4)
                                  if tp * cp * dp_in % (e * t) == 0])
        recompute = rng.choice(("none", "none", "selective", "full"))
        modules = tuple(one for one in self.chain.modules if rng.random() < 0.4)
        if rng.random() < 0.5:
            modules = tuple(one for one in self.chain.modules if one in ("norm", "mlp_act"))
        if recompute == "selective" and not modules:
            recompute = "none"
        return {
            "tp": tp, "cp": cp, "dp_in": dp_in, "ep": ep, "etp": etp,
            "sp": tp > 1 and rng.random() < 0.8, "cp_comm": cp_comm,
            "cp_a2a": 2 if cp_comm == "a2a+p2p" else 1,
            "zero": rng.choice((0, 1, 1, 2, 3)), "recompute": recompute,
            "recompute_modules": modules if recompute == "selective" else (),
            "recompute_layers": rng.choice((None, 1)) if recompute == "full" else None}

    def _ruled_out(self, drawn: dict[str, Any], rules: Iterable[Rule]) -> bool:
        """Whether degrees and policies of a stage break a rule, whatever the rest is."""
        figures = {**drawn, "sp": "yes" if drawn["sp"] else "no", "pp": self.pp,
                   "schedule": self.schedule, "recompute_layers": drawn["recompute_layers"] or 0}
        return any(wrong(rule, field, figures) for rule in rules
                   if rule.allowed is not None and {*rule.fields, *rule.when} <= {*figures}
                   and applies(rule, figures) for field in rule.fields if field in drawn)

    @property
    def cuts(self) -> list[int]:
        """First layer of each chunk, in the order of the layers, and their number."""
        sizes = list(self.parts)
        sizes[0] += 1
        sizes[-1 - self.behind] += self.mtp - self.apart
        sizes[-1] += 1 + self.apart
        return [0, *accumulate(sizes)]

    @cached_property
    def chain(self) -> Chain:
        """Layers of the model."""
        return build_chain(self.model)

    @property
    def world(self) -> int:
        """Devices."""
        return self.outer_dp * self.pp * self.block

    @property
    def cluster(self) -> nest.Cluster:
        """As many devices as are used."""
        return nest.load_cluster("dgx-h100", devices=self.world)

    @cached_property
    def broken(self) -> set[str]:
        """Rules that the stack has and the configuration breaks."""
        return {one.rule for one in not_runnable(self.chain, self.job, self.way)}

    @cached_property
    def plan(self) -> nest.Plan | None:
        """The configuration with its prices; None: it is illegal."""
        try:
            return nest.evaluate(self.model, self.cluster, self.job, self.way)
        except InputError:
            return None

    @cached_property
    def files(self) -> dict[str, str] | None:
        """The exported files; None: it is not runnable, or the target has no setting for it."""
        if self.broken or self.plan is None:
            return None
        try:
            return nest.export(self.plan, self.target)
        except UnsupportedError:
            return None

    @property
    def chunks(self) -> list[list[str]]:
        """Letters of the layers of each chunk of each stage."""
        names = [self.chain.kinds[self.chain.order[n]].name for n in range(len(self.chain))]
        letters = [LETTERS.get(name.partition("_")[0], "t") for name in names]
        return [["".join(letters[first:end]) for first, end in stage.chunks]
                for stage in self.way.stages]

    @property
    def parts_in_order(self) -> list[str]:
        """Letters of each chunk, in the order of the layers."""
        at = sorted((first, end, text) for stage, texts in zip(
            self.way.stages, self.chunks, strict=True)
            for (first, end), text in zip(stage.chunks, texts, strict=True))
        return [text for _, _, text in at]

    @property
    def layout(self) -> str:
        """All chunks, for Megatron-Core; without NEST's own writer."""
        return "|".join(self.chunks[s][v] for v in range(self.vpp) for s in range(self.pp))

    @property
    def needs(self) -> set[str]:
        """What a launch needs besides flags."""
        return {one.rule for one in launch_needs(self.chain, self.job, self.way)}

    @property
    def ranks(self) -> list[Rank]:
        """NEST's ranks, where stages are outermost as in all frameworks."""
        return sorted(ranks(self.way, self.cluster), key=lambda one: one.stage)


def drawn(stack: str, seed: str = "1", tries: int = 1) -> Iterator[Case]:
    """Random configurations for a stack."""
    rng = Random(f"{stack} {seed}")
    for _ in range(DRAWS):
        yield Case(rng, stack, tries)
    raise AssertionError("not found what was looked for")


@cache
def runnable(stack: str, count: int, target: str | None = None) -> list[Case]:
    """Random plans that NEST calls runnable, and exports."""
    found: list[Case] = []
    plain = 0  # without a pipeline's choices: at most half
    for case in drawn(stack, tries=TRIES.get(stack, 1)):
        case.target = target or case.target
        if (case.schedule == "1f1b" and 2 * plain >= count > 2) or not case.files:
            continue
        found.append(case)
        plain += case.schedule == "1f1b" and stack not in ("megatron-fsdp", "fsdp")
        if len(found) == count:
            return found
    raise AssertionError

"""Whatever a public function is given in place of an argument, it says so in one message."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from command_line import CLUSTER
from descriptions import MODEL

import nest

PLAN = Path(__file__).parent / "evaluation" / "plans" / "1.0-joint-space.json"
STUDY = {"model": MODEL, "cluster": CLUSTER, "job": {"global_batch": 8, "seq_len": 128},
         "axes": {"job.global_batch": [8]}}
FUNCTIONS = [name for name in nest.__all__ if inspect.isfunction(getattr(nest, name))]
DESCRIPTIONS = [name for name in nest.__all__ if hasattr(getattr(nest, name), "model_fields")]
WRONG = [None, 5, 1.5, True, b"x", object(), [1], {1: 2}]


def valid(name: str, folder: Path) -> tuple[Any, ...]:
    """Arguments that a function takes, as many as it needs."""
    problem = (nest.Model.parse(MODEL), nest.Cluster.parse(CLUSTER),
               nest.Job(global_batch=8, seq_len=128))
    script = folder / "run.sh"
    script.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2\n")
    plan = nest.load_plan(PLAN)
    known: dict[str, tuple[Any, ...]] = {
        "plan": problem, "plan_batches": (*problem, [8]),
        "evaluate": (*problem, plan.configuration),
        "explain": (plan,), "export": (plan, "megatron"), "simulate": (plan,), "goodput": (plan,),
        "replan": (plan, "node0"), "improve": (script, problem[1]), "read": (script,),
        "sweep": (STUDY, folder / "out"), "from_torch": (None, [])}
    return known.get(name, (None,))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_is_one_message(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(nest, name)
    given = valid(name, tmp_path)
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD or isinstance(parameter.default, bool):
            continue
        for wrong in WRONG if place == 0 else [object()]:
            named = {} if place < len(given) else {parameter.name: wrong}
            some = [wrong if n == place else one for n, one in enumerate(given)]
            with pytest.raises(nest.NestError) as caught:
                function(*some, **named)
            assert str(caught.value).strip()


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_description_takes_fields_by_name(name, wrong):
    with pytest.raises(nest.InputError, match=r"allowed: fields by name, as in \w+\(FIELD=VALUE\)"):
        getattr(nest, name)(wrong)


@pytest.mark.parametrize("memory", [None, "1 GiB", -1, object()])
def test_a_planner_needs_bytes(memory):
    with pytest.raises(nest.InputError, match="^memory: "):
        nest.Planner(memory)

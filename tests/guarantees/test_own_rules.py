"""Rules of a user's own stack: the search applies them exactly as `evaluate` does.

Random rules over any figures, on instances of which all configurations are listed and asked.
``NEST_INSTANCES`` sets how many seeds are looked at.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from instances import Instance
from own_rules import own_rules
from test_stack_oracle import decided, held_against, no_explanations, question

import nest

assert no_explanations  # a fixture of this file too
WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = int(os.environ.get("NEST_INSTANCES", "16" if WITHOUT_JIT else "96"))
ONCE = 16, 25, 33, 1105, 4010
"""Seeds on which the search and `evaluate` once differed."""
CHUNKS = 4


def own(seed: int) -> Instance:
    """An instance whose stack has rules of its user, too."""
    x, rng = question(seed), Random(f"own rules {seed}")
    rules = x.job.stack.capabilities
    assert rules is not None
    table = own_rules(rng, rules, cuts=seed % 5 == 0)
    return replace(x, job=x.job.replace(stack=x.job.stack.replace(capabilities=table)))


@pytest.mark.kernels
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_configuration_that_own_rules_allow_is_faster(chunk: int) -> None:
    done, fit = decided(own, range(chunk, INSTANCES, CHUNKS))
    assert WITHOUT_JIT or (done > INSTANCES // 16 and fit > 0)


@pytest.mark.kernels
@pytest.mark.parametrize("seed", ONCE)
def test_what_once_differed(seed: int) -> None:
    assert held_against(own(seed), seed) is not None


def planned(rules: dict[str, Any], model: str = "llama3-70b", **space: Any) -> nest.Plan:
    """The best plan of a model on 64 devices with rules besides those of Megatron-Core."""
    own = {name: {"sentence": "own", "source": "own", **rule} for name, rule in rules.items()}
    stack = {"base": "megatron-core", "capabilities": {"base": "megatron-core", "rules": own}}
    return nest.plan(
        nest.load_model(model), nest.load_cluster("dgx-h100", devices=64),
        nest.Job(global_batch=128, seq_len=4096, stack=stack), nest.SearchSpace(**space))


@pytest.mark.kernels
@pytest.mark.parametrize("rule", [
    {"fields": "tp", "when": {"pp": "2..", "zero": "1.."}, "allowed": "1,2"},  # three axes
    {"fields": "micro_batches", "when": {"tp": "4.."}, "at_least": 64},  # an outer choice's
])
def test_a_rule_is_no_stricter_than_it_says(rule: dict[str, Any]) -> None:
    """7.404 s was found and called optimal with the first; the second was a defect of NEST."""
    best = planned({"own": rule})
    assert best.runnable and best.optimal
    assert best.step_time_s == pytest.approx(7.078780803301315, rel=1e-9)
    assert best.step_time_s == pytest.approx(planned({"own": rule}, tp=2).step_time_s, rel=1e-12)


@pytest.mark.kernels
def test_rules_that_tell_too_much_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.search.wide_rules.MOST_ENTRIES", 10)
    with pytest.raises(nest.InputError, match="rule about .*tp.* combinations apart; allowed: at "):
        planned({"own": {"fields": "micro_batches", "at_least": "tp x pp"}}, model="llama3-8b")


@pytest.mark.kernels
@pytest.mark.parametrize(("model", "pp", "named"), [
    ("llama3-8b", (2, 4), False),  # 34 layers are cut in 5,456 ways
    ("llama3-70b", 4, True),  # 82 layers in 85,320: more than are listed
])
def test_a_rule_about_the_cuts_of_some_degrees(model: str, pp: Any, named: bool) -> None:
    """All cuts are listed, or those of the family, which the certificate says."""
    rule = {"fields": "cuts", "when": {"tp": "2.."}, "allowed": "even"}
    best = planned({"own": rule}, model=model, pp=pp, vpp=1, tp=(1, 2))
    assert best.runnable and best.optimal and best.search is not None
    left = {one.figure: one.sentence for one in best.search.left_out}
    assert ("cuts" in left) is named
    if named:
        assert left["cuts"] == "of 1f1b, gpipe: divisions outside the family of docs/layouts.md"
        assert "faster; one left out may be\n" in str(best)


@pytest.mark.kernels
def test_packed_samples_are_searched_as_one_sequence_a_device() -> None:
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=8)
    whole = nest.Job(global_batch=32, seq_len=1024, stack="megatron-bridge")
    packed = nest.Job(global_batch=32, seq_len=1024, stack="megatron-bridge",
                      lengths={256: 9, 1024: 1})
    free, one, bounded = (nest.plan(model, cluster, job, nest.SearchSpace(**space))
                          for job, space in ((whole, {}), (packed, {}), (packed, {"mbs": 1})))
    each = [plan.parallelism.micro_batch // plan.stages[0].dp_in for plan in (free, one)]
    assert each[0] > each[1] == 1
    assert one.runnable and one.optimal and one.step_time_s == bounded.step_time_s

"""What a target's software does not run is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import Files, run
from exported import files_of
from test_exports_megatron import small

import nest
from nest.errors import InputError, UnsupportedError
from nest.frameworks.settings import Setting, figures_of, flag, flat, nested, settings
from nest.frameworks.targets import TARGETS

STACKS = {"megatron": "megatron-core", "megatron-bridge": "megatron-bridge",
          "deepspeed": "deepspeed", "torchtitan": "torchtitan-eager",
          "torchtitan-toml": "torchtitan-eager",
          "fsdp2": "fsdp", "maxtext": "maxtext"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {}, "zb1p": {}, "interleaved": {"vpp": 2}, "interleaved-zb": {"vpp": 2},
    "zb-v": {"vpp": 2}, "v-half": {"vpp": 2}, "v-min": {"vpp": 2}, "dualpipev": {"vpp": 2},
    "dualpipe": {}, "looped-bfs": {"vpp": 2}}
RUN = {"megatron": {"interleaved"}, "megatron-bridge": {"interleaved"},
       "deepspeed": {"dualpipev"}, "torchtitan": {*SCHEDULES} - {"dualpipe", "v-half", "v-min"},
       "torchtitan-toml": {*SCHEDULES} - {"dualpipe", "v-half", "v-min"},
       "fsdp2": set(), "maxtext": {"gpipe"}}
"""Schedules that each target's software has, besides 1F1B."""


def test_each_target_is_asked_about() -> None:
    assert set(STACKS) == set(RUN) == set(TARGETS)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", RUN)
def test_schedules_that_the_software_lacks(target: str, schedule: str) -> None:
    """Zero-bubble schedules are none of Megatron's."""
    zero = 2 if target == "fsdp2" else 1
    zero = 0 if schedule == "dualpipe" else zero
    given = {"pp": 2, "sp": False, "zero": zero, "schedule": schedule, **SCHEDULES[schedule],
             "recompute": "full" if target == "maxtext" else "none"}
    if schedule in RUN[target]:
        assert files_of(target, STACKS[target], **given)
        return
    with pytest.raises(UnsupportedError) as caught:
        files_of(target, STACKS[target], **given)
    named = "pp 2: " if target == "fsdp2" else f"schedule {schedule}: "
    assert any(named in one for one in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("target", STACKS)
def test_who_has_settings_for_experts_of_a_capacity(target: str) -> None:
    given: dict[str, Any] = {
        "changes": {"moe": {"experts": 8, "top_k": 2, "ffn": 128}}, "zero": 2, "ep": 1,
        "asked": {"expert_capacity": 1.25}}
    given |= {"megatron": {"zero": 1}, "megatron-bridge": {"zero": 1},
              "deepspeed": {"zero": 1}, "maxtext": {"recompute": "full", "zero": 3}}.get(target, {})
    if target.startswith("megatron"):
        texts = files_of(target, STACKS[target], **given).values()
        assert any("capacity" in text for text in texts)
        return
    with pytest.raises(UnsupportedError) as caught:
        files_of(target, STACKS[target], **given)
    assert any("capacity" in one for one in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("target", STACKS)
def test_states_of_parameters_that_no_file_asks_for(target: str) -> None:
    stack = {"base": STACKS[target], "moment_dtype": "bf16", "master_copy": False,
             "master_remainders": False, "fp32_shards": False}
    with pytest.raises(UnsupportedError) as caught:
        files_of(target, stack, recompute="full" if target == "maxtext" else "none", sp=False,
                 zero=1 if target[:4] in ("mega", "deep", "maxt") else 2)
    assert caught.value.problems == (
        "stack.moment_dtype bf16: what asks for it is not written; allowed: fp32",
        "stack.master_copy false: what asks for it is not written; allowed: true")


@pytest.mark.parametrize("target", STACKS)
def test_nothing_is_written_of_what_is_refused(target, tmp_path, capsys) -> None:
    files = Files(tmp_path)
    stack = "fsdp" if target != "fsdp2" else "megatron-core"
    out, _ = run(capsys, "evaluate", *files.words, "--tp", "4", "--stack", stack, "--json")
    plan = tmp_path / "plan.json"
    plan.write_text(out, encoding="utf-8")
    _, err = run(capsys, "export", str(plan), "--to", target, "-o", files.path("out"), code=3)
    assert err.startswith(f"nest: error: {target} cannot launch this plan:\n  stack ")
    assert not (tmp_path / "out").exists()


def test_each_file_names_its_target() -> None:
    for target, stack in STACKS.items():
        files = files_of(target, stack, sp=False, zero={"fsdp2": 2, "torchtitan": 2,
                         "torchtitan-toml": 2}.get(target, 1),
                         recompute="full" if target == "maxtext" else "none")
        for text in files.values():
            assert TARGETS[target].version in "\n".join(text.splitlines()[:4])


def test_measured_layers_have_no_settings() -> None:
    found = small(stack="deepspeed", sp=False, zero=1)
    lacking = found.model_copy(update={"inputs": found.inputs.model_copy(update={"model": None})})
    with pytest.raises(UnsupportedError, match=r"inputs.profile: measured layers"):
        nest.export(lacking, "deepspeed")


@pytest.mark.parametrize("launcher", ["", None, 3, "slrum"])
def test_unknown_launchers_are_answered_with_the_known(launcher: Any) -> None:
    with pytest.raises(InputError, match=r"launcher: got .*allowed: torchrun, deepspeed, mpi"):
        nest.export(small(), "megatron", launcher=launcher)


# ---------------------------------------------------------------- tables of settings

TABLE = (
    Setting("degree", "a.degree", unless=(1,)),
    Setting("word", "a.word", {"x": 1, "y": 2}),
    flag("on", "on"),
    flag("off", "not-off", False),
    Setting("inner", "b.inner", unless=(0,), when={"on": (True,)}),
    Setting("always", "always", unless=()),
)


@pytest.mark.parametrize(("given", "written"), [
    ({"degree": 4, "word": "y", "on": True, "off": False, "inner": 3, "always": None},
     {"a.degree": 4, "a.word": 2, "on": True, "not-off": True, "b.inner": 3, "always": None}),
    ({"degree": 1, "word": "x", "on": False, "off": True, "inner": 3, "always": 1},
     {"a.word": 1, "always": 1}),
    ({"degree": 2, "word": "x", "on": True, "off": True, "inner": 0, "always": 1},
     {"a.degree": 2, "a.word": 1, "on": True, "always": 1}),
], ids=str)
def test_settings_are_read_both_ways(given: dict[str, Any], written: dict[str, Any]) -> None:
    found = settings(TABLE, given)
    assert found == written and flat(nested(found)) == found
    back = figures_of(TABLE, found)
    assert back == {name: value for name, value in given.items() if given["on"] or name != "inner"}


def test_words_of_several_figures_are_listed_once() -> None:
    both = (Setting("kind", "a.kind", {"x": "X", "also x": "X", "y": "Y"}),)
    with pytest.raises(ValueError, match=r"a.kind: got 'Z'; allowed: X, Y$"):
        figures_of(both, {"a.kind": "Z"})


def test_words_that_no_figure_has() -> None:
    with pytest.raises(ValueError, match=r"a.word: got 7; allowed: 1, 2"):
        figures_of(TABLE, {"a.word": 7})

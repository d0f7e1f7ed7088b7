"""The page and the list of what runs where say what the data say."""

from __future__ import annotations

import json

import pytest
from command_line import run

from nest.inputs import catalog, load_stack
from nest.inputs.capabilities import FIGURES
from nest.stacks.overview import HEADS, overview


def test_an_overview_is_what_the_rules_say() -> None:
    rows = {row[0].split()[0]: dict(zip(HEADS, row, strict=True)) for row in overview()}
    torchtitan, fsdp = rows["torchtitan"], rows["Megatron-FSDP"]
    assert (torchtitan["ZeRO"], torchtitan["ZeRO with pp"]) == ("0, 2, 3", "0, 1")
    assert torchtitan["cuts"] == "free"
    assert (fsdp["ZeRO with pp"], fsdp["schedules"], fsdp["HSDP"]) == ("-", "-", "1, 2, 3")
    assert rows["Megatron-Core"]["stages may differ in"] in ("cp_comm", "-")


def test_every_stack_of_the_catalog_says_what_it_can_run() -> None:
    without = [name for name in catalog.names("stacks") if load_stack(name).capabilities is None]
    assert without == ["mindspeed", "neuronx-distributed", "unknown"]


def test_details_fit_a_terminal_and_have_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "list", "stacks", "--details")
    assert max(map(len, text.splitlines())) <= 80
    rows = json.loads(run(capsys, "list", "stacks", "--details", "--json")[0])
    flat = " ".join(text.split())
    for row in rows:
        assert f"{row['software']} {row['version']} (" in flat
        for rule in (*row["rules"].values(), *row["needs"].values()):
            assert " ".join(rule["sentence"].split()) in flat
            assert rule["source"] in flat
    assert all(f"- {name}: {figure.meaning}" in flat for name, figure in FIGURES.items())
    without = {"mindspeed", "neuronx-distributed", "unknown"}  # whose rules are not known
    assert {name for row in rows for name in row["stacks"]} == {*catalog.names("stacks")} - without


def test_details_are_of_stacks_only(capsys: pytest.CaptureFixture[str]) -> None:
    _, error = run(capsys, "list", "models", "--details", code=2)
    assert "got --details with models; allowed: with stacks" in error


EVALUATE = ("evaluate", "llama3-70b", "dgx-h100", "--devices", "256", "--global-batch", "256",
            "--seq-len", "4096", "--tp", "8", "--pp", "4", "--details", "--zero")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_reports_say_whether_the_stack_can_run_the_plan(
    capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Launch Megatron-Core 0.16.1 can run this Layout" in flat(
        run(capsys, *EVALUATE, "1")[0])
    text = flat(run(capsys, *EVALUATE, "3", "--recompute", "selective",
                    "--recompute-modules", "norm")[0])
    assert "Launch Megatron-Core 0.16.1 cannot run this: - zero 3: its distributed" in text
    assert "- recompute_modules norm: dense layers can recompute core_attn and mlp;" in text
    wide = flat(run(capsys, *EVALUATE, "1", "--stack", "torchtitan")[0])
    assert "torchtitan 0.3.0 can run this; outer_dp 8: needs a reordered host list" in wide


def test_the_document_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, *EVALUATE, "3", "--json")[0])
    assert document["runnable"] is False
    found, = document["not_runnable"]
    assert set(found) == {"sentence", "field", "rule", "source"}
    assert found["source"].startswith("NVIDIA/Megatron-LM@core_v0.16.1 ")
    assert document["inputs"]["job"]["stack"]["capabilities"] == "megatron-core"

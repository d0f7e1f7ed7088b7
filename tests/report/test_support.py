"""What prices rest on, by stack, device and kind of model."""

from __future__ import annotations

import json

import pytest
from command_line import run
from measured import SUPPORT

from nest.evaluation.evidence import runs_of
from nest.report.catalog_text import support_rows, support_text


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it fails: tests/measured/validation/refresh_accuracy.py."""
    out, _ = run(capsys, "list", "support")
    assert out == support_text()
    assert SUPPORT.read_text(encoding="utf-8").endswith(f"```text\n{out}```\n")
    assert max(map(len, out.splitlines())) <= 80


def test_every_stack_and_device_has_a_word() -> None:
    rows = {(row.stack, row.device, row.experts): row for row in support_rows()}
    assert rows["megatron-core", "h100-sxm", False].word == "measured"
    assert rows["megatron-core", "rtx-4090", False].word == "extrapolated"
    assert rows["megatron-core", "tpu-v4", False].word == "refused"
    assert rows["megatron-2021", "a100-sxm-80gb", True].word in ("refused", "extrapolated")
    assert rows["fsdp", "h100-sxm", True].word == rows["unknown", "tpu-v4", False].word == "assumed"
    for row in rows.values():
        assert (row.error is not None) == (row.word == "measured") == (row.configurations > 0)
    counted = sum(row.configurations for row in rows.values() if row.stack == "megatron-core")
    assert counted == len(runs_of("megatron-core").measured)


def test_programs_get_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(capsys, "list", "support", "--json")[0])
    assert rows[0].keys() == set(support_rows()[0]._fields)

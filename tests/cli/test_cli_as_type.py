"""The option --as: a config.json of an unknown type, read as a known one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from descriptions import LLAMA

REST = ("dgx-h100", "--global-batch", "8", "--seq-len", "4096", "--devices", "8", "--tp", "8",
        "--micro-batch", "1", "--memory-margin", "0")


def test_a_config_json_is_read_as_a_known_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "frob"}))
    _, refused = run(capsys, "evaluate", str(path), *REST, code=2)
    assert "--as llama" in " ".join(refused.split())
    out, _ = run(capsys, "evaluate", str(path), *REST, "--as", "llama", "--json")
    assert json.loads(out)["step_time_s"] > 0
    _, named = run(capsys, "evaluate", "llama3-8b", *REST, "--as", "llama", code=2)
    assert "as: got 'llama'; allowed: with a Hugging Face config.json only" in named

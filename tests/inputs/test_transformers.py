"""The published models against huggingface/transformers on the meta device.

Runs where torch and transformers are installed: `.ci/models`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nest.inputs import load_model

MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    "name", [name for name, entry in MODELS.items() if "transformers" in entry])
def test_transformers_builds_as_many_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    entry = MODELS[name]
    fields = {key: value for key, value in entry["config"].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(entry["config"]["model_type"], **fields)
    with torch.device("meta"):
        module = getattr(transformers, entry["class"])._from_config(config)
    module.tie_weights()
    count = sum(one.numel() for one in module.parameters() if one.requires_grad)
    assert count == load_model(entry["config"]).parameters() == entry["transformers"]

"""Write the golden files anew: `python tests/frameworks/refresh_golden.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import exported_plans
from test_exports_megatron import GOLDEN, PLANS, golden_plan

import nest

for name in PLANS:
    for file, text in nest.export(golden_plan(name), "megatron").items():
        (GOLDEN / f"{name}.{file}").write_text(text, encoding="utf-8")
for name, golden in exported_plans.PLANS.items():
    for file, text in golden.files.items():
        (GOLDEN / f"{name}.{file}").write_text(text, encoding="utf-8")

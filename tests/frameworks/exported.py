"""Small plans to export, and how exported scripts start programs with any launcher."""

from __future__ import annotations

from typing import Any

from test_exports_megatron import small

import nest

EXPERTS = {"experts": 8, "top_k": 2, "ffn": 128}


def files_of(target: str, stack: Any, **given: Any) -> dict[str, str]:
    """Files of a small plan for a stack."""
    return nest.export(small(stack=stack, **given), target)

"""Files of whole plans as they are kept in `golden/`; `refresh_golden.py` writes them anew."""

from __future__ import annotations

import pytest
from exported_plans import PLANS, kept

from nest.frameworks.targets import TARGETS


@pytest.mark.parametrize("name", PLANS)
def test_the_golden_files(name: str) -> None:
    assert PLANS[name].files == kept(name)


@pytest.mark.parametrize("name", PLANS)
def test_each_golden_file_names_its_version(name: str) -> None:
    """But for lists of hosts, which belong to no version and may have no comments."""
    version = TARGETS[PLANS[name].target].version
    for file, text in kept(name).items():
        assert version in "\n".join(text.splitlines()[:4]) or file in (
            "slurm.hosts", "deepspeed_env"), file

"""Names of test files that ``-m fast`` leaves out."""

from pathlib import Path

SLOW = frozenset(
    line.split()[0] for line in Path(__file__).parents[1].joinpath("slow.txt").read_text(
        encoding="utf-8").splitlines() if line and not line.startswith("#"))

"""Write `golden/accuracy.json` anew, and say what changed.

`python tests/measured/validation/refresh_accuracy.py`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

from accuracy import GOLDEN, golden, measured, worse, write  # noqa: E402
from measured import EVIDENCE, evidence  # noqa: E402

from nest.measured.validation.ranges import to_csv  # noqa: E402


def main() -> None:
    """Price all runs, compare with what was written, write."""
    before = golden() if GOLDEN.exists() else {}
    now = measured()
    for name, found in now.items():
        old = before.get(name, {}).get("median_abs_error")
        new = found["median_abs_error"]
        if new != old:
            print(f"{name}: median error {_shown(old)}, now {_shown(new)}")
    for sentence in worse(before, now):
        print(f"worse: {sentence}")
    EVIDENCE.write_text(to_csv(evidence()), encoding="utf-8")
    write(now)
    print(f"written: {GOLDEN.name}")


def _shown(value: float | int | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} %"


if __name__ == "__main__":
    main()

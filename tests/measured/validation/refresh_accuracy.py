"""Price all measured runs, show what changed, write `golden/accuracy.json` and the evidence anew.

`python tests/measured/validation/refresh_accuracy.py`; it ends with 1 if a group gets worse by
more than a point and `golden/accuracy_reasons.csv` does not say why. `--since REVISION` prices
and writes nothing: it compares the file with that of a revision of git, in a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

from accuracy import GOLDEN, Scores, golden, measured, reasons, table, worse, write  # noqa: E402
from measured import EVIDENCE, ROOT, SUPPORT, evidence  # noqa: E402

from nest.evaluation.evidence import runs_of  # noqa: E402
from nest.inputs import catalog  # noqa: E402
from nest.measured.validation.ranges import to_csv  # noqa: E402
from nest.report.catalog_text import support_text  # noqa: E402


def main() -> int:
    """The exit code."""
    if sys.argv[1:2] == ["--since"]:
        return told(of(sys.argv[2]), golden())
    before, now = golden(), measured()
    EVIDENCE.write_text(to_csv(evidence()), encoding="utf-8")
    write(now)
    catalog.evidence.cache_clear()
    runs_of.cache_clear()
    head, _, _ = SUPPORT.read_text(encoding="utf-8").partition("```text\n")
    SUPPORT.write_text(f"{head}```text\n{support_text()}```\n", encoding="utf-8")
    print(f"written: {GOLDEN.name}, {EVIDENCE.name}, {SUPPORT.name}")
    return told(before, now)


def of(revision: str) -> Scores:
    """The scores of a revision; none if it has no such file."""
    path = GOLDEN.relative_to(ROOT).as_posix()
    asked = subprocess.run(["git", "-C", ROOT, "show", f"{revision}:{path}"], capture_output=True,
                           text=True, check=False)
    return json.loads(asked.stdout) if asked.returncode == 0 else {}


def told(before: Scores, now: Scores) -> int:
    """Print what changed; 1 if something got worse without a reason."""
    print(table(before, now) if before else "no earlier errors to compare with")
    problems = worse(before, now, reasons())
    for sentence in problems:
        print(f"worse, without a reason in tests/golden/accuracy_reasons.csv: {sentence}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

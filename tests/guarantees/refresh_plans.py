"""Write `golden/plans.json` anew, and say what changed.

Run as `python tests/guarantees/refresh_plans.py`.
"""

from __future__ import annotations

from golden_plans import GOLDEN, ask, differences, golden, record, write
from golden_questions import QUESTIONS


def main() -> None:
    """Ask all questions, compare with what was written, write."""
    before = golden() if GOLDEN.exists() else {}
    now = {}
    for question in QUESTIONS:
        plan = ask(question)
        now[question.name] = record(plan)
        old = before.pop(question.name, None)
        if old is None:
            print(f"{question.name}: new")
        elif found := differences(old, plan):
            print(f"{question.name}: {'; '.join(found)}")
        else:
            # what differs in the last digits, or ties, leaves the file as it is
            now[question.name] = old
    for name in before:
        print(f"{name}: gone")
    write(now)
    print(f"written: {GOLDEN.name}")


if __name__ == "__main__":
    main()

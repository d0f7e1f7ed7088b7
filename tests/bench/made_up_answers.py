"""Small questions to planners, and answers made up."""

from __future__ import annotations

import pytest
from command_line import Files
from paper import answers
from paper.answers import PlannerAnswer, PlannerRun
from paper.questions import PaperQuestion


def tiny(files: Files, part: str = "scaling", devices: int = 8, mbs: int = 1) -> PaperQuestion:
    return PaperQuestion(part, files.model, files.cluster, devices, mbs, 16, 128)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Planners that are really asked from now on."""
    made: list[str] = []
    compare = answers.compare

    def counted(model, cluster, job, space, names, options):
        made.extend(names)
        return compare(model, cluster, job, space, names, options)

    monkeypatch.setattr(answers, "compare", counted)
    return made


def made_up(planner: str, speed: float | None, devices: int = 64, mbs: int = 1,
            part: str = "scaling", model: str = "gpt3-175b") -> PlannerRun:
    """An answer of so many tokens a second; None: it does not fit."""
    fits = speed is not None
    answer = PlannerAnswer.parse({
        "schema": "nest.answer/1", "question": "0" * 64, "model": model, "cluster": "c",
        "devices": devices, "mbs": mbs, "planner": planner, "feasible": fits,
        "reason": None if fits else "runs out of memory: stage 1 is 3 GiB short",
        "step_time_s": 2.0, "samples_per_s": 1.0, "tokens_per_s": speed or 5.0,
        "peak_memory_bytes": 2.0**30, "search_seconds": 0.25, "plan": "tp 8"})
    return PlannerRun(PaperQuestion(part, model, "c", devices, mbs, 4096, 2048), planner, answer)


# At 64 devices the expert's plan does not fit, so throughput 1 is its 200 tokens/s at 128.
MADE_UP = [
    made_up("nest", 150.0), made_up("manual", None), made_up("zero", 120.0),
    made_up("nest", 300.0, 128), made_up("manual", 200.0, 128), made_up("zero", 240.0, 128),
    made_up("nest", 600.0, 256), made_up("manual", 450.0, 256), made_up("zero", None, 256),
]

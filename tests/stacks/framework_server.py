"""Asks the judges of the frameworks' own code, each in a process of its own; run by their Python.

Reads a JSON list a line: script, judge, cases. Prints a line of JSON for each: the judge's answers,
or a text that says why there are none. Judges start as copies of this process, which has imported
the parts of PyTorch that all of them use.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

import framework_judge  # sets the environment that frameworks are imported in

SHARED = ("torch.distributed.fsdp", "torch.distributed.pipelining.schedules",
          "torch.distributed.tensor.parallel")


def answers(script: str, judge: str, cases: list[Any]) -> Any:
    """What a judge of a script says of each case."""
    ask = importlib.import_module(script).JUDGES[judge]
    if judge != "divided":
        framework_judge.spare_compiling()
    return [ask(case) for case in cases]


def forked(question: list[Any]) -> str:
    """The same in a copy of this process, as JSON."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.dup2(2, 1)  # the frameworks print
            found: Any = answers(*question)
        except BaseException:
            found = traceback.format_exc()
        with os.fdopen(theirs, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as text:
        found = text.read()
    _, status = os.waitpid(child, 0)
    return found or json.dumps(f"the judge ended with status {status}")


def main() -> None:
    for name in SHARED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(forked(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()

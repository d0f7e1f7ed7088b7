"""Results that several tests need, worked out once for all processes of a run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def shared(function: Callable[..., T]) -> Callable[..., T]:
    """``functools.cache`` beyond the process: results are kept in a folder of the test run.

    Parameters
    ----------
    function : of arguments with a ``repr`` of their own; its results can be pickled.
    """
    folder = Path(os.environ["NEST_TEST_SHARED"])

    @cache
    @wraps(function)
    def found(*given: object) -> T:
        name = "-".join([function.__module__, function.__name__, *map(repr, given)])
        file = folder / name
        if file.exists():
            return pickle.loads(file.read_bytes())
        result = function(*given)
        # Complete or not at all, whoever reads meanwhile.
        half = file.with_name(f"{name}.{os.getpid()}")
        half.write_bytes(pickle.dumps(result))
        half.replace(file)
        return result

    return found

"""How many threads a search takes where nobody says."""

from __future__ import annotations

import os


def thread_count() -> int:
    """Threads to use: ``NEST_THREADS``, else ``NUMBA_NUM_THREADS``, else all processors."""
    for name in ("NEST_THREADS", "NUMBA_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

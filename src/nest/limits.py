"""Declared limits of counts that a caller may ask for; the command line and the API have the same.

They are chosen: far above what is of use, and low enough that a slip of a digit ends in a message.
"""

MOST = {
    "top": 100,
    "threads": 1024,
    "proposals": 1_000_000,
    "rounds": 1000,
    "gpus_per_node": 1024,
    "devices": 10**7,
    "vocab": 10**9,
    "seq_len": 10**8,
    "launch": 1000,
    "runs": 20,
}
"""By the name of the argument; all allow 1."""


def count_problem(name: str, given: int | None) -> str | None:
    """Why a count is not allowed; None if it is, or was not given."""
    if given is None or 1 <= given <= MOST[name]:
        return None
    return f"{name}: got {given}; allowed: 1 to {MOST[name]}"

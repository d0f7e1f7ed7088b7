"""The measurement of a log as text."""

from __future__ import annotations

from nest.measured.logs import RunLog
from nest.units import format_bytes, format_seconds


def log_text(log: RunLog) -> str:
    """Times, memory and end of a run, a line each."""
    lines = [f"{log.where}: {log.framework or 'a training run'} {log.version}".rstrip()
             + f", {log.verdict.replace('_', ' ')}"]
    if (seconds := log.step_time_s) is not None:
        parts = [f"{format_seconds(seconds)} (median of {len(log.steps)}; first "
                 f"{log.left_out} left out)"]
        if log.spread is not None:
            parts.append(f"quartiles {100 * log.spread:.1f} % apart")
        if log.drift is not None:
            parts.append(f"drift {100 * log.drift:+.1f} %")
        parts.append(f"outliers {log.outliers}")
        lines.append(_row("Step time", ", ".join(parts)))
    rates = [f"{log.tokens_per_s:,.0f} tokens/s"] if log.tokens_per_s else []
    rates += [f"{log.flops_per_s / 1e12:,.1f} TFLOP/s"] if log.flops_per_s else []
    if rates:
        lines.append(_row("Printed", f"{', '.join(rates)} a device"))
    for name, ranks in (("allocated", log.allocated_by_rank), ("reserved", log.reserved_by_rank)):
        if ranks:
            rank, size = max(ranks.items(), key=lambda one: one[1])
            where = "" if rank is None else f", rank {rank} of {len(ranks)} printed"
            lines.append(_row("Memory", f"{format_bytes(size)} {name}{where}"))
    for rank, asked in log.out_of_memory[:8]:
        who = "a rank" if rank is None else f"rank {rank}"
        lines.append(_row("No memory", f"{who} asked for "
                          f"{'more' if asked is None else format_bytes(asked)}"))
    if log.restarts:
        lines.append(_row("Restarts", str(log.restarts)))
    if log.end:
        lines.append(_row("End", log.end))
    return "\n".join(lines)


def _row(name: str, text: str) -> str:
    return f"{name:12} {text}"

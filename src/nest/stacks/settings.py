"""What a stack is told so that it keeps something in the memory of the hosts."""

from __future__ import annotations

from nest.inputs.job import Job
from nest.inputs.offload import Offload


def offload_settings(job: Job, text: str) -> tuple[str, ...]:
    """Flags or fields of the job's stack for each part of an offload text, in its own words.

    Parts that the stack's table has no words for are left out.
    """
    known, away = job.stack.capabilities, Offload.of(text)
    if known is None:
        return ()
    separator = "," if "[" in known.offload.get("modules", "") else " "
    values = {"optimizer": f"{away.optimizer:g}" if away.optimizer else "",
              "layers": str(away.layers or ""), "modules": separator.join(away.modules)}
    return tuple(known.offload[part].replace("VALUE", value)
                 for part, value in values.items() if value and part in known.offload)

"""What a job's training software can run of a configuration.

The rules are data (:mod:`nest.inputs.capabilities`, ``catalog/capabilities.yaml``); `figures`
gives the figures of a configuration that rules name, `rules` compares them with the rules
and says what a stack is told to offload, `overview` shows what the tables of the catalog allow,
`choices` the values that a stack lets a person choose.
"""

from nest.stacks.choices import choice_problems, choosing, settled
from nest.stacks.rules import (
    Finding,
    cannot_offload,
    default_stack,
    launch_needs,
    not_runnable,
    offload_settings,
    selective_modules,
    wrong_devices,
)

__all__ = ["Finding", "cannot_offload", "choice_problems", "choosing", "default_stack",
           "launch_needs", "not_runnable", "offload_settings",
           "selective_modules", "settled", "wrong_devices"]

"""A plan as what its training software is launched with: files for a folder of their own.

Reading order: `targets` (which software, :func:`nest.export`), `target` (the properties of each,
what is refused), `figures` and `settings` (the figures of a plan, tables of the settings for
them), `deepspeed`, `torchtitan`, `fsdp2`, `bridge`, `maxtext`, `megatron` with
`megatron_table` (one file per target), `known` (models that targets have themselves), `hosts`
(which process goes to which device), `launchers` (what starts it there), `script` (the launch
script), `folder` (files written together, or none).
"""

from nest.exports.targets import TARGETS, export

__all__ = ["TARGETS", "export"]

"""A plan as what its training software is launched with: files for a folder of their own.

Reading order: `targets` (which software, what is refused, :func:`nest.export`), `figures` and
`settings` (figures of a plan, and tables of what says them), `megatron_table` and `megatron` (the
arguments of Megatron-LM's command line), `places` (which process goes to which device),
`script` (the launch script around both), `folder` (files written together, or none).
"""

from nest.exports.targets import TARGETS, export

__all__ = ["TARGETS", "export"]

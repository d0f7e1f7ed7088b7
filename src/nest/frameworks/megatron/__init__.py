"""Megatron-LM, and Megatron-Bridge, which configures the same layers.

Reading order: `write` (the command line of a plan), `arguments` (a command line as figures, what
a plan changes of it), `named` (arguments by the names of their values, as jobs print them), `read`
(as model, job and configuration), `script` (a launch script up to its command), `edit_script` (the
script changed, or a new one), `running` (a job that runs today); `bridge` (Megatron-Bridge),
`hybrid` (its letters of hybrids), `bridge_log` (what it prints).
"""

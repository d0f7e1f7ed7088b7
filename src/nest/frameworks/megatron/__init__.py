"""Megatron-LM, and the software whose settings are its own by other names.

Reading order: `table` (which figure of a plan each argument says), `write` (the command line of a
plan), `arguments` and `patterns` (a command line as figures), `read` (as model, job and
configuration), `script` (a launch script up to its command), `flags` (arguments that a plan
decides), `edit_script` and `remade` (the script changed, or a new one), `running` (a job that runs
today); `write_bridge` and `bridge` (Megatron-Bridge); `translated` (NeMo 1, nanotron, GPT-NeoX).
"""

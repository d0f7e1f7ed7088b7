"""Megatron-LM, and the software whose settings are its own by other names.

Reading order: `write` (the command line of a plan), `arguments` (a command line as figures, what
a plan changes of it), `read` (as model, job and configuration), `script` (a launch script up to its
command), `edit_script` (the script changed, or a new one), `running` (a job that runs today);
`bridge` (Megatron-Bridge); `translated` (NeMo 1, nanotron, GPT-NeoX).
"""

"""The software that runs plans: what launches one, and the files of running jobs read back.

A folder or a file for each software, which writes and reads by one table of settings: `megatron`
(with Megatron-Bridge), `torchtitan`, `deepspeed`, `maxtext` (with `maxtext_remat`), `fsdp2`,
`huggingface` (files with a JSON of DeepSpeed), `translated` (NeMo 1, nanotron, GPT-NeoX, FlagScale:
arguments by other names).

Reading order of what they share: `settings` and `figures` (tables of settings, the figures of a
plan that these say), `hosts` (which process goes to which device), `launchers` (what starts it
there), `submitters` (what asks a cluster for nodes), `adapters` (what settings say of adapters and
of the loss), `target` (the properties of a target, what is refused, its files), `text` (shell,
Python, JSON, TOML and YAML as text), `capture` (scripts run with stand-ins), `source` (a file with
what the user says besides), `registry` (all software by name); `targets` (:func:`nest.export`);
`launches` (scripts that hand over a file), `kubernetes` (files that hold a script), `logs` (what a
job prints of its configuration), `reader` (:func:`nest.read`); `improvement` (what a plan is
searched for, and the result), `running_file` (a file with a better plan), `improving`
(:func:`nest.improve`).
"""

"""The software that runs plans: what launches one, and the files of running jobs read back.

A folder or a file for each software, which writes and reads by one table of settings: `megatron`
(with Megatron-Bridge, NeMo 1, nanotron, GPT-NeoX), `torchtitan`, `deepspeed`, `maxtext`, `fsdp2`,
`huggingface` (files that name a JSON of DeepSpeed).

Reading order of what they share: `figures` and `settings` (the figures of a plan, tables of the
settings for them), `target` and `known` (the properties of a target, what is refused), `hosts`
(which process goes to which device), `launchers` (what starts it there), `script` (the launch
script), `targets` (:func:`nest.export`), `folder` (files written together, or none); `text` (shell,
Python, JSON, TOML and YAML as text), `arguments` (a command line by names), `source` (a file with
what the user says besides), `ranks` and `division` (degrees as a configuration), `owners` (whose a
file is), `launches` (scripts that hand over a file), `ignored` (names that the user leaves out),
`reader` (:func:`nest.read`); `running` (what a plan is searched for), `formats` and `running_file`
(files with a better plan), `improvement` (the result, `improvement_text` its report), `improving`
(:func:`nest.improve`).
"""

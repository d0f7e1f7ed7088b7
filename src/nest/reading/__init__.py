"""Jobs that run today, read back as model, job and configuration; nothing is executed.

Reading order: `shell_tree` and `shell_reader` (a script as a tree of commands), `shell_state` (its
variables at one point), `arithmetic`, `shell_words` and `conditions` (numbers, words and tests),
`shell_flow` (which statements are run), `shell` (commands, followed as text), `arguments` (a
command line as arguments by name), `patterns` (lists of layers), `megatron_arguments` (their
values, by the tables that `nest.exports` writes them with), `megatron` (model, job and
configuration of these), `hosts` (devices of the ranks), `megatron_script` (scripts of Megatron-LM);
files of other targets: `launches` (scripts that hand over a file), `source` (a file with what the
user says besides, settings that are understood), `python_text` (Python as text), `division`
(degrees as a configuration), `torchtitan`, `fsdp2`, `deepspeed`, `bridge`, `maxtext` (one file per
target), `translated` (files whose settings are arguments of Megatron-LM by other names), `trainer`
(files that name a JSON of DeepSpeed); `owners` (whose a file is); `ignored` (names that the user
leaves out); `reader` (:func:`nest.read`).

Jobs with a better plan: `running` (what a plan is searched for); scripts of Megatron-LM: `flags`
(arguments that a plan decides), `edit_script` (a script with some arguments changed), `remade` (a
new one), `running_script`; other files: `edit_json`, `edit_toml`, `edit_yaml`, `edit_python` (a
text with some settings changed), `formats` (what each target needs),
`running_file`; `improvement` (the result, `improvement_text` its report), `improving`
(:func:`nest.improve`).
"""

from nest.reading.improvement import Improvement
from nest.reading.improving import improve
from nest.reading.megatron_script import Reading
from nest.reading.reader import TARGETS, devices_of, read

__all__ = ["TARGETS", "Improvement", "Reading", "devices_of", "improve", "read"]

"""Configurations that a job prints, as model, job and configuration.

The printed values go through the table of the software's settings, as those of its files do:
`megatron/settings.yaml` (Megatron-LM, and Megatron-Bridge, whose fields are those of its classes),
and the readers of configuration files for all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nest.errors import InputError
from nest.frameworks import huggingface, maxtext, translated
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.megatron import bridge_log
from nest.frameworks.megatron import read as megatron
from nest.frameworks.megatron.named import strange_note, words_of
from nest.frameworks.megatron.script import Reading, name_of, reading_of
from nest.frameworks.settings import arguments_of, flat, known, software_settings, tables_of
from nest.frameworks.source import FileDescription, Source, Stated, among
from nest.frameworks.torchtitan import read as torchtitan
from nest.inputs import load_model
from nest.inputs.model import Model
from nest.measured.logs import PrintedSettings, RunLog

_OLD = ("attention_backend", "use_flash_attn", "transformer_impl")
"""Rows of tables of Megatron-LM since it has fused attention (core_v0.2.0, 2023)."""
_OLD_STACK = "megatron-2021"
_TRAINER = (*deepspeed.TRAINER, "gradient_checkpointing", "optim")
"""Arguments of Hugging Face's Trainer that count."""
Given = Mapping[str, PrintedSettings]
"""The last whole configuration of each kind."""


def settings_of(log: RunLog) -> Reading:
    """The job of a log.

    Raises
    ------
    InputError : the log prints no configuration, not all of it, several that differ, or one that
        has no price.
    """
    asked = dict(log.said)
    variables = asked.pop("variables", None) or {}
    asked.pop("target", None)
    ignored = tuple(one.removeprefix("--") for one in asked.pop("ignore", None) or ())
    stated = Stated(**asked, ignored=ignored, settings=variables)
    given = _given(log, stated)
    source = Source("", log.where, stated)
    kind = next((kind for kind in _READERS if kind in given), None)
    if kind is None:
        raise InputError(f"{log.where}: no configuration is printed; allowed: the job's launch "
                         "script or configuration file, which nest read takes, or nest evaluate "
                         "MODEL CLUSTER with its degrees")
    found = _READERS[kind](given, source)
    if stated.devices not in (None, found.devices):
        raise InputError(f"{log.where}: its degrees take {found.devices} devices, and --devices "
                         f"says {stated.devices}; allowed: the same")
    return reading_of(found, log.where, log.notes, line=given[kind].line)._replace(log=log)


def _given(log: RunLog, stated: Stated) -> dict[str, PrintedSettings]:
    """The last configuration of each kind, which the others of the kind do not contradict.

    Raises
    ------
    InputError : one is cut, or two differ in what may change the cost.
    """
    found: dict[str, PrintedSettings] = {}
    for one in log.printed:
        before = found.get(one.kind)
        if one.problem:
            if before is None:  # a whole one may follow, of the next start
                found[one.kind] = one
            continue
        if before is not None and not before.problem and (
                names := _differences(before, one, stated.ignored)):
            raise InputError(f"{log.where}: two configurations differ (lines {before.line} and "
                             f"{one.line}) in {', '.join(names[:8])}; allowed: the log of one job "
                             "(cut the file before the second)")
        found[one.kind] = one
    for one in found.values():
        if one.problem and one.kind in _READERS:
            raise InputError(f"{log.where}: line {one.line}: the configuration that begins there "
                             f"is not whole: {one.problem}; allowed: all of its lines, from the "
                             "beginning of the log")
    return found


def _differences(one: PrintedSettings, other: PrintedSettings, ignored: Sequence[str]) -> list[str]:
    """Names of settings that differ and may change the cost."""
    if one.kind == "megatron":
        first, second = (dict(arguments_of(words_of(each.settings, ignored).words, known())[0])
                         for each in (one, other))
    else:
        free = software_settings(_TABLES[one.kind]).free if one.kind in _TABLES else ()
        first, second = ({name: value for name, value in flat(each.settings).items()
                          if not among(name, free) and not among(name, ignored)
                          and (one.kind != "trainer" or name in _TRAINER)}
                         for each in (one, other))
    return [name for name in dict.fromkeys((*first, *second))
            if first.get(name) != second.get(name)]


# ---------------------------------------------------------------- Megatron-LM


def _megatron(given: Given, source: Source) -> FileDescription:
    """The table of arguments; with a JSON of DeepSpeed it is Megatron-DeepSpeed's."""
    table = dict(given["megatron"].settings)
    world = table.get("world_size")
    if type(world) is not int or not 1 <= world <= 10**7:
        world = source.asked.devices
    if world is None:
        raise InputError(f"{source.where}: its table has no world_size; give the devices by "
                         "--devices N")
    table |= source.asked.settings
    if "deepspeed" in given or table.get("deepspeed") is True:
        return _megatron_deepspeed(given, table, source._replace(world=world))
    notes: list[str] = []
    stack = source.asked.stack
    if stack is None and not any(name in table for name in _OLD):
        stack = _OLD_STACK
        notes.append("the table has no row of fused attention, as of versions before 2023: priced "
                     f"as {_OLD_STACK} (--stack)")
    elif table.get("use_flash_attn") is True and table.get("transformer_impl") == "local":
        del table["transformer_impl"]  # of versions before the two excluded each other
    arguments = words_of(table, source.asked.ignored)
    found = _described(arguments.words, world, source, stack, _vocabulary(given, source))
    if arguments.strange:
        notes.append(strange_note(arguments.strange))
    vpp = table.get("virtual_pipeline_model_parallel_size")
    if type(vpp) is int and vpp != found.configuration.get("vpp", 1):
        raise InputError(f"{source.where}: virtual_pipeline_model_parallel_size: got {vpp}; "
                         f"allowed: {found.configuration.get('vpp', 1)}, as the other arguments "
                         "divide the layers")
    return FileDescription(Model.parse(found.model, source.where), found.job, found.configuration,
                           world, (*notes, *found.notes))


def _described(words: Sequence[str], world: int, source: Source, stack: str | None,
               vocab: int | None) -> megatron.Described:
    try:
        return megatron.described(words, world, name=name_of(source.where), vocab=vocab,
                                  stack=stack, ignored=source.asked.ignored)
    except InputError as error:
        lines = [f"{source.where}: as an argument of Megatron-LM: {line}"
                 for line in str(error).splitlines()]
        raise InputError("\n".join(lines), tuple(lines)) from None


def _vocabulary(given: Given, source: Source) -> int | None:
    """Tokens of the vocabulary, which the tokenizer prints as it is built."""
    printed = given["vocabulary"].settings.get("size") if "vocabulary" in given else None
    if source.asked.vocab is not None or type(printed) is not int:
        return source.asked.vocab
    return printed


def _neox(given: Given, source: Source) -> FileDescription:
    """GPT-NeoX: the rows that are no defaults, by the names of its files."""
    settings = dict(given["gpt-neox"].settings)
    world = settings.get("global_num_gpus", settings.get("world_size"))
    attention = settings.get("attention_config")
    if isinstance(attention, list) and len({*map(str, attention)}) == 1:  # one for each layer
        settings["attention_config"] = [[[attention[0]], "all"]]
    if "precision" in settings:
        for name in ("fp16", "bf16"):
            settings.pop(name, None)
    found, strange = _of_the_table(settings, "gpt-neox", translated.NEOX)
    computed = tables_of("gpt-neox")["computed"].split()
    return _with_doubt(translated.read_neox(source._replace(
        text=json.dumps(found), world=world if type(world) is int else None,
        asked=source.asked._replace(vocab=_vocabulary(given, source)))),
        {name: value for name, value in strange.items() if name not in computed},
        "the table of GPT-NeoX ea7aefd")


def _megatron_deepspeed(given: Given, table: dict[str, Any], source: Source) -> FileDescription:
    """Arguments with the JSON of their engine."""
    if "deepspeed" not in given:
        raise InputError(f"{source.where}: its table says deepspeed, and no JSON of the engine is "
                         "printed; allowed: the whole log, with DeepSpeedEngine configuration")
    experts = table.get("num_experts")
    if experts in ([1], 1):  # one expert: a dense layer (megatron/arguments.py, --num-experts)
        del table["num_experts"]
    arguments = words_of(table, source.asked.ignored, deepspeed.known_arguments())
    found = deepspeed.read(source._replace(
        text=_json_of(given), words=arguments.words,
        asked=source.asked._replace(settings={}, vocab=_vocabulary(given, source))))
    notes = (strange_note(arguments.strange),) if arguments.strange else ()
    return found._replace(notes=(*notes, *found.notes))


# ---------------------------------------------------------------- files that are printed whole


def _printed(kind: str, read: Callable[[Source], FileDescription]
             ) -> Callable[[Given, Source], FileDescription]:
    """The reader of the file takes what is printed of it."""
    def described(given: Given, source: Source) -> FileDescription:
        return read(source._replace(text=json.dumps(given[kind].settings)))
    return described


def _json_of(given: Given) -> str:
    """DeepSpeed's JSON, with what its engine computed of the batch."""
    settings = dict(given["deepspeed"].settings)
    if "deepspeed-engine" in given:
        rows = given["deepspeed-engine"].settings
        settings |= {name: value for name, value in rows.items() if name != "world_size"
                     and not isinstance(settings.get(name), int)}
    return json.dumps(settings)


def _deepspeed(given: Given, source: Source) -> FileDescription:
    """The engine's JSON, with the Trainer's arguments and the model's where they are printed."""
    return deepspeed.read(_of_the_trainer(given, source)._replace(text=_json_of(given)))


def _axolotl(given: Given, source: Source) -> FileDescription:
    """Axolotl's settings with their defaults, and the JSON of the engine in place of its file."""
    body = _json_of(given) if "deepspeed" in given else None
    found, strange = _of_the_table(given["axolotl"].settings, "trainer", huggingface.READ)
    world = strange.pop("world_size", None)
    source = _of_the_model(given, source)._replace(
        text=json.dumps(found), world=world if type(world) is int else None)
    return _with_doubt(huggingface.read(source, body), strange, "Axolotl 067b021")


def _of_the_table(settings: Mapping[str, Any], target: str, read: Sequence[str]
                  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that are known, and those with a value of names that are not."""
    table = software_settings(target)
    names = {*read, *table.free, *table.only, *table.within,
             *(one for names in table.small for one in names)}
    begins = tuple(one[:-1] for one in names if one.endswith("*"))
    found: dict[str, Any] = {}
    strange: dict[str, Any] = {}
    for name, value in flat(settings).items():
        if name.startswith(begins) or any(name.rsplit(".", n)[0] in names
                                          for n in range(name.count(".") + 1)):
            found[name] = value
        elif value not in (None, False, "", 0, -1, 1) and value != []:
            strange[name] = value
    return found, strange


def _with_doubt(found: FileDescription, strange: Mapping[str, Any], version: str
                ) -> FileDescription:
    """With a note on settings that are not known."""
    if not strange:
        return found
    more = f" and {len(strange) - 12} more" if len(strange) > 12 else ""
    note = (f"no price, and not known to {version} (another version's): "
            f"{', '.join([*strange][:12])}{more}")
    return found._replace(notes=(note, *found.notes))


def _trainer(given: Given, source: Source) -> FileDescription:
    """The Trainer without DeepSpeed."""
    raise InputError(
        f"{source.where}: the Trainer prints no JSON of DeepSpeed's engine; price other ways to "
        "divide a model by `nest evaluate MODEL CLUSTER --stack fsdp --zero 3` (FSDP; --zero 0: "
        "DDP) with --mbs, --global-batch and --seq-len")


def _of_the_model(given: Given, source: Source) -> Source:
    """With the model that transformers prints, unless the user names one."""
    if source.asked.model is not None or "huggingface-model" not in given:
        return source
    model = load_model(dict(given["huggingface-model"].settings))
    return source._replace(asked=source.asked._replace(model=model))


def _of_the_trainer(given: Given, source: Source) -> Source:
    source = _of_the_model(given, source)
    printed = given["trainer"].settings if "trainer" in given else {}
    words = tuple(f"--{name}={str(printed[name]).lower()}" for name in _TRAINER if name in printed)
    engine = given["deepspeed-engine"].settings if "deepspeed-engine" in given else {}
    world = engine.get("world_size")
    return source._replace(words=words, world=world if type(world) is int else None)


# ---------------------------------------------------------------- NeMo, MaxText


def _nemo(given: Given, source: Source) -> FileDescription:
    """NeMo 1: all settings, of which its example has more than the table."""
    found, strange = _of_the_table(given["nemo"].settings, "nemo", translated.NEMO)
    return _with_doubt(translated.read_nemo(source._replace(
        text=json.dumps(found), asked=source.asked._replace(vocab=_vocabulary(given, source)))),
        strange, "the table of NeMo 1")


def _maxtext(given: Given, source: Source) -> FileDescription:
    """All settings, with their defaults and what the job computes of them."""
    table = tables_of("maxtext")["printed"]
    defaults = {name: one["value"] for one in table["defaults"] for name in one["names"].split()}
    defaults |= table["other_defaults"]
    settings = given["maxtext"].settings
    named = settings.get("model_name") != "default"
    left_out = (*table["computed"].split(), *(table["model"].split() if named else ()))
    read = (*(one.name for one in (*maxtext.SETTINGS, *maxtext.OWN)), *defaults,
            "override_model_config", "num_slices")
    found, strange = _of_the_table(
        {name: value for name, value in settings.items() if value not in ("", None)}, "maxtext",
        read)
    found = {name: value for name, value in found.items() if name not in defaults
             or str(value) != str(defaults[name]) and not among(name, left_out)}
    own = {one for one in left_out if not one.endswith("*")}
    begins = tuple(one[:-1] for one in left_out if one.endswith("*"))
    strange = {name: value for name, value in strange.items()
               if name not in own and not name.startswith(begins)}
    axes = [strange.pop(name) for name in table["axes"].split() if name in strange]
    read_as = maxtext.read(source._replace(text=json.dumps(found)))
    if axes:
        read_as = read_as._replace(notes=(
            "mesh and rules of its axes are priced as those of base.yml", *read_as.notes))
    return _with_doubt(read_as, strange, f"MaxText {maxtext.VERSION}")


# ---------------------------------------------------------------- Megatron-Bridge


def _bridge(kind: str) -> Callable[[Given, Source], FileDescription]:
    def described(given: Given, source: Source) -> FileDescription:
        steps = given["micro-batches"].settings["const"] if "micro-batches" in given else None
        return bridge_log.read(given[kind].settings, source, _vocabulary(given, source), steps)
    return described


_READERS: Mapping[str, Callable[[Given, Source], FileDescription]] = {
    "gpt-neox": _neox,
    "megatron": _megatron,
    "megatron-bridge": _bridge("megatron-bridge"),
    "megatron-bridge-summary": _bridge("megatron-bridge-summary"),
    "nemo": _nemo,
    "torchtitan": _printed("torchtitan", torchtitan.read_printed),
    "torchtitan-dict": _printed("torchtitan-dict", torchtitan.read_printed),
    "maxtext": _maxtext,
    "axolotl": _axolotl,
    "deepspeed": _deepspeed,
    "trainer": _trainer,
}
"""By the kind of a configuration; the first that is printed counts."""
_TABLES = {"nemo": "nemo", "torchtitan": "torchtitan-toml", "torchtitan-dict": "torchtitan-toml",
           "maxtext": "maxtext", "deepspeed": "deepspeed", "axolotl": "trainer"}
"""The table that says which of their settings change no cost."""

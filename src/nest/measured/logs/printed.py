"""Configurations that training software prints, as settings by name.

Each kind begins with a line of its own, and ends with one, or where its text is whole:

- Megatron-LM's table: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1288
  (_print_args), @v2.5 megatron/arguments.py; its forks, NeMo's ``updated`` tables.
- GPT-NeoX's table, whose rows say what is no default: EleutherAI/gpt-neox@ea7aefd
  megatron/neox_arguments/arguments.py:757.
- Megatron-Bridge: YAML up to 0.2 (NVIDIA-NeMo/Megatron-Bridge@v0.2.0
  src/megatron/bridge/training/setup.py:480), a summary from 0.3 on (@v0.6.0
  src/megatron/bridge/training/config.py:1665).
- NeMo 1: YAML (NVIDIA/NeMo@8cfedd7 examples/nlp/language_modeling/megatron_gpt_pretraining.py:37).
- torchtitan: JSON (pytorch/torchtitan@v0.2.2 torchtitan/config/job_config.py:1032), a dict of
  Python up to 0.2.0 (@v0.1.0 torchtitan/train.py:76).
- DeepSpeed: JSON behind the table of its engine (deepspeedai/DeepSpeed@edaa722
  deepspeed/runtime/config.py:998).
- MaxText: a line each (AI-Hypercomputer/maxtext@e591f30 src/maxtext/configs/pyconfig.py:584).
- Axolotl: JSON (axolotl-ai-cloud/axolotl@067b021 src/axolotl/cli/config.py:337).
- Hugging Face: the Trainer's arguments, a line each (transformers==4.57.1
  src/transformers/training_args.py:2169), and the model's JSON
  (src/transformers/configuration_utils.py:839).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.inputs.files import parse_text
from nest.measured.logs.lines import LogLine

MOST_LINES = 20_000
"""Of a configuration."""
MOST_CHARACTERS = 2**20
MOST_CONFIGURATIONS = 1000
_NESTED = re.compile(r"(?:[\[({+~-]\s*){50}")
_NUMBER = re.compile(r"[+-]?\d{1,18}|[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18}|\d{1,18}(?=[eE]))"
                     r"([eE][+-]?\d{1,3})?", re.ASCII)


class PrintedSettings(NamedTuple):
    """One printed configuration."""

    kind: str
    """Name of an entry of :data:`KINDS`."""
    line: int
    """Where it begins, from 1."""
    settings: Mapping[str, Any]
    """By name, sections within sections as it prints them."""
    problem: str = ""
    """Why it is not whole; empty: it is."""


def plain_value(text: str) -> Any:
    """A value as Python prints it: nothing, truth, a number, a list or a dict of these, or text.

    Names of an enumeration or of a type of torch lose what is before the point.
    """
    text = text.strip()
    known = {"None": None, "True": True, "False": False, "null": None, "true": True,
             "false": False}
    if text in known:
        return known[text]
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if named := re.fullmatch(r"<?(?:torch|[A-Z]\w{0,60})\.(\w{1,60})(?:: .{0,100}>)?", text):
        return named[1]
    if text[:1] in "[({'\"" and len(text) < 10**5 and not _NESTED.search(text):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    return text


# ---------------------------------------------------------------- kinds


def _rows(form: str) -> Callable[[list[str]], dict[str, Any]]:
    """Lines of a name and a value."""
    row = re.compile(form)

    def read(lines: list[str]) -> dict[str, Any]:
        found = (row.match(line) for line in lines)
        return {one["name"]: plain_value(one["value"]) for one in found if one}
    return read


_ENDLESS = re.compile(r"(?<=:)\s*-?(?:inf|Infinity|nan|NaN)(?=\s*[,}\n])")
"""Numbers that JSON has not, such as steps_per_print of accelerate."""


def _json(lines: list[str]) -> dict[str, Any]:
    text = _ENDLESS.sub(" null", "\n".join(lines))
    return dict(parse_text(text[text.index("{"):], ".json", "its JSON"))


def _python(lines: list[str]) -> dict[str, Any]:
    text = " ".join(lines)
    found = plain_value(text[text.index("{"):])
    if not isinstance(found, dict):
        raise ValueError("it is no dict of plain values")
    return found


def _yaml(lines: list[str]) -> dict[str, Any]:
    found = parse_text("\n".join(lines), ".yaml", "its YAML")
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    return found


_SECTION = re.compile(r"\[(\w+)\](?: Non-default values.*)?:$")
_FIELD = re.compile(r"  (\w+): (.*?)(?:  \(Mcore default: .*\))?$")


def _summary(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    section = ""
    for line in lines:
        if title := _SECTION.match(line.strip()):
            section = title[1]
        elif (row := _FIELD.match(line)) and section:
            found.setdefault(section, {})[row[1]] = plain_value(row[2])
    return found


class _Kind(NamedTuple):
    """How a configuration is printed."""

    begins: re.Pattern[str]
    read: Callable[[list[str]], dict[str, Any]]
    ends: re.Pattern[str] | None = None
    """The line behind it; None: its brackets close, or ``belongs`` says where it ends."""
    belongs: re.Pattern[str] | None = None
    """Lines of it."""
    first: bool = False
    """The line that begins it is part of it."""
    brackets: bool = False
    """It ends where its brackets close."""


_NEOX = re.compile(r"\s{1,12}(?P<name>\w+) \.* ?(?P<value>.*?)\.*updated$")
"""A row that is no default; the others have their defaults."""
_TABLE = re.compile(r"^\s*-{5,} (?:updated )?arguments -{5,}\s*$")
_DASHES = re.compile(r"^\s*-{5,} end of (?:updated )?arguments -{5,}\s*$")
_ROW = r"\s{1,12}(?P<name>\w+) \.* ?(?P<value>.*)$"
_YAML_LINE = re.compile(r"^(?:\s*$|\s*- |\s*[\w./-]+:(?:\s|$)|\s{2,}\S)")
_JSON_LINE = re.compile(r"""^\s*(?:["{}\[\]]|-?\d|true|false|null)""")
KINDS: Mapping[str, _Kind] = {
    "gpt-neox": _Kind(re.compile(r"^-{20} arguments -{20}\s*$"), _rows(_NEOX.pattern), _DASHES,
                      re.compile(_ROW)),
    "megatron": _Kind(_TABLE, _rows(_ROW), _DASHES, re.compile(_ROW)),
    "megatron-bridge": _Kind(re.compile(r"^-{7} Task Configuration -{7}\s*$"), _yaml,
                             re.compile(r"^-{20,}\s*$"), _YAML_LINE),
    "megatron-bridge-summary": _Kind(
        re.compile(r"^Configuration Summary \(Non-Default Values"), _summary,
        re.compile(r"^={20,}\s*$"), re.compile(r"^(?:  \w+: |\[\w+\])")),
    "nemo": _Kind(re.compile(r"\*{5,} Experiment configuration"), _yaml, belongs=_YAML_LINE),
    "torchtitan": _Kind(re.compile(r"Running with (?:configs|args): (?=\{(?:\s*$|\"))"), _json,
                        belongs=_JSON_LINE, first=True, brackets=True),
    "torchtitan-dict": _Kind(re.compile(r"Running with args: (?=\{')"), _python,
                             belongs=re.compile(""), first=True, brackets=True),
    "deepspeed": _Kind(re.compile(r"\]\s+json = (?=\{)"), _json, belongs=_JSON_LINE, first=True,
                       brackets=True),
    "axolotl": _Kind(re.compile(r"config:\s*$"), _json, belongs=_JSON_LINE, brackets=True),
    "huggingface-model": _Kind(re.compile(r"Model config \w+ (?=\{)"), _json, belongs=_JSON_LINE,
                               first=True, brackets=True),
    "trainer": _Kind(re.compile(r"TrainingArguments\(\s*$"),
                     _rows(r"(?P<name>\w+)=(?P<value>.*),$"), re.compile(r"^\)\s*$"),
                     re.compile(r"^\w+=")),
}
"""By name, in the order in which a line is tried."""
_ROWS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "maxtext": (re.compile(r"Config param (?P<name>\w+): (?P<value>.*)$"),),
    # rows of DeepSpeed's engine, whose values its JSON may leave out
    "deepspeed-engine": (re.compile(
        r"config\.py:\d+:print\] {2,}(?P<name>train_batch_size|gradient_accumulation_steps|"
        r"train_micro_batch_size_per_gpu|world_size) \.* ?(?P<value>\d{1,9})$"),),
    # NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/tokenizer/tokenizer.py:126; NVIDIA/NeMo
    # nemo/collections/nlp/models/language_modeling/megatron_base_model.py:642
    "vocabulary": (re.compile(r"padded vocab \((?P<name>size): (?P<value>\d{1,9})\)"),
                   re.compile(r"original vocab_(?P<name>size): (?P<value>\d{1,9})\b")),
    # NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/num_microbatches_calculator.py:229
    # mlcommons/logging mlperf_logging/mllog/constants.py
    "mlperf": (re.compile(r':::MLLOG .*"key": "(?P<name>global_batch_size)", "value": '
                          r"(?P<value>\d{1,9}),"),),
    "micro-batches": (re.compile(
        r"setting number of micro-?batches to (?P<name>const)ant (?P<value>\d{1,9})"),),
}
"""Settings that are printed a line each, at any place."""
_HOST = re.compile(r"(?:localhost|(?=\D{0,60}\d)[\w.-]{1,60}): (?=.)")
"""What pdsh puts before each line of a host; names of hosts have digits, levels of logs none."""


@dataclass
class _Open:
    """A configuration that is being printed."""

    kind: str
    line: int
    rank: int | None
    host: str
    lines: list[str] = field(default_factory=list)
    size: int = 0
    depth: int = 0
    quoted: bool = False

    def take(self, text: str) -> None:
        self.lines.append(text)
        self.size += len(text) + 1

    @property
    def large(self) -> bool:
        return self.size > MOST_CHARACTERS or len(self.lines) > MOST_LINES

    def closed(self, text: str) -> int:
        """Characters of a line up to the bracket that closes the first one; 0: it is not there."""
        at = 0
        while at < len(text):
            char = text[at]
            if self.quoted:
                at += char == "\\"
                self.quoted = char != '"'
            elif char == '"':
                self.quoted = True
            else:
                self.depth += (char in "{[") - (char in "}]")
                if char in "}]" and self.depth <= 0:
                    return at + 1
            at += 1
        return 0


class Configurations:
    """The printed configurations of a log, line by line."""

    def __init__(self) -> None:
        self.found: list[PrintedSettings] = []
        self._open: _Open | None = None
        self._rows: dict[str, dict[str, Any]] = {}
        self._first: dict[str, int] = {}

    @property
    def open(self) -> bool:
        """Whether the lines of one are being read."""
        return self._open is not None

    def line(self, line: LogLine, busy: bool) -> bool:
        """Take a line.

        Parameters
        ----------
        busy : the run did something since the last configuration.

        Returns
        -------
        Whether a configuration begins with it.
        """
        if self._open is not None and self._continues(self._open, line):
            return False
        for kind, forms in _ROWS.items():
            for form in forms:
                if row := form.search(line.text):
                    return self._row(kind, row, line, busy)
        host = named[0] if (named := _HOST.match(line.text)) else ""
        text = line.text[len(host):]
        for name, entry in KINDS.items():
            if (found := entry.begins.search(text)) and len(self.found) < MOST_CONFIGURATIONS:
                self._close("another one begins before its end")
                self._open = _Open(name, line.number, line.rank, host)
                if entry.first:
                    self._continues(self._open, line._replace(text=host + text[found.end():]))
                return True
        return False

    def _row(self, kind: str, found: re.Match[str], line: LogLine, busy: bool) -> bool:
        """One of the settings that are printed a line each, at any place."""
        begins = kind not in self._rows or busy
        if begins:
            self._finish_rows(kind)
            self._first[kind] = line.number
        rows = self._rows.setdefault(kind, {})
        if len(rows) < MOST_LINES:
            rows[found["name"]] = plain_value(found["value"])
        return begins

    def _finish_rows(self, kind: str) -> None:
        rows = self._rows.pop(kind, None)
        if rows and len(self.found) < MOST_CONFIGURATIONS:
            self.found.append(PrintedSettings(kind, self._first[kind], rows))

    def _continues(self, opened: _Open, line: LogLine) -> bool:
        """Whether a line belongs to the configuration that is open."""
        kind, text = KINDS[opened.kind], line.text
        if line.rank != opened.rank or not text.startswith(opened.host):
            return False  # another rank prints between its lines
        text = text[len(opened.host):]
        if opened.large:
            self._close(f"it has more than {MOST_LINES:,} lines or {MOST_CHARACTERS:,} characters")
            return False
        if kind.ends is not None and kind.ends.match(text):
            if opened.lines:
                self._close()
            return True
        assert kind.belongs is not None
        if not kind.belongs.match(text):
            if kind.ends is None and not kind.brackets and opened.lines:
                self._close()  # YAML has no last line of its own
            elif kind.brackets and not opened.lines:
                self._open = None  # other software prints the same words
            return False
        end = opened.closed(text) if kind.brackets else 0
        opened.take(text[:end] if end else text)
        if end:
            self._close()
        return True

    def _close(self, problem: str = "") -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        settings: dict[str, Any] = {}
        try:
            settings = KINDS[opened.kind].read(opened.lines)
        except (InputError, ValueError, TypeError, RecursionError) as error:
            problem = problem or f"it cannot be read ({' '.join(str(error).split())[:200]})"
        self.found.append(PrintedSettings(opened.kind, opened.line, settings, problem))

    def finish(self) -> list[PrintedSettings]:
        """All of them, at the end of the log."""
        if self._open is not None:
            kind = KINDS[self._open.kind]
            self._close("" if kind.ends is None and not kind.brackets else "the log ends in it")
        for name in [*self._rows]:
            self._finish_rows(name)
        return self.found

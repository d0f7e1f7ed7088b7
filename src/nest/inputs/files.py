"""Reading and writing of description files, with one clear message for each problem."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import yaml

from nest.errors import InputError, OutputError
from nest.units import shorten

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
LARGEST = 16 * 2**20  # bytes of one file
LARGEST_YAML = 2**20  # characters; YAML is read some hundred times more slowly than JSON
LARGEST_TOML = 2**20  # characters
LONGEST_NUMBER = 4300  # digits; the limit of Python
LONGEST_SCALAR = 10_000  # characters of one value in YAML
MOST_ROWS = 10**5  # of a table
DEEPEST = 64  # mappings and lists inside one another

_FORMULA = (*"=+-@\t\r\n\uff1d\uff0b\uff0d\uff20",)
"""Characters that a formula begins with, the wide ones too."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_KEY = re.compile(r"""["']?([\w.-]{1,60})["']?[ \t]*[:=][ \t]*[+-]?$""", re.ASCII)
"""The key before a value, at the end of a text."""

# tomllib's time grows with the square of the parts of a dotted key
_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{DEEPEST}}}""")


class _Refused(ValueError):
    """The file is well formed but not accepted; the text says what and where."""


class _StrictLoader(_Loader):  # type: ignore[misc]
    """The safe YAML loader without aliases, keys given twice and dates, which are text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()}

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (_Refused, yaml.YAMLError):
            raise
        except (ValueError, ArithmeticError, TypeError, AttributeError, LookupError) as error:
            if len(node.value) > LONGEST_NUMBER:
                raise  # `parse_text` names its digits
            mark = node.start_mark  # absurd scalars, such as 0x_
            reason = " ".join(str(error).split())[:200]
            raise _Refused(f"line {mark.line + 1}, column {mark.column + 1}: got "
                           f"{shorten(node.value)}, which cannot be read ({reason}); allowed: text "
                           "in quotes, or a number") from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            mark = key_node.start_mark
            place = f"line {mark.line + 1}, column {mark.column + 1}"
            if not isinstance(key, (str, int, float, bool)):
                raise _Refused(f"{place}: got {shorten(key)} as a key; allowed: text or a number")
            if key in seen:
                raise _Refused(f"{place}: {shorten(key)} is given twice; allowed: once")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _check_events(text: str) -> None:
    """Refuse aliases, tags, endless values and deep nesting before anything is built.

    Aliases can expand without bound, tags can fail in any way, and values such as 1:2:3 take time
    quadratic in their length.

    The compiled YAML reader builds nested values by recursion in C, which many brackets in a row
    overflow; its events come without recursion.
    """
    depth = 0
    event: Any
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        place = f"line {event.start_mark.line + 1}, column {event.start_mark.column + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"{place}: got an alias (*{shorten(event.anchor)[1:-1]}); allowed: "
                           "values written out")
        if getattr(event, "tag", None) is not None:
            raise _Refused(
                f"{place}: got the tag {shorten(event.tag)}; allowed: values without tags"
            )
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_SCALAR:
            count = f"a value of {len(event.value)} characters"
            raise _Refused(f"{place}: got {count}; allowed: at most {LONGEST_SCALAR}")
        if depth > DEEPEST:
            raise _Refused(f"{place}: nested more than {DEEPEST} deep; allowed: {DEEPEST}")


class _Written(yaml.SafeDumper):
    """The safe YAML writer without aliases, which :func:`parse_yaml` refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Other(_Written):
    """The same for other programs: blocks of several lines, and quotes around what a reader of YAML
    1.2 or of Go takes for a number or a truth value."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if text[:1] in "+-.0123456789" or len(text) < 2 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Other.add_representer(str, _text)


def yaml_of_others(data: Mapping[str, Any]) -> str:
    """YAML of plain data that another program reads."""
    text: str = yaml.dump(dict(data), Dumper=_Other, sort_keys=False, allow_unicode=True, width=96)
    return text


def yaml_text(data: Mapping[str, Any]) -> str:
    """YAML of plain data, fields in their order, which :func:`parse_yaml` reads back."""
    text: str = yaml.dump(dict(data), Dumper=_Written, sort_keys=False, allow_unicode=True,
                          width=96)
    return text


def parse_yaml(text: str) -> Any:
    """Plain data of one YAML document.

    Raises
    ------
    ValueError : malformed, several documents, aliases, a key twice, or nested too deep.
    """
    if len(text) > LARGEST_YAML:
        raise _Refused(
            f"got {len(text)} characters of YAML; allowed: {LARGEST_YAML} (JSON may be larger)"
        )
    try:
        _check_events(text)
        loader = _StrictLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        told = f"malformed YAML: {error.problem or error.context}"
        if "nesting depth" in told:  # PyYAML reads ahead, and has a limit from 6.0.4 on
            told = f"nested more than {DEEPEST} deep; allowed: {DEEPEST}"
        raise _Refused(place + told) from None
    except yaml.YAMLError as error:
        raise _Refused(f"malformed YAML: {' '.join(str(error).split())[:200]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Refused(f"{shorten(key)} is given twice in one object; allowed: once")
        result[key] = value
    return result


class _Endless(float):
    """NaN or Infinity, which a known key may have."""


_UNBOUNDED = ("time_step_limit",)
"""Keys of config.json that published files give an infinite value (Mamba-2, Nemotron-H)."""


def _constant(text: str) -> float:
    return _Endless(text.replace("Infinity", "inf"))


def parse_json(text: str) -> Any:
    """Plain data of one JSON document.

    Raises
    ------
    ValueError : malformed, or a key twice. NaN and Infinity are refused with their field by
        `parse_text`.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _Refused(f"{place}: malformed JSON: {error.msg}") from None


def parse_toml(text: str) -> Any:
    """Plain data of one TOML document.

    Raises
    ------
    ValueError : malformed.
    """
    if len(text) > LARGEST_TOML:
        raise _Refused(f"got {len(text)} characters of TOML; allowed: {LARGEST_TOML}")
    if _LONG_KEY.search(text):
        raise _Refused(f"a key has more than {DEEPEST} parts; allowed: {DEEPEST}")
    try:
        return _plain(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _Refused(f"malformed TOML: {error}") from None


def _plain(value: Any) -> Any:
    """The same with dates and times as text."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, (date, time)) else value


def document_of(data: Mapping[str, Any]) -> str | None:
    """What NEST has written some data as: `plan` of the schema `nest.plan/1`; None: it has not."""
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.startswith("nest."):
        return None
    return schema.removeprefix("nest.").partition("/")[0]


def read_bytes(path: str | os.PathLike[str], largest: int) -> bytes:
    """Bytes of a regular file of at most so many.

    Raises
    ------
    InputError : no such file, a folder, a pipe, not readable, or too large.
    """
    shown = shorten(os.fspath(path), 300)[1:-1]
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise InputError(f"{shown}: is a folder; allowed: a file")
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{shown}: is not a regular file; allowed: a regular file")
        if info.st_size > largest:
            raise InputError(f"{shown}: got {info.st_size} bytes; allowed: at most {largest} bytes")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from None
    except InputError:  # a ValueError too
        raise
    except ValueError as error:
        raise InputError(f"{shown}: is not a file name ({error})") from None


def read_text(path: str | os.PathLike[str]) -> str:
    """Text of a regular UTF-8 file of at most 16 MiB.

    Raises
    ------
    InputError : no such file, a folder, not readable, too large, binary, or not UTF-8.
    """
    data = read_bytes(path, LARGEST)
    shown = shorten(os.fspath(path), 300)[1:-1]
    if b"\0" in data:
        raise InputError(f"{shown}: is a binary file; allowed: UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: byte {error.start} is not UTF-8; allowed: UTF-8 text") from None


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Mapping that a .yaml, .yml, .json or .toml file holds.

    Raises
    ------
    InputError : the file cannot be read, is malformed (with line and column), or holds no mapping.
    """
    shown = shorten(os.fspath(path), 300)[1:-1]
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES and not os.path.isdir(path):
        got = f"suffix {shorten(suffix)}" if suffix else "no suffix"
        raise InputError(f"{shown}: got {got}; allowed: {', '.join(SUFFIXES)}")
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{shown}: is empty; allowed: a mapping of fields")
    data = parse_text(text, suffix, shown)
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"{shorten(data)} ({type(data).__name__})"
        raise InputError(f"{shown}: got {found}; allowed: a mapping of fields")
    for key in data:
        if not isinstance(key, str):
            raise InputError(f"{shown}: got {shorten(key)} as a field name; allowed: text")
    return data


def parse_text(text: str, suffix: str, where: str) -> Any:
    """Plain data of a text in the format of a suffix.

    Raises
    ------
    InputError : malformed, with line and column where the format gives them.
    """
    parsers: dict[str, Callable[[str], Any]] = {".json": parse_json, ".toml": parse_toml}
    try:
        data = parsers.get(suffix, parse_yaml)(text)
        _check(data)
        return data
    except _Refused as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deep; allowed: {DEEPEST} levels") from None
    except (ValueError, ArithmeticError, TypeError, AttributeError, LookupError) as error:
        if long := _long_number(text):
            raise InputError(f"{where}: {long}") from None
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: a value cannot be read ({reason})") from None


def _long_number(text: str) -> str | None:
    """Where a text has a whole number that Python does not read; None: nowhere."""
    for run in re.finditer(r"[\d_]+", text, re.ASCII):
        if run.end() - run.start() > LONGEST_NUMBER:
            line = text.count("\n", 0, run.start()) + 1
            key = _KEY.search(text[max(0, run.start() - 80) : run.start()])
            return (f"line {line}: {key[1] + ': ' if key else ''}got a whole number of "
                    f"{run.end() - run.start()} digits; allowed: at most {LONGEST_NUMBER}")
    return None


def _check(data: Any) -> None:
    """Refuse NaN, Infinity, halves of characters and deep nesting, with the path of the field."""
    waiting: list[tuple[Any, int, tuple[Any, ...]]] = [({"": data}, 0, ())]
    while waiting:
        parts, depth, path = waiting.pop()  # a path: the last part, and the rest
        named = isinstance(parts, dict)
        for key, part in parts.items() if named else enumerate(parts):
            if named:
                _check_characters(key, path)
            if isinstance(part, (dict, list)):
                if depth == DEEPEST:
                    raise _Refused(f"nested more than {DEEPEST} deep; allowed: {DEEPEST}")
                if part:  # there may be millions without parts, and of numbers
                    waiting.append((part, depth + 1, (key, path) if depth else ()))
            elif isinstance(part, (str, _Endless)):
                _check_value(part, (key, path) if depth else ())


def _check_value(value: object, path: tuple[Any, ...]) -> None:
    if isinstance(value, _Endless) and not {*_parts(path)} & {*_UNBOUNDED}:
        text = str(float(value)).replace("inf", "Infinity").replace("nan", "NaN")
        raise _Refused(f"{_place(path)}got {text}; allowed: a finite number")
    _check_characters(value, path)


def _check_characters(value: object, path: tuple[Any, ...]) -> None:
    """Refuse text with half of a pair of UTF-16, which JSON can escape and no file can hold."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Refused(f"{_place(path)}got {shorten(value)}, which has half of a character; "
                           "allowed: whole characters") from None


def _parts(path: tuple[Any, ...]) -> list[str]:
    """The parts of a path, the first one first."""
    parts = []
    while path:
        part, path = path
        parts.append(shorten(part)[1:-1] if isinstance(part, str) else str(part))
    return parts[::-1]


def _place(path: tuple[Any, ...]) -> str:
    """A path as the start of a message."""
    return f"{'.'.join(_parts(path))}: " if path else ""


def csv_rows(text: str, where: str, most: int = MOST_ROWS) -> list[tuple[int, list[str]]]:
    """Rows of a CSV text with their lines; empty rows and comments (#) are left out.

    Raises
    ------
    InputError : malformed, or more than ``most`` rows.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                rows.append((reader.line_num, cells))
            if len(rows) > most:
                raise InputError(f"{where}: got more rows than allowed: {most}")
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: malformed CSV: {error}") from None
    return rows


def csv_cell(value: Any) -> Any:
    """A value as it stands in CSV: a text that spreadsheets run as a formula begins with ``'``.

    Names come from others' files, and points of a study from a server. Numbers stay as they are.
    Source: CSV Injection, owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA and value else value


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8, completely or not at all; errors as :func:`write_atomic`."""
    try:
        data = text.encode()
    except ValueError as error:
        shown = shorten(os.fspath(path), 300)[1:-1]
        raise InputError(f"{shown}: cannot be written ({error})") from None
    write_atomic(path, data)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file completely or not at all; errors as :func:`whole_file`."""
    with whole_file(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that stands in its place only when it is whole: it lies beside it till then.

    Raises
    ------
    InputError : the path is a folder or no file name.
    OutputError : the disk is full, the folder is missing, or it or the file must not be changed.
    """
    shown = shorten(os.fspath(path), 300)[1:-1]
    temporary = ""
    try:
        target = _target(path, shown)
        # a pipe or a terminal; /dev/stdout leads to a pipe, which has no path of its own
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as stream:
                yield stream
            return
        handle, temporary = tempfile.mkstemp(prefix=".nest-", dir=os.path.dirname(target))
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = ""
    except OSError as error:
        raise OutputError(f"{shown}: cannot be written ({error.strerror or error})") from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _target(path: str | os.PathLike[str], shown: str) -> str:
    """Where a path leads."""
    try:
        target = os.path.realpath(path)
        if os.path.isdir(target):
            raise InputError(f"{shown}: is a folder; allowed: a file to write")
        with contextlib.suppress(OSError):
            os.lstat(target)  # a name that no file can have is a ValueError
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown}: cannot be written ({error})") from None
    return target


def _mode(target: str) -> int:
    """Permissions of the replaced file, or those of a new file."""
    if os.path.exists(target):
        return stat.S_IMODE(os.stat(target).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

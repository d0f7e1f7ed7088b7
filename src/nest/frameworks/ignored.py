"""Names that the user leaves out: each is a setting, an argument or a call of the file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from nest.errors import InputError, did_you_mean
from nest.frameworks.arguments import arguments_of, known
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.formats import FORMATS
from nest.frameworks.megatron.arguments import ALIASES, TABLE
from nest.frameworks.megatron.translated import settings_of
from nest.frameworks.source import Source, among
from nest.frameworks.text.python_text import dotted
from nest.units import shorten


def check_ignored(ignored: Sequence[str], names: Iterable[str], where: str) -> None:
    """Refuse a name that the file does not have: it is misspelt, and leaves nothing out.

    Parameters
    ----------
    ignored : names, of a section too, or with a star at the end.
    names : those of the file; :func:`names_of` or :func:`names_of_words`.
    where : name of the file.

    Raises
    ------
    InputError : with the nearest name.
    """
    there = dict.fromkeys(names)
    for one in ignored:
        if not any(among(name, (one,)) for name in there):
            ends = {name.rpartition(".")[2]: name for name in reversed(there)}
            near = ends.get(one, one)
            raise InputError(
                f"ignore: got {shorten(one)}; {did_you_mean(near, there)}allowed: names of "
                f"settings, arguments or calls in {where}")


def names_of(target: str, source: Source) -> list[str]:
    """Settings of a file that was read and of its command line, and calls of a function."""
    if target not in FORMATS:
        return [name.replace("-", "_") for name in settings_of(source)]
    found = [*FORMATS[target].read(source), *FORMATS[target].overrides(source)]
    if target in ("torchtitan", "megatron-bridge"):
        found += _calls(source)
    if target == "deepspeed":
        words = arguments_of(source.words, deepspeed.known_arguments())[0]
        found += [*words, *(deepspeed.ALIASES.get(name, name) for name in words),
                  *source.asked.settings]
    return found


def names_of_words(words: Sequence[str]) -> list[str]:
    """Arguments of a command line of Megatron-LM, without hyphens."""
    found = arguments_of(words, known(TABLE))[0]
    return [*found, *(ALIASES[name][0] for name in found if name in ALIASES)]


def _calls(source: Source) -> list[str]:
    return [name for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)
            and (name := dotted(node.func))]

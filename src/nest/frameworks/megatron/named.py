"""Arguments of Megatron-LM by the names of their values, as words of a command line.

A job prints its arguments so (NVIDIA/Megatron-LM@core_v0.16.1
megatron/training/arguments.py:1288), and YAML has them so (FlagScale, Primus, configurations of
Megatron-Bridge, whose fields are those of the same classes). The table is `printed` of
settings.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nest.frameworks.settings import KnownArguments, known, tables_of
from nest.frameworks.source import among
from nest.units import shorten

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Types of torch, and the words of arguments."""


class NamedArguments(NamedTuple):
    """A command line, and names that are no argument of this version."""

    words: tuple[str, ...]
    strange: Mapping[str, Any]
    """Those with a value that says something."""


def words_of(given: Mapping[str, Any], ignored: Iterable[str] = (),
             table: KnownArguments | None = None) -> NamedArguments:
    """Words of the arguments that values stand for.

    Parameters
    ----------
    given : values by the name of the parser's destination, such as ``num_layers``; None and false
        stand for an argument that is not there.
    ignored : names of arguments to leave out, without hyphens.
    table : the arguments; default: Megatron-LM's.
    """
    table, data = table or known(), tables_of("megatron")["printed"]
    words: list[str] = []
    strange: dict[str, Any] = {}
    left_out = {*ignored}
    for name, value in given.items():
        plain = data["names"].get(name, name.replace("_", "-"))
        if name in data["when_false"]:
            plain, value = data["when_false"][name], value is False
        arity = table.takes.get(plain)
        if _says_nothing(value) or plain in left_out or name in left_out:
            continue
        if among(name, data["computed"].split()) and arity is None:
            continue
        if arity is None:
            if value != 0:
                strange[name] = value
        elif plain in table.free | table.elsewhere or data["defaults"].get(plain) == value:
            continue
        elif arity == "flag":
            words += [f"--{plain}"] if value is True or value == 1 else []
        else:
            each = value if isinstance(value, (list, tuple)) and arity == "many" else (value,)
            words += [f"--{plain}", *(_DTYPES.get(str(one), str(one)) for one in each)]
    return NamedArguments(tuple(words), strange)


def _says_nothing(value: Any) -> bool:
    """Whether a value is that of an argument that is not there."""
    return value is None or value is False or isinstance(value, (str, list, tuple)) and not value


def strange_note(strange: Mapping[str, Any]) -> str:
    """A doubt on names that the price knows nothing of."""
    shown = [f"{name}: {shorten(value)}" for name, value in [*strange.items()][:12]]
    more = f" and {len(strange) - 12} more" if len(strange) > 12 else ""
    return ("no price, and not known to Megatron-LM core_v0.16.1 (a fork's, or another version's): "
            f"{', '.join(shown)}{more}")

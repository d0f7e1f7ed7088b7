"""Fields of a Hugging Face config.json: reading, names in use for the same field, problems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nest.inputs.files import read_description
from nest.units import shorten

Fields = dict[str, Any]

_SAME = (
    ("hidden_size", "n_embd", "n_embed", "d_model"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_attention_groups"),
    ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"),
    ("max_position_embeddings", "n_positions"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "num_selected_experts", "moe_top_k"),
    ("n_shared_experts", "num_shared_experts"),
    ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"),
    ("head_dim", "attention_head_dim"),
)
"""Names of one field in different model types (attribute_map of the configuration classes)."""
MOST_LAYERS = 10**4
_LAYERS = (*_SAME[1], "num_decoder_layers", "depth")
_OTHER_NAMES = {
    name: tuple(other for other in group if other != name) for group in _SAME for name in group
}


class Config:
    """Reads fields of a config.json, and collects every problem."""

    def __init__(self, data: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.data = data
        self.where = where
        self.prefix = prefix
        self.problems: list[str] = []
        self.read: set[str] = set()
        self.asked: set[str] = set()
        """Keys by the names that the model type itself gives them."""
        self.children: list[Config] = []

    def named(self, key: str) -> str:
        """The key that the file has for a field: its own name, or another one in use for it.

        Two that differ are refused.
        """
        self.asked.add(key)
        names = _OTHER_NAMES.get(key, ())
        given = [name for name in (key, *names) if self.data.get(name) is not None]
        if len(given) > 1 and any(self.data[name] != self.data[given[0]] for name in given):
            self.refuse(given[1], f"the value of {given[0]}, or one of the two")
        self.read |= {*given}
        return given[0] if given else key

    def get(self, key: str, default: object = None) -> Any:
        """The value as it stands, or the default where there is none."""
        self.asked.add(key)
        self.read.add(key)
        return self.data.get(key, default)

    def nested(self, key: str, defaults: Mapping[str, Any]) -> Config | None:
        """A mapping within the file, with the defaults of its own class; None: there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(key, "a mapping of fields")
            return None
        child = Config({**defaults, **value}, self.where, f"{self.prefix}{key}.")
        child.problems = self.problems
        self.children.append(child)
        return child

    def refuse(self, key: str, allowed: str) -> None:
        """Note a value that cannot be described."""
        given = f"got {shorten(self.data[key])}" if key in self.data else "missing"
        self.problems.append(f"{self.where}: {self.prefix}{key}: {given}; allowed: {allowed}")

    def whole(
        self, key: str, default: int | None = None, low: int = 1, high: int = 10**7
    ) -> int:
        """A whole number; needed where there is no default (null counts as not given)."""
        key = self.named(key)
        if key in _LAYERS:
            high = MOST_LAYERS
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(key, f"a whole number, {low} to {high}")
            return max(low, 1)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, with the default of the configuration class."""
        value = self.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
            return default
        return value

    def only(self, key: str, default: object, *allowed: object) -> None:
        """Refuse variants whose operators NEST does not describe."""
        if self.get(key, default) not in allowed:
            self.refuse(key, " or ".join(shorten(value) for value in allowed))

    def layers_of(self, key: str, layers: int, allowed: Mapping[str, str]) -> list[str] | None:
        """A list with a word for each layer, translated; None: the file has no such list."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers or any(
                not isinstance(word, str) or word not in allowed for word in value):
            self.refuse(key, f"{layers} entries, each {' or '.join(allowed)}")
            return None
        return [allowed[word] for word in value]


@cache
def tables() -> Mapping[str, Any]:
    """What families.yaml says: how model types are read, refused ones, keys that cost nothing."""
    return read_description(Path(__file__).with_name("families.yaml"))


_STARTS = ("_", "unsloth")  # private notes, and those of a fine-tuning tool


@cache
def _free_keys() -> frozenset[str]:
    return frozenset(key for keys in tables()["free"].values() for key in keys.split())


def costly_keys(config: Config) -> list[str]:
    """Keys that are given and not known to cost nothing."""
    return [key for key, value in config.data.items()
            if key not in _free_keys() and not key.startswith(_STARTS)
            and value not in (None, False, 0, "", [], {})]


def unknown_keys(config: Config) -> list[str]:
    """Of these, the keys that are not read."""
    return [key for key in costly_keys(config) if key not in config.read]


_WORDS = ("kind", "norm", "form", "qk_norm_form")
_ENTRY = re.compile(r"(\w+)?( >= 0)?(?: ?= (?:(\d+) \* )?(\w+))?")


def add_row(config: Config, row: Mapping[str, Any], fields: Fields) -> None:
    """Read the fields of a row of families.yaml, in the notation that stands at its head."""
    own = {key: row[key] for key in row if key not in ("is", "only", "free")}
    _add(config, own, fields, fields)
    for key, allowed in row.get("only", {}).items():
        config.only(key, allowed[0], *allowed)
    config.read |= {*row.get("free", ())}


def _add(config: Config, row: Mapping[str, Any], into: Fields, fields: Fields) -> None:
    for name, given in row.items():
        if isinstance(given, Mapping):
            _add(config, given, into.setdefault(name, {}), fields)
            continue
        value = given
        if isinstance(given, str) and name not in _WORDS:
            value = _read(config, given, fields)
        if value is not None:
            into[name] = value


def _read(config: Config, text: str, fields: Fields) -> Any:
    """The value that an entry of a row stands for; None: there is none."""
    match = _ENTRY.fullmatch(text)
    assert match is not None, text
    key, low, factor, other = match.groups()
    if key is not None and other in ("true", "false"):
        return config.flag(key, other == "true")
    default = None
    if other not in (None, "none"):
        default = int(other) if other.isdigit() else fields[other]
        default = int(factor) * default if factor else default
    if key is None:
        return default
    if other == "none" and low:
        return config.whole(key, 0, 0, 10**9) or None
    if other == "none" and config.get(key) is None:
        return None
    return config.whole(key, default, 0 if low or other == "0" else 1)

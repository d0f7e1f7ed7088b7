"""Texts of JSON, TOML, YAML and Python with some settings changed: the rest stays."""

from __future__ import annotations

import json
import random
import re
import time
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import yaml

from nest.frameworks.registry import with_ends
from nest.frameworks.settings import flat
from nest.frameworks.text import edit_json, edit_python, edit_toml, edit_yaml
from nest.frameworks.text.edit_python import Code, Section
from nest.frameworks.text.python_text import Module, fields_of

JSON = """{
    "a": 1,
    "s": {
        "x": [1, {"y": 2}],
        "é \\" , }": "{ \\\\",
        "t": {"u": null}
    }, "flat": {"one": 1, "two": 2},
    "empty": {}
}
"""
TOML = """# first [a]
top = 1
[a]  # of a
x = 1 # one
  text = "a # [b] \\" = 1"   # two
many = [
  1, # ]
  '''2''',
]
"q.r" = {i = 1}
inline = { one = 1, two = [2, {c = "}, 3"}], deep = {er = 4, est.of = 5} }  # table
long = \"\"\"
[z]
x = 9\"\"\"

[a.b]
c.d = 1
c.e = 'C:\\'  # C
[[rows]]
x = 1
[[rows]]
x = 2
"""
YAML = """# first
a: 1  # one
text: "x: 1 # no"   # two
empty:
words: plain words # three
list: [1, 2]
map:
  a: 5
  # deeper
ä: 'it''s'
last: true
# the end
"""
FLOW = """{a: 1, text: "x: 1, }", empty: ,
  words: plain words,
 list: [1, {d: 2}], ä: 'it''s', last: true}
"""
PYTHON = '''"""ä"""
from lib import AConfig, make


def helper():
    return make(shared=1)


def config():
    part = AConfig(
        x=1,  # one
        # above y
        y="a, b",  # two ä
    )
    found = Config(part=part, other=AConfig(x=3), own=AConfig(), z=[1, 2], gone=helper())
    found.part.w = 4  # set
    found.deep.er = 5
    return found
'''
LONG_PYTHON = "def config():\n    return Config(a=1)\n\n\nx = " + "a and " * 40000 + "1\n"
SECTIONS = {"new": Section("lib", "NewConfig"), "maybe": Section("lib", "MaybeConfig", True)}
Edited = Callable[..., str]
FORMS: dict[str, tuple[str, Edited, Callable[[str], dict[str, Any]]]] = {
    "json": (JSON, edit_json.edited, lambda text: flat(json.loads(text))),
    "toml": (TOML, edit_toml.edited, lambda text: flat(tomllib.loads(text))),
    "yaml": (YAML, edit_yaml.edited, lambda text: dict(yaml.safe_load(text))),
    "flow": (FLOW, edit_yaml.edited, lambda text: dict(yaml.safe_load(text))),
}


def python(text: str, given: dict[str, Any], taken: list[str]) -> str:
    return edit_python.edited(text, given, taken, where="config", function="config",
                              sections=SECTIONS)


def fields(text: str) -> dict[str, Any]:
    made = Module(text, "config").returned("config")
    return {name: value for name, value in fields_of(made, "config").items()
            if isinstance(value, (int, str, list, type(None)))}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_random_changes(form: str, end: str) -> None:
    """What is read of the new text is what was asked for, and lines that say nothing of it stay."""
    text, edited, read = FORMS[form]
    text = text.replace("\n", end)
    before = read(text)
    draw = random.Random(7)
    names = [name for name, value in before.items()
             if name not in ("rows", "map") and "q.r" not in name]
    new = {"yaml": ["fresh", "more"], "flow": ["fresh", "more"],
           "toml": ["fresh", "a.new", "made.up", "made.too", "a.inline.new", "a.inline.deep.n.er"],
           "json": ["fresh", "s.new", "made.up", "made.too"]}[form]
    values = (5, 0.25, 1e-07, True, "plain", "q\"uo'te # [x] $HOME `id`", [1, 2])
    for _ in range(60):
        some = draw.sample(names, 3)
        given = {name: draw.choice(values) for name in (some[0], *draw.sample(new, 2))}
        out = some[1:]
        if form == "json" and "s.t.u" in out:  # its object goes with it
            continue
        found = with_ends(text, partial(edited, given=given, taken=out))
        wanted = {**before, **given}
        for name in out:
            del wanted[name]
        assert read(found) == wanted, found
        if end == "\r\n":
            assert "\n" not in found.replace("\r\n", "")
        touched = {"inline" if "inline" in part else part.rpartition(".")[2]
                   for part in (*given, *some)}
        kept = [line for line in text.split(end) if "#" in line and "# ]" not in line
                and not any(part in line for part in touched)]
        assert all(line in found.split(end) for line in kept), found


def test_values_in_place() -> None:
    assert edit_toml.edited(TOML, {"a.x": 8, "a.b.c.d": 2}, []) == TOML.replace(
        "x = 1 # one", "x = 8 # one").replace("c.d = 1", "c.d = 2")
    assert edit_yaml.edited(YAML, {"a": 8, "empty": "x", "words": False}, []) == YAML.replace(
        "a: 1  #", "a: 8  #").replace("empty:", 'empty: "x"').replace("plain words", "false")
    assert edit_json.edited(JSON, {"s.t.u": [1], "flat.two": 3}, ["a"]) == JSON.replace(
        '"a": 1,\n    ', "").replace("null", "[1]").replace('"two": 2', '"two": 3')


def test_missing_keys_are_added_in_their_section() -> None:
    assert edit_toml.edited(TOML, {"a.new": 1, "a.b.c.f": [["p"], ["q"]]}, []) == TOML.replace(
        'x = 9"""\n', 'x = 9"""\nnew = 1\n').replace(
        "# C\n", '# C\nc.f = [\n  ["p"],\n  ["q"],\n]\n')
    assert edit_toml.edited("x = 1", {"s.a": 1, "s.b": 2}, []) == "x = 1\n\n[s]\na = 1\nb = 2\n"
    assert edit_toml.edited("[s]  # here\n[t]\n", {"s.a": 1}, []) == "[s]  # here\na = 1\n[t]\n"
    assert edit_toml.edited(TOML, {"a.inline.x": 1, "a.inline.deep.y.z": 2}, ["a.inline.one"]) == (
        TOML.replace("{ one = 1, ", "{ ").replace("of = 5} }", "of = 5, y.z = 2}, x = 1 }"))
    assert edit_toml.edited("s={a=1}\n", {}, ["s.a"]) == "s={}\n"
    assert edit_toml.edited("s = {}", {"s.a": 1}, []) == "s = {a = 1}"
    assert edit_yaml.edited(YAML, {"new": 1.0}, []) == YAML.replace(
        "last: true\n", "last: true\nnew: 1.0\n")
    assert edit_yaml.edited("  a: 1\n  b: 2", {"c": "x"}, ["b"]) == '  a: 1\n  c: "x"\n'
    assert edit_yaml.edited("{a: 1, b: 2}", {"c": 3}, ["a", "b"]) == "{c: 3}"
    assert edit_yaml.edited("{a: 1, b: 2,}", {"c": 3}, ["b"]) == "{a: 1, c: 3,}"
    assert edit_json.edited(JSON, {"s.t.new.er": True, "empty.x": 1}, []) == JSON.replace(
        '{"u": null}', '{"u": null, "new": {"er": true}}').replace(
        '"empty": {}', '"empty": {"x": 1}')
    assert edit_json.edited('{\n  "a": 1\n}', {"b.c": 2}, []) == (
        '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}')
    assert edit_json.edited("{}", {"b.c": 2}, []) == '{"b": {"c": 2}}'


def test_python_in_place() -> None:
    found = python(PYTHON, {"part.x": 2, "part.w": [["a"], ["b"]], "z": "it's"}, [])
    assert found == PYTHON.replace("x=1,", "x=2,").replace(
        "w = 4 ", "w = [\n        ['a'],\n        ['b'],\n    ] ").replace("[1, 2]", '"it\'s"')


@pytest.mark.parametrize(("text", "edited", "given"), [
    (TOML, edit_toml.edited, {"a.b.c.f": [["p"], ["q"]], "made.up": 1}),
    (JSON, edit_json.edited, {"made.up": 1}), (YAML, edit_yaml.edited, {"new": 1}),
    ("def config():\n    return Config(\n        a=1,\n    )\n", lambda *given: python(*given), {
        "b": [["p"], ["q"]], "new.v": 1})])
def test_line_ends_stay(text: str, edited: Edited, given: dict[str, Any]) -> None:
    """Also of lines that are added: lists in a list, imports."""
    found = with_ends(text.replace("\n", "\r\n"), lambda one: edited(one, given, []))
    assert found == edited(text, given, []).replace("\n", "\r\n")
    mixed = text + "\r\n" if edited is edit_toml.edited else text
    assert with_ends(mixed, lambda one: one) == mixed


def test_python_that_is_added() -> None:
    found = python(PYTHON, {"part.v": 1, "other.v": 2, "own.v": 3, "deep.v": 4, "maybe.v": 5,
                            "maybe.w": 6}, [])
    for line in ('        y="a, b",  # two ä\n        v=1,\n    )', "AConfig(x=3, v=2)",
                 "own=AConfig(v=3)", "    found.deep.v = 4\n", "from lib import MaybeConfig\n"):
        assert line in found
    now = fields(found)
    assert [now[f"{name}.v"] for name in ("part", "other", "own", "deep", "maybe")] == [
        1, 2, 3, 4, 5]
    assert now["maybe.w"] == 6
    direct = "from lib import Config\n\n\ndef config():\n    return Config(a=1)\n"
    assert python(direct, {"new.v": 1, "part": Code("Full()", ("lib.x", "Full"))}, []) == (
        "from lib import Config\nfrom lib import NewConfig\nfrom lib.x import Full\n\n\n"
        "def config():\n    return Config(a=1, new=NewConfig(v=1), part=Full())\n")


def test_python_that_is_taken_out() -> None:
    found = python(PYTHON, {}, ["part.y", "part.w", "z", "deep.er", "own"])
    assert {*fields(PYTHON)} - {*fields(found)} == {"part.y", "part.w", "z", "deep.er"}
    assert "AConfig()" not in found and "# set" not in found and "# above y" in found


@pytest.mark.parametrize(("given", "taken", "text"), [
    ({"gone.shared": 2}, [], "def config():\n    return helper()\n\n\ndef helper():\n    return "
     "make(gone=make(shared=1))\n"),
    ({"x": 1}, [], "def config():\n    return make()\n"),
    ({}, ["gone.shared"], PYTHON),
    ({"new.v": 1}, [], "NewConfig = 1\nfrom other import q as NewConfig\n\n\ndef config():\n    "
     "return Config(a=1)\n"),
])
def test_python_without_a_place(given: dict[str, Any], taken: list[str], text: str) -> None:
    """What other functions set, and names that mean something else, are left alone."""
    with pytest.raises(ValueError, match="shared|x|NewConfig"):
        python(text, given, taken)


@pytest.mark.parametrize(("form", "text", "change"), [
    ("toml", "[a]\nx = 1\n" + "".join(f"b.c.k{n} = 1\n" for n in range(17_000)), {"a.x": 2}),
    ("toml", "[a]\nx = 1\n" + "#\n" * 130_000, {"a.x": 2}),
    ("toml", "[a]\nx = 1\ny = [" + "1, #\n" * 43_000 + "]\n", {"a.x": 2}),
    ("toml", "[a]\nx = 1\n" + "".join(f"[t{n}]\ny = 1\n" for n in range(17_000)), {"a.x": 2}),
    ("toml", "[a]\nx = 1\ny = {" + ", ".join(f"k{n} = 3" for n in range(17_000)) + "}\n",
     {"a.x": 2}),
    ("yaml", "x: 1\n" + "".join(f"k{n}: 3\n" for n in range(20_000)), {"x": 2}),
    ("flow", "{x: 1, y: [" + "3, " * 85_000 + "]}", {"x": 2}),
    ("json", '{"x": 1, "y": [' + "3, " * 85_000 + "4]}", {"x": 2}),
    ("json", '{"x": 1' + "".join(f', "k{n}": {{}}' for n in range(17_000)) + "}", {"x": 2}),
    ("python", LONG_PYTHON, {"a": 2}),
    ("python", LONG_PYTHON.split("x =")[0] + "y = 1\n" * 40_000, {"a": 2}),
])
def test_the_longest_files_take_seconds(form: str, text: str, change: dict[str, Any]) -> None:
    """2**18 characters, which ``nest improve`` takes at most, in the forms that take longest."""
    edited = python if form == "python" else FORMS[form][1]
    before = time.process_time()
    found = edited(text, change, [])
    assert time.process_time() - before < 5.0
    assert len(text) < 2**18
    sign = {"toml": " = ", "json": '": ', "python": "="}.get(form, ": ")
    assert found == re.sub(f"(?<=[xa]{sign})1", "2", text, count=1)

"""Why files are changed by own code: what ruamel.yaml, tomlkit and LibCST do to the same texts.

When one of these tests fails, the library has become better, and own code may go.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib

import pytest
from test_edit_settings import LONG_PYTHON, python

from nest.frameworks.text import edit_toml, edit_yaml


@pytest.mark.parametrize("text", [
    "degree: 1\naxes: [[a,b], [c]]\n",  # spaces behind commas
    "degree: 1\naxes: [a,\n  b]\n",  # a list of several lines
    "degree: 1\nmap:\n    a: 5\n",  # four spaces
    "{degree: 1, empty: , b: 2}\n",  # an empty value
])
def test_ruamel_yaml_lays_out_anew_what_nobody_changed(text: str) -> None:
    library = pytest.importorskip("ruamel.yaml").YAML()
    library.preserve_quotes, library.width = True, 2**20
    written = io.StringIO()
    library.dump(library.load(text), written)
    assert written.getvalue() != text
    assert edit_yaml.edited(text, {"degree": 2}, []) == text.replace("degree: 1", "degree: 2")


def test_tomlkit_parts_a_section_from_its_comment() -> None:
    tomlkit = pytest.importorskip("tomlkit")
    text = "[a]\nx = 1\n\n# inside a node\n[b]\ny = 1\n"
    document = tomlkit.parse(text)
    document["a"]["new"] = 2
    assert "# inside a node\nnew = 2\n[b]" in tomlkit.dumps(document)
    assert edit_toml.edited(text, {"a.new": 2}, []) == text.replace("x = 1\n", "x = 1\nnew = 2\n")


def test_tomlkit_leaves_a_comma_that_toml_forbids() -> None:
    tomlkit = pytest.importorskip("tomlkit")
    text = "a = {b = 1, c.d = 2}\n"
    document = tomlkit.parse(text)
    del document["a"]["c"]["d"]
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(tomlkit.dumps(document))
    assert edit_toml.edited(text, {}, ["a.c.d"]) == "a = {b = 1}\n"


def test_libcst_ends_the_process_at_a_long_expression() -> None:
    """Instagram/LibCST issues 619, 980 and 1000: its parser overflows the stack."""
    pytest.importorskip("libcst")
    code = "import sys, libcst; libcst.parse_module(sys.stdin.read())"
    ended = subprocess.run([sys.executable, "-c", code], input=LONG_PYTHON, text=True,
                           capture_output=True, timeout=100)
    assert ended.returncode < 0, ended.stderr  # a signal
    assert python(LONG_PYTHON, {"a": 2}, []) == LONG_PYTHON.replace("a=1", "a=2")

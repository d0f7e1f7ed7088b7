"""Extension of griffe: docstrings of NEST give ``name : meaning`` where numpydoc has a type."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"^(\*{0,2}\w[\w, *]*) : (.+)$")
UNDERLINE = re.compile(r"^-{3,}\s*$")


def with_meanings(text: str) -> str:
    """The text with meanings of parameters and errors below their names, as numpydoc wants them.

    What follows Returns is a sentence, not a type, and becomes a paragraph.
    """
    lines, found, section = text.split("\n"), [], ""
    for n, line in enumerate(lines):
        if n + 1 < len(lines) and UNDERLINE.match(lines[n + 1]):
            section = line.strip()
            if section == "Returns":
                line = "**Returns**\n"
        elif UNDERLINE.match(line) and section == "Returns":
            continue
        elif section in ("Parameters", "Raises") and (entry := ENTRY.match(line)):
            # of several names each needs the meaning: its type is looked up by its name
            line = "\n".join(f"{name}\n    {entry[2]}" for name in entry[1].split(", "))
        elif section == "Returns" and line[:4] == "    ":
            line = line[4:]
        found.append(line)
    return "\n".join(found)


class Meanings(Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_meanings(obj.docstring.value)

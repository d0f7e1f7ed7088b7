"""A document as one HTML file, which sends no request and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

SCRIPTS = ("terms.js", "elements.js", "timeline.js", "places.js", "figures.js", "studies.js",
           "sections.js")
"""Of the folder `page`, in the order in which the page runs them."""
FRAME_HEIGHT = 720
"""Pixels of a report in a notebook."""


@cache
def _asset(name: str) -> str:
    return (files("nest.report.web") / "page" / name).read_text(encoding="utf-8")


def page(document: Mapping[str, Any]) -> str:
    """The page of a document.

    The data are JSON in an element that no browser runs; the scripts put texts into the page as
    text, never as HTML. A Content-Security-Policy lets nothing be loaded or sent, and no script run
    whose digest it does not name.

    Parameters
    ----------
    document : plain data; ``kind`` says what it is, ``title`` names it.
    """
    script = "(() => {\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();"
    style = _asset("page.css")
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return _asset("page.html").format(
        title=html.escape(str(document["title"])), style=style, script=script,
        style_digest=_digest(style), script_digest=_digest(script),
        data=data.replace("<", "\\u003c").replace(">", "\\u003e"))


def frame(document: Mapping[str, Any]) -> str:
    """The page within a frame, for a notebook."""
    title = html.escape(str(document["title"]), quote=True)
    return (f'<iframe title="{title}" sandbox="allow-scripts" width="100%" '
            f'height="{FRAME_HEIGHT}" style="border:0" '
            f'srcdoc="{html.escape(page(document), quote=True)}"></iframe>')


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""A document as one HTML file, which sends no request and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

SCRIPTS = ("terms.js", "elements.js", "timeline.js", "places.js", "figures.js", "studies.js",
           "measured.js", "sections.js")
"""Of the folder `page`, in the order in which the page runs them."""
EXPLORER = ("asking.js", "question.js", "explorer.js")
"""Those of the explorer, behind the others."""
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
    return _written(document, (*SCRIPTS, "shown.js"), ("page.css",), "").text


class ServedPage(NamedTuple):
    """A page, and the policy that its server sends with it."""

    text: str
    policy: str


@cache
def explorer_page(token: bool) -> ServedPage:
    """The page on which `nest serve` is asked; it sends requests to its own server alone.

    Parameters
    ----------
    token : the server wants one, for which the page asks.
    """
    return _written({"kind": "explorer", "title": "NEST explorer", "token": token},
                    (*SCRIPTS, *EXPLORER),
                    ("page.css", "explorer.css"), "connect-src 'self'; ")


def _written(
    document: Mapping[str, Any], scripts: tuple[str, ...], styles: tuple[str, ...], more: str
) -> ServedPage:
    """A page of some scripts and styles.

    Parameters
    ----------
    more : of its policy, which is else to load and send nothing.
    """
    script = "(() => {\n" + "\n".join(map(_asset, scripts)) + "\n})();"
    style = "\n".join(map(_asset, styles))
    policy = (f"default-src 'none'; {more}img-src data:; style-src 'sha256-{_digest(style)}'; "
              f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'")
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return ServedPage(_asset("page.html").format(
        title=html.escape(str(document["title"])), style=style, script=script, policy=policy,
        data=data.replace("<", "\\u003c").replace(">", "\\u003e")), policy)


def frame(document: Mapping[str, Any]) -> str:
    """The page within a frame, for a notebook."""
    title = html.escape(str(document["title"]), quote=True)
    return (f'<iframe title="{title}" sandbox="allow-scripts" width="100%" '
            f'height="{FRAME_HEIGHT}" style="border:0" '
            f'srcdoc="{html.escape(page(document), quote=True)}"></iframe>')


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""Harmless XML: no document type, no entities, bounded depth and size."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from nest.errors import InputError
from nest.inputs.files import DEEPEST

MOST_ELEMENTS = 1_000_000


class _RefusedXml(ValueError):
    """The text is well formed but not accepted."""


class _Guard:
    """Handlers of a first pass over the text, before anything is built."""

    def __init__(self) -> None:
        self.depth = 0
        self.elements = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.elements += 1
        if self.depth > DEEPEST:
            raise _RefusedXml(f"nested more than {DEEPEST} deep; allowed: {DEEPEST}")
        if self.elements > MOST_ELEMENTS:
            raise _RefusedXml(f"got more than {MOST_ELEMENTS} elements; allowed: {MOST_ELEMENTS}")

    def end(self, tag: str) -> None:
        self.depth -= 1

    def refuse(self, *_: Any) -> int:
        raise _RefusedXml(
            "got a document type or an entity (<!DOCTYPE, <!ENTITY); allowed: XML without them"
        )


def parse_xml(text: str, where: str) -> ElementTree.Element:
    """Root element of an XML text.

    Document types are refused as such, and with them all entities, internal ones that expand
    without bound and external ones that read files; Python's documentation of XML
    vulnerabilities (docs.python.org, xml, "XML security") names both.

    Raises
    ------
    InputError : malformed (with line and column), a document type, too deep, or too many elements.
    """
    guard = _Guard()
    parser = expat.ParserCreate()
    parser.StartElementHandler = guard.start
    parser.EndElementHandler = guard.end
    parser.StartDoctypeDeclHandler = guard.refuse
    parser.EntityDeclHandler = guard.refuse
    parser.ExternalEntityRefHandler = guard.refuse
    try:
        # text, not bytes: whatever encoding the file declares, both passes read the same
        parser.Parse(text, True)
        return ElementTree.fromstring(text)
    except _RefusedXml as error:
        place = f"line {parser.CurrentLineNumber}"
        raise InputError(f"{where}: {place}: {error}") from None
    except (expat.ExpatError, ElementTree.ParseError) as error:
        place = f"line {parser.CurrentLineNumber}"
        reason = expat.ErrorString(error.code)
        raise InputError(f"{where}: {place}: malformed XML: {reason}") from None
    except (ValueError, LookupError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: malformed XML: {reason}") from None

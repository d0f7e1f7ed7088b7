"""docs/proofs.md: each lemma names a test that exists, and each reference to a lemma resolves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
SOURCES = sorted(path for folder in ("src", "tests", "bench", "docs")
                 for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
HEAD = re.compile(r"^\*\*Lemma (\d+) \(([^()]+)\)\.\*\* ", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
NUMBERS = re.compile(r"\bLemmas? (\d+(?:(?:, | and |, and )\d+)*)(?: \(([^()]+)\))?")
MENTION = "docs/proofs.md"
DRAWS = ROOT / "docs/algorithm/draw.py"
"""Names the page as a whole: its pictures."""


class Lemma(NamedTuple):
    name: str
    section: str
    """Anchor of its heading."""
    text: str


@cache
def lemmas() -> dict[int, Lemma]:
    """Each lemma of the page by its number; its text ends at the next one or at a heading."""
    found = {}
    for part in re.split(r"^(?=## )", PAGE, flags=re.MULTILINE):
        section = re.sub(r"[^\w\- ]", "", part.splitlines()[0].lstrip("#").strip().lower())
        heads = [*HEAD.finditer(part)]
        for head, behind in zip(heads, [*heads[1:], None], strict=False):
            text = part[head.end():behind.start() if behind else None]
            found[int(head[1])] = Lemma(head[2], section.replace(" ", "-"), text)
    return found


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Tests that a file defines."""
    return frozenset(node.name for node in ast.parse(path.read_text(encoding="utf-8")).body
                     if isinstance(node, ast.FunctionDef))


def wrong(text: str, needs_name: bool) -> Iterator[str]:
    """References to lemmas that do not resolve: no such number, or another name than it has."""
    for numbers, name in NUMBERS.findall(" ".join(text.split())):
        every = [int(number) for number in re.findall(r"\d+", numbers)]
        for number in every:
            if number not in lemmas():
                yield f"Lemma {number}"
        last = lemmas().get(every[-1])
        if needs_name and last is not None and name != last.name:
            yield f"Lemma {every[-1]} ({name}), which is ({last.name})"


def unnamed(text: str) -> Iterator[str]:
    """Mentions of the page by a source without a lemma."""
    flat = " ".join(text.split())
    for at in re.finditer(re.escape(MENTION), flat):
        behind = flat[at.end():at.end() + 60]
        if not re.match(r", Lemma \d+ \(", behind):
            yield MENTION + behind


def test_lemmas_are_numbered_and_names_are_unique() -> None:
    assert [*lemmas()] == [*range(1, len(lemmas()) + 1)]
    names = [lemma.name for lemma in lemmas().values()]
    assert sorted(names) == sorted({*names})
    assert len(HEAD.findall(PAGE)) == PAGE.count("**Lemma") == len(lemmas())


@pytest.mark.parametrize("number", lemmas())
def test_a_lemma_has_a_proof_and_a_test(number: int) -> None:
    text = " ".join(lemmas()[number].text.split())
    assert text.count("*Proof.*") == text.count("*Tried by*") == 1
    statement, _, rest = text.partition("*Proof.*")
    proof, _, tried = rest.partition("*Tried by*")
    assert statement.strip() and proof.strip()
    tests = TEST.findall(tried)
    assert tests and tried.count("`") == 2 * len(tests)
    for file, name in tests:
        assert (ROOT / file).is_file(), file
        assert name in defined_in(ROOT / file), f"{file}::{name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_name_lemmas_that_exist(path: Path) -> None:
    text = re.sub(r"^\s*# ?", " ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [*wrong(text, MENTION in text)] == []
    assert path == DRAWS or [*unnamed(text)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_lemmas_that_exist(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert [*wrong(text, False)] == []
    for number, section in re.findall(r"\[Lemma (\d+)\]\((?:docs/)?proofs\.md#([\w-]+)\)", text):
        assert lemmas()[int(number)].section == section, f"Lemma {number}"


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 6500


@pytest.mark.parametrize(("text", "found"), [
    ("docs/proofs.md, Lemma 9999 (cuts)", 1), ("docs/proofs.md, Lemma 1 (signatures)", 1),
    ("docs/proofs.md, Lemma 1", 1), ("docs/proofs.md, Lemma 1 (cuts)", 0),
    ("Lemmas 1, 2 and 9999", 1), ("docs/proofs.md, Lemma 2\n    (signatures)", 0),
])
def test_what_does_not_resolve_is_found(text: str, found: int) -> None:
    assert len([*wrong(text, True)]) == found


def test_a_mention_without_a_lemma_is_found() -> None:
    assert [*unnamed("see docs/proofs.md.")] and not [*unnamed("docs/proofs.md, Lemma 1 (cuts).")]

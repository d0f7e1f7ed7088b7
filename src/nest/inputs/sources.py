"""Where a description comes from: plain data, the catalog, or a file.

Loaders take one of two sources. :data:`CATALOG` has no method that opens a file or looks whether
there is one: requests of other programs and names inside documents are read with it. :data:`FILES`
is for texts that the user of this machine has written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.inputs import catalog
from nest.inputs.catalog import Section
from nest.inputs.files import SUFFIXES, read_description
from nest.units import shorten

Text = str | os.PathLike[str]
Source = Text | Mapping[str, Any]
_PUBLISHED = re.compile(r"\w[\w.-]{0,99}/\w[\w.-]{0,99}", re.ASCII)
"""A name on Hugging Face: organisation and model."""


class Entry(NamedTuple):
    """A description as plain data."""

    data: dict[str, Any]
    where: str
    """Start of messages."""
    path: Path | None = None
    """Its file; None: it comes from the catalog, or was given as data."""


class Catalog:
    """Plain data and names of the catalog."""

    def entry(self, source: Source, section: Section, noun: str) -> Entry:
        """Plain data of a mapping, a name, or what else this source has.

        Raises
        ------
        InputError : an unknown name, or a file that is not allowed or cannot be read.
        """
        if isinstance(source, Mapping):
            return Entry(dict(source), noun)
        source = check_source(source, noun)
        known = catalog.find(section, source) if isinstance(source, str) else None
        if known is not None:
            owner = catalog.owner_of(section, known)
            return Entry(catalog.load(section, known),
                         f"catalog {noun} {known}" + (f" of {owner}" if owner else ""))
        return self._other(source, section, noun)

    def _other(self, source: Text, section: Section, noun: str) -> Entry:
        raise InputError(f"{noun}: got {shorten(source)}; allowed: "
                         f"{catalog.suggestions(section, os.fspath(source))}; or a mapping")

    def file(self, source: Text, suffixes: tuple[str, ...]) -> Path | None:
        """The file that a text names, be it there or not; None: it names none.

        Parameters
        ----------
        suffixes : in lower case, by which a text is known to name a file.
        """
        return None

    def exists(self, text: str) -> bool:
        """Whether a text is the path of a file."""
        return False


class Files(Catalog):
    """The same, and files of this machine.

    Parameters
    ----------
    folder : that names of files are relative to, where there is such a file; else they are
        relative to the working directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def _other(self, source: Text, section: Section, noun: str) -> Entry:
        path = self._config(os.fspath(source)) if section == "models" else None
        path = path or self.file(source, SUFFIXES)
        if path is None:
            known = catalog.suggestions(section, os.fspath(source))
            raise InputError(f"{noun}: got {shorten(source)}; allowed: {known}; or a file "
                             f"({', '.join(SUFFIXES)})")
        return Entry(read_description(path), shorten(os.fspath(path), 300)[1:-1], path)

    def file(self, source: Text, suffixes: tuple[str, ...]) -> Path | None:
        beside = self._beside(os.fspath(source))
        if beside is not None:
            return beside
        if isinstance(source, str) and Path(source).suffix.lower() not in suffixes and (
                os.sep not in source and not self.exists(source)):
            return None
        return Path(source)

    def exists(self, text: str) -> bool:
        try:
            return os.path.exists(text)
        except (ValueError, OSError):
            return False

    def _beside(self, text: str) -> Path | None:
        """The file of a name in the folder."""
        if self._folder is None:
            return None
        try:
            return self._folder / text if (self._folder / text).is_file() else None
        except (ValueError, OSError):
            return None

    def _config(self, text: str) -> Path | None:
        """The config.json of a folder; None: it is none.

        Raises
        ------
        InputError : a folder without config.json, or a name on Hugging Face: nothing is downloaded.
        """
        if os.path.isdir(text):
            config = Path(text) / "config.json"
            if not config.is_file():
                shown = shorten(text, 300)[1:-1]
                raise InputError(
                    f"{shown}: is a folder without config.json; allowed: one that has it")
            return config
        published = _PUBLISHED.fullmatch(text) and Path(text).suffix.lower() not in SUFFIXES
        if published and not os.path.exists(text) and self._beside(text) is None:
            known = catalog.like_published(text)
            named = f"{known}, the same model in the catalog; or " if known else ""
            raise InputError(
                f"model: got {shorten(text)}: no such file, and NEST downloads nothing; allowed: "
                f"{named}the folder that `hf download {text} config.json --local-dir "
                f"{text.rsplit('/', 1)[-1]}` makes"
            )
        return None


CATALOG = Catalog()
FILES = Files()


def check_source(source: object, noun: str) -> Text:
    """A name or a path; else refused.

    Raises
    ------
    InputError : it is none.
    """
    if not isinstance(source, (str, os.PathLike)) or not isinstance(os.fspath(source), str):
        allowed = "a name, a path or a mapping"
        raise InputError(f"{noun}: got {shorten(source)}; allowed: {allowed}")
    return source

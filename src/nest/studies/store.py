"""Answers in one SQLite file: complete rows only, whatever ends a process that writes them.

A row per question, by a hash of all that decides the answer. Every answer is a transaction of its
own in the write-ahead log, so an end at any moment, ``kill -9`` included, loses what was not
answered yet and nothing else. Processes claim questions before they ask them; claims of processes
that have ended are void: each has a locked file, which its end unlocks, however it ends.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from nest.errors import InputError, OutputError
from nest.units import shorten

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system: every other process counts as ended
    fcntl = None

_NAME = re.compile(r"[0-9a-f]{16}")
"""Names of owners. A store may hold any text in their place, which must not become a path."""


class Owner:
    """A name of this process on a store, alive as long as the process holds it.

    Parameters
    ----------
    path : of the store; the locked file lies beside it.

    Raises
    ------
    OSError : the file cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        while True:
            self.name = secrets.token_hex(8)
            self._file = os.open(_file(path, self.name), os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o666)
            if fcntl is None:
                return
            fcntl.flock(self._file, fcntl.LOCK_EX)
            # unless another process took it for that of one that has ended
            if os.fstat(self._file).st_nlink:
                return
            os.close(self._file)

    def close(self) -> None:
        """Give up the name."""
        with contextlib.suppress(OSError):
            os.unlink(_file(self._path, self.name))
        with contextlib.suppress(OSError):
            os.close(self._file)


def alive(path: str, name: object) -> bool:
    """Whether the process of a name still runs; the file of one that does not is removed.

    Parameters
    ----------
    name : as a store has it; what no :class:`Owner` is named is nobody's.
    """
    if fcntl is None or not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    try:
        file = os.open(_file(path, name), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        with contextlib.suppress(OSError):
            os.unlink(_file(path, name))
        return False
    finally:
        os.close(file)


def clear(path: str) -> None:
    """Remove the files of processes that have ended."""
    prefix = _file(path, "")
    for file in glob.glob(glob.escape(prefix) + "*"):
        alive(path, file[len(prefix):])


def _file(path: str, name: str) -> str:
    return f"{path}-owner-{name}"


# ---------------------------------------------------------------- store


FILE = "answers.db"
"""Name of the store in a folder."""
APPLICATION = 0x4E455354
"""``NEST`` as the number that marks the file."""
VERSION = 1
WAIT = 60.0
"""Seconds to wait for another process that writes."""
_TABLES = (
    """CREATE TABLE answers (question TEXT PRIMARY KEY, status TEXT NOT NULL, answer TEXT NOT NULL,
                      plan BLOB)""",
    "CREATE TABLE claims (question TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE studies (study TEXT PRIMARY KEY, text TEXT NOT NULL, points INTEGER, at REAL)",
    """CREATE TABLE points (study TEXT NOT NULL, number INTEGER NOT NULL, question TEXT,
                     labels TEXT NOT NULL, about TEXT NOT NULL,
                     PRIMARY KEY (study, number)) WITHOUT ROWID""",
)
"""Statements that SQLite keeps as they stand here: a file with others is none of answers."""
_PROVED = """(instr(about, '"proof":') > 0)"""
"""Of the JSON of a point: quotes in its texts have a stroke before them."""
_DAMAGED = ("CORRUPT", "NOTADB", "ERROR", "FORMAT", "MISMATCH", "SCHEMA", "CONSTRAINT")
"""Codes of SQLite, without what follows their first word, that say so of a file."""


def make_folder(folder: str) -> None:
    """Make a folder for answers, if it does not exist.

    Raises
    ------
    InputError : it cannot be made.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"output: {folder[:200]} cannot be created ({reason})") from None


class Stored(NamedTuple):
    """A point of a study with its answer; JSON as text."""

    number: int
    question: str | None
    labels: str
    about: str
    status: str | None
    answer: str | None


class Store:
    """A file of answers.

    Parameters
    ----------
    path : is made if it does not exist.
    reads : only read it; it may lie in a folder that cannot be written.

    Raises
    ------
    InputError : the file is something else, or of another version of the format, or missing.
    OutputError : file or folder cannot be written.
    """

    def __init__(self, path: str, reads: bool = False) -> None:
        self.path = path
        self._shown = shorten(path, 300)[1:-1]
        self._owner: Owner | None = None
        if os.path.islink(path):
            raise InputError(f"{self._shown}: is a link to another file; allowed: the answers of a "
                             "study, or no file yet")
        if reads and not os.path.isfile(path):
            raise InputError(f"{self._shown}: no such file; allowed: the answers of a study that "
                             "was started")
        try:
            self._base = self._opened(reads)
            self._file = os.path.abspath(path), os.stat(path)
            if not reads:
                clear(path)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{self._shown}: cannot be written ({reason})") from None

    def _opened(self, reads: bool) -> sqlite3.Connection:
        with self._told(reads):
            if not reads:
                base = sqlite3.connect(self.path, WAIT, isolation_level=None,
                                       check_same_thread=False)
                self._check(base, new=True)
                return base
            # the last one to close the file removes its log, where it may write
            for mode in ("mode=rw", "mode=ro", "immutable=1"):
                address = f"{Path(self.path).absolute().as_uri()}?{mode}"
                base = sqlite3.connect(address, WAIT, uri=True, isolation_level=None)
                try:
                    self._check(base, new=False)
                    return base
                except sqlite3.OperationalError:
                    base.close()
                    if mode == "immutable=1":
                        raise
        raise AssertionError

    def _check(self, base: sqlite3.Connection, new: bool) -> None:
        """Make the tables of a new file; refuse one that is not NEST's, or damaged.

        Nothing is changed in a file before it has been looked at.
        """
        if not new or not _empty(base):
            self._need_own(base, whole=new)
        if not new:
            return
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = NORMAL")
        base.execute("BEGIN IMMEDIATE")
        try:
            if _empty(base):  # another process may have made them meanwhile
                for statement in _TABLES:
                    base.execute(statement)
                base.execute(f"PRAGMA application_id = {APPLICATION}")
                base.execute(f"PRAGMA user_version = {VERSION}")
            base.execute("COMMIT")
        except BaseException:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise

    def _need_own(self, base: sqlite3.Connection, whole: bool) -> None:
        """Refuse a file whose tables are not NEST's, with triggers or views beside them too.

        Parameters
        ----------
        whole : look at all pages, as before anything is written: takes a second for some GB.
        """
        mark, = base.execute("PRAGMA application_id").fetchone()
        version, = base.execute("PRAGMA user_version").fetchone()
        if mark != APPLICATION:
            raise InputError(f"{self._shown}: got another program's database; allowed: a file of "
                             "answers of NEST, or a new name")
        if version != VERSION:
            raise InputError(f"{self._shown}: got answers of format {version}; allowed: {VERSION} "
                             "(another folder starts anew)")
        made = base.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if {str(text) for text, in made} != {*_TABLES}:
            raise self.damaged("other tables than those of answers")
        if whole and (found := base.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
            raise self.damaged(str(found and found[0]))

    def damaged(self, why: object) -> InputError:
        """The error of a file that is not as NEST wrote it, for the caller to raise."""
        return InputError(
            f"{self._shown}: cannot be read ({shorten(str(why), 200)[1:-1]}); it is damaged; "
            "nothing was removed from it; allowed: a whole file of answers, such as a copy of it; "
            "with another -o FOLDER all is asked again")

    @contextmanager
    def reading(self, part: str) -> Iterator[None]:
        """Raise errors over what is stored, which may be anything, as one message.

        Parameters
        ----------
        part : what is read, for the message.
        """
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
                RecursionError, zlib.error) as error:
            raise self.damaged(f"{part}: {' '.join(str(error).split())}") from None

    @contextmanager
    def _told(self, reads: bool = False) -> Iterator[None]:
        """Errors of SQLite as one message; what is stored stays whole."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            # text that is not UTF-8 has no code
            code = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT").split("_")[1]
            if code in _DAMAGED:
                raise self.damaged(error) from None
            verb = "read" if reads else "written"
            raise OutputError(f"{self._shown}: cannot be {verb} ({error}); the answers in it are "
                              "whole") from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._need_file()
        with self._told():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._base.execute("ROLLBACK")
                raise

    def _need_file(self) -> None:
        """Refuse to write to a file that has no name any more: all of it would be lost."""
        path, opened = self._file
        with suppress(OSError):
            if os.path.samestat(os.stat(path), opened):
                return
        raise OutputError(f"{self._shown}: was removed or replaced while answers were written to "
                          "it; run again, and what is not in the folder is asked anew")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up claims and close the file."""
        if self._owner is not None:
            with suppress(OutputError, InputError), self._writing() as base:
                base.execute("DELETE FROM claims WHERE owner = ?", (self._owner.name,))
            self._owner.close()
            self._owner = None
        self._base.close()

    # ------------------------------------------------------------ answers

    def status(self, question: str) -> str | None:
        """Status of the answer to a question; None: there is none."""
        found = self._one("SELECT status FROM answers WHERE question = ?", question)
        return None if found is None else str(found[0])

    def answer(self, question: str) -> str | None:
        """The answer to a question, as JSON; None: there is none."""
        found = self._one("SELECT answer FROM answers WHERE question = ?", question)
        return None if found is None else str(found[0])

    def plan(self, question: str) -> bytes | None:
        """The plan of an answer as it was added; None: there is none."""
        found = self._one("SELECT CAST(plan AS BLOB) FROM answers WHERE question = ?", question)
        return None if found is None else found[0]

    def claim(self, question: str) -> bool:
        """Take a question to be asked by this process; False: answered, or another one has it.

        Raises
        ------
        OutputError : as :meth:`add`.
        """
        mine = self._named()
        with self._writing() as base:
            answered = base.execute("SELECT 1 FROM answers WHERE question = ?", (question,))
            if answered.fetchone():
                return False
            found = base.execute("SELECT owner FROM claims WHERE question = ?", (question,)
                                 ).fetchone()
            if found and (found[0] == mine or alive(self.path, found[0])):
                return False
            base.execute("INSERT OR REPLACE INTO claims VALUES (?, ?)", (question, mine))
        return True

    def _named(self) -> str:
        """The name that this process claims under."""
        if self._owner is None:
            try:
                self._owner = Owner(self.path)
            except OSError as error:
                raise OutputError(f"{self._shown}: cannot be written "
                                  f"({error.strerror or error})") from None
        return self._owner.name

    def release(self, question: str) -> None:
        """Give a claimed question back."""
        with self._writing() as base:
            base.execute("DELETE FROM claims WHERE question = ?", (question,))

    def add(self, question: str, status: str, answer: str, plan: bytes | None = None) -> None:
        """Store an answer for good, and end the claim of its question.

        Raises
        ------
        OutputError : the disk is full or must not be written; the answers before are whole.
        """
        with self._writing() as base:
            base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)",
                         (question, status, answer, plan))
            base.execute("DELETE FROM claims WHERE question = ?", (question,))

    def forget(self, study: str, status: str) -> None:
        """Remove the answers of a study with a status, so that they are asked again."""
        with self._writing() as base:
            base.execute(
                "DELETE FROM answers WHERE status = ? AND question IN "
                "(SELECT question FROM points WHERE study = ?)", (status, study))

    def forget_answer(self, question: str) -> None:
        """Remove an answer, so that its question is asked again."""
        with self._writing() as base:
            base.execute("DELETE FROM answers WHERE question = ?", (question,))

    def all_answers(self) -> Iterator[tuple[str, str]]:
        """Every question and its answer."""
        with self._told(reads=True):
            yield from self._base.execute("SELECT question, answer FROM answers ORDER BY rowid")

    # ------------------------------------------------------------ studies

    def begin(self, study: str, text: str, at: float) -> None:
        """Note a study by its digest.

        Parameters
        ----------
        at : seconds since 1970, by which :meth:`latest` chooses; later than all before, also where
            the clock was put back.
        """
        with self._writing() as base:
            latest, = base.execute("SELECT max(CAST(at AS REAL)) FROM studies").fetchone()
            base.execute("INSERT INTO studies VALUES (?, ?, NULL, ?) ON CONFLICT (study) "
                         "DO UPDATE SET at = excluded.at",
                         (study, text, max(at, (latest or 0.0) + 1e-3)))

    def latest(self) -> tuple[str, str] | None:
        """Digest and text of the study that was started last; None: there is none."""
        found = self._one("SELECT study, text FROM studies ORDER BY at DESC, study LIMIT 1")
        return None if found is None else (str(found[0]), str(found[1]))

    def studies(self) -> Iterator[tuple[str, str]]:
        """Digest and text of each study, the one that was started first first."""
        with self._told(reads=True):
            yield from self._base.execute("SELECT study, text FROM studies ORDER BY at, study")

    def add_points(self, study: str, rows: Iterable[tuple[int, str | None, str, str]]) -> None:
        """Note points: number, question, labels and what else is known, the last two as JSON."""
        with self._writing() as base:
            base.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)",
                             ((study, *row) for row in rows))

    def complete(self, study: str, points: int) -> None:
        """Note that all points of a study are stored, and how many there are."""
        with self._writing() as base:
            base.execute("UPDATE studies SET points = ? WHERE study = ?", (points, study))

    def count(self, study: str) -> int | None:
        """Points of a study; None: not all are stored."""
        found = self._one("SELECT CAST(points AS INTEGER) FROM studies WHERE study = ?", study)
        return None if found is None else found[0]

    def open_points(self, study: str) -> Iterator[int]:
        """Numbers of the points whose questions have no answer, and no proof instead."""
        with self._told(reads=True):
            found = self._base.execute(
                "SELECT number FROM points LEFT JOIN answers USING (question) WHERE study = ? AND "
                "points.question IS NOT NULL AND answers.question IS NULL AND NOT "
                f"{_PROVED} ORDER BY number", (study,)).fetchall()
        yield from (number for number, in found)

    def proved_points(self, study: str) -> list[tuple[int, str | None, str, str]]:
        """Points with a proof, as :meth:`add_points` takes them."""
        with self._told(reads=True):
            return self._base.execute(
                f"SELECT number, question, labels, about FROM points WHERE study = ? AND {_PROVED} "
                "ORDER BY number", (study,)).fetchall()

    def rows(self, study: str) -> Iterator[Stored]:
        """All points of a study in order, with their answers as far as there are any."""
        with self._told(reads=True):
            yield from map(Stored._make, self._base.execute(
                "SELECT number, points.question, labels, about, status, answer FROM points "
                "LEFT JOIN answers ON answers.question = points.question WHERE study = ? "
                "ORDER BY number", (study,)))

    def _one(self, text: str, *values: Any) -> Any:
        with self._told(reads=True):
            return self._base.execute(text, values).fetchone()


def _empty(base: sqlite3.Connection) -> bool:
    """Whether a file has no table yet."""
    return base.execute("SELECT 1 FROM sqlite_master").fetchone() is None

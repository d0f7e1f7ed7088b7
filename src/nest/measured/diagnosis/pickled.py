"""Pickles of plain values: containers, numbers and text; nothing else is built, nothing is run.

Opcodes and their arguments: CPython 3.11 Lib/pickletools.py (protocols 0 to 5). Those that name,
call or build objects (GLOBAL, STACK_GLOBAL, REDUCE, BUILD, NEWOBJ, INST, OBJ, EXT1, PERSID, ...)
are refused by name. `pickle.Unpickler` with a `find_class` that refuses would not do: an index of
its memo alone makes it allocate gigabytes.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from nest.errors import InputError

MOST_VALUES = 2 * 10**7
"""Containers, numbers and texts that are built (chosen: some 2 GiB)."""
MOST_OPCODES = 5 * 10**7
MOST_MARKS = 64
"""Containers that are being written inside one another."""
LONGEST_TEXT, LONGEST_NUMBER = 2**20, 32
"""Bytes of one text, and of one whole number."""
_NAMES = {one.code: one.name for one in pickletools.opcodes}
_MARK = object()


def loads(data: bytes, where: str) -> Any:
    """The value that a pickle holds.

    Raises
    ------
    InputError : it is cut or malformed, too large, or holds anything but plain values.
    """
    try:
        return _Reader(data, where).value()
    except InputError:
        raise
    except (IndexError, struct.error):
        raise InputError(f"{where}: is cut or malformed; allowed: a whole pickle") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: malformed ({str(error)[:60]}); allowed: a pickle of plain "
                         "values") from None


class _Reader:
    """The machine that a pickle drives."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self.at = self.built = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Run to STOP."""
        done, data = _DONE, self.data
        for _ in range(MOST_OPCODES):
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1:
                    raise IndexError
                return self.stack[0]
            step = done.get(code)
            if step is None:
                name = _NAMES.get(chr(code), f"{code:#04x}")
                raise InputError(
                    f"{self.where}: opcode {name} at byte {self.at - 1}; allowed: containers, "
                    "numbers and text, as torch.cuda.memory._dump_snapshot writes them; nothing "
                    "of it was run")
            step(self)
        raise InputError(f"{self.where}: got more than {MOST_OPCODES:,} opcodes; allowed: a "
                         "snapshot of fewer entries (max_entries)")

    # ------------------------------------------------------------ arguments

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise IndexError
        self.at += count
        return self.data[self.at - count:self.at]

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, form: str) -> Any:
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def line(self) -> str:
        end = self.data.index(b"\n", self.at, self.at + LONGEST_TEXT)
        return self.take(end + 1 - self.at)[:-1].decode("ascii")

    def text(self, size: int) -> None:
        if size > LONGEST_TEXT:
            raise InputError(f"{self.where}: got a text of {size} bytes at byte {self.at}; "
                             f"allowed: at most {LONGEST_TEXT}")
        self.push(self.take(size).decode("utf-8", "replace"))

    def whole(self, size: int) -> None:
        if size > LONGEST_NUMBER:
            raise InputError(f"{self.where}: got a number of {size} bytes at byte {self.at}; "
                             f"allowed: at most {LONGEST_NUMBER}")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def decimal(self) -> None:
        text = self.line().removesuffix("L")
        if len(text) > 2 * LONGEST_NUMBER:
            raise ValueError("a long number")
        self.push({"00": False, "01": True}[text] if text in ("00", "01") else int(text))

    # ------------------------------------------------------------ the stack

    def push(self, value: Any) -> None:
        self.built += 1
        if self.built > MOST_VALUES:
            raise InputError(f"{self.where}: got more than {MOST_VALUES:,} values; allowed: a "
                             "snapshot of fewer entries (max_entries)")
        self.stack.append(value)

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise TypeError(f"a {kind.__name__} is missing")
        return self.stack[-1]

    def mark(self) -> None:
        if len(self.marks) >= MOST_MARKS:
            raise InputError(f"{self.where}: nested more than {MOST_MARKS} deep at byte {self.at}; "
                             f"allowed: {MOST_MARKS}")
        self.marks.append(len(self.stack))

    def marked(self) -> list[Any]:
        begin = self.marks.pop()
        found = self.stack[begin:]
        del self.stack[begin:]
        return found

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def join(self, count: int) -> None:
        parts = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(parts)))

    def extend(self, found: list[Any]) -> None:
        self.top(list).extend(found)

    def update(self, found: list[Any], into: dict[Any, Any]) -> None:
        if len(found) % 2:
            raise IndexError
        for key, value in zip(found[::2], found[1::2], strict=True):
            if not isinstance(key, str | int | float | None):
                raise TypeError("a key is no text and no number")
            into[key] = value


def _dict(reader: _Reader, found: list[Any]) -> dict[Any, Any]:
    into: dict[Any, Any] = {}
    reader.update(found, into)
    return into


def _setitem(r: _Reader) -> None:
    value, key = r.pop(), r.pop()
    r.update([key, value], r.top(dict))


def _append(r: _Reader) -> None:
    value = r.pop()
    r.extend([value])


def _setitems(r: _Reader) -> None:
    found = r.marked()
    r.update(found, r.top(dict))


_STEPS: dict[str, Callable[[_Reader], object]] = {
    "PROTO": lambda r: r.take(1), "FRAME": lambda r: r.take(8), "MARK": _Reader.mark,
    "POP": _Reader.pop, "POP_MARK": _Reader.marked, "NONE": lambda r: r.push(None),
    "NEWTRUE": lambda r: r.push(True), "NEWFALSE": lambda r: r.push(False),
    "INT": _Reader.decimal, "LONG": _Reader.decimal, "BININT": lambda r: r.push(r.number("<i")),
    "BININT1": lambda r: r.push(r.byte()), "BININT2": lambda r: r.push(r.number("<H")),
    "LONG1": lambda r: r.whole(r.byte()), "LONG4": lambda r: r.whole(r.number("<i")),
    "FLOAT": lambda r: r.push(float(r.line())), "BINFLOAT": lambda r: r.push(r.number(">d")),
    "UNICODE": lambda r: r.push(r.line()), "BINUNICODE": lambda r: r.text(r.number("<I")),
    "SHORT_BINUNICODE": lambda r: r.text(r.byte()), "BINUNICODE8": lambda r: r.text(r.number("<Q")),
    "EMPTY_LIST": lambda r: r.push([]), "APPEND": _append,
    "APPENDS": lambda r: r.extend(r.marked()), "LIST": lambda r: r.push(r.marked()),
    "EMPTY_TUPLE": lambda r: r.push(()), "TUPLE": lambda r: r.push(tuple(r.marked())),
    "TUPLE1": lambda r: r.join(1), "TUPLE2": lambda r: r.join(2), "TUPLE3": lambda r: r.join(3),
    "EMPTY_DICT": lambda r: r.push({}), "DICT": lambda r: r.push(_dict(r, r.marked())),
    "SETITEM": _setitem, "SETITEMS": _setitems,
    "PUT": lambda r: r.put(int(r.line())), "BINPUT": lambda r: r.put(r.byte()),
    "LONG_BINPUT": lambda r: r.put(r.number("<I")), "MEMOIZE": lambda r: r.put(len(r.memo)),
    "GET": lambda r: r.stack.append(r.memo[int(r.line())]),
    "BINGET": lambda r: r.stack.append(r.memo[r.byte()]),
    "LONG_BINGET": lambda r: r.stack.append(r.memo[r.number("<I")])}
"""What opcodes of plain values do, by name; all others are refused."""
_DONE = {ord(one.code): _STEPS[one.name] for one in pickletools.opcodes if one.name in _STEPS}

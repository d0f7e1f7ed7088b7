"""An error as a document, and as an exit code."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from nest.errors import (
    InfeasibleError,
    InputError,
    KernelError,
    LimitError,
    OutputError,
    UnsupportedError,
)
from nest.inputs.base import Freeze, FrozenDict, Written
from nest.questions.question import Id, id_of

SCHEMA = "nest.error/1"
DEFECT = 70
_CODES: dict[type[Exception], tuple[str, int]] = {
    InputError: ("input", 2), InfeasibleError: ("infeasible", 3),
    UnsupportedError: ("unsupported", 3), LimitError: ("limit", 4), OutputError: ("output", 74),
}
_REPORT = "this is a defect of NEST, please report it with the command and its files"


class Failure(Written):
    """Why there is no answer."""

    schema_: Annotated[str, Field(alias="schema")] = SCHEMA
    id: Id | None = Field(None, description="of the question, where it had one")
    error: str = Field(description="input, infeasible, unsupported, limit, output or defect")
    code: int = Field(description="exit code of the command line for such an error")
    message: str
    problems: tuple[str, ...] = Field(description="the message, an entry for each problem")
    nearest: Annotated[dict[str, Any], Freeze] = Field(
        default_factory=FrozenDict, description="where nothing fits: the nearest miss")

    def to_json(self, indent: int | None = None) -> str:
        """The failure as JSON: in one line, or indented."""
        absent = {name for name, value in (("id", self.id), ("nearest", self.nearest))
                  if value is None or (name == "nearest" and self.error != "infeasible")}
        return self.model_dump_json(
            by_alias=True, indent=indent, exclude=absent, ensure_ascii=True)


def failure(error: BaseException, asked: object = None) -> Failure:
    """The document of an error, of whatever it and the id are made.

    Parameters
    ----------
    asked : id of the question; left out where it is none that a question may have.
    """
    name, code, message = "defect", DEFECT, f"{_said(error)}; {_REPORT}"
    known = next((cls for cls in _CODES if isinstance(error, cls)), None)
    if known is not None:
        (name, code), message = _CODES[known], _said(error)
    elif not isinstance(error, KernelError):
        shown = " ".join(_said(error).split())[:500]
        message = f"{type(error).__name__}: {shown}; {_REPORT} (NEST_DEBUG=1 shows where)"
    return Failure(
        id=id_of({"id": asked}), error=name, code=code, message=message,
        problems=tuple(map(_written, getattr(error, "problems", (message,)))),
        nearest=getattr(error, "nearest", {}))


def _said(error: BaseException) -> str:
    """The text of an error."""
    try:
        return _written(str(error))
    except Exception:  # its own text fails
        return type(error).__name__


def _written(text: object) -> str:
    """A text that can be written as UTF-8: halves of characters are escaped."""
    return str(text).encode(errors="backslashreplace").decode()

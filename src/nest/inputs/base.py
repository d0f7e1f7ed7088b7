"""The base of all descriptions: frozen, unknown fields refused, all problems reported at once."""

from __future__ import annotations

import html
import operator
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nest import texts
from nest.errors import LONGEST_MESSAGE, InputError, did_you_mean
from nest.units import shorten

_MOST_PROBLEMS = 50  # lines of one message; further ones are counted

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_CHOICE = re.compile(r"\[key\]|(constrained-)?(int|str|float|bool)|"
                     r"(function-\w+|list|tuple|dict|literal|nullable)\[.*", re.DOTALL)
"""Parts of Pydantic's paths that are no fields: a key of a mapping, a choice of a union."""

K = TypeVar("K")
V = TypeVar("V")


class Problems(ValueError):
    """Problems that concern several fields of one description, as (field, text) pairs."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = tuple(pairs)
        super().__init__("; ".join(f"{field}: {text}" for field, text in self.pairs))


@contextmanager
def in_field(field: str) -> Iterator[None]:
    """Raise a ValueError of the body as a problem of one field."""
    try:
        yield
    except Problems as error:
        raise Problems([(f"{field}.{inner}", text) for inner, text in error.pairs]) from None
    except ValueError as error:
        raise Problems([(field, str(error))]) from None


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed, so that a frozen description is frozen completely."""

    def _refuse(self, *_: object, **__: object) -> typing.NoReturn:
        raise TypeError("descriptions are frozen: use .replace()")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))


def whole_number(value: object) -> int:
    """Take 8, 8.0 or an integer of NumPy; a flag or a text is not a whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (bool, str)):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ValueError(f"got {shorten(value)}; allowed: a whole number")


def _number(value: object) -> float:
    # YAML 1.1 reads 3e9 (no point) as text, so plain numbers in text are numbers here
    plain = not isinstance(value, str) or (len(value) <= 100 and _PLAIN.fullmatch(value.strip()))
    if plain and not isinstance(value, (bool, bytes, bytearray)):
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(f"got {shorten(value)}; allowed: a finite number")


def percent(value: object) -> object:
    """A text such as 5% as the share that it is; anything else as it stands."""
    if isinstance(value, str) and (text := value.strip()).endswith("%") and len(text) <= 100:
        return _number(text[:-1]) / 100.0
    return value


def _text(value: object) -> str:
    if isinstance(value, str) and len(value) <= 200 and value.strip() and value.isprintable():
        return value.strip()
    raise ValueError(f"got {shorten(value)}; allowed: one line of 1 to 200 printable characters")


def at_most(limit: int) -> BeforeValidator:
    """Refuse a longer list or mapping before its entries are checked."""

    def check(value: object) -> object:
        if isinstance(value, (list, tuple, dict)) and len(value) > limit:
            raise ValueError(f"got {len(value)} entries; allowed: at most {limit} entries")
        return value

    return BeforeValidator(check)


Whole = Annotated[int, BeforeValidator(whole_number)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=200)]
Freeze = AfterValidator(FrozenDict)

Share = Annotated[Number, Field(ge=0.0, le=1.0)]
Fraction = Annotated[Number, Field(ge=0.001, le=1.0)]
"""What a rate is multiplied by: no device or network is a thousand times slower than stated."""
Degree = Annotated[Whole, Field(ge=1, le=10**7)]


class Description(BaseModel):
    """Base of all descriptions.

    Raises
    ------
    InputError : with one line per problem, as `WHERE: field: got VALUE; allowed: ...`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False
    )

    def __init__(self, /, *given: object, **data: Any) -> None:
        if given:
            raise InputError(f"{noun_of(type(self))}: got {shorten(given[0])} without a name; "
                             f"allowed: fields by name, as in {type(self).__name__}(FIELD=VALUE)")
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise input_error(error, type(self), noun_of(type(self)), data) from None

    # nested descriptions are then still built by Pydantic itself, which keeps the path of a problem
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_json_schema(cls, *given: Any, **named: Any) -> dict[str, Any]:
        """The JSON Schema, with limits by the names that JSON Schema has for them."""
        found: dict[str, Any] = _with_limits(super().model_json_schema(*given, **named))
        return found

    @classmethod
    def parse(cls, data: object, where: str = "") -> Self:
        """Validate plain data.

        Parameters
        ----------
        data : a mapping as read from a file, or an object of this class.
        where : start of the message, such as the file name.

        Raises
        ------
        InputError : one line per problem.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise input_error(error, cls, where or noun_of(cls), data) from None

    @classmethod
    def parse_known(cls, data: object, where: str) -> tuple[Self, tuple[str, ...]]:
        """The same as `parse` without unknown fields, such as those of a later version.

        Returns
        -------
        The description, and a line for each field that was left out.
        """
        ignored: list[str] = []
        while True:
            try:
                return cls.model_validate(data), tuple(ignored)
            except ValidationError as error:
                unknown = [item["loc"] for item in error.errors(include_url=False)
                           if item["type"] == "extra_forbidden"]
                if not unknown:
                    raise input_error(error, cls, where, data) from None
            data = _without(data, unknown)
            for location in unknown[:_MOST_PROBLEMS]:
                path = ".".join(shorten(str(part))[1:-1] for part in location)
                hint = f"; {_close(cls, location)}".rstrip("; ")
                ignored.append(f"{where}: {path}: unknown field, ignored{hint}")
            if (more := len(unknown) - _MOST_PROBLEMS) > 0:
                ignored.append(f"{where}: and {more} more unknown fields, ignored")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated as a whole; defaults are derived again."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return self.parse({**given, **changes})

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """A copy with some fields changed, checked as a whole; no default is derived again.

        Raises
        ------
        InputError : one line per problem.
        """
        if not update:
            return super().model_copy(deep=deep)
        fields = type(self).model_fields
        changed = {**{name: getattr(self, name) for name in fields}, **update}
        checked = self.parse({
            fields[name].alias or name if name in fields else name: value
            for name, value in changed.items()
        })
        object.__setattr__(checked, "__pydantic_fields_set__", self.model_fields_set | {*update})
        return checked

    def unchecked(self, **changes: Any) -> Self:
        """A copy with some fields changed and nothing checked, for those who check it later."""
        return super().model_copy(update=changes)

    def as_dict(self) -> dict[str, Any]:
        """Give plain data (JSON types only) from which `parse` makes an equal description."""
        return self.model_dump(mode="json", by_alias=True)


_LIMITS = {
    "ge": ("minimum",) * 3, "gt": ("exclusiveMinimum",) * 3, "le": ("maximum",) * 3,
    "lt": ("exclusiveMaximum",) * 3, "min_length": ("minLength", "minItems", "minProperties"),
    "max_length": ("maxLength", "maxItems", "maxProperties")}
"""Pydantic's names of limits behind a validator of one's own, which it leaves in a schema (2.14),
and the keywords that they stand for: of text and numbers, of lists, of mappings."""
_NAMED = ("properties", "$defs", "schemas")
"""Keywords whose keys are no keywords."""


def _with_limits(schema: Any) -> Any:
    """A part of a JSON Schema with the keywords of its limits."""
    if isinstance(schema, list):
        return [_with_limits(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    which = {"array": 1, "object": 2}.get(str(schema.get("type")), 0)
    found = {}
    for key, value in schema.items():
        if key in _NAMED:
            found[key] = {name: _with_limits(one) for name, one in value.items()}
        elif key in ("default", "examples", "const", "enum"):
            found[key] = value
        else:
            found[_LIMITS[key][which] if key in _LIMITS else key] = _with_limits(value)
    return found


class Written(Description):
    """Base of what NEST writes: a reader ignores fields that a later minor version has added."""

    model_config = ConfigDict(extra="ignore")


class Shown(Written):
    """Base of what NEST writes for people, too."""

    def report(self, width: int = 80, colour: bool = False, unicode: bool = True) -> str:
        """The report as text, as the command prints it.

        Parameters
        ----------
        width : columns, at least 80.
        colour : with escape codes for a terminal.
        unicode : with lines and bars that are not ASCII.
        """
        return texts.report(self, width, colour, unicode)

    def __str__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        """The report for a notebook."""
        return f"<pre>{html.escape(self.report())}</pre>"


def _without(data: Any, locations: Iterable[tuple[int | str, ...]]) -> Any:
    """A copy of plain data without some fields."""
    inner: dict[int | str, list[tuple[int | str, ...]]] = {}
    for first, *rest in locations:
        inner.setdefault(first, []).append(tuple(rest))
    copy = data.copy()  # once, whatever the number of fields
    for first, rests in inner.items():
        if () in rests:
            del copy[first]
        else:
            copy[first] = _without(copy[first], rests)
    return copy


def noun_of(cls: type[BaseModel]) -> str:
    """The noun for a description in messages: `SearchSpace` is `search space`."""
    name = cls.__name__
    if name.isupper():
        return name.lower()
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


def input_error(
    error: ValidationError, cls: type[BaseModel], where: str, data: object = None
) -> InputError:
    """Turn what Pydantic found into one InputError with a line per problem.

    Parameters
    ----------
    error : what Pydantic found.
    cls : the description.
    where : start of each line.
    data : what was validated.
    """
    lines: list[str] = []
    items = error.errors(include_url=False)
    for position, item in enumerate(items):
        full = sum(map(len, lines)) > LONGEST_MESSAGE // 2
        if full or len(lines) >= _MOST_PROBLEMS:  # each line costs a search for close names
            lines.append(f"{where}: and {len(items) - position} more problems")
            break
        for path, text in _problems(item, cls, data):
            line = f"{where}: {path}: {text}" if path else f"{where}: {text}"
            if line not in lines:
                lines.append(line)
    return InputError("\n".join(lines), tuple(lines))


def _written(location: tuple[int | str, ...], data: object) -> Iterator[int | str]:
    """The parts of a path without the number of an entry of a list that was written as one text."""
    for part in location:
        if not (isinstance(part, int) and isinstance(data, str)):
            yield part
        try:
            data = data[part]  # type: ignore[index]
        except (TypeError, LookupError):
            data = data if isinstance(data, str) else None


def _problems(item: Any, cls: type[BaseModel], data: object) -> Iterator[tuple[str, str]]:
    problem, value, context = item["type"], item.get("input"), item.get("ctx") or {}
    if problem == "default_factory_not_called":
        return  # the field that the default follows from has a line of its own
    if problem == "too_short" and isinstance(value, Sized) and len(value) >= context["min_length"]:
        return  # enough entries were given; the bad ones have lines of their own
    location = tuple(part for part in item["loc"]
                     if isinstance(part, int) or not _CHOICE.fullmatch(part))
    path = ".".join(shorten(part)[1:-1] if isinstance(part, str) else str(part)
                    for part in _written(location, data))
    inner = context.get("error")
    if isinstance(inner, Problems):
        for field, text in inner.pairs:
            yield ".".join(filter(None, (path, field))), text
    elif problem == "value_error":
        yield path, str(inner)
    elif problem == "missing":
        yield path, f"missing; needed: {_meaning(cls, location)}"
    elif problem == "extra_forbidden":
        yield path, f"unknown field (got {shorten(value)}); {_neighbours(cls, location)}"
    else:
        yield path, f"got {shorten(value)}; allowed: {_allowed(problem, context, item['msg'])}"


_ALLOWED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "finite_number": "a finite number",
    "float_type": "a number",
    "float_parsing": "a number",
    "none_required": "nothing (null)",
    "invalid_key": "text as field name",
}


def _allowed(problem: str, context: Mapping[str, Any], message: str) -> str:
    if problem in _ALLOWED:
        return _ALLOWED[problem]
    signs = {"greater_than": ("more than", "gt"), "greater_than_equal": ("at least", "ge")}
    signs |= {"less_than": ("less than", "lt"), "less_than_equal": ("at most", "le")}
    if problem in signs:
        words, key = signs[problem]
        limit = context[key]
        whole = isinstance(limit, float) and limit.is_integer()
        return f"{words} {int(limit) if whole else limit}"
    if problem == "literal_error":
        return str(context["expected"])
    if problem in ("too_short", "too_long"):
        count = context.get("min_length", context.get("max_length"))
        return f"{'at least' if problem == 'too_short' else 'at most'} {count} entries"
    return message


def _owner(cls: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The description class that the last part of a location is a field of."""
    current: Any = cls
    for part in location[:-1]:
        current = _step(current, part)
        if current is None:
            return None
    found = [t for t in _choices(current) if isinstance(t, type) and issubclass(t, BaseModel)]
    return found[0] if found else None


def _choices(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _choices(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(annotation):
            yield from _choices(choice)
    else:
        yield annotation


def _step(annotation: Any, part: int | str) -> Any:
    for choice in _choices(annotation):
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            if part in choice.model_fields:
                return choice.model_fields[str(part)].annotation
        elif typing.get_origin(choice) in (tuple, list):
            return typing.get_args(choice)[0]
        elif typing.get_origin(choice) is dict:
            return typing.get_args(choice)[1]
    return None


def _meaning(cls: type[BaseModel], location: tuple[int | str, ...]) -> str:
    owner = _owner(cls, location)
    field = owner.model_fields.get(str(location[-1])) if owner else None
    return (field.description if field else None) or "a value"


def _neighbours(cls: type[BaseModel], location: tuple[int | str, ...]) -> str:
    owner = _owner(cls, location)
    if owner is None:
        return "not allowed here"
    return f"{_close(cls, location)}allowed: {', '.join(_fields(owner))}"


def _close(cls: type[BaseModel], location: tuple[int | str, ...]) -> str:
    owner = _owner(cls, location)
    return did_you_mean(str(location[-1]), _fields(owner)) if owner else ""


def _fields(owner: type[BaseModel]) -> list[str]:
    return [field.serialization_alias or name for name, field in owner.model_fields.items()]

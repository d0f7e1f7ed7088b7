"""Named tuples of arrays as kernels take them: one address, from which each part is read.

numba passes a tuple by value, with seven numbers for each array: 900 for the arrays of a search,
in each function and at each call. They took most of the time of compiling.

A bundle is words of eight bytes: of an array its address and its lengths, of a function those of
numba, of a bundle in it its own. It is written where Python calls, and never changed.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from numba import extending, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate

FUNCTION = 3
"""Addresses of one function, at the most."""
# Any: what numba has types of, or has not, differs by its version.
numba: Any = extending
code: Any = cgutils
ir: Any = code.ir
WORD, BYTE = ir.IntType(64), ir.IntType(8)


class Bundle(types.Type):
    """The type of a named tuple, by its class and the types of its parts."""

    def __init__(self, kind: type, parts: tuple[Any, ...]) -> None:
        self.kind, self.parts = kind, parts
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        self.at: dict[str, int] = {}
        """First word of each part."""
        self.words = 0
        for name, part in zip(names, parts, strict=True):
            self.at[name] = self.words
            self.words += _words(part)
        self.types = dict(zip(names, parts, strict=True))
        super().__init__(kind.__name__)

    @property
    def key(self) -> Any:
        """Bundles of one key are one type."""
        return self.kind, self.parts


@cache
def bundle_of(kind: type, parts: tuple[Any, ...]) -> Bundle:
    """The type of a class of named tuples; from now on numba has it for them."""
    def typeof(value: Any, context: Any) -> Bundle:
        return Bundle(kind, tuple(numba.typeof_impl(part, context) for part in value))

    numba.typeof_impl.register(kind)(typeof)
    return Bundle(kind, parts)


def _words(part: Any) -> int:
    """Words of a part."""
    if isinstance(part, Bundle):
        return part.words
    if isinstance(part, types.Array) and part.layout == "C":
        return 1 + int(part.ndim)
    if isinstance(part, types.FunctionType):
        return FUNCTION
    if isinstance(part, (types.Boolean, types.Integer, types.Float)):
        return 1
    raise TypeError(f"{part}: a bundle is of numbers, of functions with an address, of arrays "
                    "without gaps whose last index is the fastest, or of named tuples of these")


class BundleModel(numba.models.OpaqueModel):  # type: ignore[misc]
    """An address."""


class BundleParts(AttributeTemplate):
    """Types of the parts of a bundle."""

    key = Bundle

    def generic_resolve(self, bundle: Any, name: Any) -> Any:  # type: ignore[override]
        """The type of a part; None: there is none."""
        return bundle.types.get(name)


def _part(context: Any, builder: Any, bundle: Bundle, address: Any, name: str) -> Any:
    """A part, which nobody counts references to."""
    part, first = bundle.types[name], bundle.at[name]
    if isinstance(part, Bundle):
        return _address(builder, address, first)
    value = context.get_value_type(part)
    if isinstance(part, types.Array):
        return _array(context, builder, part, address, first)
    if isinstance(part, types.FunctionType):
        found = ir.Constant(value, ir.Undefined)
        for n, kind in enumerate(value.elements):
            found = builder.insert_value(found, _load(builder, address, first + n, kind), n)
        return found
    if isinstance(part, types.Boolean):
        return builder.trunc(_load(builder, address, first, WORD), value)
    return _load(builder, address, first, value)


def _array(context: Any, builder: Any, kind: Any, address: Any, first: int) -> Any:
    """An array that lies without gaps."""
    model, value = context.data_model_manager[kind], context.get_value_type(kind)
    strides = [WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))]
    lengths = [_load(builder, address, first + 1 + n, WORD) for n in range(kind.ndim)]
    for length in reversed(lengths[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    number = lengths[0]
    for length in lengths[1:]:
        number = builder.mul(number, length)
    found = ir.Constant(value, None)
    parts = {"nitems": number, "itemsize": strides[-1]}
    at = model.get_field_position("data")
    parts["data"] = _load(builder, address, first, value.elements[at])
    for name, part in parts.items():
        found = builder.insert_value(found, part, model.get_field_position(name))
    for name, numbers in (("shape", lengths), ("strides", strides)):
        for n, one in enumerate(numbers):
            found = builder.insert_value(found, one, [model.get_field_position(name), n])
    return found


def _address(builder: Any, address: Any, word: int) -> Any:
    return builder.gep(address, [WORD(8 * word)], inbounds=True) if word else address


def _load(builder: Any, address: Any, word: int, kind: Any) -> Any:
    """A word, which nothing changes: it need not be read again after a store."""
    found = builder.load(builder.bitcast(_address(builder, address, word), kind.as_pointer()))
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


def _unbox(bundle: Bundle, value: Any, c: Any) -> Any:
    """Write the words of a named tuple of Python."""
    words = code.alloca_once(c.builder, ir.ArrayType(WORD, bundle.words))
    address = c.builder.bitcast(words, BYTE.as_pointer())
    wrong = code.alloca_once_value(c.builder, code.false_bit)
    cleanups: list[Any] = []
    _write(bundle, value, c, address, wrong, cleanups)
    # Else the words could be read before they are written: no load waits that nothing changes.
    same = ir.InlineAsm(ir.FunctionType(address.type, [address.type]), "", "=r,0,~{memory}", True)

    def clean() -> None:
        for one in reversed(cleanups):
            one()

    return numba.NativeValue(c.builder.call(same, [address]), is_error=c.builder.load(wrong),
                             cleanup=clean if cleanups else None)


def _write(bundle: Bundle, value: Any, c: Any, address: Any, wrong: Any, cleanups: list[Any],
           ) -> None:
    builder = c.builder
    for n, (name, part) in enumerate(bundle.types.items()):
        item, to = c.pyapi.tuple_getitem(value, n), _address(builder, address, bundle.at[name])
        if isinstance(part, Bundle):
            _write(part, item, c, to, wrong, cleanups)
            continue
        native = c.unbox(part, item)
        with builder.if_then(native.is_error, likely=False):
            builder.store(code.true_bit, wrong)
        if native.cleanup is not None:
            cleanups.append(native.cleanup)
        if c.context.enable_nrt:  # a reference for the part, which the call holds until it ends
            cleanups.append(partial(c.context.nrt.decref, builder, part, native.value))
        if isinstance(part, types.Array):
            model = c.context.data_model_manager[part]
            data, shape = (builder.extract_value(native.value, model.get_field_position(one))
                           for one in ("data", "shape"))
            numbers = [data, *(builder.extract_value(shape, i) for i in range(part.ndim))]
        elif isinstance(part, types.FunctionType):
            numbers = [builder.extract_value(native.value, i)
                       for i in range(len(native.value.type.elements))]
        else:
            numbers = [native.value]
        for i, number in enumerate(numbers):
            if isinstance(part, types.Boolean):
                number = builder.zext(number, WORD)
            at = builder.bitcast(_address(builder, to, i), number.type.as_pointer())
            builder.store(number, at)


numba.register_model(Bundle)(BundleModel)
numba.infer_getattr(BundleParts)
numba.lower_getattr_generic(Bundle)(_part)
numba.unbox(Bundle)(_unbox)

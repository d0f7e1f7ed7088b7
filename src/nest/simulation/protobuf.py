"""Messages of Protocol Buffers as bytes: the few forms that Chakra's nodes take.

Source: protobuf.dev/programming-guides/encoding. A library would be a dependency for 30 lines.
"""

from __future__ import annotations

from collections.abc import Iterable


def varint(value: int) -> bytes:
    """A whole number from 0 on, seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(0x80 | value & 0x7F)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """A field of a whole number, truth or enumeration; 0 is the default, and left out."""
    return varint(field << 3) + varint(value) if value else b""


def chosen(field: int, value: int) -> bytes:
    """The same of a ``oneof``, where 0 is written, too."""
    return varint(field << 3) + varint(value)


def packed(field: int, values: Iterable[int]) -> bytes:
    """A field of whole numbers in a row."""
    return block(field, b"".join(map(varint, values)))


def block(field: int, value: bytes) -> bytes:
    """A field of text, or of a message; nothing is left out."""
    return varint(field << 3 | 2) + varint(len(value)) + value if value else b""


def delimited(message: bytes) -> bytes:
    """A message with its length in front, as streams have them."""
    return varint(len(message)) + message

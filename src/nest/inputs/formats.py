"""Number formats of matrix products: bytes of their operands, and what making them moves."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from nest.inputs import catalog
from nest.inputs.base import Description, Name, Number

BytesOf = Annotated[Number, Field(gt=0, le=8)]


class NumberFormat(Description):
    """A number format of matrix products, as the catalog describes it (``formats.yaml``)."""

    name: Name = Field(description="its name, as `precision` of a job")
    element: BytesOf = Field(description="bytes of an element between products")
    operand: BytesOf = Field(description="bytes of an element of an operand, with its scales")
    cast: Annotated[Number, Field(ge=0, le=100)] = Field(
        0.0, description="bytes moved for each element that becomes an operand, with the copy for "
        "the gradient of weights; 0: operands are elements",
    )
    rate: Name = Field(description="name of its rates in descriptions of devices")
    like: Name | None = Field(
        None, description="format whose efficiency of products it has on a device that gives none"
    )
    wide: Name | None = Field(
        None, description="format of what is not cast: attention core, router, head; null: its own"
    )
    source: Annotated[str, Field(min_length=1, max_length=2000)] = Field(
        description="source of the figures"
    )

    @property
    def narrow(self) -> bool:
        """Whether operands are made by casts: of 8 bits or fewer."""
        return self.cast > 0.0


@cache
def number_format(name: str) -> NumberFormat:
    """A format of the catalog by its name."""
    return NumberFormat.parse({"name": name, **catalog.formats()[name]}, f"format {name}")

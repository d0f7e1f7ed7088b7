"""docs/costs.md says of number formats what the catalog says."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from nest.inputs import catalog, load_device
from nest.inputs.formats import number_format
from nest.inputs.space import Precision

PAGE = (Path(__file__).parents[2] / "docs" / "costs.md").read_text(encoding="utf-8")


def test_the_table_of_number_formats() -> None:
    lines = PAGE[PAGE.index("| precision | scales |"):].split("\n\n")[0].splitlines()[2:]
    found = {}
    for line in lines:
        names, _, operand, cast, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for name in names.replace("`", "").split(", "):
            found[name] = float(operand), 0.0 if cast == "-" else float(cast)
    wanted = {name: (number_format(name).operand, number_format(name).cast)
              for name in get_args(Precision)}
    assert found == wanted


def test_formats_belong_to_generations() -> None:
    has = {dtype: {name for name in catalog.list_devices() if dtype in load_device(name).peak_flops}
           for dtype in ("fp8-blockwise", "mxfp8", "nvfp4")}
    blackwell = {"b200-sxm", "b300", "gb200", "gb300"}
    hopper = {"h100-sxm", "h100-90gb", "h200-sxm", "h800", "h20", "gh200"}
    assert has == {"fp8-blockwise": hopper, "nvfp4": blackwell | {"rubin"},
                   "mxfp8": blackwell | {"mi350x", "mi355x", "mi455x", "rubin", "trainium3"}}

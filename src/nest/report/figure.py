"""The look and the files of pictures. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nest.errors import InputError
from nest.inputs.files import write_atomic
from nest.units import shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
BLACK, ORANGE, SKY_BLUE, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7")
"""Of M. Okabe and K. Ito, "Color Universal Design", 2008; their yellow does not show on white."""
GREY, LIGHT = "#999999", "#e4e4e4"
DOTS = 150
"""Of a PNG, an inch."""
_LOOK = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: pictures are the same everywhere
    "font.size": 9.0,
    "text.parse_math": False,  # a $ in a name is a $
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "legend.frameon": False,
    "svg.hashsalt": "nest",  # names inside an SVG are the same in each run
}


def check_picture(option: str, file: str | None) -> None:
    """Refuse the name of a picture that cannot be drawn, before any work is done for it.

    Parameters
    ----------
    option : its name, for the message.
    file : None: no picture is wanted.

    Raises
    ------
    InputError : the name ends in neither of :data:`SUFFIXES`, or Matplotlib is missing.
    """
    if file and not file.endswith(SUFFIXES):
        raise InputError(f"{option}: got {shorten(file, 200)}; allowed: a name that ends in "
                         f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if file:
        need_matplotlib(option)


def need_matplotlib(what: str) -> None:
    """Refuse to draw where Matplotlib, the extra ``plot`` of the package, is not installed.

    Parameters
    ----------
    what : the command or option that draws, for the message.

    Raises
    ------
    InputError : it is not; the text says what to install.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"{what}: pictures need Matplotlib, which is not installed; "
                         "pip install 'nest-planner[plot]' adds it")


@contextlib.contextmanager
def look() -> Iterator[None]:
    """Draw within it: fonts, lines and colours of NEST, independent of the user's settings."""
    from matplotlib import style

    with style.context(["default", _LOOK]):
        yield


def save_figure(file: str, figure: Figure) -> None:
    """Write a picture completely or not at all; the same figure gives the same file.

    Parameters
    ----------
    file : its suffix determines the format, see :func:`check_picture`.
    figure : drawn within :func:`look`.

    Raises
    ------
    InputError, OutputError : as :func:`nest.inputs.files.write_atomic`.
    """
    suffix = Path(file).suffix[1:]
    stream = io.BytesIO()
    undated = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"),
               "png": ("Software",)}[suffix]
    with look():
        figure.savefig(stream, format=suffix, dpi=DOTS, metadata=dict.fromkeys(undated))
    write_atomic(file, stream.getvalue())

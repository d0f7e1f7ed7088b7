"""Run the notebooks and keep what they print: python docs/notebooks/refresh.py (extra docs).

Without the compiler, as the test does: the same figures, and no minute of compiling.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> None:
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        book = nbformat.read(path, 4)
        NotebookClient(book, timeout=300, record_timing=False).execute()
        for cell in book.cells:
            cell.metadata.pop("execution", None)
            for made in cell.get("outputs", ()):
                made["text"] = re.sub(r"\x1b\[[\d;]*m", "", made.get("text", ""))
        nbformat.write(book, path)


if __name__ == "__main__":
    main()

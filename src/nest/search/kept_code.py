"""Where compiled code is kept: a folder whose name says for which sources and machines it is good.

numba's own cache does not see that a kernel called from another file has changed, so the folder
is named by a digest of the processor, the versions of Python and numba, and all sources of kernels
and forms: what it holds is good wherever its name is the same (:mod:`nest.search.carried`). It lies
below ``NUMBA_CACHE_DIR`` or the user's cache folder. A file with the name of an entry point says
that the folder has it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

SECONDS = {"alike": 17, "routes": 9, "solve": 8, "select": 6, "longest_path": 4, "useful": 4,
           "write_order": 4, "may_fit": 3, "undominated": 1, "see": 1, "ask": 1}
"""About what compiling an entry point takes on a processor of :data:`PACE`, the longest first: what
two processes divide."""
PACE = 0.044
"""Seconds that `pace` of :mod:`nest.search.compiled` takes there."""


def uncompiled(folder: Path) -> list[str]:
    """Entry points that a folder of compiled code lacks, the longest first."""
    return [name for name in SECONDS if not (folder / name).exists()]


def cache_folder() -> Path | None:
    """Folder for compiled code, made if need be; None where nothing can be written.

    One that has all entry points need not be writable.
    """
    roots = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    for root in filter(None, roots):
        folder = Path(root).expanduser() / "nest-planner" / digest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            if folder.is_dir() and not uncompiled(folder):
                return folder
    return None


def machine() -> dict[str, str]:
    """What compiled code depends on, besides the sources."""
    from llvmlite import binding

    features = (os.environ.get("NUMBA_CPU_FEATURES")
                or binding.get_host_cpu_features().flatten())
    return {"processor": os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name(),
            "its features": hashlib.sha256(features.encode()).hexdigest()[:8],
            "system": f"{platform.system()} {platform.machine()}",
            "Python": ".".join(platform.python_version_tuple()[:2]), "numba": version("numba")}


def digest() -> str:
    """The name of the folder of compiled code."""
    found = hashlib.sha256(repr(machine()).encode())
    here = Path(__file__).parent.parent
    for source in sorted((*(here / "_kernels").rglob("*.py"), *(here / "schedules").glob("*.py"),
                          *(here / "records").glob("*.py"))):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]

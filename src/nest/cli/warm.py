"""`nest warm`: compile the kernels before anyone waits for them, or take them from elsewhere."""

from __future__ import annotations

from typing import Annotated

from nest.cli import output
from nest.cli.options import argument, text
from nest.errors import InputError, OutputError


def warm(
    archive: Annotated[str | None, argument(
        "Compiled kernels of a like machine (`nest warm -o`), to be used here; default: compile. "
        "They are code: take them only from whom you would install a package.",
        "KERNELS.zip")] = None,
    *,
    file: Annotated[str | None, text(
        "Also write the compiled kernels, for an image or like machines.", "KERNELS.zip",
        "--output", "-o")] = None,
    sha256: Annotated[str | None, text(
        "Take KERNELS.zip only if it has this digest, which `nest warm -o` prints.", "HEX")] = None,
) -> None:
    """Compile all kernels now, so that no first question waits.

    In an image: run it once while the image is built, with NUMBA_CACHE_DIR as later. Elsewhere:
    NEST_KERNELS=KERNELS.zip lets every process take them from that file. They are used where
    NEST, processor, Python and numba are the same; elsewhere NEST says so and compiles.
    """
    from nest.search import carried, compiled, kept_code

    if sha256 is not None and archive is None:
        raise InputError("--sha256: got no KERNELS.zip; needed: the file that it is of")
    if (archive or file) and not compiled.movable():
        raise InputError("kernels: this numba keeps code by the path of its source; allowed: a "
                         "numba that can keep it elsewhere (0.61 to 0.68 do)")
    folder = kept_code.cache_folder()
    if folder is None:
        raise OutputError("kernels: no folder can be written for compiled code; allowed: one that "
                          "NUMBA_CACHE_DIR names")
    if archive is not None:
        count = carried.take(archive, folder, sha256)
        output.emit(f"Took {count} files of compiled kernels into {folder}")
    missing = kept_code.uncompiled(folder)
    _, seconds = compiled.load(tuple(kept_code.SECONDS))
    if missing:
        output.emit(f"Compiled the kernels in {seconds:.0f} s into {folder}")
    elif archive is None:
        output.emit(f"The kernels are compiled already, in {folder}")
    if file is not None:
        digest = carried.write(file, folder)
        output.emit(f"Wrote {file}\nsha256 {digest}")

"""Compiled code that travels: it is the same elsewhere, or refused with one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.search import carried, compiled, kept_code

SOURCE = Path(nest.__file__).parent
CODE = {"uniform/search.try_all-1.py311.nbi": b"index",
        "_kernels/spans.fill-2.py311.1.nbc": b"code"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the folder of a machine on which all is compiled."""
    return filled(tmp_path / "one" / kept_code.digest())


def filled(folder: Path) -> Path:
    for name, data in (CODE | dict.fromkeys(kept_code.SECONDS, b"")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "_kernels" / "spans.fill-2.py311.1.nbc.tmp.1f").write_bytes(b"half")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*") if file.is_file()}


def test_what_is_taken_is_what_was_written(folder: Path, tmp_path: Path) -> None:
    archive, there = tmp_path / "kernels.zip", tmp_path / "two" / folder.name
    digest = carried.write(archive, folder)
    assert carried.write(tmp_path / "again.zip", filled(tmp_path / "three" / folder.name)) == digest
    assert carried.take(archive, there, digest) == len(CODE)
    assert files(there) == CODE | dict.fromkeys(kept_code.SECONDS, b"")
    assert kept_code.uncompiled(there) == []


def test_only_what_is_whole_is_written(folder: Path, tmp_path: Path) -> None:
    (folder / "solve").unlink()
    with pytest.raises(nest.InputError, match="kernels: solve of .* are not compiled"):
        carried.write(tmp_path / "kernels.zip", folder)
    assert not (tmp_path / "kernels.zip").exists()


def packed(entries: dict[str, Any], about: dict[str, Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(carried.ABOUT, json.dumps(about))
            for name, data in entries.items():
                archive.writestr(name, data)
    return write


def about(**changes: Any) -> dict[str, Any]:
    return {"folder": kept_code.digest(), "machine": kept_code.machine(),
            "files": {}} | changes


OTHER = kept_code.machine() | {"processor": "abacus", "numba": "0.1"}
LINK = {"../../evil": "2c624232cdd221771294dfbb310aca000a0df6ac8b66b696d90ef06fdefb64a3"}


@pytest.mark.parametrize(("write", "said"), [
    (lambda path: path.write_bytes(b"PK\3\4 and no more"), "is not an archive of compiled kernels"),
    (lambda path: path.write_bytes(b""), "is not an archive of compiled kernels"),
    (lambda path: path.mkdir(), "is a folder; allowed: a file"),
    (lambda path: None, "no such file"),
    (packed({}, {"nest": 1}), "about.json: "),
    (packed({}, about(folder="x", machine=OTHER)),
     r"compiled for processor 'abacus' \(here .*\), numba '0.1' \(here .*\); allowed: the same"),
    (packed({}, about(folder="x")), "compiled for other sources of NEST"),
    (packed({"a": "x"}, about()), "got 'a'; allowed: the files that about.json lists"),
    (packed({}, about(files={"solve": "0"})), "got 'solve'; allowed: the files that"),
    (packed({"../../evil": "0"}, about(files=LINK)), "got '../../evil'; allowed"),
    (packed({"solve": "0"}, about(files={"solve": "0"})), "'solve': got other bytes"),
], ids=range(11))
def test_other_files_are_refused(
        write: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    archive, there = tmp_path / "kernels.zip", tmp_path / "two" / kept_code.digest()
    write(archive)
    with pytest.raises(nest.InputError, match=said) as caught:
        carried.take(archive, there)
    assert str(caught.value).startswith(str(archive)) and "\n" not in str(caught.value)
    assert not there.exists()


def test_another_file_than_asked(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "kernels.zip"
    carried.write(archive, folder)
    with pytest.raises(nest.InputError, match="sha256: got [0-9a-f]{64}; allowed: 'f00'"):
        carried.take(archive, tmp_path / "two" / folder.name, "f00")


def test_too_many_files(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "kernels.zip"
    carried.write(archive, folder)
    monkeypatch.setattr(carried, "MANY", 3)
    with pytest.raises(nest.InputError, match=r"got \d+ files of \d+ bytes; allowed: at most 3"):
        carried.take(archive, tmp_path / "two" / folder.name)


def test_a_folder_that_may_only_be_read(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an image; one that lacks code is passed over."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "image"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    image = filled(tmp_path / "image" / "nest-planner" / kept_code.digest())
    make = kept_code.tempfile.TemporaryFile

    def refused(dir: Path) -> Any:  # noqa: A002
        if tmp_path / "image" in dir.parents:
            raise PermissionError
        return make(dir=dir)

    monkeypatch.setattr(kept_code.tempfile, "TemporaryFile", refused)
    assert kept_code.cache_folder() == image
    (image / "alike").unlink()
    assert kept_code.cache_folder() == tmp_path / "home" / "nest-planner" / image.name


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                     folder: Path, tmp_path: Path) -> None:
    archive, there = tmp_path / "kernels.zip", tmp_path / "two" / folder.name
    there.mkdir(parents=True)
    monkeypatch.setattr(compiled, "load", lambda names: (None, 0.0))
    monkeypatch.setattr(kept_code, "cache_folder", lambda: folder)
    out, _ = run(capsys, "warm", "-o", str(archive))
    digest = out.split()[-1]
    assert "compiled already" in out and len(digest) == 64
    monkeypatch.setattr(kept_code, "cache_folder", lambda: there)
    out, _ = run(capsys, "warm", str(archive), "--sha256", digest)
    assert out.startswith(f"Took {len(CODE)} files")
    _, error = run(capsys, "warm", "--sha256", digest, code=2)
    assert "--sha256: got no KERNELS.zip" in error


LOADED = """
import sys
from nest.search import compiled
kernels, _ = compiled.load(("undominated", "ask", "may_fit", "write_order"))
parts = [part for name in ("undominated", "ask", "may_fit") for part in kernels.entries[name]]
print(sum(part.stats.cache_hits.total() for part in parts),
      sum(part.stats.cache_misses.total() for part in parts), compiled.__file__)
"""


@pytest.mark.kernels
def test_another_installation_runs_what_was_compiled_here(tmp_path: Path) -> None:
    """By an archive, and from the same folder: whatever the path and the age of its sources."""
    compiled.load(tuple(kept_code.SECONDS))
    folder = kept_code.cache_folder()
    assert folder is not None
    archive = tmp_path / "kernels.zip"
    carried.write(archive, folder)
    shutil.copytree(SOURCE, tmp_path / "elsewhere" / "nest", copy_function=shutil.copyfile)
    for cache, name in ((tmp_path / "cache", str(archive)), (folder.parents[1], "")):
        done = subprocess.run(
            [sys.executable, "-c", LOADED], text=True, capture_output=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "elsewhere"), "NEST_KERNELS": name,
                 "NUMBA_CACHE_DIR": str(cache)})
        assert done.stderr == "", done.stderr
        hits, misses, where = done.stdout.split()
        assert int(hits) >= 3 and misses == "0" and where.startswith(str(tmp_path))

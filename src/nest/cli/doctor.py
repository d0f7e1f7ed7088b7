"""`nest doctor`: what is installed, what a first search costs here, and whether prices agree."""

from __future__ import annotations

import json
import platform
import re
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from nest.cli import options, output

EXTRAS = {
    "dask": "studies on Dask clusters", "mcp": "nest mcp", "mpi": "studies over MPI",
    "onnx": "models from ONNX files", "optuna": "searches over designs by Optuna",
    "parquet": "studies as Parquet files",
    "plot": "pictures: --map, studies, validations", "ray": "studies on Ray clusters",
    "server": "nest serve", "torch": "models from PyTorch modules",
}
"""What each extra adds; those of developers are not named."""
LIBRARIES = ("numba", "llvmlite", "numpy", "scipy", "pydantic")
CHECK = ("llama2-7b", "dgx-a100", 16)
"""The question of the self-test: model, cluster, devices."""


class Found(NamedTuple):
    """One finding."""

    name: str
    text: str
    good: bool = True


def doctor(as_json: options.Json = False) -> None:
    """Check the installation, with a short self-test.

    Shows versions, threads, compiled code and extras. Ends with exit code 70 if the self-test
    fails.
    """
    found = [*_versions(), *_compiled(), *_extras(), *_added(), _self_test()]
    output.emit(json.dumps([line._asdict() for line in found], indent=2) if as_json
                else _text(found))
    if not all(line.good for line in found):
        raise RuntimeError("the self-test failed: see above; please report it")


def _versions() -> Iterator[Found]:
    from nest import __version__
    from nest.search.threads import VARIABLES, thread_count

    yield Found("NEST", f"{__version__}, Python {platform.python_version()}, "
               f"{platform.system()} {platform.machine()}")
    yield Found("Libraries", ", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    yield Found("Threads", f"{thread_count()} for a search ({' or '.join(VARIABLES)} sets another "
               "number)")


def _compiled() -> Iterator[Found]:
    from nest.search import kept_code

    folder = kept_code.cache_folder()
    if folder is None:
        yield Found("Kernels", "no folder can be written for compiled code: each process compiles "
                   "anew (NUMBA_CACHE_DIR names a folder)")
        return
    ready = len(kept_code.SECONDS) - len(kept_code.uncompiled(folder))
    made = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    state = f"{ready} of {len(kept_code.SECONDS)} are compiled, " + (
        f"last on {made:%Y-%m-%d}" if ready else "the first search compiles what it needs")
    yield Found("Kernels", f"{state}; {_size(folder)} in {folder}")
    old = [other for other in folder.parent.iterdir() if other.is_dir() and other != folder]
    if old:
        yield Found("", f"of other versions: {len(old)} folder{'s' if len(old) > 1 else ''} beside "
                   f"it, {_size(*old)}, may be removed")


def _size(*folders: Path) -> str:
    from nest.units import format_bytes

    return format_bytes(sum(file.stat().st_size for folder in folders
                            for file in folder.rglob("*") if file.is_file()), 3)


def _extras() -> Iterator[Found]:
    there, missing = [], []
    for extra, adds in EXTRAS.items():
        # As in "uvicorn[standard]>=0.30; extra == 'server'".
        names = [found[0] for need in requires("nest-planner") or ()
                 if re.search(rf"extra == ['\"]{extra}['\"]", need)
                 and (found := re.match(r"[\w.-]+", need))]
        if names and all(map(_installed, names)):
            there.append(extra)
        else:
            missing.append(f"{extra} ({adds})")
    yield Found("Extras", ", ".join(there) or "none")
    if missing:
        yield Found("Missing", "; ".join(missing) + ": pip install 'nest-planner[NAME]'")


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _added() -> Iterator[Found]:
    """What other packages add, and what of it cannot be used."""
    from nest import plugins
    from nest.frameworks.registry import TARGETS
    from nest.frameworks.targets import TRACES
    from nest.inputs import catalog
    from nest.network.generators.text import NAMES

    own = {plugins.NETWORKS: NAMES, plugins.EXPORTS: (*TARGETS, *TRACES)}
    good, bad = [], []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        catalog.refresh()
        for section in catalog.SECTIONS:
            catalog.names(section)
    for group in plugins.GROUPS:
        for one in plugins.registered(group, own.get(group, ())).values():
            if one.package is None:
                continue
            try:
                one.use(lambda _: None)
                good.append(f"{one.name} of {one.package} ({group.removeprefix('nest.')})")
            except plugins.UnusablePlugin as error:
                bad.append(str(error))
    if good:
        yield Found("Added", ", ".join(good))
    for text in dict.fromkeys([*bad, *(str(one.message) for one in told)]):
        yield Found("Unusable", text)


def _self_test() -> Found:
    """Price a plan, and simulate it: two independent ways to the same seconds."""
    from nest import Job, evaluate, load_cluster, load_model, simulate
    from nest.evaluation.even import even_configuration

    started = time.perf_counter()
    model, cluster = load_model(CHECK[0]), load_cluster(CHECK[1], devices=CHECK[2])
    job = Job(global_batch=64, seq_len=4096)
    ways: dict[str, Any] = {"tp": 2, "pp": 4, "zero": 1}
    plan = evaluate(model, cluster, job, even_configuration(model, cluster, job, **ways))
    apart = plan.step_time_s / simulate(plan).step_time_s - 1.0
    good = plan.feasible and abs(apart) < 0.01
    return Found("Self-test", f"{'passed' if good else 'FAILED'}: {CHECK[0]} on {CHECK[2]} "
                f"devices, priced and simulated, {100 * abs(apart):.1f} % apart, in "
                f"{time.perf_counter() - started:.1f} s", good)


def _text(found: list[Found]) -> str:
    from nest.report.page import Page

    page = Page(**output.page())
    for line in found:
        page.fact(line.name, line.text)
    page.blank()
    page.fact("Next", "`nest plan llama3-8b dgx-h100 --devices 64 --global-batch 512 --seq-len "
              "8192` searches; measured figures of your own machines come from `nest calibrate` "
              "and `nest learn`")
    return page.text()

"""Small descriptions as files, and a command run on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from descriptions import MODEL, changed, put

from nest.cli.main import main

DEVICE = {"name": "d", "memory": "8 GiB", "memory_bandwidth": "1 TB/s",
          "peak_flops": {"bf16": "100 TFLOP/s"}}
CLUSTER = {"name": "c", "device": DEVICE, "levels": [
    {"name": "node", "size": 4, "bandwidth": "100 GB/s", "latency": "5 us"},
    {"name": "leaf", "size": "n", "bandwidth": "25 GB/s", "latency": "10 us"}],
    "default_devices": 8}
TIGHT = changed(CLUSTER, "device.memory", "1.6 GiB")
LARGE = {**MODEL, "hidden": 2048, "ffn": 8192, "layers": 7}
JOB = ["--global-batch", "16", "--seq-len", "128"]


class Files:
    """Small descriptions in a folder, and the words of a command about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = str(put(folder, changed(MODEL, "layers", 7), "model.yaml"))
        self.cluster = str(put(folder, CLUSTER, "cluster.yaml"))
        self.words = [self.model, self.cluster, *JOB]

    def infeasible(self) -> list[str]:
        """Words for a model that is too large for the devices."""
        model = str(put(self.folder, LARGE, "large.yaml"))
        return [model, str(put(self.folder, TIGHT, "tight.yaml")), *JOB,
                "--memory-margin", "0"]

    def path(self, name: str) -> str:
        return str(self.folder / name)


def run(
    capsys, *words: str, code: int = 0, program: Callable[[list[str]], int] = main
) -> tuple[str, str]:
    """Standard output and error of a command that ends with a code."""
    found = program(list(words))
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    assert "Traceback" not in out + err
    if code:
        assert err.startswith("nest: ")
    return out, err

"""Print what graphs that are no hierarchy take as a Markdown table.

    python bench/networks.py [SUBSTRING]

Each network runs in a process of its own, so that its peak memory is its own. Read: from the text
of a generator to the cluster. Tensors: all prices of all blocks under all outer choices. Search:
the best plan of llama2-7b in the first order of devices, tensors included. The kernels are loaded
before the clock starts.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import nest
from nest.evaluation.evaluate import chain_of
from nest.search import compiled
from nest.search.branch_and_bound import search_one
from nest.search.formulating import formulate
from nest.search.query import Query

NETWORKS = (
    "torus:dims=4x4x4", "torus:dims=8x8x16", "torus:dims=16x16x16",
    "dragonfly:a=4,p=2,h=2", "dragonfly:a=8,p=4,h=4",
    "rail-optimized:nodes=16,units=8,spines=16", "fully-connected:devices=8",
    "fat-tree:k=16 without gpu0", "data-centres:centres=3,fabric=[fat-tree:k=8]",
)


def measure(text: str) -> dict[str, object]:
    """Figures of one network, in this process."""
    compiled.load()
    source, _, gone = text.partition(" without ")
    started = time.perf_counter()
    cluster = nest.load_network(source, without=gone or None)
    read = time.perf_counter() - started
    chain = chain_of(nest.load_model("llama2-7b"))
    job = nest.Job(global_batch=4 * cluster.size, seq_len=4096)
    started = time.perf_counter()
    f = formulate(Query(chain, cluster, job))
    tensors = time.perf_counter() - started
    found = search_one(Query(chain, cluster.replace(name="again"), job, beyond_stack=True))
    return {
        "network": f"`{text}`", "devices": f"{cluster.size:,}",
        "groups": " x ".join(str(level.size) for level in cluster.levels),
        "rows": f"{len(f.listing.rows.block):,}", "read, s": f"{read:.2f}",
        "tensors, s": f"{tensors:.2f}", "search, s": f"{found.effort.seconds:.2f}",
        "peak, MiB": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f}",
    }


def main() -> None:
    """Print the table, or with ``--network`` the figures of one."""
    if sys.argv[1:2] == ["--network"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    rows = []
    for text in (text for text in NETWORKS if "".join(sys.argv[1:]) in text):
        command = [sys.executable, __file__, "--network", text]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        print("| " + " | ".join(rows[-1].values()) + " |", flush=True)


if __name__ == "__main__":
    main()

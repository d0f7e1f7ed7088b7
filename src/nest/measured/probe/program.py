"""Time on this cluster what a training step is made of. Needs PyTorch 2.4 or newer, nothing else.

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        probe.py --out probe.json
    srun --nodes 2 --ntasks-per-node 8 python probe.py --out probe.json

All ranks run each part at the same time, as in a step. The first rank writes the file, which
`nest probe probe.json` reads: for each measurement the median of the seconds of all ranks and
repeats and their quartiles (of collectives: of the slowest rank of each repeat), and how much
longer the slowest rank takes. Where PyTorch finds no GPU, CPUs are measured, over gloo. A part that
a machine cannot run is noted with its reason; what the time does not allow is noted, too.

Random numbers are normal ones: they take more power than zeros. Kernels of a GPU repeat in CUDA
graphs, so that the host is not measured with them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

SCHEMA = "nest.probe/1"
REPEATS = 5
PARTS = {"bytes": 1, "host": 1, "products": 3, "grouped": 2, "attention": 2, "collectives": 5,
         "overlap": 1}
"""Parts, short ones first, and the shares of the time that they may take."""
LEAST = 3
"""Measurements of a part that are made whatever the time."""
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
           "fp8": getattr(torch, "float8_e4m3fn", None)}
Work = Callable[[], object]


class Timed(NamedTuple):
    """One thing to time: its columns, what makes the work, and how it is timed."""

    row: dict[str, Any]
    make: Callable[[], Work]
    together: bool = False
    """The ranks wait for each other: the slowest one counts."""
    captured: bool = True
    """In a CUDA graph, where the device is a GPU."""


class ProbingRank:
    """The device of this rank, and the ranks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
        if kind == "cuda":
            # Where a launcher shows each rank one device only, its number is 0.
            torch.cuda.set_device(self.local % torch.cuda.device_count())
        self.hosts: list[str] = [""] * self.world
        dist.all_gather_object(self.hosts, socket.gethostname())
        first: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            first.setdefault(host, []).append(rank)
        self.nodes = list(first.values())

    @property
    def gpu(self) -> bool:
        return self.kind == "cuda"

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        usual = torch.bfloat16 if self.gpu else torch.float32
        found: torch.Tensor = torch.randn(*shape, device=self.kind, dtype=dtype or usual)
        return found

    def agree(self, value: float) -> float:
        """The largest value of any rank."""
        held = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return float(held)

    def prepared(self, one: Timed) -> tuple[Work, float]:
        """The work, warm, and the seconds that it takes with the host."""
        work = one.make()
        work()
        self.wait()
        begin = time.perf_counter()
        work()
        self.wait()
        return work, time.perf_counter() - begin

    def repeated(self, work: Work, took: float, captured: bool) -> tuple[Work, int]:
        """The work as often in a row as takes 2 ms, and how often.

        On CPUs, whose cores ranks may share, several slices of the scheduler's.
        """
        least, most = (2e-3, 50) if self.gpu else (15e-3, 2000)
        calls = max(1, min(most, math.ceil(least / took)))
        repeat = partial(_repeat, work, calls)
        if not self.gpu or not captured:
            return repeat, calls
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeat()
        graph.replay()
        return graph.replay, calls

    def times(self, work: Work, calls: int) -> list[float]:
        """Seconds of each repeat on this rank; all begin together."""
        found = []
        for _ in range(REPEATS):
            self.wait()
            self.agree(0.0)
            found.append(self.once(work) / calls)
        return found

    def once(self, work: Work) -> float:
        """Seconds of one call: between two events of a GPU, else of the clock."""
        if not self.gpu:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


def _repeat(work: Work, calls: int) -> None:
    for _ in range(calls):
        work()


def products(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """Matrix products: each side varied alone, cubes, and few rows, where memory limits."""
    base = 4096 if on.gpu else 256
    sides = [base // 4, base // 2, base * 2, base * 4]
    shapes: list[tuple[int, ...]] = [(base, base, base)]
    for place in range(3):
        shapes += [(*(base,) * place, side, *(base,) * (2 - place)) for side in sides]
    shapes += [(size,) * 3 for size in (base // 2, base // 4, base // 8, base // 16, base * 2)]
    shapes += [(rows, base, base) for rows in (base // 128, base // 32, base // 16)]
    shapes += [(base // 16,) * 2 + (base,), (base * 2, base * 4, base), (base * 2, base, base * 4)]
    for m, n, k in shapes:
        for name in formats:
            yield Timed({"part": "products", "dtype": name, "m": m, "n": n, "k": k},
                              partial(_product, on, name, m, n, k))


def _product(on: ProbingRank, name: str, m: int, n: int, k: int) -> Work:
    if name == "fp8":
        one = torch.ones((), device=on.kind)
        x, w = (on.normal(rows, k).to(FORMATS["fp8"]) for rows in (m, n))
        return partial(torch._scaled_mm, x, w.t(), scale_a=one, scale_b=one,
                       out_dtype=torch.bfloat16, use_fast_accum=True)
    x, w = on.normal(m, k, dtype=FORMATS[name]), on.normal(n, k, dtype=FORMATS[name])
    return partial(torch.mm, x, w.t(), out=torch.empty(m, n, device=on.kind, dtype=FORMATS[name]))


def grouped(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """Products of equal experts: one call for each, or one grouped kernel for all."""
    name = next(one for one in formats if one != "fp8")
    sizes = ((2048, 768), (4096, 1536), (4096, 14336)) if on.gpu else ((128, 64), (256, 128))
    for n, k in sizes:
        for groups in (4, 16, 64) if on.gpu else (2, 8):
            for m in (64, 256, 1024, 4096) if on.gpu else (16, 64, 256):
                if groups * m * n * k > 2**41:
                    continue
                for way in ("each", "fused"):
                    yield Timed(
                        {"part": "grouped", "dtype": name, "way": way, "groups": groups, "m": m,
                         "n": n, "k": k}, partial(_grouped, on, name, way, groups, m, n, k))


def _grouped(on: ProbingRank, name: str, way: str, groups: int, m: int, n: int, k: int) -> Work:
    x = on.normal(groups * m, k, dtype=FORMATS[name])
    w = on.normal(groups, n, k, dtype=FORMATS[name])
    if way == "fused":
        ends = torch.arange(m, groups * m + 1, m, device=on.kind, dtype=torch.int32)
        return partial(torch._grouped_mm, x, w.transpose(-2, -1), offs=ends)
    out = torch.empty(groups * m, n, device=on.kind, dtype=x.dtype)

    def run() -> None:
        for group in range(groups):
            rows = slice(group * m, (group + 1) * m)
            torch.mm(x[rows], w[group].t(), out=out[rows])

    return run


def attention(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """Causal attention, forward and backward."""
    name = next(one for one in formats if one != "fp8")
    for heads, width in ((32, 128), (32, 64)) if on.gpu else ((4, 64), (4, 32)):
        for tokens in (1024, 2048, 4096, 8192, 16384) if on.gpu else (64, 128, 256):
            for way in ("forward", "backward"):
                yield Timed(
                    {"part": "attention", "dtype": name, "way": way, "heads": heads,
                     "width": width, "tokens": tokens},
                    partial(_attention, on, name, way, heads, width, tokens),
                    captured=way == "forward")


def _attention(
    on: ProbingRank, name: str, way: str, heads: int, width: int, tokens: int
) -> Work:
    q, k, v = (on.normal(1, heads, tokens, width, dtype=FORMATS[name]).requires_grad_(
        way == "backward") for _ in range(3))
    ahead = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    if way == "forward":
        return ahead
    out = ahead()
    return partial(torch.autograd.grad, out, (q, k, v), torch.randn_like(out), retain_graph=True)


def bytes_moved(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """Kernels that memory limits."""
    # Larger than the cache of the last level, which 4 ranks of a CPU may share.
    count = 2**28 if on.gpu else 2**23

    def copy() -> Work:
        return partial(torch.empty(count, device=on.kind).copy_, on.normal(count).float())

    def add() -> Work:
        x, y = (torch.zeros(count, device=on.kind) for _ in range(2))
        return partial(torch.add, x, y, out=torch.empty(count, device=on.kind))

    def adam() -> Work:
        held = [torch.zeros(count // 2, device=on.kind) for _ in range(4)]
        step = torch.ones((), device=on.kind)
        return partial(torch._fused_adamw_, [held[0]], [held[1]], [held[2]], [held[3]], [], [step],
                       lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False,
                       maximize=False)

    for name, each, make in (("copy", 8, copy), ("add", 12, add), ("adam", 14, adam)):
        yield Timed({"part": "bytes", "kernel": name, "bytes": each * count}, make,
                    captured=False)


class Block(torch.nn.Module):  # type: ignore[misc]
    """A layer of a decoder: norms, attention, gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out, self.gate, self.up, self.down = (
            torch.nn.Linear(width, far, bias=False) for far in (3 * width, *(width,) * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, self.heads, -1).permute(
            2, 0, 3, 1, 4)
        kept = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(kept.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        found: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return found


LAYERS, KERNELS, TOKENS = 8, 100, 4


def host(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """From one kernel to the next; what a layer of tiny products takes; copies to the host."""
    small = on.normal(16)

    def kernels() -> Work:
        return partial(_repeat, partial(small.add_, 1.0), KERNELS)

    yield Timed({"part": "host", "what": "kernel", "count": KERNELS}, kernels)

    def layers(way: str) -> Work:
        net = torch.nn.Sequential(*(Block(64, 2) for _ in range(LAYERS))).to(small)
        x = on.normal(1, TOKENS, 64).requires_grad_()
        if way == "forward":
            return partial(net, x)
        return partial(torch.autograd.grad, net(x).sum(), (x, *net.parameters()),
                       retain_graph=True)

    for way in ("forward", "backward"):
        yield Timed({"part": "host", "what": f"layer {way}", "count": LAYERS},
                          partial(layers, way), captured=False)
    if on.gpu:
        size = 2**28

        def copies(there: bool) -> Work:
            own = torch.empty(size, dtype=torch.uint8, device=on.kind)
            far = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            return partial(own.copy_ if there else far.copy_, far if there else own, True)

        for there in (True, False):
            yield Timed({"part": "host", "what": "to device" if there else "to host",
                               "bytes": size}, partial(copies, there), captured=False)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


def collectives(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """Collectives of groups inside nodes and across, all such groups at once."""
    per_node = min(map(len, on.nodes))
    teams: list[tuple[int, list[list[int]]]] = []
    size = 2
    while size <= per_node:
        teams.append((1, [node[at:at + size] for node in on.nodes
                          for at in range(0, per_node - size + 1, size)]))
        size *= 2
    if per_node & (per_node - 1):
        teams.append((1, [node[:per_node] for node in on.nodes]))
    if len(on.nodes) > 1:
        rails = [[node[at] for node in on.nodes] for at in range(per_node)]
        teams += [(len(on.nodes), rails)] + ([(len(on.nodes), [
            [rank for node in on.nodes for rank in node[:per_node]]])] if per_node > 1 else [])
    sizes = [2**power for power in (range(12, 31, 2) if on.gpu else range(14, 25, 2))]
    made = []
    for nodes, members in teams:
        # Each rank takes part in making every group, also of others.
        groups = [dist.new_group(each) for each in members]
        own = next((group for group, each in zip(groups, members, strict=True)
                    if on.rank in each), None)
        made.append((nodes, members, own))
    for size in sorted(sizes, key=lambda one: abs(math.log2(one / sizes[-3]))):
        for nodes, members, own in made:
            for name in COLLECTIVES:
                yield Timed(
                    {"part": "collectives", "collective": name, "n_ranks": len(members[0]),
                     "n_nodes": nodes, "message_bytes": size},
                    partial(_collective, on, name, len(members[0]), size, own),
                    together=True, captured=False)


def _collective(on: ProbingRank, name: str, ranks: int, size: int, group: Any) -> Work:
    """Buffers are those of nccl-tests: ``size`` is that of the whole one."""
    if group is None:
        return int
    dtype = torch.bfloat16 if on.gpu else torch.float32
    part = max(1, size // torch.empty((), dtype=dtype).element_size() // ranks)
    whole, own = (torch.zeros(many * part, device=on.kind, dtype=dtype) for many in (ranks, 1))
    at = dist.get_rank(group)
    to, of = (dist.get_global_rank(group, (at + by) % ranks) for by in (1, -1))
    calls: dict[str, Work] = {
        "all_reduce": partial(dist.all_reduce, whole, group=group),
        "all_gather": partial(dist.all_gather_into_tensor, whole, own, group=group),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, own, whole, group=group),
        "alltoall": partial(dist.all_to_all_single, torch.empty_like(whole), whole, group=group)}

    def around() -> None:
        for one in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, whole, to, group=group),
                dist.P2POp(dist.irecv, taken, of, group=group)]):
            one.wait()

    taken = torch.empty_like(whole)
    return calls.get(name, around)


def overlap(on: ProbingRank, formats: list[str]) -> Iterator[Timed]:
    """A row of products, an all-reduce of all ranks, and both at once."""
    if on.world < 2:
        return
    size = 4096 if on.gpu else 256
    x, y = on.normal(size, size), on.normal(size, size)
    out = torch.empty_like(x)
    held = on.normal(2**26 if on.gpu else 2**18)

    def compute() -> None:
        for _ in range(40):
            torch.mm(x, y, out=out)

    def both() -> None:
        work = dist.all_reduce(held, async_op=True)
        compute()
        work.wait()

    for what, work in (("product", compute), ("collective", partial(dist.all_reduce, held)),
                       ("both", both)):
        yield Timed({"part": "overlap", "what": what, "n_ranks": on.world},
                          partial(lambda one: one, work), together=True, captured=False)


LISTS = {"products": products, "grouped": grouped, "attention": attention, "bytes": bytes_moved,
         "host": host, "collectives": collectives, "overlap": overlap}


REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError, AttributeError)
"""What PyTorch raises where a device, a version or a backend lacks something."""


def tried(on: ProbingRank, work: Callable[[], Any]) -> tuple[Any, str]:
    """What ``work`` gives where all ranks can do it; else nothing, and a reason of one of them."""
    found, why = None, ""
    try:
        found = work()
    except REFUSALS as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if not on.agree(float(bool(why))):
        return found, ""
    reasons: list[Any] = [None] * on.world
    dist.all_gather_object(reasons, why)
    return None, next(each for each in reasons if each)


def measured(on: ProbingRank, one: Timed) -> dict[str, Any]:
    """A row; with `why` instead of seconds where a rank could not run it."""
    ready, why = tried(on, partial(on.prepared, one))
    if why:
        return {**one.row, "why": why}
    work, took = ready
    ready, why = tried(on, partial(on.repeated, work, on.agree(took), one.captured))
    if why:
        return {**one.row, "why": why}
    own = on.times(*ready)
    found: list[Any] = [None] * on.world
    dist.all_gather_object(found, own)
    medians = [statistics.median(each) for each in found]
    pooled = [second for each in found for second in each]
    if one.together:
        pooled = [max(each) for each in zip(*found, strict=True)]
    low, middle, high = statistics.quantiles(pooled, n=4)
    slow = max(range(on.world), key=medians.__getitem__)
    return {**one.row, "seconds": middle, "low": low, "high": high, "slowest": slow,
            "slower": medians[slow] / statistics.median(medians)}


def all_of(on: ProbingRank, parts: list[str], formats: list[str], seconds: float) -> dict[str, Any]:
    """The rows of all parts, and how many each part lacks for want of time."""
    rows: list[dict[str, Any]] = []
    left: dict[str, int] = {}
    begin, spent = time.monotonic(), 0
    for part in parts:
        spent += PARTS[part]
        # What a part does not use, the next ones may.
        until = begin + seconds * spent / sum(PARTS[name] for name in parts)
        ran: dict[str, bool] = {}
        for number, one in enumerate(LISTS[part](on, formats)):
            if on.agree(float(number >= LEAST and time.monotonic() > until)):
                left[part] = left.get(part, 0) + 1
                continue
            kind = " ".join(str(value) for value in one.row.values() if isinstance(value, str))
            if not ran.get(kind, True):
                continue
            row = measured(on, one)
            rows.append(row)
            ran[kind] = ran.get(kind, False) or "why" not in row
        if on.gpu:
            torch.cuda.empty_cache()
        if on.rank == 0:
            print(f"{part}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return {"rows": rows, "left": left, "seconds": time.monotonic() - begin}


def environment(on: ProbingRank) -> dict[str, Any]:
    """The device and the ranks."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = pages // max(map(len, on.nodes))
    if on.gpu:
        it = torch.cuda.get_device_properties(on.local % torch.cuda.device_count())
        device = {"kind": on.kind, "name": it.name, "memory_bytes": it.total_memory,
                  "capability": 10 * it.major + it.minor}
    else:
        threads = torch.get_num_threads()
        device = {"kind": on.kind, "memory_bytes": share, "capability": 0,
                  "name": f"CPU with {threads} {'thread' if threads == 1 else 'threads'} a rank"}
    return {"schema": SCHEMA, "torch": torch.__version__, "device": device,
            "host_memory_bytes": share, "hosts": on.hosts}


def beside(on: ProbingRank) -> int:
    """Bytes of the device that PyTorch's allocator does not hold; 0: not known."""
    if not on.gpu:
        return 0
    free, total = torch.cuda.mem_get_info()
    return int(on.agree(total - free - torch.cuda.memory_reserved()))


def started(kind: str) -> None:
    """Join the ranks, which torchrun or srun started; alone without either."""
    # The first host of a list such as node[01-02,07] or node01,node02.
    hosts = re.match(r"([^,\[]+)(?:\[(\w+))?", os.environ.get("SLURM_STEP_NODELIST", "localhost"))
    first = (hosts[1] + (hosts[2] or "")) if hosts else "localhost"
    for name, value in (("RANK", os.environ.get("SLURM_PROCID", "0")),
                        ("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")),
                        ("MASTER_ADDR", first), ("MASTER_PORT", "29511")):
        os.environ.setdefault(name, value)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=5))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="probe.json")
    parser.add_argument("--seconds", type=float, default=840.0, help="at most so long; default 840")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--format", action="append", choices=FORMATS,
                        help="of products; default: bf16 and fp8 of a GPU, fp32 of a CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=(
        "cuda" if torch.cuda.is_available() else "cpu"))
    asked = parser.parse_args()
    # Newer names of collectives are not in PyTorch 2.4.
    warnings.filterwarnings("ignore", category=FutureWarning)
    started(asked.device)
    on = ProbingRank(asked.device)
    context = beside(on)
    usual = ["bf16", "fp8"] if on.gpu and torch.cuda.get_device_capability() >= (8, 9) else [
        "bf16"] if on.gpu else ["fp32"]
    formats = asked.format or usual
    # PyTorch loads what it needs for the first backward pass, for seconds.
    tried(on, _attention(on, usual[0], "backward", 2, 32, 32))
    found = {**environment(on),
             **all_of(on, [part for part in PARTS if part in (asked.only or PARTS)], formats,
                      asked.seconds)}
    found |= {"context_bytes": context, "buffer_bytes": max(0, beside(on) - context)}
    if on.rank == 0:
        with open(asked.out, "w", encoding="utf-8") as stream:
            json.dump(found, stream, indent=1)
        print(f"written: {asked.out}; next: nest probe {asked.out} -o mine", file=sys.stderr)
    on.agree(0.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

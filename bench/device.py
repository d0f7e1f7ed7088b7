"""Time what layers are made of on the GPU of this machine: products, grouped products, attention.

    python bench/device.py --out FOLDER [--only grouped --only attention]

Needs PyTorch 2.8 or newer, and nothing of NEST. Each part writes one CSV file, a measurement a row,
seconds on the device alone (CUDA graphs, or events where a graph cannot be captured): the median of
several runs after a warm-up, on normal random numbers, which take more power than zeros.

- `gemm.csv`: products of 16 and 8 bits, as `nest calibrate gemm` reads them; `rowwise.csv`: of 8
  bits with a scale a row.
- `grouped.csv`: products of equal experts. `streams`: one cuBLAS product an expert, on four
  streams, as Transformer Engine runs them on Hopper (NVIDIA/TransformerEngine@d0067d0
  transformer_engine/common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm); `fused`: the grouped
  kernel of PyTorch. Gradients of weights are added to fp32 by `streams`, and written in bf16 by
  `fused`.
- `attention.csv`: causal attention, forward and backward.
- `ring.csv`: what one rank computes in PyTorch's ring attention, with collectives that do nothing.
- `bytes.csv`: kernels that memory limits.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Row = dict[str, object]
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def captured(work: Callable[[], object], least: float = 2e-3, runs: int = 5) -> float:
    """Seconds of ``work`` on the device, in a CUDA graph that repeats it."""
    work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    times = max(1, min(20, math.ceil(least / (time.perf_counter() - begin))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    graph.replay()
    return timed(graph.replay, runs) / times


def timed(work: Callable[[], object], runs: int = 5) -> float:
    """Seconds between two events around ``work``; median."""
    found = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(found)


def both_ways(
    ahead: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...], grad: torch.Tensor,
    times: int = 1,
) -> tuple[float, float]:
    """Seconds of attention forward and backward, each in the mean of ``times`` in a row."""
    kept = ahead()

    def back() -> object:
        return torch.autograd.grad(kept, inputs, grad, retain_graph=True)

    back()
    ahead()
    return timed(lambda: [ahead() for _ in range(times)]) / times, timed(
        lambda: [back() for _ in range(times)]) / times


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192),
          (57344, 8192), (8192, 28672), (7168, 1024), (1024, 8192), (3584, 8192), (8192, 1024),
          (1536, 2048), (2048, 768), (512, 4096), (4096, 512))
"""Widths out and in of layers of Llama-3 and Qwen3, whole and divided."""


def gemm(rowwise: bool = False) -> Iterator[Row]:
    for n, k in SHAPES:
        for m in (256, 1024, 4096, 8192, 16384):
            x, w = normal(m, k), normal(n, k)
            out = torch.empty(m, n, device="cuda", dtype=BF16)
            scales = [torch.ones(shape, device="cuda") for shape in (
                ((m, 1), (1, n)) if rowwise else ((), ()))]
            ways: dict[str, Callable[[], object]] = {
                "fp8": partial(torch._scaled_mm, x.to(FP8), w.to(FP8).t(), scale_a=scales[0],
                               scale_b=scales[1], out_dtype=BF16, use_fast_accum=True)}
            if not rowwise:
                ways["bf16"] = partial(torch.mm, x, w.t(), out=out)
            for dtype, work in ways.items():
                seconds = captured(work)
                yield {"dtype": dtype, "m": m, "n": n, "k": k, "latency_ms": seconds * 1e3,
                       "tflops": 2e-12 * m * n * k / seconds}


EXPERTS = ((1536, 2048), (2048, 768), (3072, 4096), (4096, 1536), (4096, 7168), (7168, 2048),
           (28672, 4096), (4096, 14336), (2048, 4096), (1024, 2048))
"""Widths out and in of experts: Qwen3-30B and 235B, DeepSeek-V3, Mixtral 8x7B, two more."""


def grouped() -> Iterator[Row]:
    streams = [torch.cuda.Stream() for _ in range(4)]
    for n, k in EXPERTS:
        for groups in (2, 4, 8, 16, 32, 64):
            if groups * n * k > 2**30:
                continue
            w = normal(groups, n, k)
            held = torch.zeros(groups, n, k, device="cuda")
            for m in (32, 64, 128, 256, 512, 1024, 2048, 4096):
                if groups * m > 65536 or groups * m * n * k > 2**42:
                    continue
                x, y = normal(groups * m, k), normal(groups * m, n)
                ends = torch.arange(m, groups * m + 1, m, device="cuda", dtype=torch.int32)

                def spread(one: Callable[[int, slice], object], m: int = m,
                           groups: int = groups) -> Callable[[], None]:
                    def run() -> None:
                        now = torch.cuda.current_stream()
                        for stream in streams:
                            stream.wait_stream(now)
                        for group in range(groups):
                            with torch.cuda.stream(streams[group % 4]):
                                one(group, slice(group * m, (group + 1) * m))
                        for stream in streams:
                            now.wait_stream(stream)
                    return run

                out, back = torch.empty_like(y), torch.empty_like(x)
                ways: dict[tuple[str, str], Callable[[], object]] = {
                    ("streams", "fwd"): spread(lambda g, s, x=x, w=w, out=out: torch.mm(
                        x[s], w[g].t(), out=out[s])),
                    ("streams", "dgrad"): spread(lambda g, s, y=y, w=w, back=back: torch.mm(
                        y[s], w[g], out=back[s])),
                    ("streams", "wgrad"): spread(lambda g, s, x=x, y=y, held=held: torch.addmm(
                        held[g], y[s].t(), x[s], out_dtype=torch.float32, out=held[g])),
                    ("fused", "fwd"): lambda x=x, w=w, ends=ends: torch._grouped_mm(
                        x, w.transpose(-2, -1), offs=ends),
                    ("fused", "dgrad"): lambda y=y, w=w, ends=ends: torch._grouped_mm(
                        y, w, offs=ends),
                    ("fused", "wgrad"): lambda x=x, y=y, ends=ends: torch._grouped_mm(
                        y.t(), x, offs=ends)}
                for (way, step), work in ways.items():
                    seconds = tried(partial(captured, work), f"grouped {way} {step}")
                    if seconds:
                        yield {"way": way, "pass": step, "n_groups": groups, "m": m, "n": n, "k": k,
                               "seconds": seconds,
                               "tflops": 2e-12 * groups * m * n * k / seconds}


HEADS = ((32, 8, 128, 128), (64, 8, 128, 128), (8, 1, 128, 128), (64, 8, 64, 64),
         (128, 128, 192, 128), (16, 16, 192, 128))
"""Heads, of keys, width of keys, of values: Llama-3, its tensor parallel share, GPT-OSS, MLA."""


def attention() -> Iterator[Row]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for heads, keys, width, values in HEADS:
        for length in (1024, 2048, 4096, 8192, 16384, 32768):
            samples = max(1, 8192 // length) if heads * length < 2**21 else 1
            q = normal(samples, heads, length, width).requires_grad_()
            k = normal(samples, keys, length, width).requires_grad_()
            v = normal(samples, keys, length, values).requires_grad_()
            grad = normal(samples, heads, length, values)
            for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                                  ("flash2", SDPBackend.FLASH_ATTENTION)):
                if name == "flash2" and width != values:
                    continue

                def ahead(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v,
                          backend: Any = backend) -> torch.Tensor:
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(
                            q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])

                found = tried(partial(both_ways, ahead, (q, k, v), grad, 4),
                              f"attention {name} {heads} {width}")
                if found:
                    work = samples * heads * length * length * (width + values)
                    yield {"kernel": name, "samples": samples, "tokens": length, "heads": heads,
                           "kv_heads": keys, "width": width, "value_width": values,
                           "forward_s": found[0], "backward_s": found[1],
                           "tflops": 3.5e-12 * work / sum(found)}
            del q, k, v, grad


def ring() -> Iterator[Row]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for size in (1, 2, 4, 8):
        for rotate in ("allgather", "alltoall") if size > 1 else ("none",):
            dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
            mesh = init_device_mesh("cuda", (size,))
            for local in (8192, 16384, 32768):
                if local * size > 131072:
                    continue

                def measured(size: int = size, mesh: Any = mesh, rotate: str = rotate,
                             local: int = local) -> tuple[float, float]:
                    q, k, v = (normal(1, 32, local, 128).requires_grad_() for _ in range(3))
                    grad = normal(1, 32, local, 128)

                    def ahead() -> torch.Tensor:
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                        if size == 1:
                            return both_ways(ahead, (q, k, v), grad)
                        set_rotate_method(rotate)
                        held = torch.zeros(size * local, device="cuda")
                        with context_parallel(mesh, buffers=[held], buffer_seq_dims=[0]):
                            return both_ways(ahead, (q, k, v), grad)

                found = tried(measured, f"ring {size} {rotate} {local}")
                if found:
                    yield {"cp": size, "rotate": rotate, "local_tokens": local,
                           "forward_s": found[0], "backward_s": found[1]}
            dist.destroy_process_group()


def bytes_moved() -> Iterator[Row]:
    x, y = normal(8192, 28672), normal(8192, 28672)
    yield {"kernel": "copy", "bytes": 4 * x.numel(), "seconds": captured(partial(y.copy_, x))}
    gated = torch.compile(lambda a, b: F.silu(a) * b)
    gated(x, y)
    yield {"kernel": "silu times", "bytes": 6 * x.numel(), "seconds": timed(partial(gated, x, y))}
    h, g = normal(16384, 8192), normal(8192)
    normed = torch.compile(lambda a, b: F.rms_norm(a, (8192,), b))
    normed(h, g)
    yield {"kernel": "rms_norm", "bytes": 4 * h.numel(), "seconds": timed(partial(normed, h, g))}
    count = 2**28
    held = [torch.zeros(count, device="cuda") for _ in range(4)]
    step = torch.ones((), device="cuda")

    def adam() -> None:
        torch._fused_adamw_([held[0]], [held[1]], [held[2]], [held[3]], [], [step], lr=1e-4,
                            beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False,
                            maximize=False)

    adam()
    yield {"kernel": "adam of fp32", "bytes": 28 * count, "seconds": timed(adam)}
    for m, k in ((8192, 8192), (16384, 4096), (8192, 28672)):
        z = normal(m, k)

        def rowwise(z: torch.Tensor, across: int) -> tuple[torch.Tensor, torch.Tensor]:
            scale = 448.0 / z.abs().amax(across, keepdim=True).float().clamp(min=1e-12)
            return (z.float() * scale).to(FP8), scale

        for across in (1, 0):
            cast = torch.compile(lambda a, across=across: rowwise(a, across))
            cast(z)
            yield {"kernel": f"cast by {'rows' if across else 'columns'} {m}x{k}",
                   "bytes": 3 * z.numel(), "seconds": timed(partial(cast, z))}


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "gemm": gemm, "rowwise": partial(gemm, rowwise=True), "grouped": grouped,
    "attention": attention, "ring": ring, "bytes": bytes_moved}


def tried(work: Callable[[], Any], name: str) -> Any:
    """What ``work`` gives; nothing where it fails, with a line that says why."""
    try:
        return work()
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        torch.cuda.synchronize()
        print(f"{name}: {str(error).splitlines()[0][:160]}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=1e9, help="at most so long a part")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    print(torch.cuda.get_device_name(), torch.__version__, torch.version.cuda,
          torch.backends.cudnn.version())
    for name in asked.only or PARTS:
        begin, count = time.monotonic(), 0
        with (asked.out / f"{name}.csv").open("w", newline="") as file:
            writer = None
            try:
                for row in PARTS[name]():
                    if writer is None:
                        writer = csv.DictWriter(file, list(row))
                        writer.writeheader()
                    writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value
                                     for key, value in row.items()})
                    file.flush()
                    count += 1
                    if time.monotonic() - begin > asked.seconds:
                        break
            except Exception:
                traceback.print_exc()
        print(f"{name}: {count} measurements in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Traces of PyTorch: by hand as a device writes them, and of a module that torch runs here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InputError
from nest.measured.profiles import from_trace

BACKWARD = "autograd::engine::evaluate_function: X"


def small(**changes: Any) -> nest.Model:
    return nest.Model(**{
        "name": "small", "layers": 2, "hidden": 64, "heads": 1, "ffn": 256, "gated": False,
        "vocab": 1000, "tied_embeddings": False, "norm": "layernorm", "bias": True} | changes)


class Made:
    """A trace in the making: a host thread for forwards, one for backwards, kernels behind."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now, self._launches = 0.0, count(1)

    def add(self, cat: str, name: str, dur: float, tid: int = 1, **args: Any) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid,
                            "ts": self.now, "dur": dur, "args": args})

    def call(self, us: float, number: int | None = None, *, around: tuple[str, ...] = (),
             tid: int = 1, reduces: float = 0.0) -> None:
        """An operator of 6 us that launches a kernel of ``us``, inside modules and the like."""
        for depth, name in enumerate(around):
            kind = "python_function" if name.startswith("nn.") else "cpu_op"
            given = {"Sequence number": number} if name == BACKWARD else {}
            self.add(kind, name, 12 - depth, tid, **given)
        self.now += len(around)
        self.add("cpu_op", "aten::mm", 6, tid,
                 **({} if number is None or tid == 2 else {"Sequence number": number}))
        for name, dur in (("gemm", us), ("ncclDevKernel_AllReduce", reduces)):
            self.now += 1
            launch = next(self._launches)
            self.add("cuda_runtime", "cudaLaunchKernel", 1, tid, correlation=launch)
            # Kernels run later, and on a thread of their own.
            self.events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7,
                                "ts": self.now + 1000, "dur": dur,
                                "args": {"correlation": launch}})
        self.now += 20

    def write(self, path: Path) -> Path:
        text = json.dumps({"traceEvents": self.events})
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return path


def layer(number: int) -> tuple[str, ...]:
    return ("nn.Module: Net_0", f"nn.Module: Block_{number}")


def steps(made: Made, micro_batches: int = 2, again: bool = False) -> None:
    """Micro-batches of a model of two layers, then an optimizer."""
    numbers = count(100)
    for _ in range(micro_batches):
        seen = [next(numbers) for _ in range(4)]
        made.call(10, seen[0], around=("nn.Module: Net_0", "nn.Module: Embedding_0"))
        made.call(100, seen[1], around=layer(0), reduces=7)
        made.call(140, seen[2], around=layer(1))
        made.call(30, seen[3])  # the loss, outside of all modules
        for number, us in zip(reversed(seen), (60, 280, 200, 20), strict=True):
            made.call(us, number, around=(BACKWARD,), tid=2)
            if again and us == 280:  # recompute: the module is called inside the backward
                made.call(140, next(numbers), around=(BACKWARD, "nn.Module: Block_1"), tid=2)
    made.call(1000, around=("Optimizer.step#AdamW.step",))
    made.call(500)  # clipping of gradients: no part of a backward


def seconds(found: nest.Profile, tp: int = 1) -> list[tuple[float, float]]:
    """Microseconds of the layers of a profile."""
    return [(round(1e6 * one.tp[tp].forward, 6), round(1e6 * one.tp[tp].backward, 6))
            for one in found.layers]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_kernels_go_to_the_layers_that_launched_them(tmp_path: Path, suffix: str) -> None:
    made = Made()
    steps(made)
    path = made.write(tmp_path / f"trace{suffix}")
    found = from_trace(path, small(), ["Block"], seq_len=128)
    assert [(one.name, one.repeat) for one in found.layers] == [
        ("first", 1), ("layer", 2), ("last", 1)]
    assert seconds(found) == [(10, 20), (120, 240), (30, 60)]
    # Per sample; collectives count where tensor parallelism has some.
    found = from_trace(path, small(), ["Block"], seq_len=128, samples=2, tp=2)
    assert seconds(found, 2) == [(5, 10), (61.75, 120), (15, 30)]


def test_recompute_belongs_to_the_backward(tmp_path: Path) -> None:
    made = Made()
    steps(made, again=True)
    found = from_trace(made.write(tmp_path / "t.json"), small(), ["Block"], seq_len=128)
    assert seconds(found) == [(10, 20), (120, 310), (30, 60)]


def test_bytes_are_those_of_the_model(tmp_path: Path) -> None:
    made = Made()
    steps(made)
    path = made.write(tmp_path / "t.json")
    found = from_trace(path, small(), ["Block"], seq_len=128, samples=4)
    model = small()
    total = sum(one.repeat * one.tp[1].parameter_bytes for one in found.layers)
    chain = nest.evaluate(
        model, nest.load_cluster("dgx-h100", devices=1), nest.Job(global_batch=4, seq_len=128),
        nest.Configuration(micro_batch=4, stages=[{"layers": (0, 4), "devices": (0, 1)}]))
    assert total == chain.stages[0].memory_bytes.parameters
    held = sum(one.repeat * 4 * one.tp[1].activation_bytes for one in found.layers)
    held += max(4 * one.tp[1].work_bytes for one in found.layers)
    assert held == pytest.approx(chain.stages[0].memory_bytes.activations)
    assert [one.output_bytes for one in found.layers] == [2 * 128 * 64, 2 * 128 * 64, 0]


def bad() -> Iterator[tuple[Any, str]]:
    """Files that are no trace of the model, and what is said of them."""
    made = Made()
    steps(made)
    whole = made.events
    yield [], "got no module Block; allowed: a trace"
    yield {"traceEvents": 3}, "traceEvents: got 3"
    yield [3, None, {"ph": "X", "ts": "x", "dur": 1}], "got no module"
    ended = max(n for n, one in enumerate(whole) if "Block_1" in one["name"])
    yield whole[:ended], "calls of a layer; allowed: whole micro-batches"
    yield [e for e in whole if not e["name"].startswith("autograd")], "a trace of training"
    yield [e for e in whole if "Block_1" not in e["name"]], "got 1 layers Block; allowed: the 2"


@pytest.mark.parametrize(("data", "message"), list(bad()))
def test_what_a_trace_lacks_is_told(tmp_path: Path, data: Any, message: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        from_trace(tmp_path / "t.json", small(), ["Block"], seq_len=128)


@pytest.mark.parametrize("text", [b"[" * 10**6, b"\xff\xfe", b"", b"{", b'{"traceEvents": [NaN'])
def test_broken_files_are_told(tmp_path: Path, text: bytes) -> None:
    for name in ("t.json", "t.json.gz", "t.pkl"):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(InputError, match=r"malformed JSON|cannot be read|allowed: \.json"):
            from_trace(tmp_path / name, small(), ["Block"], seq_len=128)


def test_the_command_plans_from_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made()
    steps(made)
    trace, target = made.write(tmp_path / "t.json"), str(tmp_path / "p.yaml")
    model = tmp_path / "m.yaml"
    model.write_text(json.dumps(small().model_dump(mode="json", exclude_none=True)))
    out, _ = run(capsys, "profile", "trace", str(trace), str(model), "--layer", "Block",
                 "--seq-len", "128", "-o", target)
    assert "layer x 2" in out and nest.load_profile(target).length == 4
    _, err = run(capsys, "profile", "trace", str(trace), str(model), "--layer", "Other",
                 "--seq-len", "128", "-o", target, code=2)
    assert "allowed: Block, Embedding, Net" in err


def inside(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a call lies in another one."""
    return bool(one is not other and one["tid"] == other["tid"] and other["ts"] <= one["ts"]
                and one["ts"] + one["dur"] <= other["ts"] + other["dur"] + 1e-3)


def outermost(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that lie in no other one."""
    return [one for one in calls if not any(inside(one, other) for other in calls)]


@pytest.mark.parametrize("again", [False, True])
def test_a_trace_that_torch_writes(tmp_path: Path, again: bool) -> None:
    """Without a device the operators of the host count; all of them are in some layer."""
    torch = pytest.importorskip("torch", reason="extra torch")
    from torch import nn
    from torch.profiler import ProfilerActivity, profile

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000)
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Any) -> Any:
            x = self.embedding(x)
            for block in self.blocks:
                x = (torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                     if again else block(x))
            return self.head(x)

    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True) as traced:
        for _ in range(3):
            tokens = torch.randint(1000, (2, 128))
            nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    traced.export_chrome_trace(str(tmp_path / "t.json"))
    found = from_trace(tmp_path / "t.json", small(), ["Block"], seq_len=128, samples=2)
    assert [one.repeat for one in found.layers] == [1, 2, 1]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    calls = [one for one in events if one.get("ph") == "X" and "dur" in one]
    backs = [one for one in calls if one["name"].startswith("autograd::engine::evaluate_function")]
    # Modules run in a backward where it recomputes them; what they take besides operators is lost.
    modules = outermost([one for one in calls if one["name"].startswith("nn.Module: ")
                         and any(inside(one, other) for other in backs)])
    assert bool(modules) == again
    operators = outermost([one for one in calls if one.get("cat") == "cpu_op"
                           and any(inside(one, other) for other in modules)])
    back = sum(sign * one["dur"] for sign, some in ((1, backs), (-1, modules), (1, operators))
               for one in some)
    summed = sum(6e6 * one.repeat * one.tp[1].backward for one in found.layers)
    assert summed == pytest.approx(back, rel=1e-3)
    blocks = sum(one["dur"] for one in events
                 if str(one.get("name")).startswith("nn.Module: Block_"))
    forward = 12e6 * found.layers[1].tp[1].forward
    assert forward < blocks
    if not again:  # else blocks run in the backward, too
        assert forward > 0.5 * blocks


@pytest.mark.parametrize("field", ["ph", "cat", "pid", "tid", "args", "correlation"])
@pytest.mark.parametrize("value", [[], [[1]], {"a": [1]}])
def test_events_with_fields_that_are_no_values_are_refused(
    field: str, value: Any, tmp_path: Path
) -> None:
    if field == "args" and isinstance(value, dict):
        return
    for kind in ("cpu_op", "cuda_runtime", "kernel"):
        args = {"correlation": value} if field == "correlation" else {"correlation": 1}
        event = {"ph": "X", "cat": kind, "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1,
                 "args": args} | ({} if field == "correlation" else {field: value})
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": [event]}))
        with pytest.raises(InputError, match=rf"traceEvents: (args\.)?{field}: got .*allowed: "):
            from_trace(path, small(), ["Block"], 16)

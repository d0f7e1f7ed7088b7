"""One simulated stage: its compute stream, and its waits.

ZeRO-3 gathers the parameters of a layer before it computes, one layer ahead: the gather of a layer
may begin when the layer two before it in the order of execution is done, so that parameters of two
layers are held (as :func:`nest.costs.zero.state_costs` counts). ZeRO-2 and ZeRO-3 scatter the
gradients of a layer after its backward; before that, those of the layer before must be done,
because there is room for the whole gradients of one layer (PyTorch FSDP waits in the same place).
Gradients of a step are reduced in buckets of consecutive layers, as in PyTorch DDP (arXiv:
2006.15704, section 3.2.3) and Megatron-Core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nest.simulation.figures import LayerWork, OverlapRates, StageWork
from nest.simulation.result import COMPUTE, Record, Slice
from nest.simulation.tasks import INPUTS, WEIGHTS, WHOLE, Task


class Transfer:
    """One collective in the stream."""

    __slots__ = ("begun", "end", "label", "left", "micro_batch", "rate")

    def __init__(self, seconds: float, rate: float, label: str, micro_batch: int) -> None:
        self.left = seconds
        self.rate = rate
        """Seconds of progress in a second of computing, 0 to 1."""
        self.label = label
        self.micro_batch = micro_batch
        """-1: of the step as a whole."""
        self.begun = -1.0
        """Its start; below 0: not yet."""
        self.end = -1.0
        """Its end; below 0: not yet."""


class Stream:
    """Transfers in the order in which they were added, with the clock of the compute stream."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.done: list[Transfer] | None = None
        """Finished transfers, if they are recorded."""
        self.count = 0
        self._urgent: deque[Transfer] = deque()
        self._later: deque[Transfer] = deque()

    def add(
        self, seconds: float, rate: float, label: str, micro_batch: int = -1, *,
        yields: bool = False,
    ) -> Transfer:
        """Queue a transfer at the present time; it may yield to those that do not."""
        transfer = Transfer(seconds, rate, label, micro_batch)
        (self._later if yields else self._urgent).append(transfer)
        self.count += 1
        return transfer

    def compute(self, end: float) -> None:
        """Let time pass until ``end`` while the stage computes."""
        clock = self.clock
        for queue in (self._urgent, self._later):
            while queue and clock < end:
                head = queue[0]
                if head.rate <= 0.0:
                    clock = end
                    break
                clock = self._progress(queue, clock, end, head.rate)
        self.clock = end

    def wait(self, end: float) -> None:
        """Let time pass until ``end`` while the stage waits."""
        clock = self.clock
        for queue in (self._urgent, self._later):
            while queue and clock < end:
                clock = self._progress(queue, clock, end, 1.0)
        self.clock = end

    def finish(self, transfer: Transfer) -> float:
        """Wait for a transfer that does not yield, and return its end."""
        while transfer.end < 0.0:
            self.clock = self._progress(self._urgent, self.clock, float("inf"), 1.0)
        return self.clock

    def drain(self) -> float:
        """Wait for all transfers, and return their end."""
        for queue in (self._urgent, self._later):
            while queue:
                self.clock = self._progress(queue, self.clock, float("inf"), 1.0)
        return self.clock

    def _progress(
        self, queue: deque[Transfer], clock: float, end: float, rate: float
    ) -> float:
        """Run the first transfer until it ends or the time is over; return that time."""
        head = queue[0]
        if head.begun < 0.0:
            head.begun = clock
        needed = head.left / rate
        if clock + needed > end:
            head.left -= (end - clock) * rate
            return end
        head.end = clock + needed
        queue.popleft()
        if self.done is not None:
            self.done.append(head)
        return head.end


@dataclass
class Spent:
    """Seconds of a stage by activity; they add up to the time of its end."""

    forward: float = 0.0
    backward: float = 0.0
    traffic: float = 0.0
    """Exposed tensor, context and expert parallel traffic."""
    zero: float = 0.0
    """Waiting for ZeRO-2 and ZeRO-3 traffic."""
    refresh: float = 0.0
    """Waiting for updated parameters at the start of the step."""
    bubble: float = 0.0
    """Waiting for other stages and for hand-overs."""
    reduce: float = 0.0
    """Waiting for the reduction of gradients after the last backward."""
    tied: float = 0.0
    """Exchanging gradients of tied embeddings."""
    update: float = 0.0


class SimulatedDevice:
    """A stage that runs its tasks in order.

    Parameters
    ----------
    order : tasks of a step.
    work : seconds of its layers.
    bucket_bytes : gradients that fill a bucket; 0: each layer is one.
    record : of slices, if any.
    """

    def __init__(
        self, number: int, order: Sequence[Task], work: StageWork, rates: OverlapRates,
        bucket_bytes: float = 0.0, record: Record | None = None,
    ) -> None:
        self.number, self.order, self.work, self.rates = number, order, work, rates
        self.bucket_bytes, self.record = bucket_bytes, record
        self.next = 0
        self.clock = 0.0
        self.spent = Spent()
        self.stream = Stream()
        self.passes = 0
        """Passes through a layer, or through a chunk as a whole."""
        if record is not None:
            self.stream.done = []
        self._scatter: Transfer | None = None
        layers = [layer for chunk in work.chunks for layer in chunk]
        self._gathers = any(layer.gathered for layer in layers)
        self._scattering = any(layer.scattered for layer in layers)
        self._sums = [_added(chunk) for chunk in work.chunks]
        self._first, last = _ends(order)
        self._last = frozenset(
            task for task in last if any(layer.reduced for layer in work.chunks[task.chunk]))
        self._fresh = self._refresh()
        self._gathered: deque[Transfer | None] = deque()
        self._coming = self._passes_to_come()
        if self._gathers:
            self._prefetch()
            self._prefetch()

    # ------------------------------------------------------------ tasks

    def coming(self) -> tuple[Task, ...]:
        """The next task, and the one beside it."""
        return tuple(self.order[self.next:self.next + 1 + self.order[self.next].beside])

    def run(self, arrives: float) -> float:
        """Run the next task, whose input arrives at ``arrives``; return its end.

        Of two beside each other both inputs are there then.
        """
        task = self.order[self.next]
        if arrives > self.clock:
            self.stream.wait(arrives)
            self.spent.bubble += arrives - self.clock
            self.clock = arrives
        start = self.clock
        if task.beside:
            self._together(*self.coming())
        elif self._by_layer(task):
            run = self._forward if task.forward else self._backward
            run(task)
        else:
            self._whole(task)
        if self.record is not None and self.record.wants(task.micro_batch):
            self.record.slices.append(
                Slice(self.number, COMPUTE, self._name(task), start, self.clock, self.next))
        self.next += 1 + task.beside
        return self.clock

    def reduced(self) -> float:
        """Wait for the remaining data-parallel traffic; return its end."""
        end = self.stream.drain()
        self._slice("gradients", end)
        self.spent.reduce += end - self.clock
        self.clock = end
        return end

    def exchange(self, start: float) -> None:
        """Exchange gradients of tied embeddings from ``start`` on, when all copies are ready."""
        self.spent.bubble += start - self.clock
        self.clock = start
        end = start + self.work.tied
        self._slice("tied embeddings", end)
        self.spent.tied += self.work.tied
        self.clock = end

    def update(self) -> None:
        """Run the optimizer."""
        end = self.clock + self.work.update
        self._slice("optimizer", end)
        self.spent.update += end - self.clock
        self.clock = end

    def _slice(self, name: str, end: float) -> None:
        if self.record is not None and end > self.clock:
            self.record.slices.append(Slice(self.number, COMPUTE, name, self.clock, end))

    def _name(self, task: Task) -> str:
        chunk = f" chunk {task.chunk}" if len(self.work.chunks) > 1 else ""
        name = "F" if task.forward else "BIW"[task.part]
        return f"{name}{task.micro_batch}{chunk}"

    def _by_layer(self, task: Task) -> bool:
        """Whether something happens between the layers of a task."""
        if self._gathers or (self._scattering and not task.forward):
            return True
        if task.forward:
            return bool(self._fresh) and task in self._first
        return task in self._last

    def _whole(self, task: Task) -> None:
        layer = self._sums[task.chunk]
        if task.forward:
            self._compute(layer.forward, layer.ahead, True)
        else:
            self._compute(*_part(layer, task.part), False)

    def _together(self, ahead: Task, back: Task) -> None:
        """A forward and a backward, each hiding all-to-alls of the other under its computing."""
        one, other = self._sums[ahead.chunk], self._sums[back.chunk]
        self._compute(one.forward, one.ahead - min(one.exchanged_ahead, other.busy_back), True)
        hidden = min(other.exchanged_back, one.busy_ahead)
        if back in self._last:
            self._backward(back, hidden)
        else:
            self._compute(other.backward, other.back - hidden, False)

    def _forward(self, task: Task) -> None:
        for number, layer in enumerate(self.work.chunks[task.chunk]):
            if self._fresh and task in self._first:
                fresh = self._fresh.pop((task.chunk, number), None)
                self.spent.refresh += self._await(fresh)
            if self._gathers:
                self.spent.zero += self._await(self._gathered.popleft())
            self._compute(layer.forward, layer.ahead, True)
            if self._gathers:
                self._prefetch()

    def _backward(self, task: Task, hidden: float = 0.0) -> None:
        last = task in self._last
        layers = self.work.chunks[task.chunk]
        filled = seconds = 0.0
        for number in range(len(layers) - 1, -1, -1):
            layer = layers[number]
            if self._gathers:
                self.spent.zero += self._await(self._gathered.popleft())
            compute, traffic = _part(layer, task.part)
            now = min(hidden, traffic)
            hidden -= now
            self._compute(compute, traffic - now, False)
            if task.part == INPUTS:
                continue
            if layer.scattered:
                self.spent.zero += self._await(self._scatter)
            if self._gathers:
                self._prefetch()
            if layer.scattered:
                self._scatter = self._add(
                    layer.scattered, self.rates.zero, "scatter", task.micro_batch)
            if last and layer.reduced:
                seconds += layer.reduced
                filled += layer.gradient_bytes
            if seconds and (filled >= self.bucket_bytes or number == 0):
                self.stream.add(seconds, self.rates.reduce, f"reduce from layer {number}",
                                yields=True)
                filled = seconds = 0.0

    def _compute(self, seconds: float, traffic: float, forward: bool) -> None:
        end = self.clock + seconds
        self.stream.compute(end)
        if forward:
            self.spent.forward += seconds
        else:
            self.spent.backward += seconds
        self.spent.traffic += traffic
        self.clock = self.stream.clock = end + traffic
        self.passes += 1

    # ------------------------------------------------------------ data-parallel traffic

    def _await(self, transfer: Transfer | None) -> float:
        """Wait for a transfer; the seconds that this took."""
        if transfer is None or transfer.end >= 0.0:
            return 0.0
        before = self.clock
        self.clock = self.stream.finish(transfer)
        return self.clock - before

    def _add(self, seconds: float, rate: float, name: str, micro_batch: int = -1
             ) -> Transfer | None:
        return self.stream.add(seconds, rate, name, micro_batch) if seconds else None

    def _refresh(self) -> dict[tuple[int, int], Transfer]:
        """Queue the gathers of updated parameters, in the order of use."""
        found = {}
        for task in sorted(self._first, key=self.order.index):
            for number, layer in enumerate(self.work.chunks[task.chunk]):
                if layer.refreshed:
                    found[task.chunk, number] = self.stream.add(
                        layer.refreshed, self.rates.refresh, "gather parameters")
        return found

    def _passes_to_come(self) -> Iterator[tuple[float, int]]:
        """ZeRO-3 gathers of all passes through a layer, in order of execution."""
        for task in self.order:
            layers = self.work.chunks[task.chunk]
            if task.part != WHOLE:
                continue  # not with ZeRO-3
            if task.forward:
                for layer in layers:
                    yield layer.gathered, task.micro_batch
            else:
                for layer in reversed(layers):
                    yield layer.regathered, task.micro_batch

    def _prefetch(self) -> None:
        """Queue the next gather."""
        for seconds, micro_batch in self._coming:
            self._gathered.append(self._add(seconds, self.rates.zero, "gather", micro_batch))
            return


def _part(layer: LayerWork, part: int) -> tuple[float, float]:
    """Computing and exposed traffic of a backward, or of its part for inputs or weights."""
    if part == WEIGHTS:
        return layer.weights, 0.0
    return layer.backward - (layer.weights if part == INPUTS else 0.0), layer.back


def _added(layers: Sequence[LayerWork]) -> LayerWork:
    """A chunk as one layer."""
    return LayerWork(*map(sum, zip(*layers, strict=True))) if layers else LayerWork(0.0, 0.0)


def _ends(order: Sequence[Task]) -> tuple[frozenset[Task], frozenset[Task]]:
    """The first forward and the last backward of each chunk."""
    first: dict[int, Task] = {}
    last: dict[int, Task] = {}
    for task in order:
        if task.forward:
            first.setdefault(task.chunk, task)
        elif task.part != INPUTS:
            last[task.chunk] = task
    return frozenset(first.values()), frozenset(last.values())

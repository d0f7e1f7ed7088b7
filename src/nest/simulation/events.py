"""The engine: stages that run their tasks in order and hand micro-batches to each other.

A task begins when the stage has ended the previous one and its input has arrived. No other
condition exists, so stages are advanced one after another, each as far as possible; an event queue
would give the same times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nest.errors import KernelError
from nest.schedules.traits import Placement
from nest.simulation.device import SimulatedDevice, Spent
from nest.simulation.figures import Link, OverlapRates, StageWork
from nest.simulation.result import AHEAD, BACK, DATA, Record, Slice
from nest.simulation.tasks import WEIGHTS, Task


@dataclass
class Ran:
    """One step of a super-pipeline; lists by stage."""

    ends: list[float]
    """When each stage had updated its parameters."""
    backward_ends: list[float]
    """When each stage's last backward ended."""
    spent: list[Spent]
    passes: int
    """Through a layer, or through a chunk as a whole."""
    transfers: int
    messages: int

    @property
    def events(self) -> int:
        """All of these."""
        return self.passes + self.transfers + self.messages

    @property
    def step_time(self) -> float:
        """Seconds until the last stage ended."""
        return max(self.ends)


def run(
    orders: Sequence[Sequence[Task]],
    stages: Sequence[StageWork],
    links: Sequence[Sequence[Link]],
    rates: OverlapRates | None = None,
    *,
    bucket_bytes: float = 0.0,
    record: Record | None = None,
    placement: Placement = "looped",
) -> Ran:
    """Simulate one step.

    Parameters
    ----------
    orders : tasks of each stage, as :func:`nest.simulation.tasks.orders` gives them.
    stages : what each stage takes.
    links : by stage and chunk: to the next stage, from the last one to the next chunk of the first.
    rates : overlap with compute; default: none.
    bucket_bytes : gradients that fill a bucket; 0: each layer is one.
    record : of slices, if any.
    placement : where the chunks of the stages are in the model. In a V the last stage goes on with
        its second chunk. ``crossed``: chunk 0 of stages of the first half and chunk 1 of the others
        form a line from the first to the last stage; the other chunks one back.

    Raises
    ------
    KernelError : the orders wait for each other, which is a defect.
    """
    devices = [
        SimulatedDevice(number, order, work, rates or OverlapRates(), bucket_bytes, record)
        for number, (order, work) in enumerate(zip(orders, stages, strict=True))
    ]
    post = _Post(devices, links, record, placement)
    ready = list(range(len(devices)))
    while ready:
        device = devices[ready.pop()]
        while device.next < len(device.order):
            tasks = device.coming()
            if not all(post.arrived(device.number, task) for task in tasks):
                break
            end = device.run(max(post.arrival(device.number, task) for task in tasks))
            for task in tasks:
                receiver = post.send(device.number, task, end)
                if receiver != device.number and receiver not in ready:
                    ready.append(receiver)
    if any(device.next < len(device.order) for device in devices):
        raise KernelError("simulation: the tasks of stages wait for each other")
    backward_ends = [device.clock for device in devices]
    _finish(devices)
    if record is not None:
        _transfers(devices, record)
    return Ran([device.clock for device in devices], backward_ends,
               [device.spent for device in devices],
               sum(d.passes for d in devices), sum(d.stream.count for d in devices),
               post.messages)


def _finish(devices: Sequence[SimulatedDevice]) -> None:
    """Gradients of each stage, the exchange between copies of tied embeddings, the optimizer."""
    ready = {device.number: device.reduced() for device in devices}
    copies = [device for device in devices if device.work.tied]
    # Gradients of copies are added when all stages with a copy have reduced theirs.
    together = max((ready[device.number] for device in copies), default=0.0)
    for device in copies:
        device.exchange(together)
    for device in devices:
        device.update()


def _transfers(devices: Sequence[SimulatedDevice], record: Record) -> None:
    for device in devices:
        for done in device.stream.done or ():
            if record.wants(done.micro_batch):
                record.slices.append(
                    Slice(device.number, DATA, done.label, done.begun, done.end))


class _Post:
    """Messages between stages: arrival times, one after another on each link."""

    def __init__(
        self, devices: Sequence[SimulatedDevice], links: Sequence[Sequence[Link]], record: Record |
        None,
        placement: Placement = "looped",
    ) -> None:
        self.last, self.links, self.record = len(devices) - 1, links, record
        self.chunks = len(devices[0].work.chunks)
        self.messages, self.placement = 0, placement
        self._arrived: dict[tuple[int, bool, int, int], float] = {}
        self._before: dict[tuple[int, int], float] = {}
        """Arrival of the message before, by link and direction."""

    def arrived(self, stage: int, task: Task) -> bool:
        """Whether the arrival of the input of a task is known."""
        return self._starts(stage, task) or (stage, *task[:3]) in self._arrived

    def arrival(self, stage: int, task: Task) -> float:
        """Arrival of the input of a task."""
        return 0.0 if self._starts(stage, task) else self._arrived.pop((stage, *task[:3]))

    def _starts(self, stage: int, task: Task) -> bool:
        """Whether a task needs nothing of other tasks than those in front of it."""
        ends = (0, self.last) if self.placement == "crossed" else (0,)
        return task.part == WEIGHTS or (task.forward and stage in ends and task.chunk == 0)

    def _around(self, stage: int, chunk: int, forward: bool) -> tuple[int, int, int, int] | None:
        """Receiver, its chunk, stage and chunk whose link is used; None: the model's end."""
        if forward:
            if stage < self.last:
                return stage + 1, chunk, stage, chunk
            return (0, chunk + 1, stage, chunk) if chunk < self.chunks - 1 else None
        if stage > 0:
            return stage - 1, chunk, stage - 1, chunk
        return (self.last, chunk - 1, self.last, chunk - 1) if chunk > 0 else None

    def _along_v(self, stage: int, chunk: int, forward: bool) -> tuple[int, int, int, int] | None:
        """The same in a V."""
        down = forward == (chunk == 0)
        turn = stage == (self.last if down else 0)
        if turn and not down:
            return None
        receiver = stage if turn else stage + 1 if down else stage - 1
        target = 1 - chunk if turn else chunk
        return (receiver, target, stage, chunk) if forward else (receiver, target, receiver, target)

    def _crossing(self, stage: int, chunk: int, forward: bool) -> tuple[int, int, int, int] | None:
        """The same of two lines that cross."""
        middle = (self.last + 1) // 2
        ahead = (chunk == 0) == (stage < middle)  # the line goes on with the next stage
        receiver = stage + 1 if ahead == forward else stage - 1
        if not 0 <= receiver <= self.last:
            return None
        # Where a line passes the middle its chunks have another number.
        target = 1 - chunk if (stage < middle) != (receiver < middle) else chunk
        return (receiver, target, stage, chunk) if forward else (receiver, target, receiver, target)

    def send(self, stage: int, task: Task, end: float) -> int:
        """Send the output of a task at ``end``; return the stage that receives it."""
        forward, chunk, number = task[:3]
        if task.part == WEIGHTS:
            return stage
        ways = {"looped": self._around, "folded": self._along_v, "crossed": self._crossing}
        to = ways[self.placement](stage, chunk, forward)
        if to is None:
            if forward:  # the loss: its gradient is available at once
                self._arrived[stage, False, chunk, number] = end
            return stage
        receiver, target, link, at = to
        delay, gap = self.links[link][at]
        # Else a link between neighbours carries activations of one chunk, gradients of the other.
        wire = (link, int(forward)) if self.placement == "looped" else (stage, receiver)
        begins = self._before.get(wire, -math.inf)
        arrives = max(end + delay, begins + gap)
        self._before[wire] = arrives
        self._arrived[receiver, forward, target, number] = arrives
        if receiver != stage:
            self.messages += 1
            if self.record is not None and arrives > end and self.record.wants(number):
                self.record.slices.append(Slice(
                    stage, AHEAD if forward else BACK,
                    f"{'activations' if forward else 'gradient'} {number}",
                    max(end, begins), arrives))
        return receiver

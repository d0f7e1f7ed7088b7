"""The data-parallel stream of a stage: transfers one after another, in parallel with compute.

A transfer runs at the full rate while the stage waits, at its own share of the rate while the stage
computes, and not at all during exposed tensor, context and expert parallel traffic, which uses the
network then. The reduction of a step's gradients yields to transfers that compute waits for, as
with separate streams (PyTorch FSDP).
"""

from __future__ import annotations

from collections import deque


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

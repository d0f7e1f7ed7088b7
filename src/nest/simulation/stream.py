"""The data-parallel stream of a stage: transfers one after another, beside the computing.

A transfer makes progress at the full rate while the stage waits, at its own share of it while the
stage computes, and not at all during exposed tensor, context and expert parallel traffic, which
has the network then. The reduction of a step's gradients gives way to transfers that computing
waits for, as with streams of their own for each (PyTorch FSDP).
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
        """When it first had the stream; below 0: not yet."""
        self.end = -1.0
        """When it was through; below 0: not yet."""


class Stream:
    """Transfers in the order in which they were added; its clock is that of the computing."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.done: list[Transfer] | None = None
        """Transfers that are through, where someone wants to see them."""
        self.count = 0
        self._urgent: deque[Transfer] = deque()
        self._later: deque[Transfer] = deque()

    def add(
        self, seconds: float, rate: float, label: str, micro_batch: int = -1, *,
        yields: bool = False,
    ) -> Transfer:
        """Queue a transfer at the present time; it may give way to those that do not."""
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
        """Wait until a transfer that gives way to none is through, and say when that is."""
        while transfer.end < 0.0:
            self.clock = self._progress(self._urgent, self.clock, float("inf"), 1.0)
        return self.clock

    def drain(self) -> float:
        """Wait until all transfers are through, and say when that is."""
        for queue in (self._urgent, self._later):
            while queue:
                self.clock = self._progress(queue, self.clock, float("inf"), 1.0)
        return self.clock

    def _progress(
        self, queue: deque[Transfer], clock: float, end: float, rate: float
    ) -> float:
        """Let the first transfer have the stream until it is through or time is up; when it is."""
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

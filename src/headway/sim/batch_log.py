"""How the batch of an instance changes over time, told only where it does: a cut of a run leaves no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.results.records import Batch, KvMove

if TYPE_CHECKING:
    from headway.sim.stepping import Stepping


class BatchLog:
    __slots__ = ("entered", "events", "running")

    def __init__(self, events: list[Batch | KvMove]) -> None:
        self.events = events
        self.entered = 0  # how many ever had when it was told last
        self.running = 0  # how many it had then

    def note(self, now: int, instance: Stepping) -> None:
        """A step begins."""
        running = instance.running
        if instance.entered == self.entered and len(running) == self.running:
            return
        rows = []
        for job in reversed(running):
            if job.order <= self.entered:
                break
            rows.append(job.row)
        tokens = 0
        for _, want in instance.chunks:
            tokens += want
        view = instance.view
        self.events.append(Batch(now, view.index, rows[::-1], len(running), view.queued, tokens))
        self.entered = instance.entered
        self.running = len(running)

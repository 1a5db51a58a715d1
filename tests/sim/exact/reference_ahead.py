"""The naive instance, scheduling each step while the step before it runs. It forms a step when the step before it ends,
and puts aside what it could not know earlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.latency.base import Chunk, LatencyModel, Run
from headway.types import Path, Request
from reference import Instance, Job, Scheduled

NOBODY = Path((), ())


class Beside:
    """Step times with the wasted decodes of requests that have ended, by their contexts."""

    def __init__(self, latency: LatencyModel, wasted: Sequence[int]) -> None:
        self.latency, self.wasted = latency, wasted

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        return self.latency.run(decodes + len(self.wasted), context + sum(self.wasted), chunks)


class AheadInstance(Instance):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.fresh: list[tuple[Job, int]] = []  # requests that no step may include yet
        self.leaving: list[Job] = []  # requests that ended with the last step, with their blocks
        self.wasted: list[int] = []  # contexts of the decodes of the next step that are wasted
        self.closing = False  # whether requests that let go of their blocks have ended
        self.between = False  # whether a step has just ended
        self.before: dict[int, int] = {}  # tokens that a request had before the step that has just ended
        # Contexts are in 64ths of a token where decodes verify drafts.
        self.unit, self.width = (1, 1) if self.speculation is None else (64, 1 + self.speculation.tokens)

    def comes(self, job: Job, now: int) -> None:
        if self.step or self.between:
            self.fresh.append((job, now))
        else:
            super().comes(job, now)

    def let_go(self, job: Job) -> None:
        if not self.closing:
            super().let_go(job)
            return
        self.cache.publish(job, 0)
        self.cache.drop_tail(job)
        self.leaving.append(job)
        if job.decoding and (job in self.gave_up or job.generated < job.output or not self.foreseen(job)):
            self.wasted.append(self.unit * (job.computed + 1))

    def foreseen(self, job: Job) -> bool:
        """Whether the engine knew the last token before the step: the limit is reached even if no draft is accepted."""
        return job.request.max_tokens == job.output and self.before[job.row] == job.output - 1

    def gain(self, entry: Scheduled) -> int:
        if entry.job.row < 0:  # a step of wasted tokens alone
            return 1
        self.before[entry.job.row] = entry.job.generated
        return super().gain(entry)

    def in_use(self) -> list[str]:
        users = [*self.running, *self.leaving]
        return [name for name in self.adapters if any(job.request.adapter == name for job in users)]

    def begin(self, now: int) -> None:
        latency, peak, wasted = self.latency, self.peak, self.wasted
        self.max_batch_size -= len(self.leaving)
        self.max_batch_tokens -= self.width * len(wasted)
        self.latency = Beside(latency, wasted)
        super().begin(now)
        self.latency = latency
        self.max_batch_size += len(self.leaving)
        self.max_batch_tokens += self.width * len(wasted)
        if not self.step and wasted:
            nobody = Job(-1, 0, NOBODY, 0, 2, 0, Request(0, 0, 1, NOBODY))
            self.step = [Scheduled(nobody, 1, True)]
            self.began, self.step_ends = now, now + latency.run(len(wasted), sum(wasted), ())[0]
        known = not self.leaving and not self.fresh
        for job in self.leaving:
            self.cache.release(job)
        for job, at in self.fresh:
            super().comes(job, at)
        self.leaving, self.fresh, self.wasted, self.between = [], [], [], False
        self.peak = max(peak, self.cache.held())
        if not self.step and not known:
            self.begin(now)

    def end(self, now: int) -> list[Job]:
        self.closing = True
        finished = super().end(now)
        self.closing, self.between = False, True
        return finished

    def give_up(self, job: Job, now: int) -> bool:
        for entry in self.fresh:
            if entry[0] is job:
                self.fresh.remove(entry)
                self.end_job(job, "timed_out", now)
                return True
        self.closing = True
        gone = super().give_up(job, now)
        self.closing = False
        return gone

"""One replica: a queue, a batch, KV blocks. The rules are those of vLLM v1.

Running requests come first, in order of entry; each gets its remaining tokens or the remaining budget. If blocks are
short, the newest running request is preempted and recomputed later; then no request enters in this step. Otherwise
waiting requests enter in order while there is budget, a free slot, and room for their whole prompt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu.blocks import Blocks, chain


@dataclass(eq=False, slots=True)
class Job:
    """A request at a replica. `tokens` has room for the prompt and for all output tokens."""

    id: int
    tokens: Any  # NumPy array of int32
    prompt: int
    known: int  # number of tokens that are known: the prompt and the generated tokens
    most: int  # number of tokens to generate
    names: list[int] = field(default_factory=list)  # names of the full blocks of known tokens
    computed: int = 0  # number of tokens whose keys and values are in the blocks
    blocks: list[int] = field(default_factory=list)
    named: int = 0  # number of blocks whose content other requests can hit
    cached: int = -1  # tokens found cached at the first entry; -1 before
    preemptions: int = 0
    started_ps: int = -1
    first_ps: int = -1
    ended_ps: int = -1

    @property
    def generated(self) -> int:
        return self.known - self.prompt


def new_job(id: int, prompt: Any, output: int, block_tokens: int) -> Job:
    tokens = np.zeros(len(prompt) + output, np.int32)
    tokens[: len(prompt)] = prompt
    job = Job(id, tokens, len(prompt), len(prompt), output)
    extend_names(job, block_tokens)
    return job


def extend_names(job: Job, block_tokens: int) -> None:
    """Name the full blocks of a job's known tokens that have no name yet."""
    names = job.names
    for start in range(len(names) * block_tokens, job.known - block_tokens + 1, block_tokens):
        names.append(chain(names[-1] if names else 0, job.tokens[start : start + block_tokens].tolist()))


@dataclass(slots=True)
class Row:
    """What a step computes for one request: `new` tokens after `past` tokens."""

    job: Job
    past: int
    new: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the request's next token."""
        return self.past + self.new == self.job.known


class Backend(Protocol):
    def run(self, rows: list[Row]) -> list[int]:
        """Compute a step, and return the next token of each row."""
        ...


@dataclass
class Limits:
    block_tokens: int = 16
    blocks: int = 1024
    max_batch_tokens: int = 2048
    max_batch_size: int = 64


class Replica:
    def __init__(self, backend: Backend, limits: Limits, first_block: int = 0) -> None:
        self.backend, self.limits = backend, limits
        self.blocks = Blocks(first_block, limits.blocks)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.rows: list[Row] = []  # rows of the step that runs
        self.tokens: list[int] = []  # their next tokens
        self.preemptions = self.steps = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    # --- a step -------------------------------------------------------------------------------------------------

    def begin(self, now_ps: int) -> list[Row]:
        """Form the next step and compute it. Its results count when `finish` is called."""
        rows = self.rows = self._form(now_ps)
        self.tokens = self.backend.run(rows)
        self.steps += 1
        return rows

    def finish(self, now_ps: int) -> tuple[list[Job], list[Job]]:
        """End the step. Return the requests with a first token, and those that have ended."""
        first, ended = [], []
        for row, token in zip(self.rows, self.tokens, strict=True):
            job = row.job
            samples = row.samples
            job.computed += row.new
            if not samples:
                continue
            job.tokens[job.known] = token
            job.known += 1
            if job.known % self.limits.block_tokens == 0:
                extend_names(job, self.limits.block_tokens)
            if job.first_ps < 0:
                job.first_ps = now_ps
                first.append(job)
            if job.generated == job.most:
                job.ended_ps = now_ps
                self.running.remove(job)
                self.blocks.release(job.blocks)
                ended.append(job)
        self.rows = []
        return first, ended

    def _form(self, now_ps: int) -> list[Row]:
        budget, rows = self.limits.max_batch_tokens, []
        preempted, place = False, 0
        while place < len(self.running) and budget:
            job = self.running[place]
            new = min(job.known - job.computed, budget)
            need = self._lacking(job, job.computed + new)
            while need > len(self.blocks.free) and self.running[-1] is not job:
                self._preempt(self.running.pop())
                preempted = True
            if need > len(self.blocks.free):
                self._preempt(self.running.pop())
                preempted = True
                break
            rows.append(self._row(job, new, need))
            budget -= new
            place += 1
        if not preempted:
            self._admit(rows, budget, now_ps)
        return rows

    def _admit(self, rows: list[Row], budget: int, now_ps: int) -> None:
        size, blocks = self.limits.block_tokens, self.blocks
        while self.waiting and budget and len(self.running) < self.limits.max_batch_size:
            job = self.waiting[0]
            hits = blocks.match(job.names, (job.known - 1) // size)
            whole = -(-job.known // size)
            if whole - len(hits) + blocks.idle_among(hits) > len(blocks.free):
                return
            self.waiting.popleft()
            blocks.hold(hits)
            job.blocks, job.computed, job.named = hits, len(hits) * size, len(hits)
            if job.cached < 0:
                job.cached, job.started_ps = job.computed, now_ps
            new = min(job.known - job.computed, budget)
            self.running.append(job)
            rows.append(self._row(job, new, self._lacking(job, job.computed + new)))
            budget -= new

    def _lacking(self, job: Job, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens) - len(job.blocks)

    def _row(self, job: Job, new: int, need: int) -> Row:
        """Give a job the blocks of its next tokens, and name the blocks that become full."""
        if need > 0:
            job.blocks += self.blocks.take(need)
        full = (job.computed + new) // self.limits.block_tokens
        for place in range(job.named, full):
            self.blocks.name(job.blocks[place], job.names[place])
        job.named = max(job.named, full)
        return Row(job, job.computed, new)

    def _preempt(self, job: Job) -> None:
        self.blocks.release(job.blocks)
        job.blocks, job.computed, job.named = [], 0, 0
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)

"""The batch of an instance: its running requests, and the decoding set, whose requests generate one token per step.

`SpeculativeBatch` has decodes that generate more than one token per step.
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heapify, heappush
from typing import TYPE_CHECKING

from headway.sim.job import Job

if TYPE_CHECKING:
    from headway.sim.lanes import Lanes


class Batch:
    __slots__ = (
        "ahead", "block_steps", "block_tokens", "context", "counted", "decodes", "ending", "entered",
        "growth", "lanes", "partial", "peers", "phases", "running", "steps", "width",
    )  # fmt: skip

    block_steps: int | Fraction  # a decode needs at most `steps // block_steps + 1` new blocks in `steps` steps

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.block_steps = block_tokens
        self.width = 1  # number of tokens that a decode computes in a step
        self.ahead = 0  # number of tokens beyond its next one for which a decode needs blocks
        self.lanes: Lanes | None = None  # set if decodes generate more than one token per step
        self.peers: list[Batch] = []  # the batches of all ranks of an engine whose ranks step in lockstep
        self.running: dict[Job, Job] = {}  # running requests in order of entry
        self.entered = 0  # number of entries into the batch so far
        self.partial: Job | None = None  # the request whose prefill is unfinished, if there is one
        self.steps = 0  # number of steps that have ended
        # The next fields describe the decoding set. Its requests are called decodes.
        self.decodes = 0  # number of decodes
        self.counted = 0  # number of decodes that count in the statistics
        self.context = 0  # sum of the context lengths of all decodes, in tokens
        self.growth = 0  # tokens by which that sum grows per step
        # Number of decodes that need a new block at a step, by step modulo the block size.
        # The list has two copies of these numbers, so that consecutive steps are always one slice.
        self.phases = [0] * (2 * block_tokens)
        self.ending: list[tuple[int, int, Job]] = []  # heap: (step of the last token, order of entry, decode)

    def enter(self, job: Job) -> None:
        job.order = self.entered = self.entered + 1
        self.running[job] = job

    def start_decoding(self, job: Job) -> None:
        """Add a request to the decoding set after its prefill. If it has tokens left to generate, note the step of its
        last token in `ending`."""
        size, steps, phases = self.block_tokens, self.steps, self.phases
        job.decoding_from = steps - job.generated
        end = job.ends_at_step = job.decoding_from + job.output_tokens
        self.decodes += 1
        self.growth += 1
        self.counted += job.counted
        self.context += job.known + 1
        phase = (steps - job.known) % size
        phases[phase] += 1
        phases[phase + size] += 1
        if end > steps:
            heappush(self.ending, (end, job.order, job))

    def stop_decoding(self, job: Job) -> None:
        """Remove a request from the decoding set, and update its numbers of generated tokens, computed tokens and
        blocks."""
        size, steps, phases = self.block_tokens, self.steps, self.phases
        job.generated = steps - job.decoding_from
        computed = job.computed = job.request.prompt_tokens + job.generated - 1
        job.blocks = -(-computed // size)
        self.decodes -= 1
        self.growth -= 1
        self.counted -= job.counted
        self.context -= computed + 1
        phase = (steps - computed) % size
        phases[phase] -= 1
        phases[phase + size] -= 1

    def note_released(self, job: Job) -> None:
        """Update the number of blocks that windows have left behind. Without sliding windows, there are none."""

    def add_wasted(self, contexts: list[int], sign: int) -> None:
        """Count decodes of these context lengths whose tokens of the next step are wasted, or with `sign` -1, count
        them no longer. They grow in no further step."""
        self.decodes += sign * len(contexts)
        self.context += sign * sum(contexts)

    def forget_end(self, job: Job) -> None:
        """Remove a request from `ending`, because it stops before its last token."""
        self.ending = [entry for entry in self.ending if entry[2] is not job]
        heapify(self.ending)

    def decode_blocks(self, begun: int, steps: int) -> int:
        """Return how many new blocks the decodes need in `steps` consecutive steps. `begun` is the number of all
        earlier steps of the instance."""
        size = self.block_tokens
        phase = begun % size
        return self.decodes * (steps // size) + sum(self.phases[phase : phase + steps % size])

    def next_blocks(self, job: Job) -> int:
        """Return how many new blocks a decode needs in the next step."""
        return int((job.request.prompt_tokens + self.steps - job.decoding_from - 1) % self.block_tokens == 0)

    def held_blocks(self, job: Job, begun: int) -> int:
        """Return how many blocks a decode has. `begun` says how many steps have begun but not ended: none or one."""
        tokens = job.request.prompt_tokens + self.steps - job.decoding_from - 1 + begun
        return -(-tokens // self.block_tokens)

    def generated(self, job: Job) -> int:
        """Return how many tokens a decode has generated."""
        return self.steps - job.decoding_from

    def near_context(self) -> int | None:
        """Return the sum of the contexts in layers with windows. If no drafts read windows, return None."""
        return None

    def count_drafts(self, job: Job) -> None:
        """Count the drafts of a decode that stops. There are none."""

    def foresees_end(self, job: Job) -> bool:
        """Return whether it was certain before the last step that a request would reach its last token in it. The
        request has just stopped decoding."""
        return True

    def generated_before(self, job: Job) -> int:
        """Return how many tokens a request that has just stopped decoding had generated before the last step."""
        return job.generated - 1

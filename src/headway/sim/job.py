"""A request inside the simulator, with its true output length, which policies must not see."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headway.policies.queues import Ticket
from headway.sim.kv_cache import Hold, Runs
from headway.types import Request

if TYPE_CHECKING:
    from headway.sim.handover import Handover

WHOLE = 1 << 60  # tokens, more than any prompt has


class Job:
    __slots__ = (
        "awaits",
        "blocks",
        "cached_to",
        "chunk",
        "computed",
        "counted",
        "decoding_from",
        "ends_at_step",
        "expired",
        "gaps",
        "generated",
        "handover",
        "holds",
        "known",
        "last_token_ps",
        "log_from",
        "lost",
        "order",
        "output_key",
        "output_tokens",
        "pipelined",
        "prefilled",
        "request",
        "resumes",
        "row",
        "runs",
        "started",
        "swapped",
        "ticket",
        "withdrawn",
    )

    ticket: Ticket  # the scheduler's view of it, set when it arrives at the instance

    # set when it enters the batch
    blocks: int  # held
    cached_to: int  # full blocks offered to the cache so far
    computed: int  # tokens in the KV cache, as of the last scheduling change
    # set when it begins to decode
    decoding_from: int  # the instance's step count minus the generated tokens
    log_from: int  # where its gaps begin in the instance's log
    # set when it stops before its end, or its prompt has been computed elsewhere
    last_token_ps: int

    def __init__(self, request: Request, output_tokens: int, output_key: int, block_tokens: int, counted: bool) -> None:
        self.request = request
        self.row = request.id
        self.known = request.prompt_tokens  # tokens that must be in the KV cache before it can generate the next one
        self.runs: Runs = request.path.blocks(block_tokens)  # the blocks of the known tokens
        self.output_tokens = output_tokens
        self.output_key = output_key  # the key of its generated tokens
        self.counted = counted  # whether it counts in the statistics, i.e. is not a warm-up request
        self.chunk = WHOLE  # the scheduler's limit on prompt tokens in one step
        self.expired = False  # its client has given up
        self.lost = False  # its instance was lost, and it is not retried
        self.withdrawn = False  # the request continues at another instance, so this job has no outcome
        self.started = False  # its turn at the instance has come
        self.resumes = False  # it continues to decode once its blocks have arrived
        self.handover: Handover | None = None  # set if its prompt is computed here for another instance
        self.pipelined = False  # whether each chunk may be sent there when it is computed
        self.awaits: Handover | None = None  # set until its blocks have arrived from another instance
        self.swapped = 0  # its blocks that are swapped out to a store below the GPU
        self.prefilled = 0  # prompt tokens that were computed or cached at least once
        self.generated = 0  # as of the last scheduling change
        self.gaps: list[tuple[array[int], int, int]] = []  # its parts of the logs, except the current one
        self.holds: list[Hold] = []  # its blocks that are shared content
        self.order = 0  # of entry into the batch; 0 before the first
        self.ends_at_step = -1  # the instance's step count at its last token; -1 unless it decodes

    def suspend(self, block_tokens: int) -> None:
        """Prepare to continue after a swap, which loses nothing that was computed."""
        self.known = self.request.prompt_tokens + self.generated - 1
        self.computed = self.known
        self.cached_to = self.known // block_tokens
        self.holds = []
        self.ends_at_step = -1

    def rewind(self, block_tokens: int) -> None:
        """Prepare to compute all known tokens again after a preemption, including the generated ones."""
        prompt_tokens = self.request.prompt_tokens
        self.known = prompt_tokens + self.generated
        self.computed = 0
        self.resumes = False
        self.holds = []
        self.ends_at_step = -1
        self.runs = self.request.path.blocks(block_tokens)
        end = self.known // block_tokens
        if end > prompt_tokens // block_tokens:
            self.runs = (*self.runs, (self.output_key, end))

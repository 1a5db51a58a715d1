"""A request inside the simulator, with the truth that no policy may see: how long its output will be."""

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

    ticket: Ticket  # what the scheduler sees of it, from its arrival at the instance on

    # set when it enters the batch
    blocks: int  # held
    cached_to: int  # full blocks offered to the cache so far
    computed: int  # tokens in the KV cache, as of the last scheduling change
    # set when it begins to decode
    decoding_from: int  # the instance's step count at which it would have generated nothing yet
    log_from: int  # where its gaps begin in the instance's log
    # set when it stops before its end, or its prompt has been computed elsewhere
    last_token_ps: int

    def __init__(self, request: Request, output_tokens: int, output_key: int, block_tokens: int, counted: bool) -> None:
        self.request = request
        self.row = request.id
        self.known = request.prompt_tokens  # tokens to have in the KV cache before the next one can be generated
        self.runs: Runs = request.path.blocks(block_tokens)  # of the known tokens
        self.output_tokens = output_tokens
        self.output_key = output_key  # what it generates is called
        self.counted = counted  # in the statistics, i.e. not a warm-up request
        self.chunk = WHOLE  # most prompt tokens in one step, by the scheduler
        self.expired = False  # its client has given up
        self.lost = False  # its instance has, and it is not sent again
        self.withdrawn = False  # the request goes on elsewhere; what is left of it here has no outcome
        self.started = False  # its turn at the instance has come
        self.resumes = False  # once its blocks have come, it goes on to decode
        self.handover: Handover | None = None  # where its prompt is computed for another instance
        self.pipelined = False  # then each chunk of it may go there as soon as it is computed
        self.awaits: Handover | None = None  # where its blocks come from another instance, until they are here
        self.swapped = 0  # blocks of it that wait in a store below the GPU's
        self.prefilled = 0  # prompt tokens computed or found cached, once and for all
        self.generated = 0  # as of the last scheduling change
        self.gaps: list[tuple[array[int], int, int]] = []  # its stretches of logs, but for the one that it is in
        self.holds: list[Hold] = []  # those of its blocks that are shared content
        self.order = 0  # of entry into the batch; 0 before the first
        self.ends_at_step = -1  # the instance's step count at which the last token comes; -1 unless decoding

    def suspend(self, block_tokens: int) -> None:
        """After a preemption by which nothing computed was lost."""
        self.known = self.request.prompt_tokens + self.generated - 1
        self.computed = self.known
        self.cached_to = self.known // block_tokens
        self.holds = []
        self.ends_at_step = -1

    def rewind(self, block_tokens: int) -> None:
        """After a preemption: everything known so far has to be computed again, the generated tokens too."""
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

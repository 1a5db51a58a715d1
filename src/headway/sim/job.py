"""A request inside the simulator, with its true output length, which policies must not see."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headway.policies.queues import Ticket
from headway.sim.kv_cache import Hold, Runs
from headway.types import Request

if TYPE_CHECKING:
    from headway.sim.handover import Handover

WHOLE = 1 << 60  # a number of tokens that is larger than any prompt


class Job:
    __slots__ = (
        "awaits",
        "between_steps",
        "blocks",
        "cached_to",
        "chunk",
        "computed",
        "counted",
        "decodes_from",
        "decoding_from",
        "ends_at_step",
        "expected",
        "expired",
        "fraction",
        "gaps",
        "generated",
        "handover",
        "holds",
        "known",
        "last_token_ps",
        "log_from",
        "lost",
        "order",
        "origin",
        "output_key",
        "output_tokens",
        "parts_at",
        "pipelined",
        "prefilled",
        "rate",
        "released",
        "request",
        "resumes",
        "row",
        "runs",
        "skipped",
        "started",
        "swapped",
        "ticket",
        "waits_from",
        "was_ready",
        "withdrawn",
    )

    ticket: Ticket  # the scheduler's view of the request, set when the request arrives at the instance

    was_ready: bool  # set with `waits_from`: whether the request's blocks had arrived; otherwise they were taken away
    # The next three fields are set when the request enters the batch.
    blocks: int  # number of allocated blocks
    cached_to: int  # number of full blocks offered to the cache so far
    computed: int  # number of tokens in the KV cache, as of the last scheduling change
    # The next two fields are set when the request begins to decode.
    decoding_from: int  # step count of the instance minus the number of tokens that the request has generated
    log_from: int  # position in the instance's gap log at which the request's gaps begin
    # The next three fields are set when the request begins to decode at an instance that speculates (see `lanes`).
    rate: int
    origin: int  # position of the request at the instance's step 0
    decodes_from: int  # step count of the instance when the request began to decode
    # Time of the latest token. Set if the request stops decoding early, or if another instance has computed its prompt.
    last_token_ps: int

    def __init__(self, request: Request, output_tokens: int, output_key: int, block_tokens: int, counted: bool) -> None:
        self.request = request
        self.row = request.id
        self.known = request.prompt_tokens  # number of tokens that the KV cache must have before the next token
        self.runs: Runs = request.path.blocks(block_tokens)  # the blocks of the known tokens
        self.output_tokens = output_tokens
        self.output_key = output_key  # content key of the generated tokens
        self.counted = counted  # whether the request counts in the statistics; warm-up requests do not
        self.chunk = WHOLE  # maximum number of prompt tokens in one step, set by the scheduler
        self.expected = 0  # number of output tokens that the router expects; 0 without an estimator
        self.expired = False  # whether the client has given up
        self.between_steps = False  # whether the request left its instance between two steps, before its last token
        self.lost = False  # whether the instance lost the request, and the request is not retried
        self.withdrawn = False  # whether the request continues at another instance, so that this job has no outcome
        self.started = False  # whether the request's turn at the instance has come at least once
        self.resumes = False  # whether the request continues to decode after its blocks have arrived
        self.handover: Handover | None = None  # set if this job computes the prompt for another instance
        self.pipelined = False  # whether each chunk may be sent to the other instance as soon as it is computed
        self.awaits: Handover | None = None  # set while the job waits for its blocks from another instance
        self.swapped = 0  # number of blocks that are swapped out to a store below the GPU
        self.prefilled = 0  # number of prompt tokens that were computed or cached at least once
        self.generated = 0  # number of generated tokens, as of the last scheduling change
        self.fraction = 0  # units of 1/64 token that an instance that speculates has generated in addition
        self.gaps: list[tuple[array[int], int, int]] = []  # (log, start, end) of each range with gaps of the request
        self.holds: list[Hold] = []  # ranges of the request's blocks whose content is in the prefix cache
        self.released = 0  # number of leading blocks that sliding windows have left behind, as of the last change
        self.skipped = 0  # number of blocks after these that have no pages in window groups, until the windows move
        self.parts_at = 0  # if states are kept at the ends of chunks: end of the prefix that full groups have cached
        self.waits_from = -1  # since when the request waits outside the batch after its first turn; -1 if it does not
        self.order = 0  # sequence number of the request's last entry into the batch; 0 before the first entry
        self.ends_at_step = -1  # step count of the instance at the request's last token; -1 if it does not decode

    def suspend(self, block_tokens: int) -> None:
        """Prepare to continue after the request's blocks were swapped out. All computed tokens are kept."""
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

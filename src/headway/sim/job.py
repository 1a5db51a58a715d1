"""A request inside the simulator, with the truth that no policy may see: how long its output will be."""

from __future__ import annotations

from headway.hashing import OUTPUT, key
from headway.sim.kv_cache import Hold, Runs
from headway.types import Request


class Job:
    __slots__ = (
        "blocks",
        "cached_to",
        "computed",
        "counted",
        "decoding_from",
        "ends_at_step",
        "generated",
        "holds",
        "known",
        "last_token_ps",
        "log_from",
        "logged",
        "order",
        "output_tokens",
        "prompt_tokens",
        "request",
        "row",
        "runs",
        "torn",
    )

    def __init__(self, request: Request, output_tokens: int, block_tokens: int, counted: bool) -> None:
        self.request = request
        self.row = request.id
        self.prompt_tokens = self.known = request.prompt_tokens
        # known: tokens to have in the KV cache before the next one can be generated
        self.output_tokens = output_tokens
        self.counted = counted  # in the statistics, i.e. not a warm-up request
        self.generated = 0  # as of the last scheduling change
        self.computed = 0  # tokens in the KV cache, as of the last scheduling change
        self.blocks = 0  # held
        self.holds: list[Hold] = []  # those of them that are shared content
        self.cached_to = 0  # full blocks offered to the cache so far
        self.runs: Runs = request.path.blocks(block_tokens)  # of the known tokens
        self.order = 0  # of entry into the batch
        self.ends_at_step = -1  # the instance's step count at which the last token comes; -1 unless decoding
        self.decoding_from = 0  # the instance's step count at which it would have generated nothing yet
        self.log_from = 0  # where its gaps begin in the instance's log
        self.logged: tuple[tuple[int, int], ...] = ()  # stretches of the log from before a preemption
        self.torn: tuple[int, ...] = ()  # its gaps over preemptions, by place in the instance's list of those
        self.last_token_ps = -1  # when the last token before a preemption came

    def rewind(self, block_tokens: int) -> None:
        """After a preemption: everything known so far has to be computed again, the generated tokens too."""
        self.known = self.prompt_tokens + self.generated
        self.computed = 0
        self.blocks = 0
        self.holds = []
        self.cached_to = 0
        self.ends_at_step = -1
        self.runs = self.request.path.blocks(block_tokens)
        end = self.known // block_tokens
        if end > self.prompt_tokens // block_tokens:
            self.runs = (*self.runs, (key(OUTPUT, self.row), end))

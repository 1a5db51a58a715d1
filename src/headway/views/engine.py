"""One engine as its own scheduler sees it: the requests that wait and run there, as tickets, and its KV cache."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from headway.types import NO_PRIORITY, PS_PER_SECOND, Hints, Request
from headway.views.signals import exact


class Ticket(Struct, eq=False, gc=False):
    """A request at its instance, as a scheduler sees it. A request has the same ticket from its arrival at the instance
    until it ends. A ticket has only information that a real engine could have."""

    request: Request
    priority: float  # from the route or the priority stage; a higher value is served first
    enqueued_ps: int
    number: int  # sequence number of arrival at the instance
    hints: Hints = NO_PRIORITY.hints  # hints of the priority stage
    generated: int = 0  # number of output tokens that the request had when it was last preempted
    preemptions: int = 0
    rank: Any = None  # sort key; the queue may set and read it
    expected_tokens: Annotated[
        int, exact("tokens", "Output tokens that the request is expected to generate; 0 without an estimator.")
    ] = 0

    @property
    def enqueued(self) -> float:
        return self.enqueued_ps / PS_PER_SECOND


class EngineView:
    """An engine at its last scheduling change. The engine writes the values before it asks its scheduler. They do not
    change between two scheduling changes, however many steps the engine computes."""

    __slots__ = (
        "batch", "completed", "kv_blocks", "kv_used", "max_batch_size", "max_batch_tokens", "now_ps", "preempted",
        "recent_output", "recent_wait", "role", "waiting",
    )  # fmt: skip

    role: str
    kv_blocks: int
    max_batch_size: int
    max_batch_tokens: int
    waiting: tuple[Ticket, ...]  # requests in the queue
    batch: tuple[Ticket, ...]  # requests in the batch, in order of entry
    kv_used: int  # KV blocks that requests hold
    completed: int  # completed requests so far
    preempted: int  # preemptions so far
    recent_output: float | None  # mean output tokens of the last 100 completed requests; None without any
    recent_wait: float | None  # mean seconds in the queue of the last 100 requests that entered the batch

    def __init__(self, role: str, kv_blocks: int, max_batch_size: int, max_batch_tokens: int) -> None:
        self.role = role
        self.kv_blocks = kv_blocks
        self.max_batch_size = max_batch_size
        self.max_batch_tokens = max_batch_tokens
        self.now_ps = self.kv_used = self.completed = self.preempted = 0
        self.waiting = self.batch = ()
        self.recent_output = self.recent_wait = None

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self.kv_blocks - self.kv_used

    @property
    def kv_utilization(self) -> float:
        """Share of the KV blocks that requests hold."""
        return self.kv_used / self.kv_blocks

"""The handover of a request from the instance that computes its prompt to the instance that generates its answer.

The transfer starts when the decode instance has room; until then, the request waits. The prefill instance keeps the
blocks until the last byte has arrived; then the decode instance alone owns them. If transfers are pipelined, each chunk
of the prompt is sent when it is computed.
"""

from headway.results.records import KvMove
from headway.sim.job import Job
from headway.sim.link import Links, Load
from headway.sim.setup import TransferSetup


class Incoming:
    """The number of requests in handover to one decode instance, and the limit on that number."""

    __slots__ = ("blocked", "count", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0
        self.blocked: dict[int, None] = {}  # indices of prefill instances whose next request waits because of the limit

    def full(self) -> bool:
        return self.limit is not None and self.count >= self.limit


class Handover:
    __slots__ = (
        "begun", "begun_ps", "computed", "decode", "first_token", "goal", "incoming", "link", "load", "move", "prefill",
        "sent", "source", "target", "transfer",
    )  # fmt: skip

    def __init__(
        self,
        source: Job,
        target: Job,
        prefill: int,
        decode: int,
        link: int,
        transfer: TransferSetup,
        incoming: Incoming,
    ) -> None:
        self.source = source  # the job at the prefill instance
        self.target = target  # the job at the decode instance
        self.prefill = prefill  # index of the prefill instance
        self.decode = decode  # index of the decode instance
        self.link = link
        self.transfer = transfer
        self.first_token = transfer.first_token  # whether the prefill instance returns the first token
        self.incoming = incoming
        self.begun = False  # whether the request has been queued at the decode instance
        self.begun_ps = -1  # when the transfer began, because the decode instance had room; -1 before that
        self.move: KvMove | None = None  # record of the transfer, if transfers are recorded
        self.computed = False  # whether the whole prompt has been computed
        self.load: Load | None = None  # the load of the prompt's blocks; None until the decode instance has room
        self.goal = 0  # when the link's `progress` reaches this value, all chunks sent so far have left the link
        self.sent = 0  # number of prompt tokens that are at the decode instance or in transfer to it

    def end(self) -> None:
        """Break the reference cycle between the two jobs, so that memory is freed without the garbage collector."""
        self.source.handover = None
        if self.target.awaits is self:
            self.target.awaits = None

    def send(self, now: int, links: Links) -> None:
        """Send the computed tokens that have not been sent yet. While the prompt is being computed, send only a
        multiple of `grain_tokens` tokens. After the whole prompt is computed, send all remaining tokens; the decode
        instance waits for the last byte."""
        transfer = self.transfer
        grain = transfer.grain_tokens
        if self.computed:
            tokens = max(0, self.target.known - self.sent)
            amount = -(-tokens // grain) * grain * transfer.token_bytes
            assert self.load is not None
            links.start(now, self.link, amount, self.load, self.goal)
        else:
            tokens = (self.source.computed - self.sent) // grain * grain
            if tokens <= 0:
                return
            goal = links.links[self.link].start(now, tokens * transfer.token_bytes)
            if goal > self.goal:
                self.goal = goal
        self.sent += tokens

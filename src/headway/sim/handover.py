"""A request whose prompt one instance computes and whose answer another one generates: the way of its KV blocks.

The blocks stay with the instance that computed them until the last byte has arrived at the other, which takes them when
it has room; the request waits for that as long as it must. From then on they are the other's alone. Where transfers are
pipelined, each chunk of the prompt may travel as soon as it is computed.
"""

from headway.sim.job import Job
from headway.sim.link import Links, Load
from headway.sim.setup import TransferSetup


class Incoming:
    """The requests that one instance is to get from others and has not got: beyond a limit these wait."""

    __slots__ = ("blocked", "count", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0
        self.blocked: dict[int, None] = {}  # instances where the next in order waits for it

    def full(self) -> bool:
        return self.limit is not None and self.count >= self.limit


class Handover:
    __slots__ = (
        "begun",
        "begun_ps",
        "computed",
        "decode",
        "goal",
        "incoming",
        "link",
        "load",
        "prefill",
        "sent",
        "source",
        "target",
        "transfer",
    )

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
        self.source = source  # the request as the one instance has it
        self.target = target  # and as the other has
        self.prefill = prefill  # the instances
        self.decode = decode
        self.link = link
        self.transfer = transfer
        self.incoming = incoming
        self.begun = False  # the other instance has heard of it
        self.begun_ps = -1  # when it had room for it, and the transfer began
        self.computed = False  # the prompt is computed
        self.load: Load | None = None  # once the other instance has room for it
        self.goal = 0  # the link's progress at which the last of its chunks leaves, of those that have started
        self.sent = 0  # tokens of the prompt that the other instance has, or that are on their way

    def end(self) -> None:
        """It is over, for either of the two; each would keep the other in memory until garbage is collected."""
        self.source.handover = None
        if self.target.awaits is self:
            self.target.awaits = None

    def send(self, now: int, links: Links) -> None:
        """What is computed of the prompt and has not gone goes. Part of a grain goes with the rest of it, so that
        nothing goes twice; once all is computed the other instance waits for the last byte."""
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

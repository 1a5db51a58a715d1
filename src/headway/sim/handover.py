"""A request whose prompt one instance computes and whose answer another one generates: the way of its KV blocks.

The blocks stay with the instance that computed them until the last byte has arrived at the other, which takes them when
it has room; the request waits for that as long as it must. From then on they are the other's alone.
"""

from __future__ import annotations

from headway.sim.job import Job
from headway.sim.setup import TransferSetup


class Handover:
    __slots__ = ("decode", "link", "prefill", "source", "target", "transfer")

    def __init__(self, source: Job, target: Job, prefill: int, decode: int, link: int, transfer: TransferSetup) -> None:
        self.source = source  # the request as the one instance has it
        self.target = target  # and as the other has
        self.prefill = prefill  # the instances
        self.decode = decode
        self.link = link
        self.transfer = transfer

    def amount(self, tokens: int) -> int:
        """Bytes to move for the last so many tokens of the prompt."""
        grain = self.transfer.grain_tokens
        return -(-tokens // grain) * grain * self.transfer.token_bytes

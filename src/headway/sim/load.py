"""Blocks of one request on their way to the instance that waits for them."""

from __future__ import annotations

from headway.sim.job import Job


class Load:
    __slots__ = ("end", "instance", "job", "left", "links", "start", "wanted")

    def __init__(self, instance: int, job: Job, start: int, end: int) -> None:
        self.instance = instance
        self.job = job
        self.start = start  # its first block
        self.end = end  # and the one after its last
        self.left = 0  # transfers that have not arrived
        self.links: list[int] = []  # that they go over
        self.wanted = True  # until the request gives up

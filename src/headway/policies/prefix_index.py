"""What the router believes each instance has cached: hierarchical block hashes with an LRU bound per instance."""

from __future__ import annotations

from headway.types import Path


class PrefixIndex:
    """Contract (to be implemented):

    One index for all instances. `matches(path)` -> list of matched leading blocks, by instance index (one walk).
    `touch(instance, path)`: the path's full blocks become the most recently used of that instance, tail older than
    head, evicting its least recently used blocks when over capacity.
    """

    def __init__(self, instances: int, capacity: int, block_tokens: int) -> None:
        self.instances = instances
        self.capacity = capacity
        self.block_tokens = block_tokens

    def matches(self, path: Path) -> list[int]:
        raise NotImplementedError

    def touch(self, instance: int, path: Path) -> None:
        raise NotImplementedError

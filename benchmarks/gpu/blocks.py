"""The KV blocks of one replica: hashed content, reference counts, and eviction of the least recently used block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def chain(parent: int, tokens: Sequence[int]) -> int:
    """Return the name of a full block, which depends on its tokens and on all tokens before it."""
    return hash((parent, *tokens))


class Blocks:
    """Blocks `first` to `first + total - 1` of a pool. A free block may still have content, which a request can hit.

    As in vLLM, a request's full blocks can be hit from the step that computes them on, even by requests that enter in
    this step: a step writes all keys and values of a layer before it reads any.
    """

    def __init__(self, first: int, total: int) -> None:
        self.total = total
        self.free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(first, first + total))
        self.holders: dict[int, int] = {}  # held block -> number of requests that hold it
        self.by_name: dict[int, int] = {}  # name of content -> block
        self.names: dict[int, int] = {}  # block -> name of its content
        self.evicted = 0

    @property
    def held(self) -> int:
        return self.total - len(self.free)

    def match(self, names: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest prefix that is cached, at most `limit` blocks."""
        found = []
        for name in names[:limit]:
            block = self.by_name.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Sequence[int]) -> int:
        """Return how many of these blocks are free. They count as free, but whoever hits them needs them itself."""
        return sum(block not in self.holders for block in blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self.holders:
                self.holders[block] += 1
            else:
                del self.free[block]
                self.holders[block] = 1

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks, which lose their content. The caller has checked that there are so many."""
        taken = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            name = self.names.pop(block, None)
            if name is not None:
                del self.by_name[name]
                self.evicted += 1
            self.holders[block] = 1
            taken.append(block)
        return taken

    def name(self, block: int, name: int) -> None:
        """Make the content of a held block available to other requests. A duplicate stays private."""
        if name not in self.by_name:
            self.by_name[name] = block
            self.names[block] = name

    def release(self, blocks: Sequence[int]) -> None:
        """Release a request's blocks, tail first. Blocks without content are the next to be taken."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
                self.free[block] = None
                if block not in self.names:
                    self.free.move_to_end(block, last=False)

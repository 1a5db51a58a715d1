"""The times at which a router last sent a prompt that contains a block, for each instance."""

from typing import Final, Protocol

from headway.types import Path

LEAST: Final = 1024  # fewer runs than this are never searched for evicted ones


class Held(Protocol):
    def holds(self, instance: int, key: int) -> bool: ...


class LastAccesses:
    """The time of the last access of every block, as one entry for all blocks of a run that were last sent together.

    A prompt contains the first blocks of a run, up to some block. So for each run a stack is enough: a prompt that
    reaches further replaces the entries that it covers, and the entries below it stay.
    """

    def __init__(self, instances: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        # For each instance: key of a run -> (end of the blocks, time), the longest and oldest first.
        self._runs: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(instances)]
        self._limits = [LEAST] * instances  # number of runs from which on evicted ones are dropped

    def record(self, now_ps: int, instance: int, path: Path, index: Held) -> None:
        """Record that a prompt is sent to an instance. Drop runs that `index` no longer holds, if there are many."""
        runs = self._runs[instance]
        for key, end in path.blocks(self.block_tokens):
            stack = runs.setdefault(key, [])
            while stack and stack[-1][0] <= end:
                stack.pop()
            stack.append((end, now_ps))
        if len(runs) > self._limits[instance]:
            runs = {key: stack for key, stack in runs.items() if index.holds(instance, key)}
            self._runs[instance] = runs
            self._limits[instance] = max(LEAST, 2 * len(runs))

    def last(self, instance: int, path: Path, blocks: int) -> int | None:
        """Return when block number `blocks` of the prompt was last sent to the instance; None if it never was."""
        for key, end in path.blocks(self.block_tokens):
            if blocks <= end:
                stack = self._runs[instance].get(key, ())
                return next((at_ps for reach, at_ps in reversed(stack) if reach >= blocks), None)
        return None

    def clear(self, instance: int) -> None:
        self._runs[instance].clear()

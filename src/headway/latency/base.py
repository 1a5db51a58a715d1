"""The contract of a step-time model.

A step computes `chunks` of prompts, each (tokens, past tokens already in the KV cache), and one token for each of
`decodes` sequences whose contexts sum to `context` tokens. A *run* repeats the step: from one step to the next every
decode's context grows by one, and, where there is a chunk, it moves on by its own length. Over the next `k_max` steps
step j lasts `first + j * increment` picoseconds, exactly: a call at any of those steps gives that very figure as its
`first`. A step has at least one token, and none lasts less than one picosecond.

So whatever multiplies a count that grows along the run (context, past) is a whole number of picoseconds; what stays
the same along the run may be finer and is rounded once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

FOREVER: Final = 1 << 60

Chunk = tuple[int, int]
Run = tuple[int, int, int]


class LatencyModel(Protocol):
    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """(first, increment, k_max) in whole picoseconds, first and k_max at least 1."""
        ...

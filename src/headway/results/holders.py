"""What the requests do that hold the KV blocks of an instance while others wait for blocks.

A request holds blocks from its first step until it ends or, at a prefill instance, until its KV cache has been sent. In
this time it loads blocks from a tier below the GPU (`load`), computes, waits for a decode instance (`transfer_wait`) or
is sent (`transfer`). If most of the blocks are held by requests that load, then the store makes the others wait, and
not the number of blocks. Each request counts with its number of tokens.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from headway.results.occupancy import Span, Weights
from headway.results.recorder import RequestColumns

IDLE: Final = ("load", "transfer_wait", "transfer")  # parts of a request's time in which it holds blocks without work
WORK: Final = "work"


class Holders:
    def __init__(self, requests: RequestColumns, left_ps: Sequence[int], ended_ps: int) -> None:
        """`left_ps` has the time at which each request began its first step."""
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        if any(requests.loading_ps) or any(handed >= 0 for handed in requests.handed_ps):
            for row in range(len(requests)):
                if requests.started_ps[row] >= 0 and not requests.redirects[row]:
                    prefill = requests.prefill_instance[row]
                    home = prefill if prefill >= 0 else requests.instance[row]
                    spans[home] += _spans(requests, row, left_ps[row], ended_ps)
        self._weights = {home: Weights(found, IDLE) for home, found in spans.items()}

    def shares(self, instance: int, begin: int, end: int) -> dict[str, float]:
        """Return, for each part of `IDLE`, the share of the held blocks whose requests were in this part."""
        weights = self._weights.get(instance)
        return {} if weights is None else {part: weights.share(part, begin, end) for part in IDLE}


def _spans(requests: RequestColumns, row: int, left: int, ended: int) -> Iterator[Span]:
    tokens = float(requests.prompt_tokens[row] + requests.output_tokens[row])
    end = requests.finished_ps[row] if requests.finished_ps[row] >= 0 else ended
    loaded, handed = left + requests.loading_ps[row], requests.handed_ps[row]
    yield left, loaded, tokens, "load"
    yield loaded, handed if handed >= 0 else end, tokens, WORK
    if handed >= 0:
        sent, arrived = requests.transfer_ps[row], requests.transferred_ps[row]
        yield handed, max(handed, sent) if sent >= 0 else end, tokens, "transfer_wait"
        if sent >= 0:
            yield max(handed, sent), arrived if arrived >= 0 else end, tokens, "transfer"

"""Tenants that send in bursts, and how the others fare while they do.

Time is cut into windows. A tenant bursts in those where it sends several times its usual number; the window after one
counts with it, since queues take a while to empty. What others miss there is held against what they miss elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct

from headway.results.words.material import MISSED, UNCOUNTED, Material
from headway.types import PS_PER_SECOND

WINDOWS: Final = 200  # that a run is cut into, at most
SHORTEST_PS: Final = PS_PER_SECOND
TIMES: Final = 3  # the usual number of requests, in a burst
FEWEST: Final = 10  # requests of a burst, and misses of others worth a word


class Burst(Struct, frozen=True):
    """The bursts of one tenant."""

    tenant: str
    windows: int
    window_ps: int
    at_ps: int  # when the window of the largest began
    largest: int  # its requests
    others_inside: int  # requests of other tenants that came meanwhile or right after
    missed_inside: int  # and were not served as promised
    others_outside: int
    missed_outside: int

    @property
    def share(self) -> float:
        """Of what the others missed."""
        return self.missed_inside / (self.missed_inside + self.missed_outside)

    def rates(self) -> tuple[float, float]:
        """How many of the others' requests missed, meanwhile and otherwise."""
        return self.missed_inside / self.others_inside, self.missed_outside / max(self.others_outside, 1)


def bursts(run: Material) -> list[Burst]:
    """Of the tenants whose bursts others suffer from, that with most misses of others first."""
    codes, words = run.tenants
    if len(set(words)) < 2 or run.rows <= run.warmup:
        return []
    arrivals = run.column("arrival_ps")
    begun_ps = arrivals[run.warmup]
    window_ps = max(SHORTEST_PS, (arrivals[run.rows - 1] - begun_ps) // WINDOWS + 1)
    sent: Counter[tuple[int, int]] = Counter()
    missed: Counter[tuple[int, int]] = Counter()
    for row in range(run.warmup, run.rows):
        if run.missed[row] != UNCOUNTED:
            place = codes[row], (arrivals[row] - begun_ps) // window_ps
            sent[place] += 1
            missed[place] += run.missed[row] == MISSED
    windows = max((window for _, window in sent), default=0) + 1
    total, total_missed = _by_window(sent), _by_window(missed)
    own: dict[int, list[tuple[int, int]]] = {}
    for (code, window), number in sorted(sent.items()):
        own.setdefault(code, []).append((window, number))
    found = []
    for code, numbers in own.items():
        usual = sum(number for _, number in numbers) / windows
        high = [(window, number) for window, number in numbers if number >= max(FEWEST, TIMES * usual)]
        if not high:
            continue
        inside = sorted({later for window, _ in high for later in (window, window + 1)})
        others = [total[window] - sent[code, window] for window in inside]
        lost = [total_missed[window] - missed[code, window] for window in inside]
        all_others = sum(total.values()) - sum(number for _, number in numbers)
        all_lost = sum(total_missed.values()) - sum(missed[code, window] for window, _ in numbers)
        largest = max(high, key=lambda one: (one[1], -one[0]))
        burst = Burst(
            tenant=words[code],
            windows=len(high),
            window_ps=window_ps,
            at_ps=begun_ps + largest[0] * window_ps,
            largest=largest[1],
            others_inside=sum(others),
            missed_inside=sum(lost),
            others_outside=all_others - sum(others),
            missed_outside=all_lost - sum(lost),
        )
        if burst.missed_inside >= FEWEST and _matters(burst):
            found.append(burst)
    return sorted(found, key=lambda one: (-one.missed_inside, one.tenant))


def _by_window(counts: Counter[tuple[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (_, window), number in counts.items():
        found[window] += number
    return found


def _matters(burst: Burst) -> bool:
    inside, outside = burst.rates()
    return burst.share >= 0.1 and inside >= 1.5 * outside

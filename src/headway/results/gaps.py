"""Exact order statistics of the gaps between tokens, by counting the gaps instead of listing each one.

The recorder stores gaps as arithmetic progressions. A progression has `steps` gaps: the first gap is `first`, and each
following gap is longer by `increment`. Each of these gaps occurs `weight` times. A few million progressions represent
hundreds of millions of gaps. One pass counts the gaps in buckets of 2^shift picoseconds. Buckets that contain a
requested rank are split into finer buckets until the exact gap is known. The result depends only on the gaps and how
often each occurs, not on how the gaps are divided into progressions.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from headway.errors import InvariantError

Progression = tuple[int, int, int, int]

WRITE_OUT = 512  # if a bucket has at most this many steps, all its gaps are listed and sorted
SAMPLE = 512  # approximate number of progressions that are sampled to choose the bucket width
BUCKETS_LOG2 = 10  # log2 of the number of buckets that divide the middle 90 % of the gaps
NARROWING = 4  # when a bucket is split, the new buckets are narrower by at least this many bits


class GapCounts:
    """Counts gaps in buckets, and gives their number, their sum, and any order statistic."""

    __slots__ = ("_buckets", "_crossing", "_ends", "_runs", "_shift", "count", "total_ps")

    def __init__(self, runs: Sequence[int], widest: int = 62) -> None:
        """Count the gaps in `runs`, a flat sequence with four integers per progression: first, increment, steps,
        weight. `widest` is the maximum bucket width, in bits."""
        self._runs = runs
        self._crossing: list[Progression] = []
        shift, low, buckets = _layout(runs, widest)
        self._shift = shift
        counts = [0] * buckets
        crossing = self._crossing
        double = 0
        for first, increment, steps, weight in _progressions(runs):
            last = first + increment * (steps - 1)
            gaps = steps * weight
            double += gaps * (first + last)
            if (first ^ last) >> shift:
                crossing.append((first, increment, steps, weight))
            else:
                counts[(first >> shift) - low] += gaps
        counted = {low + index: gaps for index, gaps in enumerate(counts) if gaps}
        self._settle(counted)
        self._buckets = sorted(bucket for bucket, gaps in counted.items() if gaps)
        self._ends = list(accumulate(counted[bucket] for bucket in self._buckets))
        self.count = self._ends[-1] if self._ends else 0
        self.total_ps = double // 2

    def _settle(self, counted: dict[int, int]) -> None:
        """Add to `counted` the gaps of each progression that extends over more than one bucket. Raise if any count is
        negative."""
        shift = self._shift
        crossing = self._crossing
        for index, (first, increment, steps, weight) in enumerate(crossing):
            last = first + increment * (steps - 1)
            if increment < 0:
                first, increment, last = last, -increment, first
                crossing[index] = (first, increment, steps, weight)
            low, high = first >> shift, last >> shift
            if steps <= high - low:  # fewer steps than buckets: count each gap separately
                for gap in range(first, last + 1, increment):
                    counted[gap >> shift] = counted.get(gap >> shift, 0) + weight
                continue
            before = 0
            while low < high:
                end = -((first - (low + 1 << shift)) // increment)  # number of steps up to the end of bucket `low`
                counted[low] = counted.get(low, 0) + (end - before) * weight
                before = end
                low += 1
            counted[high] = counted.get(high, 0) + (steps - before) * weight
        if any(gaps < 0 for gaps in counted.values()):
            raise InvariantError("More gaps between tokens were subtracted than had been counted.")

    def select(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return the gaps at these ranks; rank 0 is the smallest gap."""
        inner: dict[int, list[int]] = {}  # bucket -> requested ranks that fall into the bucket
        before: dict[int, int] = {}  # bucket -> number of gaps in lower buckets
        for rank in ranks:
            if not 0 <= rank < self.count:
                raise IndexError(f"rank {rank} of {self.count} gaps")
            place = bisect_right(self._ends, rank)
            bucket = self._buckets[place]
            inner.setdefault(bucket, []).append(rank)
            before[bucket] = self._ends[place - 1] if place else 0
        if not self._shift:
            return {rank: bucket for bucket, inside in inner.items() for rank in inside}
        gaps: dict[int, int] = {}
        for bucket, runs in self._open(sorted(inner)).items():
            skipped = before[bucket]
            inside = [rank - skipped for rank in inner[bucket]]
            for rank, gap in _inside(runs, inside, self._shift).items():
                gaps[rank + skipped] = gap
        return gaps

    def _open(self, buckets: list[int]) -> dict[int, list[int]]:
        """Return, for each of these buckets, the progressions inside it as a flat list. If a progression belongs to
        several buckets, return only its gaps inside the bucket."""
        shift = self._shift
        opened: dict[int, list[int]] = {bucket: [] for bucket in buckets}
        for run in [run for run in _progressions(self._runs) if run[0] >> shift in opened]:
            first, increment, steps, _ = run
            if not (first ^ first + increment * (steps - 1)) >> shift:
                opened[first >> shift].extend(run)
        for first, increment, steps, weight in self._crossing:
            high = first + increment * (steps - 1) >> shift
            for bucket in buckets[bisect_left(buckets, first >> shift) :]:
                if bucket > high:
                    break
                begin = max(0, -((first - (bucket << shift)) // increment))
                end = min(steps, -((first - (bucket + 1 << shift)) // increment))
                if begin < end:
                    opened[bucket].extend((first + begin * increment, increment, end - begin, weight))
        return opened


def _progressions(runs: Sequence[int]) -> Iterator[Progression]:
    numbers = iter(runs)
    return zip(numbers, numbers, numbers, numbers, strict=True)


def _layout(runs: Sequence[int], widest: int) -> tuple[int, int, int]:
    """Return the bucket width in bits, the lowest bucket, and the number of buckets. The buckets cover the first gap of
    every progression. They are narrow enough that the middle 90 % of the gaps fall into many different buckets. They
    are wide enough that all gaps of one progression usually fall into a single bucket."""
    firsts = runs[0::4]
    if not firsts:
        return 0, 0, 0
    low, high = min(firsts), max(firsts)
    stride = 4 * max(1, len(firsts) // SAMPLE)
    sample = sorted(runs[0::stride])
    middle = sample[len(sample) * 19 // 20] - sample[len(sample) // 20]
    spans = sorted(
        abs(increment) * (steps - 1) for increment, steps in zip(runs[1::stride], runs[2::stride], strict=True)
    )
    span = spans[len(spans) * 3 // 4]
    shift = min(widest, max((middle >> BUCKETS_LOG2).bit_length(), (span << 2).bit_length()))
    shift = max(shift, (high - low).bit_length() - max(16, len(firsts).bit_length()))  # limit the number of buckets
    return shift, low >> shift, (high >> shift) - (low >> shift) + 1


def _inside(runs: list[int], ranks: list[int], shift: int) -> dict[int, int]:
    """Return the gaps at these ranks within one bucket; `runs` are the progressions inside it."""
    if sum(runs[2::4]) > WRITE_OUT:
        return GapCounts(runs, max(0, shift - NARROWING)).select(ranks)
    weights: dict[int, int] = {}
    for first, increment, steps, weight in _progressions(runs):
        for gap in range(first, first + steps * increment, increment) if increment else [first] * steps:
            weights[gap] = weights.get(gap, 0) + weight
    gaps = sorted(weights)
    ends = list(accumulate(map(weights.__getitem__, gaps)))
    return {rank: gaps[bisect_right(ends, rank)] for rank in ranks}

"""Who waited at an instance for whom: requests that less important ones were started before, and short prompts that
waited while a much longer one was computed. Near-linear, for runs of millions of requests.

A request *waits at its instance* from `enqueued_ps` until its first step begins, or until it gives up or the run ends.
One that was moved from one instance to another while it ran is not looked at: where it waited is not recorded.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headway.policies.classes import CLASSES
from headway.results.recorder import RequestColumns

LONG_TOKENS: Final = 1024  # a prompt that computes fewer blocks nobody
LONG_FACTOR: Final = 4  # how many times as long as that of who waits a prompt is that blocks it
USUAL: Final = "standard"  # a class of somebody's own ranks with it


class Queue:
    """The requests that waited at one instance: `rows` by their numbers, `order` by the time at which that ended."""

    __slots__ = ("instance", "order", "rows")

    def __init__(self, instance: int, rows: list[int], left: Sequence[int]) -> None:
        self.instance = instance
        self.rows = rows
        self.order = sorted(rows, key=left.__getitem__)


class Waits:
    """What can be said of the waits of a run's requests at their instances, each thing found when first asked for."""

    def __init__(self, requests: RequestColumns, ended_ps: int) -> None:
        self.requests = requests
        self.ended_ps = ended_ps
        pairs = requests.select("started_ps", "finished_ps")
        # When each request stopped waiting for its first step: it began, or the request gave up, or the run ended.
        self.left_ps = [began if began >= 0 else (end if end >= 0 else ended_ps) for began, end in pairs]
        self._queues: list[Queue] | None = None

    def queues(self) -> list[Queue]:
        if self._queues is None:
            requests = self.requests
            rows: dict[int, list[int]] = {}
            moved = requests.redirects if any(requests.redirects) else None
            places = requests.select("prefill_instance", "instance", "enqueued_ps")
            for row, (prefill, instance, enqueued) in enumerate(places):
                if enqueued >= 0 and not (moved and moved[row]):
                    rows.setdefault(prefill if prefill >= 0 else instance, []).append(row)
            self._queues = [Queue(where, rows[where], self.left_ps) for where in sorted(rows)]
        return self._queues

    def waited_ps(self) -> list[int]:
        """Of each request, at its instance; nothing of one that never came there, or that was moved."""
        requests = self.requests
        rows = zip(self.left_ps, requests.enqueued_ps, requests.redirects, strict=True)
        return [0 if since < 0 or moved else left - since for left, since, moved in rows]

    def inversions(self) -> dict[int, int]:
        """Requests that waited while a less important one was started at their instance, each with the least important
        of these, the first of equals."""
        ranks = importance(self.requests)
        if ranks is None:
            return {}
        return {row: other for queue in self.queues() for row, other in _find_passed(queue.order, self, ranks)}

    def blocked_ps(self) -> dict[int, int]:
        """Of the requests that waited while a prompt was computed at their instance that is much longer than their own:
        for how long. A prompt is much longer that computes at least so many tokens as the smallest power of two that is
        both `LONG_TOKENS` or more and `LONG_FACTOR` times those of the one that waits, or more."""
        computed = [tokens - cached for tokens, cached in self.requests.select("prompt_tokens", "cached_tokens")]
        queues = self.queues() if max(computed, default=0) >= LONG_TOKENS else []
        return {row: time for queue in queues for row, time in _find_blocked(queue.order, self, computed)}


def importance(requests: RequestColumns) -> list[int] | None:
    """A number for each request, the higher the more important: by its class, among equals by the score that the
    scheduler was told. None where all are equal."""
    scores, codes = requests.priority, requests.slo_class
    place = {name: -rank for rank, name in enumerate(CLASSES)}
    words = {code: place.get(name, place[USUAL]) for name, code in requests.names["slo_class"].items()}
    classes = {words[code] for code in dict.fromkeys(codes)}
    alike = len(scores) == 0 or scores.count(scores[0]) == len(scores)
    if alike:
        return None if len(classes) < 2 else [words[code] for code in codes]
    ranks = {score: rank for rank, score in enumerate(sorted(dict.fromkeys(scores)))}
    bases = {code: base * len(ranks) for code, base in words.items()}
    return [bases[code] + ranks[score] for code, score in zip(codes, scores, strict=True)]


def _find_passed(order: Iterable[int], waits: Waits, ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """By time, with a stack of those started so far that nobody less important has followed: of those started after
    some instant, the least important is the first of the stack."""
    enqueued, started, left = waits.requests.enqueued_ps, waits.requests.started_ps, waits.left_ps
    at: list[int] = []
    rank: list[int] = []
    rows: list[int] = []
    same: list[int] = []  # started at this very instant: not before one another
    now = -1
    for row in order:
        if left[row] != now:
            for other in same:
                own = ranks[other]
                while rank and rank[-1] > own:
                    at.pop()
                    rank.pop()
                    rows.pop()
                at.append(now)
                rank.append(own)
                rows.append(other)
            same.clear()
            now = left[row]
        if at and at[-1] > enqueued[row]:
            place = bisect_right(at, enqueued[row])
            if rank[place] < ranks[row]:
                yield row, rows[place]
        if started[row] >= 0:
            same.append(row)


class _Spans:
    """Time that was taken, in spans that do not overlap, added in the order in which they begin."""

    __slots__ = ("before", "begins", "ends")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.before: list[int] = []  # time taken before each span

    def add(self, begin: int, end: int) -> None:
        if self.begins and begin <= self.ends[-1]:
            self.ends[-1] = max(self.ends[-1], end)
            return
        before = self.before[-1] + self.ends[-1] - self.begins[-1] if self.begins else 0
        self.begins.append(begin)
        self.ends.append(end)
        self.before.append(before)

    def until(self, at: int) -> int:
        """How much was taken up to an instant."""
        place = bisect_right(self.begins, at) - 1
        return 0 if place < 0 else self.before[place] + min(at, self.ends[place]) - self.begins[place]


def _find_blocked(order: Iterable[int], waits: Waits, computed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """By time, with the spans in which prompts of 2^k tokens or more were computed, for each k."""
    requests, left = waits.requests, waits.left_ps
    enqueued, started = requests.enqueued_ps, requests.started_ps
    least = LONG_TOKENS.bit_length() - 1
    spans_by_level: list[_Spans] = []
    for row in order:
        tokens, since = computed[row], enqueued[row]
        if spans_by_level and spans_by_level[0].ends[-1] > since:
            level = (max(LONG_TOKENS, LONG_FACTOR * tokens) - 1).bit_length() - least
            if level < len(spans_by_level) and spans_by_level[level].ends[-1] > since:
                spent = spans_by_level[level].until(left[row]) - spans_by_level[level].until(since)
                if spent:
                    yield row, spent
        if tokens >= LONG_TOKENS and started[row] >= 0:
            end = _prefilled_ps(requests, row, waits.ended_ps)
            levels = tokens.bit_length() - least
            while len(spans_by_level) < levels:
                spans_by_level.append(_Spans())
            for spans in spans_by_level[:levels]:
                spans.add(started[row], end)


def _prefilled_ps(requests: RequestColumns, row: int, ended_ps: int) -> int:
    """When a request's prompt had been computed, or was not to be any more."""
    apart = requests.prefill_instance[row] >= 0
    end = requests.handed_ps[row] if apart else requests.first_token_ps[row]
    end = requests.finished_ps[row] if end < 0 else end
    return ended_ps if end < 0 else end

"""Finds priority inversions, and short prompts that long prompts block, in the queues of instances. The search takes
near-linear time.

A request *waits at its instance* from `enqueued_ps` until its first step begins, or until it gives up or the run ends.
Requests that moved between instances while running are left out, because it is not recorded where they waited.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

from headway.policies.classes import CLASSES
from headway.results.recorder import RequestColumns

LONG_TOKENS: Final = 1024  # a prompt blocks other prompts only if it has at least this many uncached tokens
LONG_FACTOR: Final = 4  # a blocking prompt is at least this many times as long as the waiting one
USUAL: Final = "standard"  # user-defined SLO classes rank like this class


class Queue(NamedTuple):
    """The requests that waited at one instance."""

    rows: list[int]  # rows of the requests, in order of arrival
    order: list[int]  # rows of the same requests, in order of the end of their waits


class Waits:
    """The waits of a run's requests at their instances."""

    def __init__(self, requests: RequestColumns, ended_ps: int) -> None:
        self.requests = requests
        self.ended_ps = ended_ps
        pairs = requests.select("started_ps", "finished_ps")
        # The time at which each wait ended: the first step began, the request gave up, or the run ended.
        self.left_ps = [began if began >= 0 else (end if end >= 0 else ended_ps) for began, end in pairs]

    @cached_property
    def queues(self) -> list[Queue]:
        """The queues, in the order of the instances' indexes."""
        requests = self.requests
        queues: dict[int, list[int]] = {}
        moved = requests.redirects if any(requests.redirects) else None
        places = requests.select("prefill_instance", "instance", "enqueued_ps")
        for row, (prefill, instance, enqueued) in enumerate(places):
            if enqueued >= 0 and not (moved and moved[row]):
                queues.setdefault(prefill if prefill >= 0 else instance, []).append(row)
        return [Queue(rows, sorted(rows, key=self.left_ps.__getitem__)) for _, rows in sorted(queues.items())]

    def waited_ps(self) -> list[int]:
        """Return the wait of each request at its instance. If the request reached no instance, or moved from one
        instance to another, its wait is 0."""
        requests = self.requests
        rows = zip(self.left_ps, requests.enqueued_ps, requests.redirects, strict=True)
        return [0 if since < 0 or moved else left - since for left, since, moved in rows]

    def inversions(self) -> dict[int, int]:
        """Return the requests that waited while their instance started less important requests. Each request maps to
        the least important request that overtook it. If several overtaking requests are equally unimportant, the first
        of them counts."""
        ranks = importance(self.requests)
        if ranks is None:
            return {}
        return {row: other for queue in self.queues for row, other in _find_passed(queue.order, self, ranks)}

    def blocked_ps(self) -> dict[int, int]:
        """Return how long each blocked request waited while its instance computed a much longer prompt.

        Both prompts are compared by the tokens that an instance computes, without cached tokens. Take the smallest
        power of two that is at least `LONG_TOKENS` and at least `LONG_FACTOR` times the tokens of the waiting prompt. A
        prompt with at least that many tokens is much longer.
        """
        computed = [tokens - cached for tokens, cached in self.requests.select("prompt_tokens", "cached_tokens")]
        queues = self.queues if max(computed, default=0) >= LONG_TOKENS else []
        return {row: time for queue in queues for row, time in _find_blocked(queue.order, self, computed)}


def importance(requests: RequestColumns) -> list[int] | None:
    """Return a rank for each request, higher if more important: by class, then by the score that the scheduler
    received. If all requests are equally important, return None."""
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
    """Yield each overtaken request with the request that overtook it.

    A started request stays on the stack until a less important request starts. Therefore the first request on the stack
    that started after a given time is the least important of all requests that started after that time.
    """
    enqueued, started, left = waits.requests.enqueued_ps, waits.requests.started_ps, waits.left_ps
    stack: list[tuple[int, int, int]] = []  # (start time, rank, row) of started requests
    same: list[int] = []  # rows of the requests that started at time `now`, which do not overtake each other
    now = -1
    for row in order:
        if left[row] != now:
            for other in same:
                while stack and stack[-1][1] > ranks[other]:
                    stack.pop()
                stack.append((now, ranks[other], other))
            same.clear()
            now = left[row]
        if stack and stack[-1][0] > enqueued[row]:
            _, rank, other = stack[bisect_right(stack, enqueued[row], key=itemgetter(0))]
            if rank < ranks[row]:
                yield row, other
        if started[row] >= 0:
            same.append(row)


class Spans:
    """The union of time spans. Spans must be added in order of their start."""

    __slots__ = ("before", "begins", "ends")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.before: list[int] = []  # for each span: total covered time before its start

    def add(self, begin: int, end: int) -> None:
        ends, before = self.ends, 0
        if ends:
            last = ends[-1]
            if begin <= last:
                if end > last:
                    ends[-1] = end
                return
            before = self.before[-1] + last - self.begins[-1]
        self.begins.append(begin)
        ends.append(end)
        self.before.append(before)

    def until(self, at: int) -> int:
        """Return how much of the time before `at` the spans cover."""
        place = bisect_right(self.begins, at) - 1
        return 0 if place < 0 else self.before[place] + min(at, self.ends[place]) - self.begins[place]


def _find_blocked(order: Iterable[int], waits: Waits, computed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the blocked requests with their blocked time. Level k of `spans_by_level` has the times at which the
    instance computed prompts of at least `LONG_TOKENS` · 2^k tokens."""
    requests, left = waits.requests, waits.left_ps
    enqueued, started = requests.enqueued_ps, requests.started_ps
    least = LONG_TOKENS.bit_length() - 1
    spans_by_level: list[Spans] = []
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
                spans_by_level.append(Spans())
            for spans in spans_by_level[:levels]:
                spans.add(started[row], end)


def _prefilled_ps(requests: RequestColumns, row: int, ended_ps: int) -> int:
    apart = requests.prefill_instance[row] >= 0
    end = requests.handed_ps[row] if apart else requests.first_token_ps[row]
    end = requests.finished_ps[row] if end < 0 else end
    return ended_ps if end < 0 else end

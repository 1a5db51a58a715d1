"""Who occupied the instances: the share of each group of requests in what late requests waited for.

A group is a tenant or a session. A request occupies its instance in three ways, each with a weight over a span of time:

* *prefill*, from its first step to the end of its prefill; the weight is its number of uncached prompt tokens per
  second;
* *slots*, from its first step to its end; the weight is 1;
* *kv*, over the same span as slots; the weight is its number of prompt and output tokens.

The share of a group at one time is its part of the weight of all requests at the instance. Its share in a period is the
mean over the period; where no request has weight, it is 0. In decode, a step that computes a prompt delays all requests
that decode. So the share in decode is the share in prefill, and the share in slots while no prompt is computed.

Each group has its weights as a list of changes, and each instance the integral of 1/weight over time. So a share takes
logarithmic time, however many requests and groups there are.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from headway.results.recorder import RequestColumns
from headway.results.time_split import QUEUED

PREFILL: Final = "prefill"
SLOTS: Final = "slots"
KV: Final = "kv"
DECODE: Final = "decode"
# For each part of a request's time: what it waits for in this part.
WAITED_FOR: Final = {
    **dict.fromkeys(QUEUED, PREFILL),
    "queue.slots": SLOTS,
    "queue.adapter": SLOTS,
    "queue.kv": KV,
    "prefill": PREFILL,
    "preemption": KV,
    "decode": DECODE,
}
Group = int | str
Span = tuple[int, int, float, Group]  # begin, end, weight, group


class Weights:
    """The weights of the groups at one instance over time."""

    def __init__(self, spans: Iterable[Span], groups: Collection[Group]) -> None:
        changes: list[tuple[int, float, Group]] = []
        for begin, end, weight, group in spans:
            if end > begin and weight > 0:
                changes += [(begin, weight, group), (end, -weight, group)]
        changes.sort(key=lambda change: change[0])
        # `_inverse[k]` is the integral of 1/weight up to `_times[k]`, and `_busy[k]` the time with a weight until then.
        self._times: list[int] = []
        self._inverse: list[float] = []
        self._busy: list[int] = []
        self._totals: list[float] = []
        # For each group: the integral of 1/weight at each change of the group, its own weight from then on, and the
        # integral of its share up to then.
        self._own: dict[Group, tuple[list[float], list[float], list[float]]] = {
            group: ([0.0], [0.0], [0.0]) for group in groups
        }
        inverse, busy, total, present, now = 0.0, 0, 0.0, 0, 0
        for at, weight, group in changes:
            if at > now:
                if present:
                    inverse += (at - now) / total
                    busy += at - now
                now = at
            present += 1 if weight > 0 else -1
            total = total + weight if present else 0.0
            if self._times and self._times[-1] == at:
                self._totals[-1] = total
            else:
                self._times.append(at)
                self._inverse.append(inverse)
                self._busy.append(busy)
                self._totals.append(total)
            if group in self._own:
                places, weights, sums = self._own[group]
                sums.append(sums[-1] + weights[-1] * (inverse - places[-1]))
                places.append(inverse)
                weights.append(max(0.0, weights[-1] + weight))

    def _until(self, at: int) -> tuple[float, float]:
        """Return the integral of 1/weight and the busy time up to a time."""
        place = bisect_right(self._times, at) - 1
        if place < 0:
            return 0.0, 0.0
        total, since = self._totals[place], at - self._times[place]
        if total <= 0:
            return self._inverse[place], self._busy[place]
        return self._inverse[place] + since / total, self._busy[place] + since

    def share(self, group: Group, begin: int, end: int) -> float:
        """Return the mean share of a group in a period."""
        if group not in self._own or end <= begin:
            return 0.0
        places, weights, sums = self._own[group]
        totals = []
        for at in (begin, end):
            inverse, _ = self._until(at)
            place = bisect_right(places, inverse) - 1
            totals.append(sums[place] + weights[place] * (inverse - places[place]))
        return min(1.0, max(0.0, totals[1] - totals[0]) / (end - begin))

    def busy(self, begin: int, end: int) -> float:
        """Return the fraction of a period in which any request has weight."""
        return (self._until(end)[1] - self._until(begin)[1]) / (end - begin) if end > begin else 0.0


class Occupancy:
    """The shares of groups at each instance."""

    def __init__(
        self,
        requests: RequestColumns,
        group_of: Sequence[Group],
        groups: Collection[Group],
        left_ps: Sequence[int],
        ended: int,
    ) -> None:
        """`group_of` has the group of each request. Shares are known only for `groups`. `left_ps` has the time at which
        each request began its first step."""
        self._requests = requests
        self._left_ps = left_ps
        self._ended = ended
        self._group_of = group_of
        self._groups = groups
        self._weights: dict[str, dict[int, Weights]] = {}  # by kind and instance; each kind is computed when needed
        self._none = Weights((), ())

    def weights(self, kind: str, instance: int) -> Weights:
        if kind not in self._weights:
            spans: defaultdict[int, list[Span]] = defaultdict(list)
            for row, group in enumerate(self._group_of):
                for at, span in _spans(self._requests, row, group, self._ended, kind):
                    spans[at].append(span)
            self._weights[kind] = {at: Weights(found, self._groups) for at, found in spans.items()}
        return self._weights[kind].get(instance, self._none)

    def busy(self, kind: str, instance: int, begin: int, end: int) -> float:
        return self.weights(kind, instance).busy(begin, end)

    def share(self, kind: str, instance: int, group: Group, begin: int, end: int) -> float:
        """Return the mean share of a group in what a request waits for at an instance in a period."""
        if kind != DECODE:
            return self.weights(kind, instance).share(group, begin, end)
        prefill = self.weights(PREFILL, instance)
        rest = 1 - prefill.busy(begin, end)
        return prefill.share(group, begin, end) + rest * self.weights(SLOTS, instance).share(group, begin, end)

    def period(self, row: int, part: str) -> tuple[int, int, int]:
        """Return the instance at which a request spends a part of its time, and the period."""
        requests = self._requests
        prefill, instance = requests.prefill_instance[row], requests.instance[row]
        home = prefill if prefill >= 0 else instance
        end = requests.finished_ps[row] if requests.finished_ps[row] >= 0 else self._ended
        first, handed = requests.first_token_ps[row], requests.handed_ps[row]
        computed = handed if handed >= 0 else first if first >= 0 else end
        left = min(self._left_ps[row], end)
        entered = left + requests.loading_ps[row] + requests.ready_ps[row]
        if part in QUEUED:
            return home, requests.enqueued_ps[row], entered if requests.ready_ps[row] else left
        if part == "prefill":
            return home, entered, computed
        return instance, computed, end

    def blame(self, row: int, shares: Mapping[str, float], group: Group) -> float:
        """Return the fraction of a request's loss that a group explains. `shares` has the request's loss by part."""
        blame = 0.0
        for part, share in shares.items():
            kind = WAITED_FOR.get(part)
            if kind is not None:
                instance, begin, end = self.period(row, part)
                blame += share * self.share(kind, instance, group, begin, end)
        return blame


def _spans(requests: RequestColumns, row: int, group: Group, ended: int, kind: str) -> list[tuple[int, Span]]:
    """Return when a request occupies which instances in one way."""
    started = requests.started_ps[row]
    if started < 0 or requests.redirects[row]:
        return []
    end = requests.finished_ps[row] if requests.finished_ps[row] >= 0 else ended
    prefill, instance, handed = requests.prefill_instance[row], requests.instance[row], requests.handed_ps[row]
    home = prefill if prefill >= 0 else instance
    if kind == PREFILL:
        first = requests.first_token_ps[row]
        computed = handed if handed >= 0 else first if first >= 0 else end
        tokens = max(1, requests.prompt_tokens[row] - requests.cached_tokens[row])
        return [(home, (started, computed, tokens / max(1, computed - started), group))]
    weight = 1.0 if kind == SLOTS else float(requests.prompt_tokens[row] + requests.output_tokens[row])
    if handed >= 0 and instance != home:
        return [(home, (started, handed, weight, group)), (instance, (handed, end, weight, group))]
    return [(home, (started, end, weight, group))]

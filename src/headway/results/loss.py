"""The loss of a run: its late requests, and the parts of their time in which they lost time.

A request is late if it missed a target, or was rejected, timed out or failed. If the run has no targets, a request is
also late if it lost at least `LEAST_PS` and at least half of its time. Each late request counts as 1, divided over the
parts of its time in proportion to the time that it lost there.

All time is lost in the parts that are waits. In the parts of `WORK`, only the time beyond the usual time is lost. The
usual time per token is the 10th percentile over the run's requests of the same model and about the same length. If the
request has a TPOT target, its usual decode time is at most this target. If a request missed TTFT alone, only the parts
before the first token count; if it missed TPOT alone, only the parts after it. A rejected or failed request that lost
no time counts under `rejected` or `failed`. Any other late request that lost no time counts under its longest part.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Final, NamedTuple

from headway.results.recorder import FAILED, REJECTED, RequestColumns
from headway.results.time_split import QUEUED, TimeSplit
from headway.types import PS_PER_SECOND

WORK: Final = ("prefill", "transfer", "decode")  # parts in which a request progresses
BEFORE: Final = ("router", *QUEUED, "load", "prefill")  # parts before the first token
TRANSFERS: Final = ("transfer_wait", "transfer")  # before or after the first token, depending on `first_token`
AFTER: Final = ("preemption", "decode")
REJECTION: Final = "rejected"
FAILURE: Final = "failed"
PARTS: Final = (*BEFORE, *TRANSFERS, *AFTER, "moved", REJECTION, FAILURE)
MOST: Final = 2000  # of more late requests, or of more requests for the usual times, only every k-th is examined
LEAST_PS: Final = PS_PER_SECOND
QUICK: Final = 10  # one request in this many is at least as quick as the usual time

Group = tuple[str, int, int]  # (part, model, bits of the number of tokens)
Usual = Mapping[Group, float]  # picoseconds per token


class Work(NamedTuple):
    """What some requests did in one part: a column each."""

    times: Sequence[int]
    tokens: Sequence[int]
    groups: Sequence[Group]


class Loss:
    """`late` has the rows of the examined late requests, in order. `late_count` is the number of all late requests, and
    `late_share` their fraction of the counted requests."""

    def __init__(
        self,
        requests: RequestColumns,
        split: TimeSplit,
        counted: Sequence[int],
        missed: Mapping[int, Collection[str]],
        tpot_ps: Callable[[int], int | None],
        *,
        has_targets: bool,
    ) -> None:
        """`counted` are the rows that the metrics count. `missed` maps each row that missed a target or was not
        completed to the targets that it missed. `tpot_ps` returns the target of a row."""
        self._requests = requests
        judged = every_kth(counted) if missed or not has_targets else []
        times = split.columns(judged)
        work = work_of(requests, judged, times)
        usual = usual_times(work)
        rows = judged
        if has_targets:
            rows = every_kth(list(missed))
            times = split.columns(rows)
            work = work_of(requests, rows, times)
        targets = [tpot_ps(row) for row in rows] if has_targets else []
        lost = {
            part: lost_work(work[part], usual, targets if part == "decode" else [])
            if part in work
            else [float(time) if time > 0 else 0.0 for time in column]
            for part, column in times.items()
        }
        self._shares: dict[int, dict[str, float]] = {}
        for place in range(len(rows)) if has_targets else late_places(rows, missed, times, lost):
            row = rows[place]
            own = {part: column[place] for part, column in times.items() if column[place]}
            waste = {part: column[place] for part, column in lost.items() if column[place]}
            self._shares[row] = self._divide(row, own, waste, missed.get(row, ()))
        self.late = list(self._shares)
        late, of = (len(missed), len(counted)) if has_targets else (len(self.late), len(rows))
        self.late_share = late / of if of else 0.0
        self.late_count = round(self.late_share * len(counted))
        totals = dict.fromkeys(PARTS, 0.0)
        for shares in self._shares.values():
            for part, share in shares.items():
                totals[part] += share
        # The fraction of the whole loss in each part.
        self.by_part = {part: total / len(self.late) for part, total in totals.items() if total}

    def shares(self, row: int) -> dict[str, float]:
        """Return the fraction of a late request's loss in each part; an empty dict if the request is not late."""
        return self._shares.get(row, {})

    def of(self, row: int, parts: Collection[str] | None = None) -> float:
        """Return the fraction of a request's loss in these parts, or 1 for all parts; 0 if the request is not late."""
        shares = self.shares(row)
        return float(bool(shares)) if parts is None else sum(shares.get(part, 0.0) for part in parts)

    def share(self, rows: Iterable[int], parts: Collection[str] | None = None) -> float:
        """Return the fraction of the whole loss that these requests lost in these parts."""
        return sum(self.of(row, parts) for row in rows) / len(self.late) if self.late else 0.0

    def claim(self, fractions: Mapping[int, float]) -> float:
        """Return the fraction of the whole loss, if a cause explains these fractions of the requests' loss."""
        explained = sum(min(1.0, fraction) for row, fraction in fractions.items() if row in self._shares)
        return explained / len(self.late) if self.late else 0.0

    def count(self, examined: int) -> int:
        """Return the number of late requests of which this many were examined."""
        return round(self.late_count * examined / len(self.late)) if self.late else 0

    def within(self, at_ps: int, until_ps: int) -> list[int]:
        """Return the late requests that arrived in a period."""
        arrivals = self._requests.arrival_ps
        begin, end = (bisect_left(self.late, at, key=arrivals.__getitem__) for at in (at_ps, until_ps + 1))
        return self.late[begin:end]

    def main_period(self, weights: Mapping[int, float]) -> tuple[int, int]:
        """Return the times of arrival between which most of a loss lies: its 5th and 95th percentile."""
        rows = sorted(row for row, weight in weights.items() if weight > 0)
        sums = list(accumulate(weights[row] for row in rows))
        first, last = (rows[min(bisect_left(sums, part * sums[-1]), len(rows) - 1)] for part in (0.05, 0.95))
        return self._requests.arrival_ps[first], self._requests.arrival_ps[last]

    def _divide(
        self, row: int, times: Mapping[str, int], lost: Mapping[str, float], targets: Collection[str]
    ) -> dict[str, float]:
        parts = self._phases(row, targets)
        weights: Mapping[str, float] = {part: time for part, time in lost.items() if part in parts}
        if not weights:
            outcome = self._requests.outcome[row]
            if outcome in (REJECTED, FAILED):
                return {REJECTION if outcome == REJECTED else FAILURE: 1.0}
            own = {part: time for part, time in times.items() if part in parts} or times or {"router": 1}
            weights = {max(own, key=own.__getitem__): 1.0}
        total = sum(weights.values())
        return {part: weight / total for part, weight in weights.items()}

    def _phases(self, row: int, targets: Collection[str]) -> Collection[str]:
        """Return the parts in which a request can lose time that makes it miss these targets."""
        if set(targets) not in ({"ttft"}, {"tpot"}):
            return PARTS
        requests = self._requests
        decoded_first = 0 <= requests.transferred_ps[row] <= requests.first_token_ps[row]
        if set(targets) == {"ttft"}:
            return (*BEFORE, *TRANSFERS) if decoded_first else BEFORE
        return AFTER if decoded_first else (*TRANSFERS, *AFTER)


def every_kth(rows: Sequence[int]) -> Sequence[int]:
    """Return all rows, or every k-th if there are more than `MOST`."""
    return rows[:: -(-len(rows) // MOST) or 1]


def late_places(
    rows: Sequence[int], ended: Collection[int], times: Mapping[str, Sequence[int]], lost: Mapping[str, Sequence[float]]
) -> list[int]:
    """Return the places in `rows` of the requests that are late in a run without targets: those in `ended`, which were
    not completed, and those that lost much of their time."""
    whole, waste = [0] * len(rows), [0.0] * len(rows)
    for part, column in times.items():
        whole, waste = list(map(add, whole, column)), list(map(add, waste, lost[part]))
    return [
        place
        for place, (row, time, total) in enumerate(zip(rows, whole, waste, strict=True))
        if (total >= LEAST_PS and 2 * total >= time) or row in ended
    ]


def tokens_of(requests: RequestColumns, rows: Sequence[int], part: str) -> list[int]:
    """Return the number of tokens that each of these requests computes or sends in a part of its time."""
    if part == "decode":
        outputs = requests.output_tokens
        return [max(1, outputs[row] - 1) for row in rows]
    prompts, cached = requests.prompt_tokens, requests.cached_tokens
    if part == "prefill":
        return [max(1, prompts[row] - cached[row]) for row in rows]
    return [max(1, prompts[row]) for row in rows]


def work_of(requests: RequestColumns, rows: Sequence[int], times: Mapping[str, Sequence[int]]) -> dict[str, Work]:
    """Return what these requests did in each part of `WORK`. Only requests in the same group are compared: the time per
    token hardly depends on the number of tokens in decode, but a short prompt has much more time per token than a long
    one."""
    models = [requests.model[row] for row in rows]
    work = {}
    for part in (part for part in WORK if part in times):
        tokens = tokens_of(requests, rows, part)
        bits = repeat(0) if part == "decode" else map(int.bit_length, tokens)
        work[part] = Work(times[part], tokens, list(zip(repeat(part), models, bits, strict=False)))
    return work


def usual_times(work: Mapping[str, Work]) -> Usual:
    rates: dict[Group, list[float]] = {}
    for part in work.values():
        for time, tokens, group in zip(*part, strict=True):
            if time:
                rates.setdefault(group, []).append(time / tokens)
    return {group: sorted(values)[len(values) // QUICK] for group, values in rates.items()}


def lost_work(work: Work, usual: Usual, targets: Sequence[int | None]) -> list[float]:
    """Return the time of each request beyond its usual time, or 0. `targets`, if there are any, are the most that
    the usual times per token may be."""
    rates = [usual.get(group, 0.0) for group in work.groups]
    if targets:
        rates = [rate if most is None else min(rate, most) for rate, most in zip(rates, targets, strict=True)]
    more = zip(work.times, rates, work.tokens, strict=True)
    return [lost if (lost := time - rate * tokens) > 0 else 0.0 for time, rate, tokens in more]

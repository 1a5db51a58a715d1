"""Builds decisions from the columns of a log. Decisions with the same candidates are built together, because work on
whole columns is several times as fast as work on single decisions."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from math import isnan
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any, Final

from headway.results.decisions import RECORDED, Decision
from headway.results.router_past import RouterPast
from headway.results.table import Coded, Table
from headway.types import PS_PER_SECOND
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.results.decision_log import DecisionLog

TOGETHER: Final = 1024  # number of decisions that an iteration builds at a time
ENDS: Final = (
    "arrival_ps", "first_token_ps", "finished_ps", "outcome", "cached_tokens", "predicted_tokens", "loaded_from",
)  # fmt: skip
LOAD: Final = ("running", "pending_prefill_tokens", "inflight_tokens")  # the signals that an estimate needs
Columns = dict[str, list[Any]]


class DecisionRows:
    """The decisions of a finished run, with the outcomes of the requests."""

    def __init__(self, log: DecisionLog, requests: Table) -> None:
        self.log, self.requests = log, requests
        ends = map(requests.column, ENDS)
        self.ends = [list(column) if isinstance(column, Coded) else column for column in ends]
        self.sets = log.sets.words
        self._past: RouterPast | None = None

    @property
    def past(self) -> RouterPast:
        if self._past is None:
            self._past = RouterPast(self.requests, self.log.request, self.log.queues)
        return self._past

    def __len__(self) -> int:
        return len(self.log)

    def choices(self) -> Iterable[tuple[int, int]]:
        counts = [len(candidates) for candidates in self.sets]
        return zip(self.log.request, map(counts.__getitem__, self.log.candidates), strict=True)

    def __getitem__(self, place: int, /) -> Decision:
        (decision,) = self._build(range(place, place + 1), self.log.candidates[place])
        return decision

    def __iter__(self) -> Iterator[Decision]:
        for first in range(0, len(self), TOGETHER):
            places = range(first, min(first + TOGETHER, len(self)))
            sets = self.log.candidates[places.start : places.stop].tolist()
            known = dict.fromkeys(sets)
            if len(known) == 1:
                yield from self._build(places, sets[0])
                continue
            of = {
                number: [place for place, each in zip(places, sets, strict=True) if each == number] for number in known
            }
            built = {number: iter(self._build(own, number)) for number, own in of.items()}
            for number in sets:
                yield next(built[number])

    def _build(self, places: Sequence[int], number: int) -> Iterable[Decision]:
        """Build the decisions at these places, which have the same set of candidates."""
        log, candidates = self.log, self.sets[number]
        pick = picker(places)
        columns: Columns = {
            name: pick(getattr(log, name)) for name in ("request", "at_ps", "router", "target", "prefill", "priority")
        }
        columns["prompt_tokens"] = pick(log.prompt_tokens)
        columns["reason"] = [log.reasons.words[reason] for reason in pick(log.reason)]
        columns["lowest_wins"] = list(map(bool, pick(log.lowest_wins)))
        columns["prefix"] = [f"{prefix:x}" if prefix else "" for prefix in pick(log.prefix)]
        expected = [log.estimates.get(place) for place in places] if log.estimates else [None] * len(places)
        columns["expected_tokens"] = [None if estimate is None else estimate.tokens for estimate in expected]
        columns["expected_error"] = [None if estimate is None else estimate.error for estimate in expected]
        columns["candidates"] = list(map(list, repeat(candidates, len(places))))
        self._read_signals(columns, pick(log.first), candidates)
        self._read_past(columns, places, candidates)
        self._read_scores(columns, pick(log.scored), pick(log.scorers), len(candidates))
        self._read_ends(columns)
        return map(Decision, *[columns[name] for name in Decision.__struct_fields__])

    def _read_signals(self, columns: Columns, firsts: list[int], candidates: Sequence[int]) -> None:
        """Add the signals of the candidates, and what follows from them: beliefs and estimates."""
        log, count = self.log, len(candidates)
        flat = {name: cells(column, firsts, count) for name, column in log.signals.items()}
        starts = range(0, count * len(firsts), count) if count else [0] * len(firsts)
        for name in RECORDED:
            if name in flat:
                values = flat[name]
                columns[name] = [values[at : at + count] for at in starts]
            else:
                columns[name] = [[] for _ in starts]
        if used := _used_by_tier(flat):
            columns["tier_used"] = [used[at : at + count] for at in starts]
        size = log.block_tokens
        prompts = list(chain.from_iterable(map(repeat, columns["prompt_tokens"], repeat(count))))
        believed = [
            cached if (cached := blocks * size) < tokens else tokens
            for blocks, tokens in zip(cells(log.believed, firsts, count), prompts, strict=True)
        ]
        columns["believed_tokens"] = [believed[at : at + count] for at in starts]
        loads = [list(map(sub, prompts, believed)), *map(flat.__getitem__, LOAD)]
        needed = self._needed_roles(columns, candidates)
        columns["estimated_ttft_ps"] = transposed(
            [
                self._estimate(log.views[index], needed, [load[place::count] for load in loads])
                for place, index in enumerate(candidates)
            ],
            len(firsts),
        )

    def _needed_roles(self, columns: Columns, candidates: Sequence[int]) -> list[str]:
        """Return for each decision the role of the instances that compute its prompt. If all candidates have the role
        both, return an empty list."""
        views = self.log.views
        if all(views[index].role == "both" for index in candidates):
            return []
        decisions = zip(columns["prefill"], columns["target"], strict=True)
        return ["decode" if prefill < 0 and views[at].role == "decode" else "prefill" for prefill, at in decisions]

    def _estimate(self, view: InstanceView, needed: list[str], loads: list[list[int]]) -> list[int]:
        """Return the TTFT that the latency model estimates for an instance; -1 for prompts that the instance cannot
        compute. `needed` has the roles that can, `loads` the tokens to compute and the signals of LOAD."""
        role, each = view.role, list(zip(*loads, strict=True))
        if role not in ("both", *needed):
            return [-1] * len(needed)
        able = each if role == "both" else [load for load, one in zip(each, needed, strict=True) if one == role]
        known = {load: round(view.estimate(*load) * PS_PER_SECOND) for load in dict.fromkeys(able)}  # loads recur
        if len(able) == len(each):
            return [known[load] for load in each]
        return [known[load] if one == role else -1 for load, one in zip(each, needed, strict=True)]

    def _read_past(self, columns: Columns, places: Sequence[int], candidates: Sequence[int]) -> None:
        """Add what follows from the requests of the run: the states of router and tenant, and recent latencies."""
        past, now_ps = self.past, columns["at_ps"]
        columns["router_state"], columns["tenant"] = past.states(places, columns["request"], now_ps)
        for name in past.recent:
            columns[name] = transposed([past.recent_of(name, index, now_ps) for index in candidates], len(places))
        if "hit_rate" not in self.log.signals:  # no policy reads it, so the run does not maintain it
            known = candidates if past.hits else ()
            columns["hit_rate"] = transposed([past.hit_rates(index, now_ps) for index in known], len(places))

    def _read_scores(self, columns: Columns, starts: list[int], cards: list[int], count: int) -> None:
        scores: list[dict[str, list[float | None]]] = []
        totals: list[list[float | None]] = []
        columns["scores"], columns["totals"] = scores, totals
        for card, same in groupby(zip(cards, starts, strict=True), key=itemgetter(0)):
            firsts = [start for _, start in same]
            if card < 0:
                scores += [{} for _ in firsts]
                totals += [[] for _ in firsts]
                continue
            names = self.log.cards.words[card]
            numbers: list[Any] = cells(self.log.scores, firsts, (1 + len(names)) * count)
            if isnan(sum(numbers)):  # a candidate has no score; or two scores are infinite
                numbers = [number if number == number else None for number in numbers]
            rows = [numbers[at : at + count] for at in range(0, len(numbers), count)]
            totals += rows[:: 1 + len(names)]
            if names:
                by_scorer = [rows[place :: 1 + len(names)] for place in range(1, 1 + len(names))]
                scores += [dict(zip(names, each, strict=True)) for each in zip(*by_scorer, strict=True)]
            else:
                scores += [{} for _ in firsts]

    def _read_ends(self, columns: Columns) -> None:
        """Add the outcomes of the requests."""
        rows = columns["request"]
        arrival, first, ended, outcome, cached, predicted, tier = [
            list(map(column.__getitem__, rows)) for column in self.ends
        ]
        columns["predicted_tokens"], columns["cached_tokens"], columns["outcome"] = predicted, cached, outcome
        columns["tier"] = [slow or ("gpu" if tokens else "") for slow, tokens in zip(tier, cached, strict=True)]
        columns["ttft_ps"] = [at - came if at >= 0 else -1 for at, came in zip(first, arrival, strict=True)]
        columns["e2e_ps"] = [
            at - came if how == "completed" else -1 for at, came, how in zip(ended, arrival, outcome, strict=True)
        ]


def picker(places: Sequence[int]) -> Callable[[array[Any]], list[Any]]:
    """Return a function that returns the entries of a column at these places."""
    if isinstance(places, range):
        return lambda column: column[places.start : places.stop].tolist()
    return lambda column: [column[place] for place in places]


def cells(column: array[Any], firsts: list[int], count: int) -> list[Any]:
    """Return the `count` entries of a column from each of these indices on, in one list."""
    if firsts[-1] - firsts[0] == count * (len(firsts) - 1):  # there are no other entries between them
        return column[firsts[0] : firsts[-1] + count].tolist()
    return list(chain.from_iterable(column[first : first + count] for first in firsts))


def transposed(columns: list[list[Any]], length: int) -> list[list[Any]]:
    """Return the rows of these columns. Without columns, return `length` empty rows."""
    return list(map(list, zip(*columns, strict=True))) if columns else [[] for _ in range(length)]


def _used_by_tier(flat: Mapping[str, list[Any]]) -> list[dict[str, int]]:
    """Return for each candidate of each decision how many blocks of each of its stores are in use. `flat` has one
    column for each store, with the value -1 for a candidate that does not have the store."""
    stores = {name.partition(".")[2]: values for name, values in flat.items() if "." in name}
    return [
        {name: used for name, used in zip(stores, each, strict=True) if used >= 0}
        for each in zip(*stores.values(), strict=True)
    ]

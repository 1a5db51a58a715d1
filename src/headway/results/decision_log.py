"""Records decisions in columns during a run. A column has one entry per decision, or one entry per candidate."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from math import isnan, nan
from operator import attrgetter
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from headway.policies.context import Context
from headway.results.decisions import RECORDED, Decision, Decisions, PriorityRecord, Verdict
from headway.results.router_past import RouterPast
from headway.results.table import Table
from headway.types import PS_PER_SECOND, Delay, Estimate, Json, Priority, Reject, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import SIGNALS, InstanceView

ENDS = ("arrival_ps", "first_token_ps", "finished_ps", "outcome", "cached_tokens", "predicted_tokens", "loaded_from")
TYPE_CODES: Final = {"tokens": "q", "share": "d"}  # kind of a signal -> type code of its column; others: "i"
LARGEST_KEY: Final = (1 << 64) - 1
Candidates = tuple[int, ...]
Word = TypeVar("Word")


@cache
def packer(count: int) -> Callable[..., bytes]:
    """Return a function that packs `count` floats. For many numbers this is faster than `array.fromlist`."""
    return Struct(f"{count}d").pack


class DecisionLog:
    """The decisions of all routers, in order. A `Decision` is built on access."""

    def __init__(self, queues: bool = False) -> None:
        """`queues` says whether requests may wait in a queue at the router."""
        self.queues = queues
        self.verdicts: list[Verdict] = []
        self.priorities: list[PriorityRecord] = []
        self.requests: Table | None = None
        self.ends: list[Sequence[Any]] = []  # the columns of `requests` that ENDS names
        self.request, self.at_ps = array("q"), array("q")
        self.router, self.target, self.prefill = array("i"), array("i"), array("i")
        self.priority = array("d")
        self.reason, self.reasons = array("i"), Words[str]()
        self.candidates, self.sets = array("i"), Words[Candidates]()
        self.first = array("q")  # index of the decision's first candidate in the per-candidate columns
        self.signals: dict[str, array[Any]] = {}  # name of a signal -> its value for each candidate
        self.believed = array("i")  # for each candidate: number of prompt blocks that the router's index has as cached
        self.prompt_tokens = array("q")
        self.prefix = array("Q")  # key of the first run of the prompt's tokens; 0 if it is not recorded
        self.past: RouterPast | None = None
        self.views: Sequence[InstanceView] = ()
        self.block_tokens = 1  # number of tokens in a block of the prefix indexes
        # For each decision: the names of its scorers (a number from `cards`), whether the lowest total wins, and the
        # index in `scores` at which the decision's scores begin.
        self.scorers, self.cards = array("i"), Words[tuple[str, ...]]()
        self.lowest_wins = array("b")
        self.scored = array("q")
        self.estimates: dict[int, Estimate] = {}  # index of a decision -> estimate; empty without an estimator
        self.scores = array("d")  # for each decision: the candidates' totals, then their scores by scorer; NaN: none

    def journal(self, router: int) -> RouterJournal:
        return RouterJournal(self, router)

    def decisions(self, requests: Table) -> Decisions:
        """Return the decisions of a finished run, with the outcomes of the requests."""
        self.requests, self.past, self.ends = requests, None, []
        return Decisions(self, self.verdicts)

    def watch(self, signals: Iterable[str]) -> None:
        """Record these signals for every candidate. The signal of a single store has the name `tier_used.cpu`."""
        for name in signals:
            self.signals.setdefault(name, array(TYPE_CODES.get(SIGNALS[name.partition(".")[0]].kind, "i")))

    def take(
        self,
        request: int,
        at_ps: int,
        router: int,
        target: int,
        prefill: int,
        priority: float,
        reason: str,
        candidates: int,
        signals: list[list[Any]],
        believed: list[int],
        prompt_tokens: int,
        prefix: int,
    ) -> None:
        """Record a decision. `candidates` is the index of the decision's set of candidates in `sets`. `signals` has one
        list per signal, in the order of `watch`, with a value per candidate. Call `score` next."""
        self.request.append(request)
        self.at_ps.append(at_ps)
        self.router.append(router)
        self.target.append(target)
        self.prefill.append(prefill)
        self.priority.append(priority)
        self.reason.append(self.reasons.number(reason))
        self.candidates.append(candidates)
        self.first.append(len(self.believed))
        for column, values in zip(self.signals.values(), signals, strict=True):
            column.fromlist(values)
        self.believed.fromlist(believed)
        self.prompt_tokens.append(prompt_tokens)
        self.prefix.append(prefix)

    def score(self, card: Scorecard | None, names: Sequence[str], estimate: Estimate | None = None) -> None:
        """Record the scorecard of the last decision, if it has one; `names` are the names of its candidates. `estimate`
        is the expected length of the answer."""
        if estimate is not None:
            self.estimates[len(self.scored)] = estimate
        self.scored.append(len(self.scores))
        self.lowest_wins.append(card is not None and card.lowest_wins)
        if card is None:
            self.scorers.append(-1)
            return
        rows, count = card.scores, len(names)
        if card.prefill is None and len(card.totals) == count and list(map(len, rows.values())) == [count] * len(rows):
            self.scorers.append(self.cards.number(tuple(rows)))  # the usual case: no candidate was filtered out
            numbers = [*card.totals, *chain.from_iterable(rows.values())]
            self.scores.frombytes(packer(len(numbers))(*numbers))
            return
        halves = [card] if card.prefill is None else [card, card.prefill]
        scorers = tuple(dict.fromkeys(name for half in halves for name in half.scores))
        self.scorers.append(self.cards.number(scorers))
        for scorer in (None, *scorers):
            scores: dict[str, float] = {}
            for half in halves:
                row = half.totals if scorer is None else half.scores.get(scorer, [])
                scores.update(zip(half.left, row, strict=False))
            self.scores.extend([scores.get(name, nan) for name in names])

    def __len__(self) -> int:
        return len(self.request)

    def choices(self) -> Iterable[tuple[int, int]]:
        counts = [len(candidates) for candidates in self.sets.words]
        return zip(self.request, map(counts.__getitem__, self.candidates), strict=True)

    def __getitem__(self, place: int, /) -> Decision:
        candidates = self.sets.words[self.candidates[place]]
        count, first = len(candidates), self.first[place]
        end = first + count
        signals = {name: column[first:end].tolist() for name, column in self.signals.items()}
        counts = signals["running"], signals["pending_prefill_tokens"], signals["inflight_tokens"]
        tokens, size = self.prompt_tokens[place], self.block_tokens
        believed = [min(tokens, blocks * size) for blocks in self.believed[first:end]]
        views = [self.views[index] for index in candidates]
        uncached = [tokens - cached for cached in believed]
        itself = self.prefill[place] < 0 and self.views[self.target[place]].role == "decode"
        idle = "prefill" if itself else "decode"  # the role whose instances do not compute this prompt
        scores, totals = self._card(place, count)
        recorded: Json = {name: signals.get(name, []) for name in RECORDED}  # empty lists if not recorded
        recorded["tier_used"] = _by_tier(signals, count)
        return Decision(
            request=self.request[place],
            at_ps=self.at_ps[place],
            router=self.router[place],
            target=self.target[place],
            prefill=self.prefill[place],
            reason=self.reasons.words[self.reason[place]],
            priority=self.priority[place],
            candidates=list(candidates),
            believed_tokens=believed,
            estimated_ttft_ps=[
                -1 if view.role == idle else round(view.estimate(*load) * PS_PER_SECOND)
                for view, *load in zip(views, uncached, *counts, strict=True)
            ],
            scores=scores,
            totals=totals,
            lowest_wins=bool(self.lowest_wins[place]),
            prompt_tokens=tokens,
            prefix=f"{prefix:x}" if (prefix := self.prefix[place]) else "",
            **({} if (estimate := self.estimates.get(place)) is None else _expected(estimate)),
            **recorded | self._state(place, candidates),
            **self._end(self.request[place]),
        )

    def _end(self, row: int) -> Json:
        if self.requests is None:
            return {}
        if not self.ends:
            self.ends = [self.requests.column(name) for name in ENDS]
        arrival, first, ended, outcome, cached, predicted, tier = [column[row] for column in self.ends]
        return {
            "predicted_tokens": predicted,
            "cached_tokens": cached,
            "tier": tier or ("gpu" if cached else ""),
            "outcome": outcome,
            "ttft_ps": first - arrival if first >= 0 else -1,
            "e2e_ps": ended - arrival if outcome == "completed" else -1,
        }

    def _state(self, place: int, candidates: Candidates) -> Json:
        """Return what follows from the requests of the run: the states of router and tenant, and recent latencies."""
        if self.requests is None:
            return {}
        if self.past is None:
            self.past = RouterPast(self.requests, self.request, self.queues)
        past, now_ps = self.past, self.at_ps[place]
        router, tenant = past.states(place, self.request[place], now_ps)
        recent: Json = {name: past.recent(name, candidates, now_ps) for name in ("recent_ttft", "recent_tpot")}
        if "hit_rate" not in self.signals:  # no policy reads it, so the run does not maintain it
            recent["hit_rate"] = past.hit_rates(candidates, now_ps)
        return {"router_state": router, "tenant": tenant, **recent}

    def _card(self, place: int, count: int) -> tuple[dict[str, list[float | None]], list[float | None]]:
        if self.scorers[place] < 0:
            return {}, []
        names, at = self.cards.words[self.scorers[place]], self.scored[place]
        rows: list[list[float | None]] = []
        for begin in range(at, at + (1 + len(names)) * count, count):
            numbers: list[Any] = self.scores[begin : begin + count].tolist()
            if isnan(sum(numbers)):  # a candidate has no score; or two scores are infinite
                rows.append([None if isnan(number) else number for number in numbers])
            else:
                rows.append(numbers)
        return dict(zip(names, rows[1:], strict=True)), rows[0]


def _expected(estimate: Estimate) -> Json:
    return {"expected_tokens": estimate.tokens, "expected_error": estimate.error}


def _by_tier(signals: dict[str, list[Any]], count: int) -> list[dict[str, int]]:
    """Return for each candidate how many blocks of each of its stores are in use. `signals` has one column for each
    store, with the value -1 for a candidate that does not have the store."""
    stores = {name.partition(".")[2]: values for name, values in signals.items() if "." in name}
    if not stores:
        return []
    return [{name: values[at] for name, values in stores.items() if values[at] >= 0} for at in range(count)]


class Words(Generic[Word]):
    """Values that occur often. Each value is stored once, and other columns refer to it by a number."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.numbers: dict[Word, int] = {}

    def number(self, word: Word) -> int:
        number = self.numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number


class RouterJournal:
    """Records the decisions of one router. If the router's policies keep no prefix index, the journal keeps its own
    index, which the policies cannot see. This index shows which cached prefixes the router could have known."""

    def __init__(self, log: DecisionLog, router: int) -> None:
        self.log = log
        self.router = router

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        self.views = views = context.instances
        self.cluster = cluster
        self.places = {view.id: view.index for view in views}
        self.all_places = tuple(range(len(views)))
        self.instances: tuple[InstanceView, ...] = ()
        self.candidates: Candidates = ()
        self.names: list[str] = []
        self.number = self.log.sets.number(())  # number of the current candidate set in `log.sets`
        self.own = not context.indexes
        self.index = context.hidden_index() if self.own else context.indexes[0]
        self.log.views, self.log.block_tokens = views, self.index.block_tokens
        names = recorded_signals(reported)
        self.getters: list[Callable[[InstanceView], Any]] = [attrgetter(name) for name in names if name != "tier_used"]
        stores: list[str] = []
        if "tier_used" in names:
            stores = list(dict.fromkeys(store for view in views for store in view.tier_blocks))
            self.getters += [partial(_store_used, store) for store in stores]
        self.log.watch([*(name for name in names if name != "tier_used"), *(f"tier_used.{store}" for store in stores)])

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        if isinstance(verdict, Reject):
            entry = Verdict(now_ps, request.id, "rejected", verdict.reason)
        else:
            entry = Verdict(now_ps, request.id, "delayed", "", verdict.duration_ps)
        self.log.verdicts.append(entry)

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        record = PriorityRecord(now_ps, request.id, float(priority.score), dict(priority.hints), priority.reason)
        self.log.priorities.append(record)

    def on_stopped(self, instance: int) -> None:
        if self.own:
            self.index.clear(instance)

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        log, instances = self.log, self.cluster.instances
        target = self._place(route.target)
        prefill = -1 if route.prefill is None else self._place(route.prefill)
        if instances is not self.instances:  # the tuple stays the same object until an instance joins or leaves
            self.instances, self.candidates = instances, tuple([view.index for view in instances])
            self.number = log.sets.number(self.candidates)
            self.names = [view.id for view in instances]
        matches = self.index.matches(request.path)
        log.take(
            request.id,
            now_ps,
            self.router,
            target,
            prefill,
            priority.score if route.priority is None else route.priority,
            route.reason,
            self.number,
            [list(map(getter, instances)) for getter in self.getters],
            matches if self.candidates == self.all_places else [matches[index] for index in self.candidates],
            request.prompt_tokens,
            request.path.keys[0] & LARGEST_KEY if request.path.keys else 0,
        )
        log.score(route.scorecard, self.names, self.cluster._estimate)
        if self.own:
            self.index.touch(target, request.path)
            if prefill >= 0:
                self.index.touch(prefill, request.path)

    def _place(self, name: str) -> int:
        """Return the index of the instance with this name. In live traffic, another engine may take over an index. If
        the remembered index is outdated, look up the indexes of all names again."""
        place = self.places.get(name)
        if place is None or self.views[place].id != name:
            self.places = {view.id: view.index for view in self.views if view.id}
            place = self.places[name]
        return place


def _store_used(store: str, view: InstanceView) -> int:
    return view.tier_used.get(store, -1)


def recorded_signals(reported: Collection[str]) -> list[str]:
    """Return the signals to record with decisions: the signals of RECORDED that the run maintains, and the signals that
    the estimates need. Derived signals are left out, because they are computed from the requests after the run."""
    signals = [SIGNALS[name] for name in (*RECORDED, "inflight_tokens")]
    return [
        signal.name
        for signal in signals
        if not signal.derived and (signal.freshness == "exact" or signal.always or signal.name in reported)
    ]

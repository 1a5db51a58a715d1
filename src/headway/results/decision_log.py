"""Records decisions in columns during a run. A column has one entry per decision, or one entry per candidate."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain
from math import nan
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from headway.policies.context import Context
from headway.results.decision_rows import DecisionRows
from headway.results.decisions import RECORDED, Decisions, PriorityRecord, Verdict
from headway.results.records import UsedBlocks
from headway.results.table import Table
from headway.types import Delay, Estimate, Priority, Reject, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import SIGNALS, InstanceView

TYPE_CODES: Final = {"tokens": "q", "share": "d"}  # kind of a signal -> type code of its column; others: "i"
PLAIN: Final = ("request", "at_ps", "router", "target", "prefill", "priority")  # the first columns of a decision
TOGETHER: Final = 256  # number of decisions that move to the columns at a time
LARGEST_KEY: Final = (1 << 64) - 1
Candidates = tuple[int, ...]
Word = TypeVar("Word")


class DecisionLog:
    """The decisions of all routers, in order."""

    def __init__(self, queues: bool = False) -> None:
        """`queues` says whether requests may wait in a queue at the router."""
        self.queues = queues
        self.verdicts: list[Verdict] = []
        self.priorities: list[PriorityRecord] = []
        self.pending: list[tuple[Any, ...]] = []  # decisions that the columns do not have yet, see `take`
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
        self.views: Sequence[InstanceView] = ()
        self.known: Collection[str] = ()  # signals that the views show even if no policy declares them
        self.block_tokens = 1  # number of tokens in a block of the prefix indexes
        # Returns the blocks in use at each instance, and reads those that the router's views do not show.
        self.used: Callable[[int], Sequence[UsedBlocks]] | None = None
        self.unseen: list[Callable[[UsedBlocks], int]] = []
        # For each decision: the names of its scorers (a number from `cards`), whether the lowest total wins, and the
        # index in `scores` at which the decision's scores begin.
        self.scorers, self.cards = array("i"), Words[tuple[str, ...]]()
        self.lowest_wins = array("b")
        self.scored = array("q")
        self.estimates: dict[int, Estimate] = {}  # index of a decision -> estimate; empty without an estimator
        self.scores = array("d")  # for each decision: the candidates' totals, then their scores by scorer; NaN: none
        self.fresh: list[float] = []  # scores that the column does not have yet

    def journal(self, router: int) -> RouterJournal:
        return RouterJournal(self, router)

    def decisions(self, requests: Table) -> Decisions:
        """Return the decisions of a finished run, with the outcomes of the requests."""
        self.flush()
        return Decisions(DecisionRows(self, requests), self.verdicts)

    def watch(self, signals: Iterable[str]) -> None:
        """Record these signals for every candidate. The signal of a single store has the name `tier_used.cpu`."""
        for name in signals:
            self.signals.setdefault(name, array(TYPE_CODES.get(SIGNALS[name.partition(".")[0]].kind, "i")))

    def record_used(self, used: Callable[[int], Sequence[UsedBlocks]]) -> None:
        """Record which blocks are in use even if the routers' views do not show them. `used` returns this for each
        instance at a time, as a new object if anything may have changed."""
        self.used = used
        getters: dict[str, Callable[[UsedBlocks], int]] = {"kv_used": attrgetter("kv_used")}
        for store in (store for view in self.views for store in view.tier_blocks):
            getters.setdefault(f"tier_used.{store}", partial(_store_used, store))
        self.unseen = [getter for name, getter in getters.items() if name not in self.signals]
        self.watch(getters)

    def take(self, *decision: Any) -> None:
        """Record a decision: its request, time, router, target, prefill instance, priority and reason; the number of
        its set of candidates in `sets`; for each candidate, a tuple with the first signals of `watch`; for each further
        signal, a list with a value per candidate; the believed blocks of each candidate; the tokens of the prompt, and
        the key of its beginning. Call `score` next."""
        self.pending.append(decision)
        if len(self.pending) == TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Move the pending decisions to the columns. Many decisions at a time take less time."""
        self.scores.fromlist(self.fresh)
        self.fresh.clear()
        if not self.pending:
            return
        columns = list(zip(*self.pending, strict=True))
        self.pending.clear()
        for name, values in zip(PLAIN, columns, strict=False):
            getattr(self, name).extend(values)
        reasons, candidates, rows, others, believed, prompts, prefixes = columns[len(PLAIN) :]
        self.reason.extend(map(self.reasons.number, reasons))
        self.candidates.extend(candidates)
        ends = list(accumulate(map(len, believed), initial=len(self.believed)))
        self.first.fromlist(ends[:-1])
        signals = chain(
            zip(*chain.from_iterable(rows), strict=True), map(chain.from_iterable, zip(*others, strict=True))
        )
        for column, cells in zip(self.signals.values(), signals, strict=True):
            column.fromlist(list(cells))
        self.believed.fromlist(list(chain.from_iterable(believed)))
        self.prompt_tokens.extend(prompts)
        self.prefix.extend(prefixes)

    def score(self, card: Scorecard | None, names: Sequence[str], estimate: Estimate | None = None) -> None:
        """Record the scorecard of the last decision, if it has one; `names` are the names of its candidates. `estimate`
        is the expected length of the answer."""
        if estimate is not None:
            self.estimates[len(self.scored)] = estimate
        self.scored.append(len(self.scores) + len(self.fresh))
        self.lowest_wins.append(card is not None and card.lowest_wins)
        if card is None:
            self.scorers.append(-1)
            return
        rows, fresh, prefill = card.scores, self.fresh, card.prefill
        if not (card.totals or rows) and (prefill is None or not (prefill.totals or prefill.scores)):
            self.scorers.append(self.cards.number(()))  # the policy gives no scores
            fresh += [nan] * len(names)
            return
        if prefill is None and {len(card.totals), *map(len, rows.values())} == {len(names)}:
            self.scorers.append(self.cards.number(tuple(rows)))  # the usual case: no candidate was filtered out
            fresh += card.totals
            for row in rows.values():
                fresh += row
            return
        halves = [card] if prefill is None else [card, prefill]
        scorers = tuple(dict.fromkeys(name for half in halves for name in half.scores))
        self.scorers.append(self.cards.number(scorers))
        for scorer in (None, *scorers):
            scores: dict[str, float] = {}
            for half in halves:
                row = half.totals if scorer is None else half.scores.get(scorer, [])
                scores.update(zip(half.left, row, strict=False))
            fresh += [scores.get(name, nan) for name in names]

    def __len__(self) -> int:
        return len(self.request) + len(self.pending)


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
        self.all = False  # whether all instances are candidates
        self.used: Sequence[UsedBlocks] = ()  # the blocks in use, and their columns in `used_signals`
        self.used_signals: list[list[int]] = []
        self.names: list[str] = []
        self.number = self.log.sets.number(())  # number of the current candidate set in `log.sets`
        self.own = not context.indexes
        self.index = context.hidden_index() if self.own else context.indexes[0]
        self.log.views, self.log.block_tokens = views, self.index.block_tokens
        names = recorded_signals({*reported, *self.log.known})
        stores: list[str] = []
        if "tier_used" in names:
            names.remove("tier_used")
            stores = list(dict.fromkeys(store for view in views for store in view.tier_blocks))
        self.read: Callable[[InstanceView], tuple[Any, ...]] = attrgetter(*names)  # several signals, so a tuple
        self.getters = [partial(_store_used, store) for store in stores]
        self.log.watch([*names, *(f"tier_used.{store}" for store in stores)])

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
            self.all = self.candidates == self.all_places
            self.used = ()
        matches = self.index.matches(request.path)
        others = [list(map(getter, instances)) for getter in self.getters]
        if log.used is not None and log.unseen:
            used = log.used(now_ps)
            if used is not self.used:  # with polled signals, the same object until the next poll
                self.used = used
                among = used if self.all else [used[index] for index in self.candidates]
                self.used_signals = [list(map(getter, among)) for getter in log.unseen]
            others += self.used_signals
        log.take(
            request.id,
            now_ps,
            self.router,
            target,
            prefill,
            priority.score if route.priority is None else route.priority,
            route.reason,
            self.number,
            list(map(self.read, instances)),
            others,
            matches if self.all else [matches[index] for index in self.candidates],
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


def _store_used(store: str, view: InstanceView | UsedBlocks) -> int:
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

"""Writes decisions down while they are taken: numbers in columns, one entry a decision or one a candidate of it."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from math import isnan, nan
from typing import Generic, TypeVar, overload

from headway.policies.belief import LRU_BLOCKS
from headway.policies.context import Context
from headway.policies.prefix_index import PrefixIndex
from headway.results.decisions import Decision, Decisions, Verdict
from headway.results.table import Table
from headway.types import (
    PS_PER_SECOND,
    ClusterView,
    Delay,
    InstanceView,
    Json,
    Priority,
    Reject,
    Request,
    Route,
    Scorecard,
)

SEEN = 5  # columns of each candidate, always: requests, their tokens and those pending, in the queue and in the batch
ENDS = ("arrival_ps", "first_token_ps", "finished_ps", "outcome", "cached_tokens", "predicted_tokens", "loaded_from")
Candidates = tuple[int, ...]
Word = TypeVar("Word")


class DecisionLog(Sequence[Decision]):
    """The decisions of all routers, in order. They are put together again when somebody asks for one."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.requests: Table | None = None
        self.request, self.at_ps = array("q"), array("q")
        self.router, self.target, self.prefill = array("i"), array("i"), array("i")
        self.priority = array("d")
        self.reason, self.reasons = array("i"), Words[str]()
        self.candidates, self.sets = array("i"), Words[Candidates]()
        self.first = array("q")  # where those of its candidates begin
        self.seen = array("q")  # of a decision: each of SEEN in turn, then kv_used where it is told
        self.kv_used = False
        self.believed = array("q")  # blocks of the router's index
        self.prompt_tokens = array("q")
        self.views: Sequence[InstanceView] = ()
        self.block_tokens = 1  # of the indexes
        # Scores: the names of the scorers, whether the lowest total wins, and where the numbers begin.
        self.scorers, self.cards = array("i"), Words[tuple[str, ...]]()
        self.lowest_wins = array("b")
        self.scored = array("q")
        self.scores = array("d")  # the totals of the candidates, then each scorer's; NaN where there is none

    def journal(self, router: int) -> RouterJournal:
        return RouterJournal(self, router)

    def decisions(self, requests: Table) -> Decisions:
        """Of a run that is over, with what came of the requests."""
        self.requests = requests
        return Decisions(self, self.verdicts)

    def __len__(self) -> int:
        return len(self.request)

    @overload
    def __getitem__(self, place: int) -> Decision: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Decision]: ...
    def __getitem__(self, place: int | slice) -> Decision | Sequence[Decision]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        candidates = self.sets.words[self.candidates[place]]
        count, first = len(candidates), self.first[place]
        at = first * (SEEN + self.kv_used)
        seen = [list(self.seen[at + turn * count : at + (turn + 1) * count]) for turn in range(SEEN + self.kv_used)]
        inflight, inflight_tokens, pending, queued, running = seen[:SEEN]
        tokens, size = self.prompt_tokens[place], self.block_tokens
        believed = [min(tokens, blocks * size) for blocks in self.believed[first : first + count]]
        views = [self.views[index] for index in candidates]
        uncached = [tokens - cached for cached in believed]
        scores, totals = self._card(place, count)
        return Decision(
            request=self.request[place],
            at_ps=self.at_ps[place],
            router=self.router[place],
            target=self.target[place],
            prefill=self.prefill[place],
            reason=self.reasons.words[self.reason[place]],
            priority=self.priority[place],
            candidates=list(candidates),
            inflight=inflight,
            pending_prefill_tokens=pending,
            queued=queued,
            running=running,
            kv_used=seen[SEEN] if self.kv_used else [],
            believed_tokens=believed,
            estimated_ttft_ps=list(map(_estimate, views, uncached, running, pending, inflight_tokens)),
            scores=scores,
            totals=totals,
            lowest_wins=bool(self.lowest_wins[place]),
            **self._end(self.request[place]),
        )

    def _end(self, row: int) -> Json:
        """What came of a request, once that is known."""
        if self.requests is None:
            return {}
        at = {name: self.requests.column(name)[row] for name in ENDS}
        came, first, ended = at["arrival_ps"], at["first_token_ps"], at["finished_ps"]
        return {
            "predicted_tokens": at["predicted_tokens"],
            "cached_tokens": at["cached_tokens"],
            "tier": at["loaded_from"] or ("gpu" if at["cached_tokens"] else ""),
            "outcome": at["outcome"],
            "ttft_ps": first - came if first >= 0 else -1,
            "e2e_ps": ended - came if at["outcome"] == "completed" else -1,
        }

    def _card(self, place: int, count: int) -> tuple[dict[str, list[float | None]], list[float | None]]:
        if self.scorers[place] < 0:
            return {}, []
        names, at = self.cards.words[self.scorers[place]], self.scored[place]
        rows = []
        for turn in range(1 + len(names)):
            numbers = self.scores[at + turn * count : at + (turn + 1) * count]
            rows.append([None if isnan(one) else one for one in numbers])
        return dict(zip(names, rows[1:], strict=True)), rows[0]


def _estimate(view: InstanceView, tokens: int, decodes: int, pending: int, inflight_tokens: int) -> int:
    """The time to first token that the latency model gives, computed only when somebody asks."""
    if view.role == "decode":
        return -1
    return round(view.estimate(tokens, decodes, pending, inflight_tokens) * PS_PER_SECOND)


class Words(Generic[Word]):
    """What is said again and again, each once, by number."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.numbers: dict[Word, int] = {}

    def number(self, word: Word) -> int:
        found = self.numbers.get(word)
        if found is None:
            found = self.numbers[word] = len(self.words)
            self.words.append(word)
        return found


class RouterJournal:
    """What one router tells of its decisions. Where its policies keep no prefix index it keeps one beside them, so that
    it can say what could have been known; they never see it."""

    def __init__(self, log: DecisionLog, router: int) -> None:
        self.log = log
        self.router = router

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        views = context.instances
        self.cluster = cluster
        self.places = {view.id: view.index for view in views}
        self.everybody = tuple(range(len(views)))
        self.own = not context.indexes
        self.index = PrefixIndex(len(views), LRU_BLOCKS, context.block_tokens) if self.own else context.indexes[0]
        self.log.views, self.log.block_tokens = views, self.index.block_tokens
        self.log.kv_used = "kv_used" in reported

    def refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        if isinstance(verdict, Reject):
            found = Verdict(now_ps, request.id, "rejected", verdict.reason)
        else:
            found = Verdict(now_ps, request.id, "delayed", "", verdict.duration_ps)
        self.log.verdicts.append(found)

    def stopped(self, instance: int) -> None:
        if self.own:
            self.index.clear(instance)

    def routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        log, instances = self.log, self.cluster.instances
        target = self.places[route.target]
        prefill = -1 if route.prefill is None else self.places[route.prefill]
        log.request.append(request.id)
        log.at_ps.append(now_ps)
        log.router.append(self.router)
        log.target.append(target)
        log.prefill.append(prefill)
        log.priority.append(priority.score if route.priority is None else route.priority)
        log.reason.append(log.reasons.number(route.reason))
        candidates = tuple([view.index for view in instances])
        log.candidates.append(log.sets.number(candidates))
        log.first.append(len(log.believed))
        seen = [view.inflight for view in instances]
        seen += [view.inflight_tokens for view in instances]
        seen += [view.pending_prefill_tokens for view in instances]
        seen += [view.queued for view in instances]
        seen += [view.running for view in instances]
        if log.kv_used:
            seen += [view.kv_used for view in instances]
        log.seen.fromlist(seen)
        found = self.index.matches(request.path)
        log.believed.fromlist(found if candidates == self.everybody else [found[index] for index in candidates])
        log.prompt_tokens.append(request.prompt_tokens)
        self.score(route.scorecard)
        if self.own:
            self.index.touch(target, request.path)
            if prefill >= 0:
                self.index.touch(prefill, request.path)

    def score(self, card: Scorecard | None) -> None:
        log = self.log
        log.scored.append(len(log.scores))
        log.lowest_wins.append(card is not None and card.lowest_wins)
        if card is None:
            log.scorers.append(-1)
            return
        halves = [card] if card.prefill is None else [card, card.prefill]
        names = tuple(dict.fromkeys(name for half in halves for name in half.scores))
        log.scorers.append(log.cards.number(names))
        for name in (None, *names):
            numbers: dict[str, float] = {}
            for half in halves:
                row = half.totals if name is None else half.scores.get(name, [])
                if len(halves) == 1 and len(row) == len(self.cluster.instances):  # nobody was filtered out
                    log.scores.fromlist(list(map(float, row)))
                    break
                numbers.update(zip(half.left, row, strict=False))
            else:
                log.scores.fromlist([numbers.get(view.id, nan) for view in self.cluster.instances])

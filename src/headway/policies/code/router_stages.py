"""The policies in the policy language that decide on a request: admission, priority, estimator, routing, decider."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import isfinite
from operator import add
from typing import Any, Final, Literal, NoReturn

from msgspec import Struct

from headway.policies.answers import MOST_EXPECTED
from headway.policies.code import language as lang
from headway.policies.code.coded import FAILURES, Coded, Values
from headway.policies.code.program import Explaining
from headway.policies.code.rejection import Exhausted, Misuse
from headway.policies.code.state import Sent
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Context
from headway.policies.scorecards import TOTAL, ids
from headway.types import (
    ADMIT,
    PS_PER_SECOND,
    Admit,
    Delay,
    Estimate,
    Path,
    Priority,
    Reject,
    Request,
    Route,
    Scorecard,
)
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished, FirstToken, Routed
from headway.views.instance import InstanceView

NOTHING: Final[list[int]] = []
REFUSED: Final = "503: refused by the policy's code"
MOST_HINTS: Final = 32  # maximum number of hints, because each waiting request keeps its hints
LONGEST_S: Final = 3600  # longest delay in seconds


class Unknown(Struct):
    """Stands in for the cached tokens or the tenants inside the functions that hear of events, which may not read them.
    Reading an item raises an error."""

    why: str

    def __getitem__(self, place: object) -> NoReturn:
        raise Misuse(self.why)


_INSTEAD: Final = "cannot be called in routed, first_token or finished; call it in {} and remember"
NO_CACHED_TOKENS: Final = Unknown("cached_tokens " + _INSTEAD.format("the deciding function") + " the number")
NO_TENANTS: Final = Unknown("tenant " + _INSTEAD.format("the deciding function") + " its fields")


class CodedRouter(Coded):
    """A stage of the router. It may read the router's belief about the caches, and hear of events."""

    block_tokens: int = BLOCK_TOKENS
    lru_blocks: int | Literal["auto"] = LRU_BLOCKS

    def compile(self, source: str, name: str, values: Values) -> None:
        super().compile(source, name, values)
        self.matches: Callable[[Path], list[int]] | None = None
        self.tenants = "tenants" in self.program.exact
        if self.program.hooks:
            self.observe = self._observe

    def bind(self, context: Context) -> None:
        self.restart()
        if "prefix_index" in self.program.exact:
            index = context.prefix_index(self.block_tokens, self.lru_blocks)
            self.matches = index.matches
            if self.program.believes:
                self.running.belief.index, self.running.belief.size = index, self.block_tokens

    def prepare(self, request: Request, cluster: ClusterView, running: Any = None) -> list[int]:
        """Begin a decision on a request, and return the tokens of its prompt that are believed cached, by instance."""
        size = self.block_tokens
        cached = NOTHING if self.matches is None else [blocks * size for blocks in self.matches(request.path)]
        if self.program.believes:
            self.running.belief.look(request)
        begin = self.begin if running is None else running.begin
        steps = self.steps - self.program.prepaid * len(cluster.instances)
        if steps < 0:
            raise self.fail(Exhausted(), request)
        begin(steps, cached, cluster.tenants if self.tenants else None)
        return cached

    def _observe(self, event: Event) -> None:
        arguments: tuple[Any, ...]
        match event:
            case Routed():
                name, arguments = "routed", (event.request, event.instance)
            case FirstToken():
                name, arguments = "first_token", (event.request, event.instance)
            case Finished():
                name, arguments = "finished", (event.request, event.instance, event.output_tokens, event.outcome)
            case _:
                return
        function = self.running.functions.get(name)
        if function is not None:
            self.running.belief.look(None)
            self.begin(self.steps, NO_CACHED_TOKENS, NO_TENANTS)
            self.ask(function, event.request, *arguments)

    def instance(self, value: Any, instances: tuple[InstanceView, ...], request: Request) -> InstanceView:
        """Return the instance that an answer names: the instance itself, or its position."""
        if type(value) is int and 0 <= value < len(instances):
            return instances[value]
        if isinstance(value, InstanceView) and any(view is value for view in instances):
            return value
        raise self.wrong(value, request)


class CodedRouting(CodedRouter):
    stage = "routing"

    def compile(self, source: str, name: str, values: Values) -> None:
        super().compile(source, name, values)
        self.scores = self.program.entrance == "score"
        self.pairs = self.program.pairs

    def route(self, request: Request, cluster: ClusterView) -> Route | Reject:
        instances = cluster.instances
        explaining = self.running.explaining if cluster.explain and self.program.has_notes else None
        call = self.call if explaining is None else explaining.entrance
        cached = self.prepare(request, cluster, explaining)
        scores = None
        try:
            if not self.scores:
                best = call(request, instances, cluster)
            elif explaining is None:
                scores = [call(request, view, cluster) for view in instances]
            else:
                scores = []
                for view in instances:
                    explaining.terms.place = view.index
                    scores.append(call(request, view, cluster))
        except FAILURES as error:
            raise self.fail(error, request) from error
        if scores is not None:
            view, reason = instances[self._best(scores, request)], "highest score"
            card = self._card(instances, scores, view, explaining) if cluster.explain else None
            return Route(view.id, reason, cached[view.index] if cached else 0, None, card)
        if isinstance(best, Reject):
            return best
        sent = best if type(best) is Sent else Sent(best)
        view = self.instance(sent.view, instances, request)
        prefill = None if sent.prefill is None else self.instance(sent.prefill, instances, request)
        if type(sent.reason) is not str or len(sent.reason) > lang.LONGEST_TEXT:
            raise self.wrong(sent.reason, request)
        return Route(
            view.id,
            sent.reason or f"chosen by {self.program.name}",
            cached[(view if prefill is None else prefill).index] if cached else 0,
            None if sent.priority is None else self.number(sent.priority, request),
            self._card(instances, None, view, explaining) if explaining is not None else None,
            None if prefill is None else prefill.id,
        )

    def _best(self, scores: list[Any], request: Request) -> int:
        try:
            if all(map(isfinite, scores)):
                return scores.index(max(scores))
        except (TypeError, OverflowError):
            pass
        odd = (score for score in scores if type(score) not in (int, float, bool) or not isfinite(score))
        raise self.wrong(next(odd, None), request)

    def _card(
        self,
        instances: tuple[InstanceView, ...],
        scores: list[float] | None,
        picked: InstanceView,
        explaining: Explaining | None,
    ) -> Scorecard | None:
        """Return the scorecard of a decision: the terms and removed instances that the program has noted. Without
        scores, the totals are the sums of the terms."""
        removed = {} if explaining is None else explaining.terms.take_removed()
        out = {name for names in removed.values() for name in names} - {picked.id} if scores is None else set()
        left = [view for view in instances if view.id not in out]
        terms = {} if explaining is None else explaining.terms.take([view.index for view in left])
        totals = scores if scores is not None else [reduce(add, row) for row in zip(*terms.values(), strict=True)]
        if not totals and not removed:
            return None
        rows: dict[str, Any] = {TOTAL: totals, **terms} if totals else {}
        return Scorecard(ids(instances), picked.id, removed, [], ids(left), rows, totals)


class CodedAdmission(CodedRouter):
    stage = "admission"

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        self.prepare(request, cluster)
        verdict = self.ask(self.call, request, request, cluster)
        if verdict is True:
            return ADMIT
        if verdict is False:
            return Reject(REFUSED)
        if type(verdict) is Reject:
            return verdict
        if type(verdict) in (int, float) and 0 < verdict <= LONGEST_S:
            return Delay(max(1, round(verdict * PS_PER_SECOND)))
        raise self.wrong(verdict, request)


def _halves(answer: Any) -> tuple[Any, Any]:
    """Return an answer and what a program returned with it, or None."""
    return answer if type(answer) is tuple and len(answer) == 2 else (answer, None)


class CodedPriority(CodedRouter):
    stage = "priority"

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        self.prepare(request, cluster)
        answer, hints = _halves(self.ask(self.call, request, request, cluster))
        score, reason = self.number(answer, request), f"scored by {self.program.name}"
        if hints is None:
            return Priority(score, reason=reason)
        if type(hints) is not dict or len(hints) > MOST_HINTS or not all(type(name) is str for name in hints):
            raise self.wrong(hints, request)
        return Priority(score, {name: self.number(value, request) for name, value in hints.items()}, reason)


class CodedEstimator(CodedRouter):
    stage = "estimator"

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        self.prepare(request, cluster)
        answer, error = _halves(self.ask(self.call, request, request, cluster))
        tokens = max(1, int(self.number(answer, request, MOST_EXPECTED) + 0.5))
        if error is not None and self.number(error, request) < 0:
            raise self.wrong(error, request)
        most = request.max_tokens
        return Estimate(tokens if most is None else max(1, min(tokens, most)), error)


class CodedDecider(CodedRouter):
    stage = "decider"

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool | Route:
        cached = self.prepare(request, cluster)
        answer = self.ask(self.call, request, request, view, cluster)
        if isinstance(answer, bool):
            return answer
        whole = answer if isinstance(answer, InstanceView) else None
        if whole is None or whole.role == "prefill" or not any(whole is each for each in cluster.instances):
            raise self.wrong(answer, request)
        if whole is view:
            return False
        return Route(whole.id, f"kept whole by {self.program.name}", cached[whole.index] if cached else 0)

"""The policies in the policy language that decide on a request: admission, priority, estimator, routing, decider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import isfinite
from operator import add
from typing import Any, Final, Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from headway.policies.answers import MOST_EXPECTED
from headway.policies.code import language as lang
from headway.policies.code.coded import FAILURES, NUMBERS, Coded, Values
from headway.policies.code.program import Explaining
from headway.policies.code.rejection import Exhausted, Misuse
from headway.policies.code.state import Sent
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, Context
from headway.policies.scorecards import TOTAL, ids
from headway.policies.user_policies import METHODS
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


def _nothing(path: Path) -> Sequence[int]:
    return NOTHING


REFUSED: Final = "503: refused by the policy's code"
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
        self.matches: Callable[[Path], Sequence[int]] = _nothing
        super().compile(source, name, values)
        if self.program.hooks:
            self.observe = self._observe

    def restart(self) -> None:
        super().restart()
        self.running.belief.size = self.block_tokens
        explained = getattr(self, "explained", None)
        decide = self.decision(self.running, self.finish(), self.matches, explained, self.block_tokens)
        setattr(self, METHODS[self.stage], decide)

    def bind(self, context: Context) -> None:
        index = None
        if "prefix_index" in self.program.exact:
            index = context.prefix_index(self.block_tokens, self.lru_blocks, self.program.accesses)
            self.matches = index.matches
        self.restart()
        if self.program.believes:
            self.running.belief.index = index

    def finish(self) -> Callable[..., Any]:
        """Return the function that turns a result of the program into the stage's answer."""
        return self.answer

    def answer(self, result: Any, request: Request, *arguments: Any) -> Any:
        raise NotImplementedError

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
        if isinstance(value, InstanceView) and value in instances:
            return value
        raise self.wrong(value, request)


class CodedRouting(CodedRouter):
    stage = "routing"

    def route(self, request: Request, cluster: ClusterView) -> Route | Reject:
        raise NotImplementedError  # `restart` replaces it

    def compile(self, source: str, name: str, values: Values) -> None:
        super().compile(source, name, values)
        self.pairs = self.program.pairs

    def restart(self) -> None:
        self.scores = self.program.entrance == "score"
        self.chosen = f"chosen by {self.program.name}"
        super().restart()

    def finish(self) -> Callable[..., Any]:
        return self._scored if self.scores else self._routed

    def _scored(self, scores: list[Any], request: Request, cluster: ClusterView, cached: Sequence[int]) -> Route:
        view = cluster.instances[self._best(scores, request)]
        return Route(view.id, "highest score", cached[view.index] * self.block_tokens if cached else 0)

    def _routed(self, best: Any, request: Request, cluster: ClusterView, cached: Sequence[int]) -> Route | Reject:
        """Return the route to the instance that the program returned."""
        if type(best) is Sent:
            return self.sent(best.view, request, cluster, cached, best.prefill, best.priority, best.reason)
        return best if isinstance(best, Reject) else self.sent(best, request, cluster, cached)

    def sent(
        self,
        view: Any,
        request: Request,
        cluster: ClusterView,
        cached: Sequence[int],
        prefill: Any = None,
        priority: Any = None,
        reason: Any = "",
    ) -> Route:
        """Return the route that `send` with these arguments stands for."""
        instances = cluster.instances
        if not (isinstance(view, InstanceView) and view in instances):
            view = self.instance(view, instances, request)
        if prefill is not None and not (isinstance(prefill, InstanceView) and prefill in instances):
            prefill = self.instance(prefill, instances, request)
        if type(reason) is not str or len(reason) > lang.LONGEST_TEXT:
            raise self.wrong(reason, request)
        if priority is not None and not (priority.__class__ is float and -1e15 <= priority <= 1e15):
            priority = self.number(priority, request)
        if prefill is None:
            tokens = cached[view.index] * self.block_tokens if cached else 0
            return Route(view.id, reason or self.chosen, tokens, priority)
        tokens = cached[prefill.index] * self.block_tokens if cached else 0
        return Route(view.id, reason or self.chosen, tokens, priority, None, prefill.id)

    def explained(self, request: Request, cluster: ClusterView) -> Route | Reject:
        """Decide, and note the terms of the scores."""
        instances, program = cluster.instances, self.program
        noting = self.running.explaining if program.has_notes else None
        blocks = self._begin_explained(request, cluster, noting)
        call = (noting or self.running).entrance
        try:
            if not self.scores:
                result = call(request, instances, cluster)
            else:
                result = []
                for view in instances:
                    if noting is not None:
                        noting.terms.place = view.index
                    result.append(call(request, view, cluster))
        except FAILURES as error:
            raise self.fail(error, request) from error
        answer: Route | Reject = self.finish()(result, request, cluster, blocks)
        if isinstance(answer, Reject) or not (noting or self.scores):
            return answer
        picked = next(view for view in instances if view.id == answer.target)
        return replace(answer, scorecard=self._card(instances, result if self.scores else None, picked, noting))

    def _begin_explained(self, request: Request, cluster: ClusterView, noting: Explaining | None) -> Sequence[int]:
        """Begin a decision of the program's own functions, and return the believed blocks of the request."""
        program = self.program
        blocks = self.matches(request.path) if "prefix_index" in program.exact else ()
        self.running.belief.look(request)
        steps = self.steps - program.prepaid(len(cluster.instances))
        if steps < 0:
            raise self.fail(Exhausted(), request)
        tenants = cluster.tenants if "tenants" in program.exact else None
        if noting is None:
            self.begin(steps, blocks, tenants)
        else:  # whose blocks have one token
            noting.begin(steps, [count * self.block_tokens for count in blocks], tenants)
        return blocks

    def _best(self, scores: list[Any], request: Request) -> int:
        """Return the position of the highest score. If a score is not a finite number, raise an error."""
        try:
            if isfinite(sum(scores)):  # if any score is infinite or NaN, the sum is not finite
                return scores.index(max(scores))
            if all(map(isfinite, scores)):  # finite scores whose sum is too large
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
        raise NotImplementedError  # `restart` replaces it

    def answer(self, result: Any, request: Request, *arguments: Any) -> Admit | Reject | Delay:
        if result is True:
            return ADMIT
        if result is False:
            return Reject(REFUSED)
        if type(result) is Reject:
            return result
        if type(result) in (int, float) and 0 < result <= LONGEST_S:
            return Delay(max(1, round(result * PS_PER_SECOND)))
        raise self.wrong(result, request)


def _halves(answer: Any) -> tuple[Any, Any]:
    """Return an answer and what a program returned with it, or None."""
    return answer if type(answer) is tuple and len(answer) == 2 else (answer, None)


class CodedPriority(CodedRouter):
    stage = "priority"

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        raise NotImplementedError  # `restart` replaces it

    def answer(self, result: Any, request: Request, *arguments: Any) -> Priority:
        answer, hints = _halves(result)
        score, reason = self.number(answer, request), f"scored by {self.program.name}"
        if hints is None:
            return Priority(score, reason=reason)
        if type(hints) is not dict or len(hints) > lang.MOST_HINTS:
            raise self.wrong(hints, request)
        for name in hints:
            if type(name) is not str:
                raise self.wrong(hints, request)
        return Priority(score, {name: self.number(value, request) for name, value in hints.items()}, reason)


class CodedEstimator(CodedRouter):
    stage = "estimator"

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        raise NotImplementedError  # `restart` replaces it

    def answer(self, result: Any, request: Request, *arguments: Any) -> Estimate:
        answer, error = (result, None) if result.__class__ in NUMBERS else _halves(result)
        if not (answer.__class__ in NUMBERS and -MOST_EXPECTED <= answer <= MOST_EXPECTED):
            raise self.wrong(answer, request)
        if error is not None and self.number(error, request) < 0:
            raise self.wrong(error, request)
        tokens, most = int(answer + 0.5), request.max_tokens
        if most is not None and tokens > most:
            tokens = most
        return Estimate(tokens if tokens > 0 else 1, error)


class CodedDecider(CodedRouter):
    stage = "decider"

    def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> bool | Route:
        raise NotImplementedError  # `restart` replaces it

    def answer(self, result: Any, request: Request, *arguments: Any) -> bool | Route:
        view, cluster, cached = arguments
        if isinstance(result, bool):
            return result
        whole = result if isinstance(result, InstanceView) else None
        if whole is None or whole.role == "prefill" or whole not in cluster.instances:
            raise self.wrong(result, request)
        if whole is view:
            return False
        tokens = cached[whole.index] * self.block_tokens if cached else 0
        return Route(whole.id, f"kept whole by {self.program.name}", tokens)

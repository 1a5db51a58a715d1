"""Policies in the policy language: the policy `code` of every stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from functools import partial, reduce
from math import inf, isfinite
from operator import add
from typing import Any, ClassVar, Final, Literal, NoReturn

from msgspec import Struct

from headway.config.documents import file_name, read_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import language as lang
from headway.policies.code.program import Program, Running, named_program
from headway.policies.code.rejection import CodeError, Misuse
from headway.policies.context import BLOCK_TOKENS, LRU_BLOCKS, BlockTokens, Context, LruBlocks
from headway.policies.queues import Queue, Ranked, Ticket
from headway.policies.registry import Entry, policy
from headway.policies.scheduling import ChunkTokens
from headway.policies.scorecards import single_score_card
from headway.types import ADMIT, PS_PER_SECOND, Admit, Delay, Priority, Reject, Request, Route, Scale
from headway.views.cluster import ClusterView
from headway.views.events import Event, Routed
from headway.views.instance import InstanceView
from headway.views.pool import PoolView

NOTHING: Final[list[int]] = []


class Unknown(Struct):
    """Stands in for the cached tokens or the tenants inside the function `routed`, which may not read them. Reading an
    item raises an error."""

    why: str

    def __getitem__(self, place: object) -> NoReturn:
        raise Misuse(self.why)


NO_CACHED_TOKENS: Final = Unknown("cached_tokens cannot be called in routed; call it in score or route and remember it")
NO_TENANTS: Final = Unknown("tenant cannot be called in routed; call it in score or route and remember its fields")
Values = dict[str, float]
FAILURES: Final = (Exception, RecursionError, MemoryError)


class Coded:
    """A policy that runs a program. The signals that it reads are known from the source."""

    stage: ClassVar[str]
    blank: ClassVar = True  # the policy needs a source from the user
    program: Program
    running: Running

    def compile(self, source: str, name: str, values: Values) -> None:
        typed = tuple((key, type(value), value) for key, value in values.items())
        numbers = all(isinstance(value, int | float) for value in values.values())
        # Bypass the cache if a value is not a number, because it may be unhashable.
        compile_ = named_program if numbers else named_program.__wrapped__
        self.program = program = compile_(source, self.stage, name, typed)
        name = registry.entry_of(type(self), self.stage).name
        self.entry = Entry(self.stage, name, type(self), program.exact, program.reported, False)
        self.restart()

    def restart(self) -> None:
        self.running = running = self.program.start()
        self.call, self.begin = running.entrance, running.begin

    def bind(self, context: Context) -> None:
        self.restart()
        self.tenants = "tenants" in self.program.exact

    def __deepcopy__(self, memo: dict[int, Any]) -> Coded:
        """Return a new policy with the same parameters and an empty memory."""
        return type(self)(**registry.values_of(self))

    def ask(self, function: Callable[..., Any], request: Request | None, *arguments: Any) -> Any:
        """Call a function of the program. Errors name the line and the request."""
        try:
            return function(*arguments)
        except FAILURES as error:
            raise self.fail(error, request) from error

    def ask_number(
        self, function: Callable[..., Any], request: Request | None, *arguments: Any, most: float = 1e15
    ) -> float:
        """Call a function of the program that must return a number between -`most` and `most`."""
        number = self.ask(function, request, *arguments)
        if type(number) not in (int, float) or not abs(number) <= most:
            raise self.wrong(number, request)
        return float(number)

    def fail(self, error: BaseException, request: Request | None) -> HeadwayError:
        if isinstance(error, HeadwayError):
            return error
        return CodeError(f"policies.{self.stage}: {self.program.failure(error)}{_at(request)}.")

    def wrong(self, value: object, request: Request | None) -> CodeError:
        entrance = self.program.entrance
        right = f"{entrance} must return {lang.ENTRANCES[self.stage][entrance].gives}"
        returned = f"{right}, but returned {shown(value)}{_at(request)}"
        return CodeError(f"policies.{self.stage}: {self.program.name}: {returned}.")


def _at(request: Request | None) -> str:
    return "" if request is None else f", at request {request.id}"


class CodedRouting(Coded):
    stage = "routing"
    block_tokens: int = BLOCK_TOKENS
    lru_blocks: int | Literal["auto"] = LRU_BLOCKS

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.matches = None
        if "prefix_index" in self.program.exact:
            self.matches = context.prefix_index(self.block_tokens, self.lru_blocks).matches
        self.scores = self.program.entrance == "score"
        if "routed" in self.program.hooks:
            self.on_routed = self.running.functions["routed"]
            self.observe = self._observe

    def route(self, request: Request, cluster: ClusterView) -> Route:
        size = self.block_tokens
        cached = NOTHING if self.matches is None else [blocks * size for blocks in self.matches(request.path)]
        instances = cluster.instances
        explaining = self.running.explaining if cluster.explain and self.program.has_terms else None
        begin, call = (self.begin, self.call) if explaining is None else (explaining.begin, explaining.entrance)
        begin(lang.STEPS, cached, cluster.tenants if self.tenants else None)
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
        terms = {} if explaining is None else explaining.terms.take([view.index for view in instances])
        if scores is None:
            view, reason = self._view(best, instances, request), f"chosen by {self.program.name}"
            scores = [reduce(add, row) for row in zip(*terms.values(), strict=True)]  # the totals of the scorecard
        else:
            view, reason = instances[self._best(scores, request)], "highest score"
        card = single_score_card(instances, scores, view, terms=terms) if cluster.explain and scores else None
        return Route(view.id, reason, cached[view.index] if cached else 0, None, card)

    def _best(self, scores: list[Any], request: Request) -> int:
        try:
            if all(map(isfinite, scores)):
                return scores.index(max(scores))
        except (TypeError, OverflowError):
            pass
        odd = (score for score in scores if type(score) not in (int, float, bool) or not abs(score) < inf)
        raise self.wrong(next(odd, None), request)

    def _view(self, value: Any, instances: tuple[InstanceView, ...], request: Request) -> InstanceView:
        if type(value) is int and 0 <= value < len(instances):
            return instances[value]
        if isinstance(value, InstanceView) and any(view is value for view in instances):
            return value
        raise self.wrong(value, request)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Routed):
            self.begin(lang.STEPS, NO_CACHED_TOKENS, NO_TENANTS)
            self.ask(self.on_routed, event.request, event.request, event.instance)


class CodedAdmission(Coded):
    stage = "admission"

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        self.begin(lang.STEPS, NOTHING, cluster.tenants if self.tenants else None)
        verdict = self.ask(self.call, request, request, cluster)
        if verdict is True:
            return ADMIT
        if verdict is False:
            return Reject("503: refused by the policy's code")
        if type(verdict) in (int, float) and 0 < verdict <= 3600:
            return Delay(max(1, round(verdict * PS_PER_SECOND)))
        raise self.wrong(verdict, request)


class CodedPriority(Coded):
    stage = "priority"

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        self.begin(lang.STEPS, NOTHING, cluster.tenants if self.tenants else None)
        return Priority(self.ask_number(self.call, request, request, cluster), reason=f"scored by {self.program.name}")


class CodedScheduler(Coded):
    stage = "scheduler"
    chunk_tokens: int | None = None

    def queue(self) -> Queue:
        """Make the queue of one instance, with its own memory."""
        return Ranked(partial(self.key, self.program.start()), self.chunk_tokens)

    def key(self, running: Running, ticket: Ticket) -> float:
        running.begin(lang.STEPS, NOTHING, None)
        return self.ask_number(running.entrance, ticket.request, ticket)


class CodedScaling(Coded):
    stage = "scaling"

    def scale(self, pool: PoolView) -> Scale | None:
        self.begin(lang.STEPS, NOTHING, None)
        target = self.ask_number(self.call, None, pool, most=1e9)
        replicas = min(max(round(target), pool.minimum), pool.maximum)
        return None if replicas == pool.replicas else Scale(replicas, f"{self.program.name} wants {replicas}")


STAGES: Final[dict[str, type[Coded]]] = {
    "admission": CodedAdmission,
    "priority": CodedPriority,
    "routing": CodedRouting,
    "scheduler": CodedScheduler,
    "scaling": CodedScaling,
}
# Additional parameters of each stage: (name, type, default).
FIELDS: Final[dict[str, list[tuple[str, Any, Any]]]] = {
    "routing": [("block_tokens", BlockTokens, BLOCK_TOKENS), ("lru_blocks", LruBlocks, LRU_BLOCKS)],
    "scheduler": [("chunk_tokens", ChunkTokens, None)],
}
BELIEF: Final = "`cached_tokens` uses the prefix index with these `block_tokens` and `lru_blocks`."


def declare(name: str, way: type[Coded], docs: dict[str, str]) -> None:
    """Declare a policy of this name for each stage in `docs`, which maps stages to docstrings. `way` is the base class,
    which reads the source from the parameters."""
    for stage, doc in docs.items():
        title, fields, bases = f"{name.title()}{stage.title()}", FIELDS.get(stage, []), (way, STAGES[stage])
        members = {"__doc__": doc, "__module__": __name__}
        cls = make_dataclass(title, fields, bases=bases, namespace=members, eq=False, repr=False)
        policy(stage, name, exact=(), reported=())(cls)


@dataclass(eq=False, repr=False)
class Sourced(Coded):
    """A policy that gets its source from its parameters: `source`, or the file `path`."""

    source: str = ""
    path: str = ""
    parameters: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.path):
            raise HeadwayError("code: give the policy as 'source' or its file as 'path', as in {path: rule.py}.")
        source = self.source or read_text(self.path)
        name = file_name(self.path) if self.path else "code"
        self.compile(source, name, self.parameters)


OWN: Final = "your own function in the policy language"
TEXT: Final = "`source` is the program, or `path` its file. `parameters` sets the parameters that it declares."
ONCE: Final = "is evaluated once, when a request arrives at its instance. Ties: order of arrival."
declare(
    "code",
    Sourced,
    {
        "routing": f"Routes by {OWN}, `score` or `route`.\n\n{TEXT} The signals follow from the source. {BELIEF}",
        "admission": f"Admits by {OWN}, `admit`: True, False, or seconds to wait.\n\n{TEXT}",
        "priority": f"Scores by {OWN}, `prioritise`.\n\n{TEXT}",
        "scheduler": f"Serves the lowest key first, by {OWN}, `key`.\n\nThe key {ONCE} {TEXT}",
        "scaling": f"Sets the number of replicas by {OWN}, `scale`.\n\n{TEXT}",
    },
)

"""Policies in the policy language: one of the name `code` in every stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any, ClassVar, Final, NoReturn

from headway.config.documents import file_name, read_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.belief import BLOCK_TOKENS, LRU_BLOCKS, BlockTokens, LruBlocks
from headway.policies.code import language as lang
from headway.policies.code.program import Program, Running
from headway.policies.code.rejection import CodeError, Misuse
from headway.policies.context import Context
from headway.policies.queues import Queue, Ranked, Ticket
from headway.policies.registry import Entry, policy
from headway.policies.scheduling import ChunkTokens
from headway.policies.scorecards import scored
from headway.types import ADMIT, PS_PER_SECOND, Admit, Delay, Priority, Reject, Request, Route, Scale
from headway.views.cluster import ClusterView
from headway.views.events import Event, Routed
from headway.views.instance import InstanceView
from headway.views.pool import PoolView

NOTHING: Final[list[int]] = []


class Unknown:
    """What `routed` may not ask."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getitem__(self, place: object) -> NoReturn:
        raise Misuse(self.why)


UNCACHED: Final = Unknown("cached_tokens is known where a request is routed, not afterwards; remember it there")
UNTOLD: Final = Unknown("tenant is known where a request is routed, not afterwards; remember it there")
Values = dict[str, float]
FAILURES: Final = (Exception, RecursionError, MemoryError)


class Coded:
    """A policy whose decisions a program takes. What it reads is known from its source."""

    stage: ClassVar[str]
    blank: ClassVar = True  # it does nothing without somebody's text
    program: Program
    running: Running

    def compile(self, source: str, name: str, values: Values) -> None:
        self.program = program = Program(source, self.stage, name, values)
        filed = registry.declared(type(self), self.stage)
        self.entry = Entry(self.stage, filed.name, type(self), program.exact, program.reported, False)
        self.restart()

    def restart(self) -> None:
        self.running = running = self.program.start()
        self.call, self.begin = running.entrance, running.begin

    def __deepcopy__(self, memo: dict[int, Any]) -> Coded:
        """Another of the same, with a memory of its own."""
        given = {one.name: getattr(self, one.name) for one in registry.parameters(type(self))}
        return type(self)(**given)

    def fail(self, error: BaseException, request: Request | None) -> HeadwayError:
        if isinstance(error, HeadwayError):
            return error
        at = "" if request is None else f", at request {request.id}"
        return CodeError(f"policies.{self.stage}: {self.program.failure(error)}{at}.")

    def wrong(self, value: object, request: Request | None) -> CodeError:
        entrance = self.program.entrance
        gives = lang.ENTRANCES[self.stage][entrance].gives
        at = "" if request is None else f", at request {request.id}"
        return CodeError(
            f"policies.{self.stage}: {self.program.name}: {entrance} must return {gives}, and gave {shown(value)}{at}."
        )


class CodedRouting(Coded):
    """`score` gives each candidate a number, `route` chooses among them."""

    stage = "routing"
    block_tokens: int = BLOCK_TOKENS
    lru_blocks: int = LRU_BLOCKS

    def bind(self, context: Context) -> None:
        self.restart()
        self.matches = None
        if "prefix_index" in self.program.exact:
            self.matches = context.prefix_index(self.block_tokens, self.lru_blocks).matches
        self.tenants = "tenants" in self.program.exact
        self.scores = self.program.entrance == "score"
        if "routed" in self.program.hooks:
            self.told = self.running.functions["routed"]
            self.observe = self._observe

    def route(self, request: Request, cluster: ClusterView) -> Route:
        size = self.block_tokens
        cached = NOTHING if self.matches is None else [blocks * size for blocks in self.matches(request.path)]
        instances = cluster.instances
        self.begin(lang.STEPS, cached, cluster.tenants if self.tenants else None)
        call = self.call
        try:
            if self.scores:
                scores = [call(request, view, cluster) for view in instances]
            else:
                scores = None
                best = call(request, instances, cluster)
        except FAILURES as error:
            raise self.fail(error, request) from error
        if scores is None:
            view, card = self._chosen(best, instances, request), None
        else:
            view = instances[self._best(scores, request)]
            card = scored(instances, scores, view) if cluster.explain else None
        return Route(view.id, "", cached[view.index] if cached else 0, None, card)

    def _best(self, scores: list[Any], request: Request) -> int:
        try:
            if all(map(isfinite, scores)):
                return scores.index(max(scores))
        except (TypeError, OverflowError):
            pass
        odd = (one for one in scores if type(one) not in (int, float, bool) or not abs(one) < inf)
        raise self.wrong(next(odd, None), request)

    def _chosen(self, value: Any, instances: tuple[InstanceView, ...], request: Request) -> InstanceView:
        if type(value) is int and 0 <= value < len(instances):
            return instances[value]
        if isinstance(value, InstanceView) and any(view is value for view in instances):
            return value
        raise self.wrong(value, request)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Routed):
            self.begin(lang.STEPS, UNCACHED, UNTOLD)
            try:
                self.told(event.request, event.instance)
            except FAILURES as error:
                raise self.fail(error, event.request) from error


class CodedAdmission(Coded):
    stage = "admission"

    def bind(self, context: Context) -> None:
        self.restart()
        self.tenants = "tenants" in self.program.exact

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        self.begin(lang.STEPS, NOTHING, cluster.tenants if self.tenants else None)
        try:
            verdict = self.call(request, cluster)
        except FAILURES as error:
            raise self.fail(error, request) from error
        if verdict is True:
            return ADMIT
        if verdict is False:
            return Reject("503: refused by the policy's code")
        if type(verdict) in (int, float) and 0 < verdict <= 3600:
            return Delay(max(1, round(verdict * PS_PER_SECOND)))
        raise self.wrong(verdict, request)


class CodedPriority(Coded):
    stage = "priority"

    def bind(self, context: Context) -> None:
        self.restart()
        self.tenants = "tenants" in self.program.exact

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        self.begin(lang.STEPS, NOTHING, cluster.tenants if self.tenants else None)
        try:
            score = self.call(request, cluster)
        except FAILURES as error:
            raise self.fail(error, request) from error
        if type(score) not in (int, float) or not abs(score) <= 1e15:
            raise self.wrong(score, request)
        return Priority(float(score))


class CodedScheduler(Coded):
    stage = "scheduler"
    chunk_tokens: int | None = None

    def queue(self) -> Queue:
        """Every instance's has a memory of its own, as its engine would."""
        return Ranked(partial(self.key, self.program.start()), self.chunk_tokens)

    def key(self, running: Running, ticket: Ticket) -> float:
        running.begin(lang.STEPS, NOTHING, None)
        try:
            found = running.entrance(ticket)
        except FAILURES as error:
            raise self.fail(error, ticket.request) from error
        if type(found) not in (int, float) or not abs(found) <= 1e15:
            raise self.wrong(found, ticket.request)
        return float(found)


class CodedScaling(Coded):
    stage = "scaling"

    def scale(self, pool: PoolView) -> Scale | None:
        self.begin(lang.STEPS, NOTHING, None)
        try:
            wanted = self.call(pool)
        except FAILURES as error:
            raise self.fail(error, None) from error
        if type(wanted) not in (int, float) or not abs(wanted) <= 1e9:
            raise self.wrong(wanted, None)
        replicas = min(max(round(wanted), pool.minimum), pool.maximum)
        return None if replicas == pool.replicas else Scale(replicas, f"{self.program.name} wants {replicas}")


@dataclass(eq=False, repr=False)
class Sourced(Coded):
    """The keys of a policy that is given its text, whatever its stage."""

    source: str = ""
    path: str = ""
    parameters: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.path):
            raise HeadwayError("code: give the policy's text as 'source' or its file as 'path', as in {path: rule.py}.")
        source = self.source or read_text(self.path)
        name = file_name(self.path) if self.path else "code"
        self.compile(source, name, self.parameters)


@policy("routing", "code", exact=(), reported=())
class CodeRouting(Sourced, CodedRouting):
    """Decides by a function of your own in the policy language, `score` or `route`.

    `source` is its text, or `path` its file; `parameters` are the values of those that it declares. What it reads is
    known from its text. `block_tokens` and `lru_blocks` are of the belief that `cached_tokens` asks.
    """

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS


@policy("admission", "code", exact=(), reported=())
class CodeAdmission(Sourced, CodedAdmission):
    """Decides by a function of your own in the policy language, `admit`: True, False, or seconds to wait.

    `source` is its text, or `path` its file; `parameters` are the values of those that it declares.
    """


@policy("priority", "code", exact=(), reported=())
class CodePriority(Sourced, CodedPriority):
    """Scores by a function of your own in the policy language, `prioritise`.

    `source` is its text, or `path` its file; `parameters` are the values of those that it declares.
    """


@policy("scheduler", "code", exact=(), reported=())
class CodeScheduler(Sourced, CodedScheduler):
    """Serves first whoever a function of your own in the policy language, `key`, gives the lowest number.

    The key is asked once, as a request arrives at its instance; ties in order of arrival. `source` is its text, or
    `path` its file; `parameters` are the values of those that it declares.
    """

    chunk_tokens: ChunkTokens = None


@policy("scaling", "code", exact=(), reported=())
class CodeScaling(Sourced, CodedScaling):
    """Asks a function of your own in the policy language, `scale`, how many replicas a pool is to have.

    `source` is its text, or `path` its file; `parameters` are the values of those that it declares.
    """

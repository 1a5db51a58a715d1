"""Generated traffic: the sessions of the tenants. The length and content of each session are drawn when it begins.

Each tenant has its own random streams and content numbers. Therefore its requests do not change if another tenant is
added or removed. Memory grows with the sessions in progress, not with all sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import chain, count, islice
from typing import Final

from msgspec import Struct

from headway import hashing
from headway.errors import HeadwayError
from headway.streams import derive, stream
from headway.types import PS_PER_US, Path, Request
from headway.workload import arrivals, behaviour, durations, profiles, shapes
from headway.workload.contexts import nested
from headway.workload.kinds import TOKENS, Completion
from headway.workload.plans import Mark, Planner, Recipe, Script
from headway.workload.prefixes import Beginnings
from headway.workload.sessions import Chain, Graph, Session
from headway.workload.shapes import MAX_TOKENS
from headway.workload.tenants import Tenant
from headway.workload.traces.limits import LAST_PS, too_late
from headway.workload.traffic import Planned, SessionStart, Source

MAX_REQUESTS: Final = 1_000_000_000
NumberedScript = tuple[int, int, Script]  # (number of a session, its start time, its requests)


class Budget(Struct):
    """The number of requests that may still be sent. When a session begins, it takes its requests from this number."""

    left: int

    def take(self, requests: int) -> int:
        """Remove up to this many requests from the budget, and return the number removed."""
        granted = min(requests, self.left)
        self.left -= granted
        return granted


def _begin(name: str | None, tenant: Tenant, script: Script, budget: Budget, chained: bool) -> Session:
    """Return a session that sends the requests of a script in order, but only as many as the budget still allows."""
    requests = budget.take(len(script.steps))
    turns, sender = script.turns(requests), (name, tenant.name, tenant.priority)
    if chained or not any(step.branch for step in script.steps):
        return Chain(*sender, map(turns.__getitem__, range(requests)), requests)
    return Graph(*sender, turns, [step.after for step in script.steps[:requests]])


class Habits:
    """The distributions of a tenant's sessions. They are parsed once for all users of the tenant's closed loop."""

    def __init__(self, tenant: Tenant, seed: int, model: str) -> None:
        self.tenant = tenant
        self.models: list[tuple[str, list[Recipe], Chooser]] = []
        places = tenant.places
        lengths = {name: (getattr(tenant, name), places[name]) for name in TOKENS}
        several = len(tenant.models) > 1 or len(tenant.models[0].kinds) > 1
        for part in tenant.models:
            name = part.name or model
            label = f"model.{name}." if len(tenant.models) > 1 else ""
            recipes = []
            for number, kind in enumerate(part.kinds):
                own, place = (f"{label}kind.{number}.", "kinds") if several else ("", "kind")
                recipes.append(Recipe(kind, lengths, tenant.correlations.session, places[place], own))
            self.models.append((name, recipes, _chooser([kind.weight for kind in part.kinds], f"workload.{label}kind")))
        self.model = _chooser([part.weight for part in tenant.models], "workload.model")
        self.adapter = _chooser([share.weight for share in tenant.adapters], "workload.adapter")
        self.beginnings: Beginnings | None = None
        if tenant.prefix is not None:
            self.beginnings = Beginnings(tenant.prefix, tenant.seed(seed), tenant.base, seed, places["prefix"])
        self.think: shapes.Maker | None = None
        if tenant.closed_loop is not None:
            self.think = durations.maker(tenant.closed_loop.think_time, f"{places['closed_loop']}.think_time")


class Author:
    """Draws the sessions of a tenant, or of one user of the tenant's closed loop."""

    def __init__(self, habits: Habits, seed: int, first: int = 0, stride: int = 1) -> None:
        """Prepare to draw sessions. Each request gets a content number: `first`, `first + stride` and so on, so that
        different users of a closed loop never get the same number."""
        tenant = habits.tenant
        self._next, self._stride = tenant.base + first, stride
        self._models = [
            (name, [Planner(recipe, seed) for recipe in recipes], choose(seed))
            for name, recipes, choose in habits.models
        ]
        self._model = habits.model(seed)
        self._adapters = [share.adapter for share in tenant.adapters]
        self._adapter = habits.adapter(seed)
        self._beginning: Callable[[], tuple[int, int]] = lambda: (0, 0)
        if habits.beginnings is not None:
            self._beginning = habits.beginnings.sampler(seed, tenant.correlations.prefix)
        self._prefix_added = tenant.prefix is not None and tenant.prefix.added
        self._outer: dict[int, tuple[int, int]] = {} if habits.beginnings is None else habits.beginnings.outer

    def session(self, mark: Mark) -> Script:
        model, planners, kind = self._models[self._model()]
        planner = planners[kind()]
        steps, beginning = planner.draw(mark), self._beginning()
        first = self._next
        self._next += len(steps) * self._stride
        prefix = (0, 0) if mark.unique else beginning
        adapter = self._adapters[self._adapter()]
        outer = self._outer.get(prefix[0])
        return Script(planner.kind, model, steps, prefix, first, self._stride, adapter, self._prefix_added, outer)


Chooser = Callable[[int], Callable[[], int]]  # maps a seed to a function that draws an index


def _chooser(weights: list[float], name: str) -> Chooser:
    if len(weights) == 1:
        return lambda seed: lambda: 0
    pickers = shapes.pickers(range(len(weights)), weights)
    return lambda seed: pickers(stream(seed, name))


def times(tenant: Tenant, seed: int) -> Iterator[int]:
    """Return the start times of the ordinary sessions of an open loop, in microseconds."""
    profile = None if tenant.profile == profiles.Constant() else tenant.profile
    return arrivals.microseconds(tenant.arrival, tenant.rate, stream(seed, "workload.arrivals"), profile)


def sources(tenants: list[Tenant], seed: int, model: str, requests: int | None, stop_ps: int) -> list[Source]:
    """Return one source per tenant, or per user of a closed loop, in the order of the tenants in the file.

    Tenants with a closed loop get a fixed number of the `requests`, in proportion to their weight. The other tenants
    share the rest, in the order in which their sessions begin.
    """
    parts = _parts(tenants, requests)
    closed = sum(part for tenant, part in zip(tenants, parts, strict=True) if tenant.closed_loop is not None)
    shared = Budget(MAX_REQUESTS if requests is None else requests - closed)
    sources = []
    for tenant, part in zip(tenants, parts, strict=True):
        if tenant.closed_loop is None:
            sessions = OpenSessions(tenant, shared, _scripts(tenant, seed, model, stop_ps))
            sources.append(Source(sessions, tenant.retry, stop_ps, timeout_ps=tenant.timeout_ps))
            continue
        users, habits = tenant.closed_loop.concurrency, Habits(tenant, seed, model)
        for user in range(min(users, part)):  # skip users who would send no request
            quota = Budget(part // users + (user < part % users))
            own = _user(habits, seed, user, quota)
            sources.append(Source(own, tenant.retry, stop_ps, users=1, timeout_ps=tenant.timeout_ps))
    return sources


def _parts(tenants: list[Tenant], requests: int | None) -> list[int]:
    """Split the requests between the tenants by weight. The result has whole numbers whose sum is `requests`."""
    if requests is None:
        return [MAX_REQUESTS] * len(tenants)
    weights = [Fraction(str(tenant.weight)) for tenant in tenants]
    total, reached, parts, assigned = sum(weights, Fraction(0)), Fraction(0), [], 0
    for weight in weights:
        reached += weight
        upto = int(requests * reached / total)
        parts.append(upto - assigned)
        assigned = upto
    return parts


class OpenSessions(Iterator[SessionStart]):
    """The sessions of an open loop, as long as the budget has requests left."""

    def __init__(self, tenant: Tenant, budget: Budget, scripts: Iterator[NumberedScript]) -> None:
        self._tenant, self._budget, self._scripts = tenant, budget, scripts

    def __next__(self) -> SessionStart:
        if not self._budget.left:
            raise StopIteration
        number, start_ps, script = next(self._scripts)
        name = None if isinstance(script.kind, Completion) else f"{self._tenant.name}/{number}"
        return start_ps, partial(_begin, name, self._tenant, script, self._budget, chained=False)

    def draw_ahead(self) -> None:
        """Draw the sessions for all requests that are left. Other tenants may take a part of these requests, so a run
        may begin fewer sessions."""
        drawn, left = [], self._budget.left
        while left > 0 and (upcoming := next(self._scripts, None)) is not None:
            number, start_ps, script = upcoming
            drawn.append((number, start_ps, script.draw_ahead()))
            left -= len(script.steps)
        self._scripts = chain(drawn, self._scripts)


def _scripts(tenant: Tenant, seed: int, model: str, stop_ps: int) -> Iterator[NumberedScript]:
    own = tenant.seed(seed)
    author, place = Author(Habits(tenant, seed, model), own), tenant.places
    starts = behaviour.starts(
        times(tenant, own), tenant.behaviour, tenant.correlations.burst_size, own, place["behaviour"]
    )
    for number, (microseconds, mark) in enumerate(starts):
        start_ps = microseconds * PS_PER_US
        if start_ps >= stop_ps:
            _check_time(start_ps, stop_ps, f"{place['rate']}: session {number}")
            return
        yield number, start_ps, author.session(mark)


def _user(habits: Habits, seed: int, user: int, quota: Budget) -> Iterator[SessionStart]:
    """Yield the sessions of one user of a closed loop. The user thinks before each request except tool results."""
    tenant = habits.tenant
    assert tenant.closed_loop is not None and habits.think is not None
    own = derive(tenant.seed(seed), f"workload.user.{user}")
    author = Author(habits, own, user, tenant.closed_loop.concurrency)
    think = habits.think(stream(own, "workload.closed_loop"))
    for number in count():
        if not quota.left:
            return
        script = author.session(Mark())
        for step in script.steps:
            if step.by_user:
                step.delay_ps = think() * PS_PER_US
        yield 0, partial(_begin, f"{tenant.name}/{user}.{number}", tenant, script, quota, chained=True)


def _check_time(at_ps: int, stop_ps: int, what: str) -> None:
    """Raise if arrivals would continue beyond the latest time that the clock can represent."""
    if at_ps > LAST_PS and stop_ps > LAST_PS:
        raise HeadwayError(f"{what} would arrive {too_late(at_ps)}. Raise the rate.")


def requests_alone(tenant: Tenant, seed: int, model: str, requests: int | None, stop_ps: int) -> Iterator[Planned]:
    """Yield the requests of a tenant whose requests are all independent. `sources` would give the same requests, but
    this function is faster, because it creates no sessions."""
    own, places = tenant.seed(seed), tenant.places

    def lengths(name: str) -> shapes.Draw | None:
        spec = getattr(tenant, name)
        return None if spec is None else shapes.maker(spec, places[name])(stream(own, f"workload.{name}"))

    prompts, outputs, declared = lengths("prompt_tokens"), lengths("output_tokens"), lengths("max_tokens")
    assert prompts is not None and outputs is not None
    beginning: Callable[[], tuple[int, int]] = lambda: (0, 0)  # noqa: E731
    added, outers = False, None
    if tenant.prefix is not None:
        beginnings = Beginnings(tenant.prefix, own, tenant.base, seed, places["prefix"])
        beginning, added = beginnings.sampler(own), tenant.prefix.added
        outers = None if tenant.prefix.within is None else beginnings.outer
    prompt_kind, output_kind, key, limit = hashing.PROMPT, hashing.OUTPUT, hashing.key, None
    for row, microseconds in enumerate(islice(times(tenant, own), requests)):
        arrival_ps, number = microseconds * PS_PER_US, tenant.base + row
        if arrival_ps >= stop_ps:
            _check_time(arrival_ps, stop_ps, f"{places['rate']}: request {row}")
            return
        prompt, output, (group, shared) = prompts(), outputs(), beginning()
        if added:
            prompt = min(prompt + shared, MAX_TOKENS)
        if not shared:
            path = Path((key(prompt_kind, number),), (prompt,))
        elif prompt <= shared:
            shared = prompt
            path = Path((group,), (prompt,))
        else:
            path = Path((group, key(prompt_kind, number)), (shared, prompt))
        if outers is not None and shared:
            path = Path(*nested(outers[group], path.keys, path.ends))
        if declared is not None:
            limit = declared()
            output = min(output, limit)
        request = Request(
            row,
            arrival_ps,
            prompt,
            path,
            model,
            tenant.name,
            tenant.priority,
            max_tokens=limit,
            shared_prefix_tokens=shared,
        )
        yield Planned(request, output, key(output_kind, number))

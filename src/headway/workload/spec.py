"""The `workload:` section, and what it plans: requests with the truth that only the simulator may know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from headway.config.units import duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.streams import stream
from headway.types import Json
from headway.workload import clients, generate, presets, replay, shapes, tenants
from headway.workload.generate import MAX_REQUESTS
from headway.workload.replay import TraceSpec as TraceSpec
from headway.workload.tenants import Keys, Tenant
from headway.workload.traces.table import LAST_PS
from headway.workload.traffic import OpenLoop, Sessions, Traffic, with_deadlines
from headway.workload.traffic import Planned as Planned

WITH_TRACE: Final = ("trace", "duration", "max_tokens", "retry", "timeout")  # the keys that go with a trace
INSTEAD: Final = {"requests": "use workload.trace.limit", "rate": "use workload.trace.speed"}


class WorkloadSpec(Struct):
    """The section as written; a key that is None was not given. It is checked when it is made, files apart.

    Synthetic requests need a `rate` or a `closed_loop`, and `requests` or `duration` (or both: whichever ends first).
    All keys but these and the last three may stand for each tenant as well. A trace brings its own times and lengths;
    `duration`, `max_tokens`, `retry` and `timeout` go with either.
    """

    requests: int | None = None
    duration: Any = None  # ends arrivals: only those before it count
    rate: Any = None  # of new sessions; a completion is a session of one request
    arrival: Any = None  # poisson unless said
    profile: Any = None  # how the rate varies with time
    prompt_tokens: Any = None  # of a session's first prompt
    output_tokens: Any = None
    max_tokens: Any = None  # what clients declare; an output never exceeds it
    prefix: Any = None
    kind: Any = None  # completion unless said
    kinds: Any = None
    models: Any = None
    adapters: Any = None
    priority: str | None = None  # the SLO class
    slo: Any = None
    behaviour: Any = None
    archetype: Any = None
    correlations: Any = None
    closed_loop: Any = None
    retry: Any = None
    timeout: Any = None  # how long clients wait
    tenants: Any = None
    preset: Any = None
    trace: Any = None

    def __post_init__(self) -> None:
        if self.preset is not None:
            self._fill()
        if self.duration is not None and duration_ps(self.duration, "workload.duration") <= 0:
            raise HeadwayError(f"workload.duration: must be longer than nothing, got {shown(self.duration)}.")
        if self.max_tokens is not None:
            shapes.parse(self.max_tokens, "workload.max_tokens")
        if self.trace is None:
            self._check_synthetic()
        else:
            self._check_trace()

    def _given(self) -> Json:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def _fill(self) -> None:
        """The preset's keys take the place of those that are not given."""
        given = self._given()
        found = presets.filled(given, presets.load(given.pop("preset"), "workload.preset"))
        for name, value in (found | {"preset": None}).items():
            setattr(self, name, value)

    def _check_synthetic(self) -> None:
        if self.requests is None and self.duration is None:
            raise HeadwayError(
                "workload: say 'requests' or 'duration' for synthetic requests, or give a 'trace' to replay."
            )
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise HeadwayError(f"workload.requests: must lie between 1 and {MAX_REQUESTS}, got {self.requests}.")
        for tenant in self.senders():
            if self.requests is None and tenant.rate is not None:
                expected = tenant.profile.expected(tenant.rate, duration_ps(self.duration, "workload.duration"))
                if expected > MAX_REQUESTS:
                    given = tenant.given_rate or self.rate
                    wrong = f"{given} for {self.duration} are more than {MAX_REQUESTS} requests"
                    raise HeadwayError(f"{tenant.places['rate']}: {wrong}; lower the rate or shorten the duration.")

    def _check_trace(self) -> None:
        for name in self._given():
            if name not in WITH_TRACE:
                raise HeadwayError(f"workload.{name}: a trace brings its own; {INSTEAD.get(name, 'leave it out')}.")
        clients.retry(self._retry(), "workload.retry")
        clients.timeout(self.timeout, "workload.timeout")
        replay.parse(self.trace)

    def _retry(self) -> Any:
        return {} if self.retry is None else self.retry

    def senders(self) -> list[Tenant]:
        """The tenants, in the order in which they are written; none for a trace."""
        if self.trace is not None:
            return []
        top = Keys(**{name: getattr(self, name) for name in Keys.__struct_fields__ if name != "weight"})
        return tenants.parse_all(top, self.tenants)

    def slos(self) -> dict[str, Targets]:
        """The targets of the tenants that have any."""
        return {
            tenant.name: tenant.slo.targets(tenant.places["slo"])
            for tenant in self.senders()
            if tenant.slo != clients.Slo()
        }

    def resolved(self) -> Json:
        """The section with every default written out, but for what a trace's file tells: format and block size."""
        if self.trace is not None:
            return self._given() | {"trace": replay.resolved(replay.parse(self.trace))}
        found = {name: value for name, value in self._given().items() if name in ("requests", "duration", "rate")}
        senders = self.senders()
        if self.tenants is None:
            return found | senders[0].explicit()
        return found | {"tenants": {tenant.name: tenant.share() | tenant.explicit() for tenant in senders}}

    def plan(self, seed: int, model: str = "") -> Traffic:
        """The requests in order of arrival, one at a time."""
        stop_ps = LAST_PS + 1
        if self.duration is not None:
            stop_ps = min(stop_ps, duration_ps(self.duration, "workload.duration"))
        if self.trace is not None:
            retry = clients.retry(self._retry(), "workload.retry")
            timeout_ps = clients.timeout(self.timeout, "workload.timeout")
            spec = replay.parse(self.trace)
            return replay.traffic(spec, seed, model, stop_ps, self._declared(seed), retry, timeout_ps)
        senders = self.senders()
        if self.tenants is None and senders[0].plain():
            requests = generate.requests_alone(senders[0], seed, model, self.requests, stop_ps)
            return OpenLoop(with_deadlines(requests, senders[0].timeout_ps))
        return Sessions(generate.sources(senders, seed, model, self.requests, stop_ps))

    def _declared(self, seed: int) -> Callable[[], int] | None:
        if self.max_tokens is None:
            return None
        return shapes.sampler(self.max_tokens, "workload.max_tokens", stream(seed, "workload.max_tokens"))

"""The `workload:` section, and what it plans: requests with the truth that only the simulator may know."""

import re
from typing import Any, Final

import yaml

from headway.config.documents import presets
from headway.config.section import check_range, read
from headway.config.units import duration_ps, positive_duration_ps
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.streams import stream
from headway.types import Json
from headway.workload import clients, generate, replay, shapes, tenants, trace_spec
from headway.workload.generate import MAX_REQUESTS
from headway.workload.tenants import SenderKeys, Tenant
from headway.workload.traces.limits import LAST_PS
from headway.workload.traces.record import present
from headway.workload.traffic import OpenLoop, Retry, Sessions, Traffic, with_deadlines

KEYS: Final = ("requests", "duration", *SenderKeys.__struct_fields__, "tenants", "preset", "trace")
WITH_TRACE: Final = ("trace", "duration", "max_tokens", "retry", "timeout")  # the keys that go with a trace
INSTEAD: Final = {"requests": "use workload.trace.limit", "rate": "use workload.trace.speed"}
INSTEAD_OF_PRESET: Final = {  # which keys of a preset a key stands in place of, beside its namesake
    "kind": ("kinds", "models"),
    "kinds": ("kind", "models"),
    "rate": ("closed_loop",),
    "closed_loop": ("rate", "arrival", "profile", "behaviour"),
    "duration": ("requests",),
}


class WorkloadSpec(SenderKeys):
    """The section as written; a key that is None was not given. It is checked when it is made, files apart.

    Synthetic requests need a `rate` or a `closed_loop`, and `requests` or `duration` (or both: whichever ends first).
    The keys of `SenderKeys` may stand for each tenant as well. A trace brings its own times and lengths;
    `duration`, `max_tokens`, `retry` and `timeout` go with either.
    """

    requests: int | None = None
    duration: Any = None  # ends arrivals: only those before it count
    tenants: Any = None
    preset: Any = None
    trace: Any = None

    def __post_init__(self) -> None:
        if self.preset is not None:
            self._fill()
        if self.duration is not None:
            positive_duration_ps(self.duration, "workload.duration")
        if self.max_tokens is not None:
            shapes.parse(self.max_tokens, "workload.max_tokens")
        if self.trace is None:
            self._check_synthetic()
        else:
            self._check_trace()

    def _keys(self) -> Json:
        """The keys that are given, in order."""
        return present({name: getattr(self, name) for name in KEYS})

    def _fill(self) -> None:
        """The preset's keys take the place of those that are not given."""
        keys = self._keys()
        preset = load_preset(keys.pop("preset"), "workload.preset")
        keys = tenants.fill(keys, preset, INSTEAD_OF_PRESET)
        for name, value in (keys | {"preset": None}).items():
            setattr(self, name, value)

    def _check_synthetic(self) -> None:
        if self.requests is None and self.duration is None:
            raise HeadwayError(
                "workload: say 'requests' or 'duration' for synthetic requests, or give a 'trace' to replay."
            )
        if self.requests is not None:
            check_range(self.requests, 1, MAX_REQUESTS, "workload.requests")
        for tenant in self.senders():
            if self.requests is None and tenant.rate is not None:
                expected = tenant.profile.arrivals_before(tenant.rate, duration_ps(self.duration, "workload.duration"))
                if expected > MAX_REQUESTS:
                    wrong = (
                        f"{tenant.given_rate or self.rate} for {self.duration} are more than {MAX_REQUESTS} requests"
                    )
                    raise HeadwayError(f"{tenant.places['rate']}: {wrong}; lower the rate or shorten the duration.")

    def _check_trace(self) -> None:
        for name in self._keys():
            if name not in WITH_TRACE:
                raise HeadwayError(f"workload.{name}: a trace brings its own; {INSTEAD.get(name, 'leave it out')}.")
        self._read_clients()
        trace_spec.parse(self.trace)

    def _read_clients(self) -> tuple[Retry, int | None]:
        """What the clients of a trace do: whether they try again, and how long they wait."""
        retry = read(Retry, {} if self.retry is None else self.retry, "workload.retry")
        return retry, clients.positive_duration(self.timeout, "workload.timeout")

    def senders(self) -> list[Tenant]:
        """The tenants, in the order in which they are written; none for a trace."""
        if self.trace is not None:
            return []
        return tenants.parse_all(self, self.tenants)

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
            return self._keys() | {"trace": trace_spec.explicit(trace_spec.parse(self.trace))}
        common = {name: value for name, value in self._keys().items() if name in ("requests", "duration", "rate")}
        senders = self.senders()
        if self.tenants is None:
            return common | senders[0].explicit()
        return common | {"tenants": {tenant.name: tenant.share() | tenant.explicit() for tenant in senders}}

    def plan(self, seed: int, model: str = "") -> Traffic:
        """The requests in order of arrival, one at a time."""
        stop_ps = LAST_PS + 1
        if self.duration is not None:
            stop_ps = min(stop_ps, duration_ps(self.duration, "workload.duration"))
        if self.trace is not None:
            declared = None
            if self.max_tokens is not None:
                rng = stream(seed, "workload.max_tokens")
                declared = shapes.sampler(self.max_tokens, "workload.max_tokens", rng)
            spec = trace_spec.parse(self.trace)
            return replay.traffic(spec, seed, model, stop_ps, declared, *self._read_clients())
        senders = self.senders()
        if self.tenants is None and senders[0].plain():
            requests = generate.requests_alone(senders[0], seed, model, self.requests, stop_ps)
            return OpenLoop(with_deadlines(requests, senders[0].timeout_ps))
        return Sessions(generate.sources(senders, seed, model, self.requests, stop_ps))


# --- the workloads that come with the package: dated, and never changed -----------------------------------------------


def preset_names() -> list[str]:
    """The dated names, such as chat-2026-11."""
    return list(presets("workloads"))


def load_preset(name: object, where: str) -> Json:
    """The keys of a preset. Without its date a name means the newest."""
    texts = presets("workloads")
    short = {dated: re.sub(r"-[0-9]{4}-[0-9]{2}$", "", dated) for dated in texts}
    matches = [dated for dated in short if name in (dated, short[dated])]
    if not matches:
        raise HeadwayError(
            f"{where}: no workload is called {shown(name)}.{suggest(str(name), dict.fromkeys(short.values()))}"
        )
    keys: Json = yaml.safe_load(texts[matches[-1]])
    return keys

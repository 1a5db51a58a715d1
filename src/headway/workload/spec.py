"""The `workload:` section of a scenario, and the requests that it plans."""

import re
from typing import Annotated, Any, Final

from msgspec import Meta

from headway.config.documents import parse_yaml, presets
from headway.config.keys import DURATION, Form
from headway.config.schema import Names
from headway.config.section import check_range, read
from headway.config.units import duration_ps, positive_duration_ps
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.results.recorder import Targets
from headway.streams import stream
from headway.types import Json
from headway.workload import clients, generate, replay, shapes, tenants, trace_spec
from headway.workload.generate import MAX_REQUESTS
from headway.workload.tenants import SenderKeys, Tenant, TenantKeys
from headway.workload.traces.limits import LAST_PS
from headway.workload.traces.record import present
from headway.workload.traffic import OpenLoop, Retry, Sessions, Traffic, with_deadlines

KEYS: Final = ("requests", "duration", *SenderKeys.__struct_fields__, "tenants", "preset", "trace")
WITH_TRACE: Final = ("trace", "duration", "max_tokens", "retry", "timeout")  # keys that are valid with a trace
INSTEAD: Final = {"requests": "Use workload.trace.limit", "rate": "Use workload.trace.speed"}
INSTEAD_OF_PRESET: Final = {  # key of the workload -> other keys of a preset that it replaces
    "kind": ("kinds", "models"),
    "kinds": ("kind", "models"),
    "rate": ("closed_loop",),
    "closed_loop": ("rate", "arrival", "profile", "behaviour"),
    "duration": ("requests",),
}


class WorkloadSpec(SenderKeys):
    """The `workload` section as written. A key that is not set is None. The constructor checks everything except files.

    A synthetic workload needs a `rate` or a `closed_loop`, and `requests` or `duration` or both. A trace determines
    times and lengths itself, so only the keys of `WITH_TRACE` are valid with it.
    """

    requests: Annotated[
        int | None, Form.of(Annotated[int, Meta(ge=1, le=MAX_REQUESTS)]), "number of requests; or set `duration`"
    ] = None
    duration: Annotated[Any, DURATION, "no request arrives at or after this time"] = None
    tenants: Annotated[
        Any, Form.of(dict[str, TenantKeys | None]), "senders by name; the keys beside `tenants` are their defaults"
    ] = None
    preset: Annotated[
        Any,
        Form.of(Names(lambda: dict.fromkeys(name for pair in known_presets().items() for name in reversed(pair)))),
        "packaged workload that sets all other keys",
    ] = None
    trace: Annotated[Any, Form.of(trace_spec.TraceSpec), "file to replay; excludes most other keys"] = None

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
        """Return the keys of the section that are set, with their values, in order of declaration."""
        return present({name: getattr(self, name) for name in KEYS})

    def _fill(self) -> None:
        """Add the keys of the preset that the section does not override."""
        keys = self._keys()
        preset = load_preset(keys.pop("preset"), "workload.preset")
        keys = tenants.fill(keys, preset, INSTEAD_OF_PRESET)
        for name, value in (keys | {"preset": None}).items():
            setattr(self, name, value)

    def _check_synthetic(self) -> None:
        if self.requests is None and self.duration is None:
            raise HeadwayError(
                "workload: set 'requests' or 'duration' for a synthetic workload, or 'trace' to replay a file."
            )
        if self.requests is not None:
            check_range(self.requests, 1, MAX_REQUESTS, "workload.requests")
        for tenant in self.senders():
            if self.requests is None and tenant.rate is not None:
                expected = tenant.profile.arrivals_before(tenant.rate, duration_ps(self.duration, "workload.duration"))
                if expected > MAX_REQUESTS:
                    wrong = f"{tenant.given_rate or self.rate} for {self.duration} is more than {MAX_REQUESTS} requests"
                    raise HeadwayError(f"{tenant.places['rate']}: {wrong}. Lower the rate or shorten the duration.")

    def _check_trace(self) -> None:
        for name in self._keys():
            if name not in WITH_TRACE:
                raise HeadwayError(f"workload.{name}: is not valid with a trace. {INSTEAD.get(name, 'Remove it')}.")
        self._read_clients()
        trace_spec.parse(self.trace)

    def _read_clients(self) -> tuple[Retry, int | None]:
        """Return the retries and the timeout of the clients of a trace."""
        retry = read(Retry, {} if self.retry is None else self.retry, "workload.retry")
        return retry, clients.positive_duration(self.timeout, "workload.timeout")

    def senders(self) -> list[Tenant]:
        """Return the tenants in the order of the file. For a trace, return an empty list."""
        return [] if self.trace is not None else tenants.parse_all(self, self.tenants)

    def slos(self) -> dict[str, Targets]:
        """Return the SLO targets of the tenants that have targets, by tenant name."""
        return {
            tenant.name: tenant.slo.targets(tenant.places["slo"])
            for tenant in self.senders()
            if tenant.slo != clients.Slo()
        }

    def resolved(self) -> Json:
        """Return the section with all defaults, except defaults that depend on the content of a trace file."""
        if self.trace is not None:
            return self._keys() | {"trace": trace_spec.explicit(trace_spec.parse(self.trace))}
        common = {name: value for name, value in self._keys().items() if name in ("requests", "duration", "rate")}
        senders = self.senders()
        if self.tenants is None:
            return common | senders[0].explicit()
        explicit = {}
        for tenant in senders:
            share = {"weight": tenant.weight} if tenant.given_rate is None else {"rate": tenant.given_rate}
            explicit[tenant.name] = share | tenant.explicit()
        return common | {"tenants": explicit}

    def plan(self, seed: int, model: str = "") -> Traffic:
        """Return the traffic of the workload. It plans requests one at a time, in order of arrival."""
        stop_ps = LAST_PS + 1
        if self.duration is not None:
            stop_ps = min(stop_ps, duration_ps(self.duration, "workload.duration"))
        if self.trace is not None:
            declared = None
            if self.max_tokens is not None:
                declared = shapes.maker(self.max_tokens, "workload.max_tokens")(stream(seed, "workload.max_tokens"))
            spec = trace_spec.parse(self.trace)
            return replay.traffic(spec, seed, model, stop_ps, declared, *self._read_clients())
        senders = self.senders()
        if self.tenants is None and senders[0].plain():
            requests = generate.requests_alone(senders[0], seed, model, self.requests, stop_ps)
            return OpenLoop(with_deadlines(requests, senders[0].timeout_ps))
        return Sessions(generate.sources(senders, seed, model, self.requests, stop_ps))


# --- packaged workloads: each has a date in its name and never changes ------------------------------------------------


def preset_names() -> list[str]:
    """Return the dated names of the packaged workloads, such as chat-2026-11."""
    return list(presets("workloads"))


def known_presets() -> dict[str, str]:
    """Map the dated name of each packaged workload to its name without the date: chat-2026-11 to chat."""
    return {dated: re.sub(r"-[0-9]{4}-[0-9]{2}$", "", dated) for dated in preset_names()}


def load_preset(name: object, where: str) -> Json:
    """Return the keys of a preset. If the name has no date, return the newest version."""
    texts = presets("workloads")
    short = known_presets()
    matches = [dated for dated in short if name in (dated, short[dated])]
    if not matches:
        raise HeadwayError(
            f"{where}: no workload is called {shown(name)}.{suggest(str(name), dict.fromkeys(short.values()))}"
        )
    keys: Json = parse_yaml(texts[matches[-1]], matches[-1])
    return keys

"""How the gateway stands now, as one document: for the status page, `/status`, and the gauges of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from headway.config.documents import yaml_text
from headway.gateway.observing.decisions import policy_name
from headway.gateway.observing.figures import BETWEEN, merge, percentiles
from headway.types import PS_PER_SECOND, SERVING, Json
from headway.views.instance import SIGNALS

if TYPE_CHECKING:
    from headway.gateway.app import App
    from headway.gateway.engines.backend import Backend

LAST: Final = 12  # decisions on the page
# Of each engine's view, as it is called in the document.
SHOWN: Final = sorted((one for one in SIGNALS.values() if one.status is not None), key=lambda one: one.status or 0)


@runtime_checkable
class Aged(Protocol):
    """A component that knows how old each signal of an engine is, in seconds."""

    def ages(self, backend: Backend) -> dict[str, float]: ...


@runtime_checkable
class Eventful(Protocol):
    """A component that counts an engine's KV events: `events`, `gaps` and whatever else it tells apart."""

    def event_counts(self, backend: Backend) -> dict[str, int]: ...


def ages(app: App, backend: Backend) -> dict[str, float]:
    """By signal, in seconds. Where no component tells, that of the last report."""
    found: dict[str, float] = {}
    for component in app.components:
        if isinstance(component, Aged):
            found.update(component.ages(backend))
    observed = backend.view.observed_at
    if not found and observed is not None:
        found["report"] = (app.now_ps() - observed) / PS_PER_SECOND
    return found


def event_counts(app: App, backend: Backend) -> dict[str, int]:
    found: dict[str, int] = {}
    for component in app.components:
        if isinstance(component, Eventful):
            found.update(component.event_counts(backend))
    return found


def figures_of(app: App) -> list[Json]:
    """Those of every process of this gateway, its own first."""
    found = [{**app.figures.plain(app.now_ps()), "gauges": gauges(app)}]
    if app.peers is not None and app.peers.settings.orders:  # not those of other gateways
        found += app.peers.figures.values()
    return found


def status(app: App) -> Json:
    plain = merge({kind: figures for kind, figures in one.items() if kind != "gauges"} for one in figures_of(app))
    ends: dict[str, int] = {}
    for key, count in plain["counters"]["requests"].items():
        outcome = key.split(BETWEEN)[2]
        ends[outcome] = ends.get(outcome, 0) + count
    prompt, believed = (_total(plain, name) for name in ("prompt_tokens", "believed_cached_tokens"))
    return {
        "uptime_s": round(app.now_ps() / PS_PER_SECOND, 3),
        "draining": app.draining,
        "requests": ends,
        "retries": _total(plain, "retries"),
        "refusals": plain["counters"]["refusals"],
        "waiting": len(app.waiting),
        "connections": len(app.clients),
        "last_minute": percentiles(plain, app.now_ps() / PS_PER_SECOND),
        "believed_hit_ratio": believed / prompt if prompt else None,
        "backends": [
            {**backend_status(app, backend), "believed_hit_ratio": _believed(plain, backend.spec.name)}
            for backend in app.fleet.members
        ],
        "policy": {
            "version": app.plane.version,
            "text": yaml_text(app.policies),
            "failures": app.failures.status(),
        },
        "shadows": app.shadows.status(),
        "canary": app.canary.status(),
        "decisions": [
            _brief(one, policy_name(app.policies["routing"])) for one in app.decisions.last(LAST, every=True)
        ],
    }


def _total(plain: Json, name: str) -> int:
    counts: dict[str, int] = plain["counters"][name]
    return sum(counts.values())


def _believed(plain: Json, engine: str) -> float | None:
    """The share of prompt tokens sent to an engine that were believed cached there."""
    counters = plain["counters"]
    keys = [key for key in counters["prompt_tokens"] if key.split(BETWEEN)[1] == engine]
    prompt = sum(counters["prompt_tokens"][key] for key in keys)
    return sum(counters["believed_cached_tokens"][key] for key in keys) / prompt if prompt else None


def _brief(decision: Json, policy: str) -> Json:
    """Without the scorecard; a decision without a reason has the policy's name."""
    found = {name: value for name, value in decision.items() if name not in ("candidates", "scorecard")}
    if decision["decision"] == "routed":
        found["reason"] = found["reason"] or policy
    return found


def backend_status(app: App, backend: Backend) -> Json:
    spec, view = backend.spec, backend.view
    leaving = app.fleet.names.get(spec.name) is not backend
    return {
        "name": spec.name,
        "url": spec.url,
        "models": list(spec.models),
        "role": spec.role,
        "pool": spec.pool,
        "source": source_of(app, spec.name),
        "place": backend.place,
        "state": "leaving" if leaving else view.state,
        "serving": view.state in SERVING and not leaving,
        "cordoned": spec.name in app.fleet.held,
        "ejected": backend.ejected,
        "failures": backend.failures,
        "unready": dict(backend.unready),
        **{signal.name: getattr(view, signal.name) for signal in SHOWN},
        "connections": backend.opened,
        "reports": app.plane.reporting[backend.place],
        "ages_s": {name: round(age, 3) for name, age in ages(app, backend).items()},
        "kv_events": event_counts(app, backend),
    }


def source_of(app: App, name: str) -> str | None:
    """Who names the engine: file, admin or etcd."""
    return next((source for source, members in app.fleet.sources.items() if name in members), None)


def gauges(app: App) -> dict[str, dict[str, Any]]:
    """What there is now, by name and labels, and what engines told so far. All but those of `metrics.SAME` add up over
    several processes."""
    found: dict[str, dict[str, Any]] = {
        "waiting_requests": {"": len(app.waiting)},
        "client_connections": {"": len(app.clients)},
        "held_bytes": {"": app.held_bytes},
        "scrape_failures": {"": app.signals.misses},
        "unread_prompts": {"": app.tokens.unread},
        "kv_events_of_nobody": {"": 0 if app.listener is None else app.listener.unknown},
        "handover_fallbacks": {} if app.handover is None else dict(app.handover.fallbacks),
        "records_lost": {"": 0 if app.records is None else app.records.lost},
        "policy_version": {"": app.plane.version},
        "policy_failures": dict(app.failures.counts),
        **app.shadows.figures(),
        **app.canary.figures(),
    }
    for backend in app.fleet.members:
        name, view = backend.spec.name, backend.view
        own = app.plane.own(backend.place)
        told = {
            "inflight_requests": own[0],
            "inflight_tokens": own[1],
            "pending_prefill_tokens": own[2],
            "engine_connections": backend.opened,
            "backend_up": int(view.state in SERVING),
            "backend_ejected": int(backend.ejected),
            "backend_cordoned": int(name in app.fleet.held),
            "backend_queued": view.queued,
            "backend_running": view.running,
            "backend_kv_utilization": view.kv_used / view.kv_blocks if view.kv_blocks else 0.0,
            "backend_hit_rate": view.hit_rate,
            "backend_busy": view.busy,
            "backend_watts": view.watts,
        }
        for gauge, value in told.items():
            found.setdefault(gauge, {})[name] = value
        for signal, age in ages(app, backend).items():
            found.setdefault("signal_age_seconds", {})[f"{name}{BETWEEN}{signal}"] = age
        for kind, count in event_counts(app, backend).items():
            found.setdefault("kv_events", {})[f"{name}{BETWEEN}{kind}"] = count
    return found

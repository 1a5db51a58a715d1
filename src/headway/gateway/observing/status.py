"""The state of the gateway as one document. The status page, `/status` and the gauges of the metrics use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.documents import yaml_text
from headway.gateway.observing.exposition import SIGNAL_GAUGES
from headway.gateway.observing.gateway_metrics import BETWEEN, merge, percentiles
from headway.gateway.observing.recent_decisions import policy_name
from headway.types import PS_PER_SECOND, SERVING, Json
from headway.views.instance import SIGNALS

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.handover.live_handover import Handover
    from headway.gateway.live_clock import Clock
    from headway.gateway.live_scaling import LiveScaling
    from headway.gateway.membership.etcd_source import EtcdSource
    from headway.gateway.observing.gateway_metrics import GatewayMetrics
    from headway.gateway.observing.recent_decisions import Decisions
    from headway.gateway.observing.traffic_records import Records
    from headway.gateway.orders import Failures
    from headway.gateway.peers import Peers
    from headway.gateway.plane import Plane
    from headway.gateway.prompt_tokens import Tokens
    from headway.gateway.reception import Reception
    from headway.gateway.shadow.canary_watch import CanaryWatch
    from headway.gateway.shadow.shadows import Shadows
    from headway.gateway.signals.event_listener import Listener
    from headway.gateway.signals.polled_signals import EngineSignals
    from headway.gateway.waiting import Waiting
    from headway.http.tls import LiveContext

LAST: Final = 12  # number of decisions on the status page
# The signals that the document shows for each engine, in the order of the document.
SHOWN: Final = sorted(
    (signal for signal in SIGNALS.values() if signal.status is not None), key=lambda signal: signal.status or 0
)


class StatusBoard(Struct, kw_only=True):
    """Reads the state of all parts of the gateway."""

    clock: Clock
    plane: Plane
    fleet: Fleet
    waiting: Waiting
    reception: Reception
    metrics: GatewayMetrics
    decisions: Decisions
    failures: Failures
    shadows: Shadows
    canary: CanaryWatch
    signals: EngineSignals
    tokens: Tokens
    listener: Listener | None
    handover: Handover | None
    records: Records | None
    scaling: LiveScaling | None
    peers: Peers | None
    etcd: EtcdSource | None
    certificates: dict[str, LiveContext]  # by listening socket: clients or admin

    def ages(self, backend: Backend) -> dict[str, float]:
        """Return the age of each signal of an engine in seconds. If the engine has no signals, return the age of its
        last report."""
        ages = self.signals.ages(backend)
        observed = backend.view.observed_at
        if not ages and observed is not None:
            return {"report": (self.clock.now_ps() - observed) / PS_PER_SECOND}
        return ages

    def event_counts(self, backend: Backend) -> dict[str, int]:
        return {} if self.listener is None else self.listener.event_counts(backend)

    def figures(self) -> list[Json]:
        """Return the metrics of every process of this gateway. The metrics of this process come first."""
        own = {**self.metrics.plain(self.clock.now_ps()), "gauges": self.gauges()}
        if self.peers is not None and self.peers.settings.orders:  # the peers are processes of this gateway
            return [own, *self.peers.figures.values()]
        return [own]

    def status(self) -> Json:
        plain = merge(self.figures())
        ends: dict[str, int] = {}
        for key, count in plain["counters"]["requests"].items():
            outcome = key.split(BETWEEN)[2]
            ends[outcome] = ends.get(outcome, 0) + count
        prompt, believed = (_total(plain, name) for name in ("prompt_tokens", "believed_cached_tokens"))
        return {
            "uptime_s": round(self.clock.now_ps() / PS_PER_SECOND, 3),
            "draining": self.reception.draining,
            "block_tokens": self.plane.block_tokens,
            "requests": ends,
            "retries": _total(plain, "retries"),
            "refusals": plain["counters"]["refusals"],
            "waiting": len(self.waiting),
            "connections": len(self.reception.clients),
            "etcd": None if self.etcd is None else self.etcd.connected is True,
            "certificates_expire": self.certificates_expire(),
            "last_minute": percentiles(plain, self.clock.now_ps() / PS_PER_SECOND),
            "believed_hit_ratio": believed / prompt if prompt else None,
            "backends": [
                {**self.backend_status(backend), "believed_hit_ratio": _believed_share(plain, backend.spec.name)}
                for backend in self.fleet.members
            ],
            "policy": {
                "version": self.plane.version,
                "text": yaml_text(self.plane.policies),
                "failures": asdict(self.failures),
            },
            "shadows": self.shadows.status(),
            "canary": self.canary.status(),
            "scaling": None if self.scaling is None else self.scaling.status(),
            "decisions": [
                _brief(decision, policy_name(self.plane.policies["routing"]))
                for decision in self.decisions.last(LAST, every=True)
            ],
        }

    def certificates_expire(self) -> dict[str, float]:
        """Return the Unix time at which the certificate of each listening socket expires."""
        return {listener: context.expiry for listener, context in self.certificates.items()}

    def backend_status(self, backend: Backend) -> Json:
        spec, view = backend.spec, backend.view
        leaving = self.fleet.names.get(spec.name) is not backend
        return {
            "name": spec.name,
            "url": spec.url,
            "models": [] if spec.discovers else list(spec.models),
            "role": spec.role,
            "pool": spec.pool,
            "source": self.source_of(spec.name),
            "place": backend.place,
            "state": "leaving" if leaving else view.state,
            "serving": view.state in SERVING and not leaving,
            "cordoned": spec.name in self.fleet.cordoned,
            "ejected": backend.ejected,
            "failures": backend.failures,
            "unready": dict(backend.unready),
            **{signal.name: getattr(view, signal.name) for signal in SHOWN},
            "connections": backend.opened,
            "reports": self.plane.places.reporting[backend.place],
            "ages_s": {name: round(age, 3) for name, age in self.ages(backend).items()},
            "kv_events": self.event_counts(backend),
        }

    def source_of(self, name: str) -> str | None:
        """Return the source that defines the engine: file, admin or etcd; None if no source defines it."""
        return next((source for source, members in self.fleet.sources.items() if name in members), None)

    def gauges(self) -> dict[str, dict[str, Any]]:
        """Return the current gauges, and the engines' counters, by name and labels. If the gateway has several
        processes, the metrics page shows the sum over the processes or, for the names in `exposition.SAME`, the
        maximum."""
        gauges: dict[str, dict[str, Any]] = {
            "waiting_requests": {"": len(self.waiting)},
            "client_connections": {"": len(self.reception.clients)},
            "held_bytes": {"": self.reception.held_bytes},
            "scrape_failures": {"": self.signals.misses},
            "unread_prompts": {"": self.tokens.unread},
            "kv_events_of_nobody": {"": 0 if self.listener is None else self.listener.unknown},
            "handover_fallbacks": {} if self.handover is None else dict(self.handover.fallbacks),
            "records_lost": {"": 0 if self.records is None else self.records.lost},
            "etcd_up": {} if self.etcd is None else {"": int(self.etcd.connected is True)},
            "certificate_expiry_timestamp_seconds": self.certificates_expire(),
            "policy_version": {"": self.plane.version},
            "policy_failures": dict(self.failures.count),
            **self.shadows.figures(),
            **self.canary.figures(),
            **({} if self.scaling is None else self.scaling.figures()),
        }
        for backend in self.fleet.members:
            name, view = backend.spec.name, backend.view
            own = self.plane.places.own(backend.place)
            values = {
                "inflight_requests": own[0],
                "inflight_tokens": own[1],
                "pending_prefill_tokens": own[2],
                "engine_connections": backend.opened,
                "backend_up": int(view.state in SERVING),
                "backend_ejected": int(backend.ejected),
                "backend_cordoned": int(name in self.fleet.cordoned),
                **{f"backend_{signal}": getattr(view, signal) for signal in SIGNAL_GAUGES},
            }
            for gauge, value in values.items():
                gauges.setdefault(gauge, {})[name] = value
            for signal, age in self.ages(backend).items():
                gauges.setdefault("signal_age_seconds", {})[f"{name}{BETWEEN}{signal}"] = age
            for kind, count in self.event_counts(backend).items():
                gauges.setdefault("kv_events", {})[f"{name}{BETWEEN}{kind}"] = count
        return gauges


def _total(plain: Json, name: str) -> int:
    counts: dict[str, int] = plain["counters"][name]
    return sum(counts.values())


def _believed_share(plain: Json, engine: str) -> float | None:
    """Return the fraction of an engine's prompt tokens that the gateway believed cached there. If the engine has
    received no prompt tokens, return None."""
    counters = plain["counters"]
    keys = [key for key in counters["prompt_tokens"] if key.split(BETWEEN)[1] == engine]
    prompt = sum(counters["prompt_tokens"][key] for key in keys)
    return sum(counters["believed_cached_tokens"][key] for key in keys) / prompt if prompt else None


def _brief(decision: Json, policy: str) -> Json:
    """Return a decision without its scorecard and candidates. If a route has no reason, use the policy's name."""
    brief = {name: value for name, value in decision.items() if name not in ("candidates", "scorecard")}
    if decision["decision"] == "routed":
        brief["reason"] = brief["reason"] or policy
    return brief

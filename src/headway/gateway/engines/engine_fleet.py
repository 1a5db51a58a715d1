"""The engines behind the gateway: all engines that the file, the admin API or etcd names.

A new engine gets a free place, which is its index in `backends`. If no source names an engine any more, it drains: it
receives no new requests, and leaves when its last request has ended.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.gateway.engines.engine_pace import Pace, Trial
from headway.gateway.engines.member import BackendSpec, check_models
from headway.http.server_log import Occasional
from headway.types import SERVING
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.gateway.waiting import Waiting
    from headway.http.known_heads import KnownHead
    from headway.http.upstream import Upstream

SOURCES: Final = ("file", "admin", "etcd")  # if two sources name the same engine, the source that is listed first wins
MODELS, MODELS_UNKNOWN = "models", "its list of models has not been read yet"
EVENTS: Final = ("events", "events_replay", "events_topic")
# If one of these keys changes, a new engine replaces the old engine. Any other change updates the engine.
IDENTITY: Final = ("url", "rank", "dp", "role", "key_env", *EVENTS, "bootstrap_port", "kvd")
log = logging.getLogger("headway.gateway")


class Backend:
    """An engine: its specification, health and free connections. Policies see its view, which the plane owns."""

    def __init__(self, spec: BackendSpec, view: InstanceView) -> None:
        # `spec` names the models that the engine serves now. If it lists them itself, `offered` does not name them.
        self.spec = self.offered = spec
        self.adapter_slots: int | None = None  # most LoRA adapters in a batch, if the engine reports it
        self.view = view
        self.place = view.index
        # Header line of the gateway's answers, which names the engine.
        self.target_line = b"x-headway-target: " + spec.name.encode()
        self.address = spec.address()
        self.key = spec.key  # the engine's own bearer token
        self.free: deque[Upstream] = deque()
        self.opened = 0  # number of open connections, free or in use
        self.known: KnownHead | None = None  # head of the engine's last answer, if it may repeat
        self.failures = 0  # number of consecutive failed requests
        self.outcomes = 0  # outcomes of the last requests, one bit each, the newest lowest; 1: failed
        self.ejected = False
        self.ejected_until = 0.0  # time at which the current ejection ends, in seconds
        self.early_at = float("-inf")  # time of the last ejection that ended early, in seconds
        self.ejections = 0  # number of ejections since the last success
        self.on_trial = False  # whether the next request decides if the engine is ejected again
        self.trial: Trial | None = None  # the request that decides
        self.unanswered = False  # whether the last health check got no answer at all
        self.pace = Pace()
        self.trouble = Occasional(log, "%s: a request failed: %s")
        self.adapters: dict[str, str] = {}  # LoRA adapters that the engine lists, and the models that they extend
        self.unready: dict[str, str] = {}  # reasons why the engine is not ready, by reporter

    @property
    def name(self) -> str:
        return self.spec.name

    def close(self) -> None:
        for upstream in list(self.free):
            upstream.close()


class Fleet:
    def __init__(self, clock: Clock, plane: Plane, waiting: Waiting, places: int) -> None:
        self.clock, self.plane, self.waiting = clock, plane, waiting
        self.backends: list[Backend | None] = [None] * places
        self.names: dict[str, Backend] = {}
        self.sources: dict[str, Mapping[str, BackendSpec]] = {source: {} for source in SOURCES}
        self.cordoned: dict[str, None] = {}  # names of cordoned engines, including engines that are not members
        self.leaving: dict[Backend, None] = {}
        self.adapters: dict[str, str] = {}  # LoRA adapters that engines list, and the models that they extend
        self.on_change: list[Callable[[Backend, str], None]] = []

    @property
    def members(self) -> list[Backend]:
        """All engines in the order of their places, including draining engines."""
        return [backend for backend in self.backends if backend is not None]

    @property
    def by_name(self) -> dict[str, Backend]:
        """All engines by name. If a draining engine and a new engine share a name, the name means the new engine."""
        return {backend.name: backend for backend in (*self.leaving, *self.names.values())}

    @property
    def serving(self) -> int:
        """The number of engines that can take requests."""
        return sum(backend.view.state in SERVING for backend in self.names.values())

    @property
    def models(self) -> list[str]:
        specs = [backend.spec for backend in self.names.values() if not backend.spec.discovers]
        return list(dict.fromkeys(model for spec in specs for model in spec.models))

    # --- members -----------------------------------------------------------------------------------------------------

    def offer(self, source: str, members: Mapping[str, BackendSpec]) -> None:
        """Replace the engines of a source. If they conflict or are too many, raise HeadwayError and change nothing."""
        sources = {**self.sources, source: dict(members)}
        named: dict[str, BackendSpec] = {}
        for known in reversed(SOURCES):
            named.update(sources[known])
        check_models(named, "backends")
        if len(named) > len(self.backends):
            raise HeadwayError(
                f"backends: there are {len(named)} engines, but `max_backends` is {len(self.backends)}. "
                "Raise `max_backends` and restart the gateway."
            )
        self.sources = sources
        for name in [name for name in self.names if name not in named]:
            self._dismiss(self.names.pop(name))
        for name, spec in named.items():
            member = self.names.get(name)
            if member is None:
                self._join(spec)
            elif member.offered != spec:
                self._change(member, spec)

    def _join(self, spec: BackendSpec) -> None:
        self.sweep()
        place = next((place for place, backend in enumerate(self.backends) if backend is None), None)
        if place is None:
            log.warning("backends: %s joins when a draining engine has left", spec.name)
            self.clock.call_later(1.0, self._join_later, spec)
            return
        backend = self.backends[place] = self.names[spec.name] = Backend(spec, self.plane.views[place])
        if spec.discovers:
            backend.unready[MODELS] = MODELS_UNKNOWN
        self._update_view(backend)
        self.settle(backend)
        for hear in self.on_change:
            hear(backend, "joined")
        log.info("backends: %s joined at %s", spec.name, spec.url)

    def _join_later(self, spec: BackendSpec) -> None:
        named = next((self.sources[source][spec.name] for source in SOURCES if spec.name in self.sources[source]), None)
        if named is not None and spec.name not in self.names:
            self._join(named)

    def _change(self, backend: Backend, spec: BackendSpec) -> None:
        if any(getattr(backend.spec, name) != getattr(spec, name) for name in IDENTITY):
            del self.names[spec.name]
            self._dismiss(backend)
            self._join(spec)
            return
        if backend.spec.tls != spec.tls:
            backend.address = spec.address()  # for new connections
        keeps = spec.discovers and backend.offered.discovers
        backend.offered, backend.spec = spec, replace(spec, models=backend.spec.models) if keeps else spec
        if spec.discovers and not keeps:
            backend.unready[MODELS] = MODELS_UNKNOWN
        elif not spec.discovers:
            backend.unready.pop(MODELS, None)
            backend.adapters = {}
        self._find_adapters()
        self.settle(backend)
        self._update_view(backend)

    def learn(self, backend: Backend, models: Mapping[str, str]) -> None:
        """Take the models that an engine lists. The value of a LoRA adapter is the model that it extends; other values
        are empty."""
        if not backend.offered.discovers or self.names.get(backend.name) is not backend:
            return
        backend.adapters = {name: parent for name, parent in models.items() if parent}
        self._find_adapters()
        names = tuple(models)
        if names != backend.spec.models:
            log.info("%s: serves %s", backend.name, ", ".join(names))
            backend.spec = replace(backend.spec, models=names)
            self._update_view(backend)
        self.ready(backend.name, True, reporter=MODELS)

    def _find_adapters(self) -> None:
        adapters = {name: parent for backend in self.names.values() for name, parent in backend.adapters.items()}
        if adapters != self.adapters:
            self.adapters.clear()
            self.adapters.update(adapters)

    def set_adapter_slots(self, backend: Backend, slots: int) -> None:
        """Take the number of adapters that fit into an engine's batch, as its metrics page says."""
        if backend.adapter_slots != slots and self.backends[backend.place] is backend:
            backend.adapter_slots = slots
            self._update_view(backend)

    def _update_view(self, backend: Backend, name: str | None = None) -> None:
        fields = {**backend.spec.view_fields, "adapter_slots": backend.adapter_slots}
        if name is not None:
            fields["id"] = name
        self.waiting.carry_out(self.plane.join(self.clock.now_ps(), backend.place, fields))

    def _dismiss(self, backend: Backend) -> None:
        """Drain an engine. Another engine can use its name immediately."""
        self.leaving[backend] = None
        self.settle(backend)
        for hear in self.on_change:
            hear(backend, "left")
        self._find_adapters()
        self._update_view(backend, f"{backend.name} (leaving {backend.place})")
        log.info("backends: %s drains and leaves", backend.name)
        self.sweep()

    def sweep(self) -> None:
        """Free the places of draining engines that have no requests left. Called periodically."""
        plane = self.plane
        for backend in [leaver for leaver in self.leaving if not plane.places.own(leaver.place)[0]]:
            del self.leaving[backend]
            self.backends[backend.place] = None
            backend.close()
            log.info("backends: %s is drained and has left", backend.name)
            self.waiting.carry_out(plane.leave(self.clock.now_ps(), backend.place))

    # --- states ------------------------------------------------------------------------------------------------------

    def cordon(self, name: str) -> None:
        """Send no new requests to this engine until `uncordon`."""
        self.cordoned[name] = None
        self._settle(name)

    def uncordon(self, name: str) -> None:
        self.cordoned.pop(name, None)
        self._settle(name)

    def ready(self, name: str, ready: bool, why: str = "", reporter: str = "check") -> None:
        """Record whether `reporter` finds an engine ready. The engine is ready if all reporters find it ready."""
        backend = self.names.get(name)
        if backend is None:
            return
        if ready:
            backend.unready.pop(reporter, None)
        else:
            backend.unready[reporter] = why
        self.settle(backend)

    def spares(self, backend: Backend, or_on_trial: bool = False) -> bool:
        """Return whether every model of this engine is served by another engine too. An engine on trial counts only
        with `or_on_trial`."""
        others = [
            other
            for other in self.members
            if other is not backend
            and (other.view.state in SERVING or other.trial is not None)
            and (or_on_trial or not other.on_trial)
        ]
        models = backend.spec.models or ("",)
        return all(any(not other.spec.models or model in other.spec.models for other in others) for model in models)

    def _settle(self, name: str) -> None:
        if name in self.names:
            self.settle(self.names[name])

    def settle(self, backend: Backend) -> None:
        """Compute an engine's state (draining, unreachable or ready), and report a change to the plane. If the engine
        has left, do nothing, because another engine may have its place."""
        if self.backends[backend.place] is not backend:
            return
        if backend in self.leaving or backend.name in self.cordoned:
            state = "draining"
        elif backend.unready or backend.ejected or backend.trial is not None:
            state = "unreachable"
        else:
            state = "ready"
        if backend.view.state != state:
            self.plane.changed(self.clock.now_ps(), backend.place, state)
            if state in SERVING:
                self.waiting.wake_soon()
            else:  # if it was the last one, the patience of queued requests begins
                self.waiting.nudge()

"""The engines behind the gateway. Three sources name them: the file, the admin API and etcd. The fleet is the union of
the three: a new engine takes a free place; one that is no longer named takes no more requests, and leaves when its last
request has ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.gateway.engines.member import BackendSpec, check_models
from headway.http.address import Address
from headway.types import SERVING
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.gateway.waiting import Waiting
    from headway.http.upstream import Upstream

SOURCES: Final = ("file", "admin", "etcd")  # if two name the same engine, the first wins
# A change of these makes it another engine; other changes only update it.
IDENTITY: Final = ("url", "role", "key_env", "events", "events_replay", "events_topic", "bootstrap_port", "kvd")
log = logging.getLogger("headway.gateway")


class Backend:
    """An engine: where it is, how it fares, and the connections to it that are free. The view is what policies see of
    it, and belongs to the plane."""

    def __init__(self, spec: BackendSpec, view: InstanceView) -> None:
        self.spec = spec
        self.view = view
        self.place = view.index
        self.target_line = b"x-headway-target: " + spec.name.encode()  # of answers that come from it
        self.address = Address(spec.url, f"backends.{spec.name}.url")
        self.key = spec.key  # the engine's bearer token, if it is not the client's
        self.free: deque[Upstream] = deque()
        self.opened = 0  # connections, free or not
        self.failures = 0  # in a row
        self.ejected = False  # after failures in a row
        self.unready: dict[str, str] = {}  # reasons why it is not ready, by who reports them

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
        self.held: dict[str, None] = {}  # cordoned names, members or not
        self.leaving: dict[Backend, None] = {}
        self.on_change: list[Callable[[Backend, str], None]] = []

    def backend(self, name: str) -> Backend | None:
        return self.names.get(name)

    @property
    def members(self) -> list[Backend]:
        """All engines by place, including those that leave."""
        return [backend for backend in self.backends if backend is not None]

    @property
    def called(self) -> dict[str, Backend]:
        """All engines by name, including those that leave; of two with one name, the one that stays."""
        return {backend.name: backend for backend in (*self.leaving, *self.names.values())}

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for backend in self.names.values() for model in backend.spec.models))

    # --- members -----------------------------------------------------------------------------------------------------

    def offer(self, source: str, members: Mapping[str, BackendSpec]) -> None:
        """Take all engines that a source names now. Raises HeadwayError, and changes nothing, if they do not fit."""
        sources = {**self.sources, source: dict(members)}
        named: dict[str, BackendSpec] = {}
        for known in reversed(SOURCES):
            named.update(sources[known])
        check_models(named, "backends")
        if len(named) > len(self.backends):
            raise HeadwayError(
                f"backends: {len(named)} engines are named, and there is room for {len(self.backends)}; "
                "give `max_backends` a higher number and start anew."
            )
        self.sources = sources
        for name in [name for name in self.names if name not in named]:
            self._dismiss(self.names.pop(name))
        for name, spec in named.items():
            known_as = self.names.get(name)
            if known_as is None:
                self._join(spec)
            elif known_as.spec != spec:
                self._change(known_as, spec)

    def _join(self, spec: BackendSpec) -> None:
        self.sweep()
        place = next((place for place, backend in enumerate(self.backends) if backend is None), None)
        if place is None:  # it joins when a leaving engine has left
            log.warning("backends: %s has to wait for one of those that leave", spec.name)
            self.clock.call_later(1.0, self._join_later, spec)
            return
        backend = self.backends[place] = self.names[spec.name] = Backend(spec, self.plane.views[place])
        self._update_view(place, spec)
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
        backend.spec = spec
        self._update_view(backend.place, spec)

    def _update_view(self, place: int, spec: BackendSpec) -> None:
        self.waiting.carry_out(self.plane.join(self.clock.now_ps(), place, spec.view_fields))

    def _dismiss(self, backend: Backend) -> None:
        """Send it no more requests; it leaves when it has none left. Its name is free at once."""
        self.leaving[backend] = None
        self.settle(backend)
        for hear in self.on_change:
            hear(backend, "left")
        self._update_view(backend.place, replace(backend.spec, name=f"{backend.name} (leaving {backend.place})"))
        log.info("backends: %s leaves", backend.name)
        self.sweep()

    def sweep(self) -> None:
        """Called periodically: free the places of leaving engines that have no requests left."""
        plane = self.plane
        for backend in [leaver for leaver in self.leaving if not plane.places.own(leaver.place)[0]]:
            del self.leaving[backend]
            self.backends[backend.place] = None
            backend.close()
            self.waiting.carry_out(plane.leave(self.clock.now_ps(), backend.place))

    # --- what can be sent to -----------------------------------------------------------------------------------------

    def cordon(self, name: str) -> None:
        """Send it no new requests until `uncordon`, whichever source names it."""
        self.held[name] = None
        self._settle(name)

    def uncordon(self, name: str) -> None:
        self.held.pop(name, None)
        self._settle(name)

    def ready(self, name: str, ready: bool, why: str = "", reporter: str = "check") -> None:
        """Note whether `who` finds it ready; it is ready if all find it so."""
        backend = self.names.get(name)
        if backend is None:
            return
        if ready:
            backend.unready.pop(reporter, None)
        else:
            backend.unready[reporter] = why
        self.settle(backend)

    def spares(self, backend: Backend) -> bool:
        """Whether each of its models has another engine that can be sent to."""
        others = [other for other in self.members if other is not backend and other.view.state in SERVING]
        models = backend.spec.models or ("",)
        return all(any(not other.spec.models or model in other.spec.models for other in others) for model in models)

    def _settle(self, name: str) -> None:
        if name in self.names:
            self.settle(self.names[name])

    def settle(self, backend: Backend) -> None:
        """Derive its state from all that is known. News of an engine that has left must not change the one that has its
        place now."""
        if self.backends[backend.place] is not backend:
            return
        if backend in self.leaving or backend.name in self.held:
            state = "draining"
        elif backend.unready or backend.ejected:
            state = "unreachable"
        else:
            state = "ready"
        view = backend.view
        if view.state != state:
            self.plane.changed(self.clock.now_ps(), backend.place, state)
            if state in SERVING:
                self.waiting.wake_soon()

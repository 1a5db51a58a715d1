"""Sends each event of a router to its receivers: the record of the router's past, the prefix indexes and the
observers."""

from collections.abc import Callable, Sequence
from typing import Any

from headway.control.flights import Flight
from headway.control.router_state import RouterState, kept_signals
from headway.control.view_lock import ViewLock
from headway.policies.context import Context
from headway.policies.prefix_index import PrefixIndex
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.events import (
    Arrived,
    Delayed,
    Event,
    Finished,
    FirstToken,
    Handed,
    InstanceChanged,
    Rejected,
    Routed,
    observed_kinds,
)
from headway.views.instance import InstanceView

Observe = Callable[[Event], None]


class Audience:
    """The receivers of a router's events. `state` records the router's past. While no policy reads this past, `state`
    is None."""

    def __init__(
        self,
        context: Context,
        cluster: ClusterView,
        on_indexes: Callable[[Sequence[PrefixIndex]], None] | None = None,
        on_error: Callable[[Observe, BaseException], None] | None = None,
    ) -> None:
        """Create an audience without observers. `on_indexes` is called with all current prefix indexes whenever a
        policy may have created one. If an observer raises an exception, `on_error` is called with the observer and the
        exception, and the other observers still receive the event. Without `on_error`, the exception reaches the caller
        of `notify`."""
        self.context, self.cluster = context, cluster
        self.on_indexes, self.on_error = on_indexes, on_error
        self.observers: list[Observe] = []
        self.listeners: dict[type, list[Observe]] = {}  # event class -> observers that list this class in `observes`
        self.indexes: list[PrefixIndex] = []
        self.routed_indexes: list[PrefixIndex] = []  # the indexes that learn which prompts the router sends
        self.accessed: list[PrefixIndex] = []  # the indexes that record times of accesses
        self.state: RouterState | None = None
        self.signals: dict[str, None] = {}
        self.lock: ViewLock | None = None  # set while the views are locked during calls of policies

    def join(
        self, now_ps: int, policies: Sequence[Any], flights: dict[int, Flight], context: Context | None = None
    ) -> None:
        """Bind these policies and send them all events from now on. For each request in flight, the policies first
        receive events as if the request were routed now. `context` replaces the context of the other policies."""
        for policy in policies:
            bind = getattr(policy, "bind", None)
            if bind is not None:
                self._call(policy, bind, context or self.context)
        self.show(now_ps, kept_signals(policies), flights)
        self.update_indexes()
        joining = [policy.observe for policy in policies if hasattr(policy, "observe")]
        for flight in flights.values():
            for observe in joining:
                for event in _history(now_ps, flight):
                    self._call(_policy_of(observe), observe, event)
        self.observers += joining
        for policy in policies:
            for kind in observed_kinds(policy) if hasattr(policy, "observe") else ():
                self.listeners.setdefault(kind, []).append(policy.observe)

    def dismiss(self, policies: Sequence[Any]) -> None:
        """Stop sending events to these policies."""
        leaving = [policy.observe for policy in policies if hasattr(policy, "observe")]
        self.observers = [observe for observe in self.observers if observe not in leaving]
        for kind, listening in [*self.listeners.items()]:
            self.listeners[kind] = [observe for observe in listening if observe not in leaving]
            if not self.listeners[kind]:
                del self.listeners[kind]

    def show(self, now_ps: int, names: Sequence[str], flights: dict[int, Flight]) -> None:
        """Start to record the named parts of this router's past (`tenants`, `totals`, `recent`), and show them in the
        views. Parts that are already recorded keep their data."""
        self.signals.update(dict.fromkeys(names))
        if self.state is not None:
            self.state.show(self.signals)
        elif self.signals:
            self.state = RouterState(self.cluster, self.signals, self.context.instances)
            for flight in flights.values():
                self.state.on_arrival(now_ps, flight.request)
                self.state.on_routed(flight.request)

    def update_indexes(self) -> None:
        """Update the list of prefix indexes from the context, because a policy may have created a new index."""
        self.indexes, self.routed_indexes = self.context.indexes, self.context.routed_indexes
        self.accessed = [index for index in self.indexes if index.accesses is not None]
        if self.on_indexes is not None:
            self.on_indexes(self.indexes)

    def notify(self, event: Event) -> None:
        self._send(event, self.observers)

    def tell(self, event: Any) -> None:
        """Send an event to the policies that list its class in `observes`."""
        self._send(event, self.listeners.get(type(event), ()))

    def _send(self, event: Any, observers: Sequence[Observe]) -> None:
        self.cluster.now_ps = event.at_ps
        for observe in observers:
            try:
                if self.lock is None:
                    observe(event)
                else:
                    self._call(_policy_of(observe), observe, event)
            except (Exception, SystemExit) as error:
                if self.on_error is None:
                    raise
                self.on_error(observe, error)

    def _call(self, policy: Any, method: Callable[[Any], None], argument: Any) -> None:
        if self.lock is None:
            method(argument)
        else:
            self.lock.call(policy, method, argument)

    def on_arrived(self, now_ps: int, request: Request) -> None:
        if Arrived in self.listeners:
            self.tell(Arrived(now_ps, request))

    def on_delayed(self, now_ps: int, request: Request, until_ps: int) -> None:
        if Delayed in self.listeners:
            self.tell(Delayed(now_ps, request, until_ps))

    def on_rejected(self, now_ps: int, request: Request, reason: str, outcome: str = "rejected") -> None:
        if Rejected in self.listeners:
            self.tell(Rejected(now_ps, request, reason, outcome))

    def on_dequeued(self, request: Request) -> None:
        if self.state is not None:
            self.state.on_dequeued(request)

    def on_routed(self, now_ps: int, flight: Flight) -> None:
        request, view, prefill = flight.request, flight.view, flight.prefill
        if self.state is not None:
            self.state.on_routed(request)
        for index in self.routed_indexes:
            if prefill is not None:
                index.touch(prefill.index, request.path)
            index.touch(view.index, request.path)
        if self.accessed:
            for place in (view.index,) if prefill is None else (prefill.index, view.index):
                self.record_access(now_ps, place, request.path)
        if self.observers:
            self.notify(Routed(now_ps, request, view, prefill))

    def record_access(self, now_ps: int, instance: int, path: Path) -> None:
        """Record the time at which this router sent a prompt, or heard that another router did."""
        for index in self.accessed:
            if index.accesses is not None:
                index.accesses.record(now_ps, instance, path, index)

    def on_taken_over(self, now_ps: int, flight: Flight) -> None:
        """Add a request in flight that another control plane has routed: record it, and send the observers events about
        it."""
        if self.state is not None:
            self.state.on_arrival(now_ps, flight.request)
            self.state.on_routed(flight.request)
        for index in self.routed_indexes:
            index.touch(flight.view.index, flight.request.path)
        self.record_access(now_ps, flight.view.index, flight.request.path)
        for event in _history(now_ps, flight) if self.observers else ():
            self.notify(event)

    def on_first_token(self, now_ps: int, flight: Flight) -> None:
        if self.state is not None:
            self.state.on_first_token(now_ps, flight.request, flight.view)
        if self.observers:
            self.notify(FirstToken(now_ps, flight.request, flight.view))

    def on_handed(self, now_ps: int, flight: Flight, prefill: InstanceView) -> None:
        self.notify(Handed(now_ps, flight.request, flight.view, prefill))

    def on_finished(self, now_ps: int, flight: Flight, outcome: str, output_tokens: int) -> None:
        if self.state is not None:
            streamed = outcome == "completed" and flight.first_ps >= 0  # without streaming, no first token is reported
            decode_ps = now_ps - flight.first_ps if streamed else None
            self.state.on_finished(now_ps, flight.request, flight.view, output_tokens, decode_ps)
        if self.observers:
            self.notify(Finished(now_ps, flight.request, flight.view, outcome, output_tokens))

    def on_stopped(self, instance: int) -> None:
        """Remove the content of a stopped instance's cache from the prefix indexes."""
        for index in self.indexes:
            index.clear(instance)

    def on_changed(self, now_ps: int, view: InstanceView, was: str) -> None:
        if self.observers:
            self.notify(InstanceChanged(now_ps, view, was))


def _policy_of(observe: Observe) -> Any:
    return getattr(observe, "__self__", observe)


def _history(now_ps: int, flight: Flight) -> list[Event]:
    """Return the events that inform a policy that joins late about a request in flight: `Routed` and, if the first
    token has arrived, `FirstToken`. Both events have the current time."""
    events: list[Event] = [Routed(now_ps, flight.request, flight.view, flight.prefill)]
    if flight.first_ps >= 0:
        events.append(FirstToken(now_ps, flight.request, flight.view))
    return events

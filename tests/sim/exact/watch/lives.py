"""The watch over instances that come and go: how many there are, what routers know of them, where requests are."""

from __future__ import annotations

from headway.control.flights import Flight
from headway.sim.job import Job
from headway.sim.lifecycle import Place
from headway.sim.simulation import Simulation
from headway.types import SERVING
from watch.events import Event, Part, demand, seated


class Lives(Part):
    """Pools keep within their bounds, every router knows every state, and requests are where they are booked."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        assert simulation.capacity is not None and simulation.dispatcher.losses is not None
        self.capacity, self.losses = simulation.capacity, simulation.dispatcher.losses
        self.watch_changes()
        self.watch_sends()

    def watch_changes(self) -> None:
        """Check at every change of a state, though more may follow from it within the event."""
        plain = self.capacity.change

        def change(now: int, place: Place, state: str) -> None:
            plain(now, place, state)
            self.check_all(now)

        self.capacity.change = change  # type: ignore[method-assign]

    def watch_sends(self) -> None:
        plain = self.simulation.dispatcher.put

        def put(now: int, job: Job, flight: Flight) -> None:
            for view in (flight.view, flight.prefill):
                state = "none" if view is None else self.state(view.index)
                demand(state in (*SERVING, "none"), "Request {} is sent to an instance that is {}.", job.row, state)
            plain(now, job, flight)

        self.simulation.dispatcher.put = put  # type: ignore[method-assign]

    def check(self, event: Event) -> None:
        self.check_all(event.now)

    def check_all(self, now: int) -> None:
        self.check_states()
        self.check_bounds(now)
        self.check_bookings()

    def check_states(self) -> None:
        simulation = self.simulation
        views = simulation.setup.views
        states = [self.state(view.index) for view in views if view.id]  # the others are ranks that no router sees
        for plane in [simulation.control] if simulation.routers is None else simulation.routers.planes:
            known = [view.state for view in plane.ordered if view.id]
            demand(known == states, "A router takes the instances for {}, they are {}.", known, states)

    def state(self, index: int) -> str:
        """The state of the engine with this instance."""
        first = index - self.simulation.setup.engines[index].rank
        return self.capacity.lifecycle.places[first].state

    def check_bounds(self, now: int) -> None:
        lifecycle, struck = self.capacity.lifecycle, self.simulation.recorder.struck
        crashed = bool(struck) and struck[-1].at_ps == now  # it is being replaced
        for pool in self.capacity.setup.pools:
            held = sum(place.state != "stopped" for place in lifecycle.of(pool))
            demand(held <= pool.maximum, "Pool {} has {} instances, at most {} may be.", pool.id, held, pool.maximum)
            count = lifecycle.count(pool)
            demand(crashed or count >= pool.minimum, "Pool {} has {} instances, not {}.", pool.id, count, pool.minimum)

    def check_bookings(self) -> None:
        """A request booked at an instance is there, or is about to come from where its prompt is computed."""
        ended = {job.row for job in self.cluster.ended}
        for instance, booked in zip(self.cluster.instances, self.losses.bound, strict=True):
            there = {job.row for _, jobs in seated(instance) for job in jobs if not job.withdrawn}
            name = instance.view.id
            demand(there <= set(booked), "{} has requests {}, booked are {}.", name, there, set(booked))
            for row in set(booked) - there - ended:
                handover = booked[row].awaits
                coming = handover is not None and (not handover.begun or handover.source.expired)
                demand(coming, "Request {} is booked at {} and is not there.", row, name)

    def over(self) -> None:
        """Without a horizon all requests have ended, and none is booked or on its way to another instance."""
        if self.simulation.setup.horizon_ps is None:
            demand(not any(self.losses.bound), "Requests are booked after the end: {}.", self.losses.bound)
            demand(not self.losses.moving, "Requests wait for an instance after the end: {}.", self.losses.moving)

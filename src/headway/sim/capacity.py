"""Instances come and go: faults strike, the autoscaler looks and is obeyed, instances get ready, drain and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.control.autoscaler import Autoscaler
from headway.policies.scaling.thresholds import Static
from headway.results.recorder import FaultRecord, ScaleRecord
from headway.sim.instance_end import cool
from headway.sim.lifecycle import Lifecycle, Place
from headway.sim.losses import Losses
from headway.sim.setup import FaultSetup, LifeSetup, PoolSetup
from headway.types import NEVER, REPLICAS, SERVING, STARTING, Request

if TYPE_CHECKING:
    from headway.sim.dispatcher import Dispatcher

REACHED = (*SERVING, "draining")  # states in which it has requests


class Capacity:
    def __init__(
        self, dispatcher: Dispatcher, setup: LifeSetup, autoscaler: Autoscaler | None, queues: bool = False
    ) -> None:
        """`queues`: requests may wait in a queue of the router's."""
        self.dispatcher = dispatcher
        self.setup = setup
        self.lifecycle = Lifecycle(setup, dispatcher.recorder)
        self.losses = Losses(dispatcher, setup.retries)
        dispatcher.capacity, dispatcher.losses = self, self.losses
        self.autoscaler = autoscaler  # None where all pools keep their size
        self.next_ps = NEVER
        self.waiting = False  # whether the autoscaler knows of requests that wait at the router
        # Whether there may be something to do at any instant: a trigger, or requests that wait at the router.
        self.watchful = autoscaler is not None and (autoscaler.triggers is not None or queues)

    def start(self, now: int) -> None:
        """The run begins."""
        dispatcher = self.dispatcher
        self.lifecycle.start(now)
        if self.autoscaler is not None:
            self.autoscaler.start(now)
        while (fault := self.lifecycle.struck_before(now)) is not None:
            self.strike(now, fault)
        self.set_next()
        dispatcher.set_timer()

    def is_due(self, now: int) -> bool:
        """Whether anything may be due at this instant."""
        if self.next_ps == now or self.watchful or any(map(self.losses.idle, self.lifecycle.draining)):
            return True
        return self.autoscaler is not None and (self.waiting or bool(self.dispatcher.held))

    def is_deserted(self) -> bool:
        """Nobody is there to be served."""
        return not self.dispatcher.held and all(map(self.losses.idle, range(len(self.losses.bound))))

    def close(self, now: int) -> None:
        for place in self.lifecycle.places:
            stats = self.dispatcher.instances[place.index].stats
            stats.held_ps = self.lifecycle.held_time(place, now)
            stats.scaled_with = place.pool.id

    def set_next(self) -> None:
        self.next_ps = self.lifecycle.next_ps
        if self.autoscaler is not None:
            self.next_ps = min(self.next_ps, self.autoscaler.next_ps)

    def manage(self, now: int) -> None:
        """All that is due at this instant, after the requests that ended at it: faults, then the autoscaler's look and
        what follows from it, then what instances get into. Nothing more happens once nobody is there to be served."""
        while (fault := self.lifecycle.strikes(now)) is not None:
            self.strike(now, fault)
        if self.autoscaler is not None:
            self.look(now, self.autoscaler)
        while (change := self.lifecycle.due(now)) is not None:
            self.get_into(now, *change)
        for index in self.lifecycle.draining[:]:
            if self.losses.idle(index):
                self.stop(now, self.lifecycle.places[index])
        self.count_waiting(now)
        self.set_next()
        self.dispatcher.set_timer()

    def in_vain(self, now: int, request: Request) -> None:
        """A request has waited at the router as long as one may, or as its client would."""
        if self.autoscaler is not None:
            could = self.dispatcher.control.pools_of(request)
            pools = [number for number, pool in enumerate(self.setup.pools) if pool.view_pool in could]
            self.autoscaler.in_vain(now, request, pools)

    # --- the autoscaler ----------------------------------------------------------------------------------------

    def count_waiting(self, now: int) -> None:
        """The load that the autoscaler sees has the requests that wait at the router, for as long as they do."""
        if self.autoscaler is None:
            return
        self.waiting = False
        for pool, watch in zip(self.setup.pools, self.autoscaler.pools, strict=True):
            watch.set_pending(now, self.dispatcher.control.pending(pool.view_pool))
            self.waiting = self.waiting or watch.pending > 0

    def look(self, now: int, autoscaler: Autoscaler) -> None:
        dispatcher, lifecycle = self.dispatcher, self.lifecycle
        self.count_waiting(now)
        cause = "interval" if autoscaler.next_ps == now else autoscaler.trigger(now)
        if cause is None:
            return
        dispatcher.signals.refresh(now)
        for decision in autoscaler.decide(now, cause):
            pool = self.setup.pools[decision.pool]
            before = lifecycle.count(pool)
            after = self.resize(now, pool, decision.after)
            if after != before:
                autoscaler.on_scaled(now, decision.pool)
                record = ScaleRecord(now, pool.id, before, after, decision.reason, cause)
                dispatcher.recorder.scaled.append(record)

    def resize(self, now: int, pool: PoolSetup, target: int) -> int:
        """Bring instances, or drain some, until a pool has so many; how many it then has. Those that drain still have
        their GPUs, so that there may be no place for others yet."""
        lifecycle = self.lifecycle
        count = lifecycle.count(pool)
        while count < target and (place := lifecycle.free(pool)) is not None:
            self.provision(now, place)
            count += 1
        while count > target:
            self.drain(now, self.least_needed(pool))
            count -= 1
        return count

    def least_needed(self, pool: PoolSetup) -> Place:
        """Who goes first: those that nobody is sent to, then whoever has the fewest requests; of equals the last."""
        bound = self.losses.bound
        here = [place for place in self.lifecycle.of(pool) if place.state in REPLICAS]
        return min(here, key=lambda place: (place.state in SERVING, len(bound[place.index]), -place.index))

    # --- an instance -------------------------------------------------------------------------------------------

    def change(self, now: int, place: Place, state: str) -> None:
        dispatcher = self.dispatcher
        if dispatcher.signals.vary:  # the policies will hear of it, and may look
            dispatcher.signals.refresh(now)
        self.lifecycle.change(now, place, state)
        dispatcher.control.instance_changed(now, place.index, state)

    def provision(self, now: int, place: Place) -> None:
        self.change(now, place, "provisioning")
        self.lifecycle.plan(now + place.provisioning(), place, "loading")

    def get_into(self, now: int, place: Place, state: str) -> None:
        """The next state that was planned for an instance."""
        lifecycle, warmup = self.lifecycle, self.setup.scaling.warmup
        if state == "loading":
            self.change(now, place, "loading")
            lifecycle.plan(now + place.loading(), place, "warming")
        elif state == "warming":
            place.warm_at = now if warmup is None else now + warmup.duration_ps
            if warmup is not None:
                self.dispatcher.instances[place.index].warm(now, warmup.steps())
            self.serve(now, place)
        elif state == "ready":
            self.serve(now, place)
        else:  # it has had time enough to drain
            self.losses.empty(now, place.index, False, f"{self.name(place)} was stopped before the request had ended")
            self.stop(now, place)

    def serve(self, now: int, place: Place) -> None:
        """It takes requests, at first perhaps more slowly."""
        if now < place.warm_at:
            self.change(now, place, "warming")
            self.lifecycle.plan(place.warm_at, place, "ready")
        else:
            self.change(now, place, "ready")
        if self.dispatcher.held:  # some of them may have waited for an instance
            self.dispatcher.follow(now, self.dispatcher.control.wake)

    def drain(self, now: int, place: Place) -> None:
        """It gets no more requests; what becomes of those that it has goes by the mode."""
        drain = self.setup.scaling.drain
        if place.state in STARTING:
            self.stop(now, place)
            return
        self.change(now, place, "draining")
        if drain.mode != "wait":
            why = f"{self.name(place)} was stopped before the request had ended"
            self.losses.empty(now, place.index, drain.mode == "redirect", why)
        if self.losses.idle(place.index):
            self.stop(now, place)
            return
        self.lifecycle.draining.append(place.index)
        if drain.timeout_ps is not None:
            self.lifecycle.plan(now + drain.timeout_ps, place, "stopped")

    def stop(self, now: int, place: Place) -> None:
        """It is gone, with all it had."""
        self.cool(now, place)
        self.change(now, place, "stopped")

    def cool(self, now: int, place: Place) -> None:
        """What it had cached is gone, and nobody hears any more of what it evicted before."""
        cool(self.dispatcher.instances[place.index], now)
        if self.dispatcher.signals.kv_events is not None:
            self.dispatcher.signals.kv_events.forget(place.index)

    def name(self, place: Place) -> str:
        return self.dispatcher.instances[place.index].view.id

    # --- faults ------------------------------------------------------------------------------------------------

    def strike(self, now: int, fault: FaultSetup) -> None:
        """An instance that is not there is not struck."""
        place = self.lifecycle.places[fault.instance]
        if place.state == "stopped" or (fault.kind == "unreachable" and place.state not in REACHED):
            return
        self.dispatcher.recorder.struck.append(FaultRecord(now, fault.instance, fault.kind))
        if fault.kind == "slow":
            until = NEVER if fault.duration_ps is None else now + fault.duration_ps
            instance = self.dispatcher.instances[fault.instance]
            before = instance.run.end
            self.dispatcher.clock.note_change(fault.instance, before, instance.slow(now, fault.factor, until))
        elif fault.kind == "crash":
            self.crash(now, place, fault.duration_ps)
        else:
            self.cut_off(now, place, fault.duration_ps)

    def crash(self, now: int, place: Place, duration_ps: int | None) -> None:
        """Everything there is lost. It comes back after a time, or never; then it is replaced if it has to be."""
        was = place.state
        self.change(now, place, "stopped")  # before its requests are sent again
        self.losses.empty(now, place.index, False, f"{self.name(place)} crashed")
        self.cool(now, place)
        if was == "draining":
            return
        if duration_ps is not None:
            self.change(now, place, "provisioning")
            self.lifecycle.plan(now + duration_ps, place, "loading")
        elif not isinstance(place.pool.scaling, Static):
            self.resize(now, place.pool, max(self.lifecycle.count(place.pool), place.pool.minimum))

    def cut_off(self, now: int, place: Place, duration_ps: int | None) -> None:
        """It cannot be reached for a time. Its requests are lost, what it has cached is not."""
        was = place.state
        self.change(now, place, "unreachable")
        self.losses.empty(now, place.index, False, f"{self.name(place)} could not be reached")
        if was == "draining":
            self.stop(now, place)
        elif duration_ps is not None:
            self.lifecycle.plan(now + duration_ps, place, "ready")

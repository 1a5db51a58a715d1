"""Starts, drains and stops instances, because the autoscaler decides so or because a fault happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.control.autoscaler import Autoscaler
from headway.policies.scaling.thresholds import Static
from headway.results.recorder import FaultRecord, ScaleRecord
from headway.sim.instance import Instance
from headway.sim.instance_end import cool
from headway.sim.lifecycle import Lifecycle, Place
from headway.sim.losses import Losses
from headway.sim.setup import FaultSetup, LifeSetup, PoolSetup
from headway.types import NEVER, REPLICAS, SERVING, STARTING, Request

if TYPE_CHECKING:
    from headway.sim.dispatcher import Dispatcher

REACHED = (*SERVING, "draining")  # states in which an instance may have requests


class Capacity:
    def __init__(
        self, dispatcher: Dispatcher, setup: LifeSetup, autoscaler: Autoscaler | None, queues: bool = False
    ) -> None:
        """`queues` says whether requests may wait in a queue at the router."""
        self.dispatcher = dispatcher
        self.setup = setup
        self.lifecycle = Lifecycle(setup, dispatcher.recorder)
        self.losses = Losses(dispatcher, setup.retries)
        dispatcher.capacity, dispatcher.losses = self, self.losses
        self.autoscaler = autoscaler  # None if no pool changes its size
        self.next_ps = NEVER
        self.waiting = False  # whether requests waited at the router when they were last counted
        # True if the autoscaler may have to check at any instant, because of a trigger or of the router's queue.
        self.watchful = autoscaler is not None and (autoscaler.triggers is not None or queues)

    def start(self, now: int) -> None:
        self.lifecycle.start(now)
        if self.autoscaler is not None:
            self.autoscaler.start(now)
        while (fault := self.lifecycle.struck_before(now)) is not None:
            self.strike(now, fault)
        self.set_next()
        self.dispatcher.set_timer()

    def is_due(self, now: int) -> bool:
        """Whether `manage` may have something to do at this instant."""
        if self.next_ps == now or self.watchful or any(map(self.is_empty, self.lifecycle.draining)):
            return True
        return self.autoscaler is not None and (self.waiting or bool(self.dispatcher.held))

    def is_deserted(self) -> bool:
        """Whether no request is at the router or at an instance, and no step runs."""
        if self.dispatcher.held or not all(map(self.losses.idle, range(len(self.losses.bound)))):
            return False
        return all(instance.run.end < 0 for instance in self.dispatcher.instances)

    def close(self, now: int) -> None:
        for place in self.lifecycle.places.values():
            for index in place.instances:
                stats = self.dispatcher.instances[index].stats
                stats.held_ps = place.held_ps + (now - place.held_from if place.held_from >= 0 else 0)

    def set_next(self) -> None:
        self.next_ps = self.lifecycle.next_ps
        if self.autoscaler is not None:
            self.next_ps = min(self.next_ps, self.autoscaler.next_ps)

    def manage(self, now: int) -> None:
        """Process everything that is due at this instant: first faults, then decisions of the autoscaler, then planned
        state changes of instances. The simulation calls this after it has reported the requests that ended at this
        instant."""
        while (fault := self.lifecycle.strikes(now)) is not None:
            self.strike(now, fault)
        if self.autoscaler is not None:
            self.look(now, self.autoscaler)
        while (change := self.lifecycle.due(now)) is not None:
            self.change_as_planned(now, *change)
        for index in self.lifecycle.draining[:]:
            if self.is_empty(index):
                self.stop(now, self.lifecycle.places[index])
        self.count_waiting(now)
        self.set_next()
        self.dispatcher.set_timer()

    def in_vain(self, now: int, request: Request) -> None:
        """Tell the autoscaler that a request waited at the router until it was rejected or its client gave up."""
        if self.autoscaler is not None:
            could = self.dispatcher.control.pools_of(request)
            pools = [number for number, pool in enumerate(self.setup.pools) if pool.view_pool in could]
            self.autoscaler.in_vain(now, request, pools)

    def count_waiting(self, now: int) -> None:
        """Add the requests that wait at the router to the load that the autoscaler sees."""
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
            before, changes = lifecycle.count(pool), len(dispatcher.recorder.states)
            after = self.resize(now, pool, decision.after)
            if after != before:
                autoscaler.on_scaled(now, decision.pool)
                changed = dict.fromkeys(change.instance for change in dispatcher.recorder.states[changes:])
                record = ScaleRecord(now, pool.id, before, after, decision.reason, cause, decision.metrics, [*changed])
                dispatcher.recorder.scaled.append(record)

    def resize(self, now: int, pool: PoolSetup, target: int) -> int:
        """Start or drain instances until a pool has `target` replicas, and return how many it has. Draining instances
        keep their GPUs, so the pool may be unable to start another instance until one has stopped."""
        lifecycle = self.lifecycle
        count = lifecycle.count(pool)
        while count < target and (place := lifecycle.free(pool)) is not None:
            self.change(now, place, "provisioning")
            lifecycle.plan(now + place.provisioning(), place, "loading")
            count += 1
        while count > target:
            self.drain(now, self.least_needed(pool))
            count -= 1
        return count

    def least_needed(self, pool: PoolSetup) -> Place:
        """Return the replica to drain. Replicas that do not serve requests come first, then those with the fewest
        requests. On a tie, return the replica with the highest index."""
        here = [place for place in self.lifecycle.of(pool) if place.state in REPLICAS]
        return min(here, key=lambda place: (place.state in SERVING, self.losses.count(place.instances), -place.index))

    def change(self, now: int, place: Place, state: str) -> None:
        dispatcher = self.dispatcher
        if dispatcher.signals.vary:  # policies that observe this change may read the signals
            dispatcher.signals.refresh(now)
        self.lifecycle.change(now, place, state)
        for index in place.instances if place.pool.shows_ranks else place.instances[:1]:
            dispatcher.control.instance_changed(now, index, state)

    def change_as_planned(self, now: int, place: Place, state: str) -> None:
        """Move an instance to the next state that was planned for it."""
        lifecycle, warmup = self.lifecycle, self.setup.scaling.warmup
        if state == "loading":
            self.change(now, place, "loading")
            lifecycle.plan(now + place.loading(), place, "warming")
        elif state == "warming":
            place.warm_at = now if warmup is None else now + warmup.duration_ps
            if warmup is not None:
                for instance in self.paced(place):
                    instance.planner.warm(now, warmup.steps())
            self.serve(now, place)
        elif state == "ready":
            self.serve(now, place)
        else:  # the time limit for draining is over
            self.empty(now, place, False, f"{self.name(place)} was stopped before the request had ended")
            self.stop(now, place)

    def serve(self, now: int, place: Place) -> None:
        """Let an instance receive requests. While the instance warms up, its steps take longer."""
        if now < place.warm_at:
            self.change(now, place, "warming")
            self.lifecycle.plan(place.warm_at, place, "ready")
        else:
            self.change(now, place, "ready")
        if self.dispatcher.held:  # some of the held requests may wait for an instance to start
            self.dispatcher.follow(now, self.dispatcher.control.wake)

    def drain(self, now: int, place: Place) -> None:
        """Send no more requests to an instance. The drain mode determines what happens to its current requests."""
        drain = self.setup.scaling.drain
        if place.state in STARTING:
            self.stop(now, place)
            return
        self.change(now, place, "draining")
        if drain.mode != "wait":
            why = f"{self.name(place)} was stopped before the request had ended"
            self.empty(now, place, drain.mode == "redirect", why)
        if self.is_empty(place.index):
            self.stop(now, place)
            return
        self.lifecycle.draining.append(place.index)
        if drain.timeout_ps is not None:
            self.lifecycle.plan(now + drain.timeout_ps, place, "stopped")

    def stop(self, now: int, place: Place) -> None:
        self.cool(now, place)
        self.change(now, place, "stopped")

    def cool(self, now: int, place: Place) -> None:
        """Clear the instance's cache, and drop the KV events that it has not yet sent."""
        for index in place.instances:
            cool(self.dispatcher.instances[index], now)
            if self.dispatcher.signals.kv_events is not None:
                self.dispatcher.signals.kv_events.forget(index)

    def name(self, place: Place) -> str:
        name = self.dispatcher.instances[place.index].view.id
        return name if place.pool.ranks == 1 else name.removesuffix("-rank-0")

    def empty(self, now: int, place: Place, redirect: bool, why: str) -> None:
        """Remove all requests from an engine."""
        for index in place.instances:
            self.losses.empty(now, index, redirect, why)

    def is_empty(self, index: int) -> bool:
        """Whether the engine in the place with this index has no requests."""
        return all(map(self.losses.idle, self.lifecycle.places[index].instances))

    def paced(self, place: Place) -> list[Instance]:
        """Return the instances of an engine whose speed is their own: one of several ranks in lockstep, or all."""
        instances = [self.dispatcher.instances[index] for index in place.instances]
        return list({instance.planner: instance for instance in instances}.values())

    def strike(self, now: int, fault: FaultSetup) -> None:
        """Apply a fault, unless the instance is stopped."""
        place = self.lifecycle.places[fault.instance]
        if place.state == "stopped" or (fault.kind == "unreachable" and place.state not in REACHED):
            return
        self.dispatcher.recorder.struck.append(FaultRecord(now, fault.instance, fault.kind))
        if fault.kind == "slow":
            until = NEVER if fault.duration_ps is None else now + fault.duration_ps
            for instance in self.paced(place):
                before, index = instance.run.end, instance.view.index
                self.dispatcher.clock.note_change(index, before, instance.slow(now, fault.factor, until))
        elif fault.kind == "crash":
            self.crash(now, place, fault.duration_ps)
        else:
            self.cut_off(now, place, fault.duration_ps)

    def crash(self, now: int, place: Place, duration_ps: int | None) -> None:
        """Stop an instance, which loses all its requests and its cache. If a duration is given, the instance restarts
        after that time. Otherwise the pool replaces the instance if the pool has fallen below its minimum size."""
        was = place.state
        self.change(now, place, "stopped")  # must happen before the requests of the instance are retried
        self.empty(now, place, False, f"{self.name(place)} crashed")
        self.cool(now, place)
        if was == "draining":
            return
        if duration_ps is not None:
            self.change(now, place, "provisioning")
            self.lifecycle.plan(now + duration_ps, place, "loading")
        elif not isinstance(place.pool.scaling, Static):
            self.resize(now, place.pool, max(self.lifecycle.count(place.pool), place.pool.minimum))

    def cut_off(self, now: int, place: Place, duration_ps: int | None) -> None:
        """Make an instance unreachable for a time. It loses its requests, but keeps its cache."""
        was = place.state
        self.change(now, place, "unreachable")
        self.empty(now, place, False, f"{self.name(place)} could not be reached")
        if was == "draining":
            self.stop(now, place)
        elif duration_ps is not None:
            self.lifecycle.plan(now + duration_ps, place, "ready")

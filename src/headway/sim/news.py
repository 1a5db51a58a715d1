"""What policies observe of the instances: preemptions, moves and transfers of blocks, and runs of equal steps.

Instances add items during an instant. At its end, after all steps have begun, the observers receive them in the order
of `FURTHER`, then by instance and request. So the events are in order of time, and do not depend on how the simulator
cuts runs of steps. Nothing is recorded if no policy names the classes in `observes`.
"""

from typing import Any, Final

from headway.control.plane import ControlPlane
from headway.sim.engine_logs import EqualSteps, Item, Reporter
from headway.sim.reported_signals import Signals
from headway.sim.routers import Routers
from headway.sim.simulated_cluster import SimulatedCluster
from headway.views.events import BatchRan, BlocksMoved, Preempted, TransferBegan, TransferEnded

KINDS: Final = (Preempted, BlocksMoved, TransferBegan, TransferEnded, BatchRan)


class News:
    def __init__(self, cluster: SimulatedCluster, control: ControlPlane | Routers, signals: Signals) -> None:
        self.control, self.signals = control, signals
        self.items: list[Item] = []
        wanted = {kind for plane in control.listening() for kind in plane.audience.listeners}
        for instance in cluster.instances:
            index = instance.view.index
            if Preempted in wanted:
                instance.scheduler.preempted = self.reporter(Preempted, index)
            if BlocksMoved in wanted and instance.tiers is not None:
                instance.tiers.moved = self.reporter(BlocksMoved, index)
            if TransferBegan in wanted:
                instance.loader.began = self.reporter(TransferBegan, index)
            if TransferEnded in wanted:
                instance.loader.received = self.reporter(TransferEnded, index)
            if BatchRan in wanted:
                instance.equal_steps = EqualSteps(instance.batch, instance.run, self.reporter(BatchRan, index))

    def reporter(self, kind: type, index: int) -> Reporter:
        return Reporter(self.items, KINDS.index(kind), index)

    def deliver(self, now: int) -> None:
        """Send the events of this instant to the policies that named their classes."""
        items = sorted(self.items)
        self.items.clear()
        if self.signals.vary:
            self.signals.refresh(now)
        for place, index, row, values in items:
            kind = KINDS[place]
            for plane in self.control.listening(row):
                if kind in plane.audience.listeners:
                    plane.audience.tell(make(plane, kind, now, index, row, values))


def make(plane: ControlPlane, kind: type, now: int, index: int, row: int, values: tuple[Any, ...]) -> Any:
    view = plane.ordered[index]
    request = plane.flights.by_id[row].request if row in plane.flights.by_id else None
    if kind is BlocksMoved:
        return BlocksMoved(now, view, *values, request)
    if kind is BatchRan:
        return BatchRan(now, view, *values)
    assert request is not None
    if kind is Preempted:
        return Preempted(now, request, view)
    return kind(now, request, view, plane.ordered[values[0]])

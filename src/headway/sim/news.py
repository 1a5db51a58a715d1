"""What policies observe of the instances: preemptions, moves and transfers of blocks, and runs of equal steps.

Instances report items as they happen. Policies receive them before the next event or decision of their router, in
order of time, then in the order of `KINDS`, then by instance and request. A policy cannot act before that event or
decision, so it loses nothing. The time of that event or decision does not depend on how the simulator cuts runs of
steps. So the state of the cluster that a policy sees with an item does not depend on the cuts either. If no policy
lists these classes in `observes`, instances report nothing.
"""

from operator import itemgetter
from typing import Any, Final

from headway.control.plane import ControlPlane
from headway.sim.engine_logs import EqualSteps, Item, Reporter
from headway.sim.reported_signals import Signals
from headway.sim.routers import Routers
from headway.sim.simulated_cluster import SimulatedCluster
from headway.types import Request
from headway.views.events import BatchRan, BlocksMoved, Preempted, TransferBegan, TransferEnded

KINDS: Final = (Preempted, BlocksMoved, TransferBegan, TransferEnded, BatchRan)


class News:
    def __init__(self, cluster: SimulatedCluster, control: ControlPlane | Routers, signals: Signals) -> None:
        self.control, self.signals = control, signals
        self.items: list[Item] = []
        self.wanted = wanted = {
            kind for plane in control.listening() for kind in plane.audience.listeners if kind in KINDS
        }
        for instance, index in zip(cluster.instances, cluster.setup.targets, strict=True):
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
                instance.plain = False

    def reporter(self, kind: type, index: int) -> Reporter:
        return Reporter(self.items, KINDS.index(kind), index)

    def deliver(self, now: int) -> None:
        """Send the events since the last call to the policies that named their classes."""
        items = sorted(self.items, key=itemgetter(0, 1, 2, 3))
        self.items.clear()
        if self.signals.vary:
            self.signals.refresh(now)
        for at, place, index, row, request, values in items:
            kind = KINDS[place]
            for plane in self.control.listening(row):
                if kind in plane.audience.listeners:
                    plane.audience.tell(make(plane, kind, at, index, request, values))


def make(plane: ControlPlane, kind: type, at: int, index: int, request: Request | None, values: tuple[Any, ...]) -> Any:
    view = plane.ordered[index]
    if kind is BlocksMoved:
        move, tier, blocks = values
        return BlocksMoved(at, view, move, tier, blocks, request)
    if kind is BatchRan:
        return BatchRan(at, view, *values)
    assert request is not None
    if kind is Preempted:
        return Preempted(at, request, view)
    return kind(at, request, view, plane.ordered[values[0]])

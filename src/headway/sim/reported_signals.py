"""Maintains the reported fields of the instance views that the router reads.

If signals are fresh, each instance writes the sizes of its queue and of its batch when they change. Values that vary
inside a run (KV use, busy fraction, power) are computed before each decision. If signals are polled, instances and
router have separate views, and the router's view shows the values of the last tick that has reached it.

A value that varies inside a run is maintained only if a policy declares that it reads this value. Otherwise the value
is hidden, so that reading it raises an error. If decisions are recorded, the use of the KV cache and of the stores is
also maintained for the record, where policies cannot see it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from headway.policies.registry import entry_of
from headway.results.records import UsedBlocks
from headway.scenario.scenario import SignalSpec
from headway.sim.front_end import EngineView, FrontEnd
from headway.sim.instance import Instance
from headway.sim.kv_events import KvEvents
from headway.sim.polling import History
from headway.sim.recent_values import BusyWindow, HitRate, MoveRate, Ticks
from headway.sim.run_blocks import report_kv, report_lanes
from headway.sim.setup import ClusterSetup
from headway.sim.tiers import Tiers
from headway.sim.windows import WindowedBlocks
from headway.types import PS_PER_SECOND
from headway.views.instance import REPORTED, SIGNALS, InstanceView

BUSY_WINDOW = 5 * PS_PER_SECOND
WATTS_WINDOW = 30 * PS_PER_SECOND
TIER_SIGNALS = ("tier_used", "offload_rate", "reload_rate")


class Signals:
    """Fresh signals: they show the current state of the instances."""

    def __init__(
        self, instances: list[Instance], policies: list[Any], scalers: Sequence[Any] = (), recorded: bool = False
    ) -> None:
        """`scalers` are scaling policies. If only scaling policies read KV use, it is computed only when they
        decide. `recorded` says whether decisions are recorded."""
        decides = [name for policy in policies for name in entry_of(policy).reported]
        reads = decides + [name for policy in scalers for name in entry_of(policy).reported]
        self.instances = instances
        self.windowed = [each.blocks for each in instances if isinstance(each.blocks, WindowedBlocks)]
        self.lanes = [each.blocks for each in instances if each.batch.lanes is not None]
        self.blocks = [
            each.blocks
            for each in instances
            if each.batch.lanes is None and not isinstance(each.blocks, WindowedBlocks)
        ]
        self.views = [instance.view for instance in instances]  # the views to which the values are written
        self.board = self.views  # the views of the first router, or those that several routers copy
        self.engines: list[EngineView] = []  # the engines that the router sees in the place of their ranks
        self.kv = "kv_used" in reads
        self.power = "busy" in reads or "watts" in reads
        self.hits = "hit_rate" in reads
        maintained = {*reads, *(("busy", "watts") if self.power else ())}
        self.unwanted = [name for name in REPORTED if name not in maintained and not SIGNALS[name].always]
        self.tiers: list[tuple[Tiers, int]] = []  # stores whose signals are read, with the index of their instance
        # The blocks in use for the record: of each instance; as the router sees them, with engines in the places of
        # their first ranks; the engines with their ranks; and the stores whose use is recorded.
        self.records = [UsedBlocks() for _ in instances] if recorded else []
        self.board_records = self.records[:]
        self.engine_records: list[tuple[UsedBlocks, list[UsedBlocks]]] = []
        self.recorded_tiers: list[tuple[Tiers, int]] = []
        stores = [(each.tiers, index) for index, each in enumerate(instances) if each.tiers is not None]
        if any(name in reads for name in TIER_SIGNALS):
            self.tiers = stores
        if recorded:
            self.recorded_tiers = stores
        for tiers, _ in self.tiers:
            tiers.down, tiers.up = MoveRate(), MoveRate()
        self.vary = "kv_used" in decides or self.power or bool(self.tiers)
        self.polled = False
        self.counts_ends = False  # whether `on_ended` must be called
        self.kv_events: KvEvents | None = None  # set if instances report evictions to the router's prefix indexes
        self.origin = -1  # time of the first decision
        for index, instance in enumerate(instances):
            instance.blocks.report = instance.view if self.kv else self.records[index] if recorded else None
            if self.power:
                instance.windows = (BusyWindow(BUSY_WINDOW), BusyWindow(WATTS_WINDOW))
            if self.hits:
                instance.scheduler.hits = HitRate()
            instance.view.hide(*self.unwanted)

    def show_engines(self, setup: ClusterSetup, fronts: Iterable[FrontEnd]) -> None:
        """Show the router the engines that choose between ranks, not their ranks."""
        self.board = setup.views
        for front in fronts:
            first = front.view.index
            views = self.views[first : first + len(front.ranks)]
            self.engines.append(EngineView(front.view, views, self.unwanted))
            self.vary = True
            if self.records:
                self.board_records[first] = UsedBlocks()
                self.engine_records.append((self.board_records[first], self.records[first : first + len(views)]))
            for blank in self.board[first + 1 : first + len(views)]:
                blank.hide(*self.unwanted)

    def refresh(self, now: int) -> None:
        """Update every reported field that policies read, and apply due KV events to the prefix indexes."""
        if self.kv_events is not None:
            self.kv_events.tell(now)
        if self.kv:
            self.refresh_kv(now)
        if self.tiers:
            for tiers, index in self.tiers:
                self.show_tiers(self.views[index], tiers, now, now + 1, None)
        if self.power:
            self.refresh_power(now)
        for engine in self.engines:
            engine.show()

    def refresh_kv(self, now: int) -> None:
        report_kv(self.blocks, now)
        if self.lanes:
            report_lanes(self.lanes, now)
        for blocks in self.windowed:
            blocks.refresh_report(now)

    def used_blocks(self, now: int) -> list[UsedBlocks]:
        """Return the blocks in use at each instance that the router sees, as policies that read these signals would
        see them now. The list is the same object until they may have changed."""
        if not self.refresh_records(now):
            return self.board_records
        self.board_records = self.board_records[:]
        if self.kv:
            for record, view in zip(self.records, self.views, strict=True):
                record.kv_used = view.kv_used
        for engine, ranks in self.engine_records:
            engine.kv_used = sum([rank.kv_used for rank in ranks])
            engine.tier_used = {tier: sum([rank.tier_used[tier] for rank in ranks]) for tier in ranks[0].tier_used}
        return self.board_records

    def refresh_records(self, now: int) -> bool:
        """Write the blocks in use at each instance, unless the views show KV use. Return whether they may have
        changed since the last call."""
        self.refresh_kv(now)
        for tiers, index in self.recorded_tiers:
            self.records[index].tier_used = used_of(tiers, None)
        return True

    def show_tiers(self, view: InstanceView, tiers: Tiers, at: int, before: int, tick: int | None) -> None:
        """Write the use of an instance's stores to its view, and the rates at which blocks move to and from the stores.
        If `tick` is set, write the use at that tick, otherwise the current use. The rates are those of a window that
        ends at `at`, and include only moves before `before`."""
        unwanted = self.unwanted
        if "tier_used" not in unwanted:
            view.tier_used = used_of(tiers, tick)
        assert tiers.down is not None and tiers.up is not None
        if "offload_rate" not in unwanted:
            view.offload_rate = tiers.down.rate(at, before)
        if "reload_rate" not in unwanted:
            view.reload_rate = tiers.up.rate(at, before)

    def refresh_power(self, now: int) -> None:
        """Write the busy fraction over the last 5 s and the mean power over the last 30 s. If one of these windows
        would begin before the first decision, it begins at the first decision instead."""
        if self.origin < 0:
            self.origin = now
        origin = self.origin
        for instance in self.instances:
            short, long = instance.windows
            view, ended_ps, busy_from = instance.view, instance.stats.busy_ps, instance.busy_from
            view.busy = short.share(origin, now, ended_ps, busy_from)
            view.watts = instance.idle_watts + instance.span_watts * long.share(origin, now, ended_ps, busy_from)

    def on_routed(self, now: int, view: InstanceView) -> None:
        """Do nothing, because fresh signals show the request in the instance's queue."""

    def on_ended(self, now: int, view: InstanceView, in_step: bool) -> None:
        """Do nothing, because fresh signals no longer show the request."""


def used_of(tiers: Tiers, tick: int | None) -> dict[str, int]:
    """Return how many blocks of each store are in use: at a tick or, if `tick` is None, now."""
    return {
        tier.name: tier.count_used() if tick is None or tier.polled is None else tier.polled.at(tick, tier.count_used())
        for tier in tiers.tiers
    }


class PolledSignals(Signals):
    """Polled signals. `views` are the router's views, which show the last tick that has reached the router."""

    def __init__(
        self,
        instances: list[Instance],
        policies: list[Any],
        views: list[InstanceView],
        polling: SignalSpec,
        scalers: Sequence[Any] = (),
        recorded: bool = False,
    ) -> None:
        super().__init__(instances, policies, scalers, recorded)
        self.vary = self.polled = True
        # Count the requests that ended since the last report only if a policy reads the reported load or this count.
        self.counts_ends = any(
            name in entry.exact or name in entry.reported
            for entry in map(entry_of, [*policies, *scalers])
            for name in ("queued", "running", "finished_since_report")
        )
        self.views = views
        self.polling = polling
        self.tick = 0  # time of the tick that the views show
        self.due = -1  # time at which the values of the next tick reach the router
        self.recorded_tick = -1  # time of the tick at the last call of `used_blocks`
        # (time, view of the instance) of each request that was sent since the tick that the views show
        self.recent: deque[tuple[int, InstanceView]] = deque()
        # The requests that have ended since the tick that the views show: at the end of a step, or between two steps.
        # Entries: (time of the last tick that shows the request, view of the instance), in order of time.
        self.ended_in_steps: deque[tuple[int, InstanceView]] = deque()
        self.ended_between: deque[tuple[int, InstanceView]] = deque()
        self.histories: list[History] = []
        for tiers, _ in (*self.tiers, *self.recorded_tiers):
            for tier in tiers.tiers:
                if tier.polled is None:
                    tier.polled = Ticks(polling.poll_interval_ps)
        for instance, view in zip(instances, views, strict=True):
            instance.blocks.report = None  # KV use is computed only for ticks
            instance.tick = 0
            instance.history = History(polling, self.kv or recorded)
            self.histories.append(instance.history)
            view.hide(*self.unwanted)

    def refresh(self, now: int) -> None:
        """Show the values of the last tick that has reached the router."""
        if self.kv_events is not None:
            self.kv_events.tell(now)
        if now < self.due:
            return
        if self.origin < 0:
            self.origin = now
        interval, delay = self.polling.poll_interval_ps, self.polling.poll_delay_ps
        self.tick = tick = max(0, (now - delay) // interval * interval)
        self.due = tick + interval + delay
        recent = self.recent
        while recent and recent[0][0] < tick:
            recent.popleft()[1].routed_since_report -= 1
        for ended in (self.ended_in_steps, self.ended_between):
            while ended and ended[0][0] < tick:
                ended.popleft()[1].finished_since_report -= 1
        for tiers, owner in self.tiers:
            self.show_tiers(self.views[owner], tiers, tick, tick, tick)
        for tiers, owner in self.recorded_tiers:
            self.records[owner].tier_used = used_of(tiers, tick)
        for index, instance in enumerate(self.instances):
            view, was = self.views[index], self.histories[index].at(instance, tick)
            view.observed_at = tick
            view.queued = was.queued
            view.running = was.running
            view.adapters = was.adapters
            if was.kv is not None:
                (view if self.kv else self.records[index]).kv_used = was.kv.at(tick)
            if self.hits:
                view.hit_rate = was.hit_rate
            if self.power:
                short, long = instance.windows
                view.busy = short.share(self.origin, tick, was.busy_ps, was.busy_from)
                share = long.share(self.origin, tick, was.busy_ps, was.busy_from)
                view.watts = instance.idle_watts + instance.span_watts * share
        for engine in self.engines:
            engine.show()

    def refresh_records(self, now: int) -> bool:
        """Return whether another tick has reached the router since the last call."""
        changed, self.recorded_tick = self.recorded_tick != self.tick, self.tick
        return changed

    def on_routed(self, now: int, view: InstanceView) -> None:
        """Count a request that a router has sent, and that no tick shows yet; `view` is that router's view."""
        view.routed_since_report += 1
        self.recent.append((now, view))

    def on_ended(self, now: int, view: InstanceView, in_step: bool) -> None:
        """Count a request that has left an instance, if the tick that the views show still includes the request. A tick
        at `now` comes after the steps that end at `now`. So it no longer includes requests that left at the end of
        these steps, but it still includes requests that left between steps."""
        if not in_step:
            self.ended_between.append((now, view))
        elif now > self.tick:
            self.ended_in_steps.append((now - 1, view))
        else:
            return
        view.finished_since_report += 1

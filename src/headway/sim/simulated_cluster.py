"""The simulated cluster: its instances, the links and stores that they share, and its statistics."""

from array import array
from copy import copy
from typing import Any

from headway.results.recorder import InstanceStats, Recorder
from headway.results.records import Series
from headway.sim.engine_logs import BatchLog
from headway.sim.instance import Instance
from headway.sim.instance_end import check_instance, stop_instance
from headway.sim.job import Job
from headway.sim.leap import Run
from headway.sim.link import Links
from headway.sim.lockstep import Lockstep, RankRun
from headway.sim.polling import Gauge
from headway.sim.samples import Samples
from headway.sim.setup import ClusterSetup, EngineSetup
from headway.sim.tier import Tier
from headway.streams import stream
from headway.types import Request

ROWS_AHEAD = 1024


class SimulatedCluster:
    def __init__(self, setup: ClusterSetup, scheduler: Any) -> None:
        self.setup = setup
        self.block_tokens = setup.block_tokens
        self.recorder = Recorder(ROWS_AHEAD)
        self.first_tokens: list[Job] = []  # requests whose first token was generated at this instant
        self.ended: list[Job] = []  # requests that ended at this instant
        self.handed: list[Job] = []  # requests whose prompt, or its first chunk, became ready for handover now
        self.links = Links(traced=setup.trace == "full")
        self.outgoing: dict[int, int] = {}  # index of a prefill instance -> number of its outgoing link
        # Index of an instance -> its KV use over time. Without tracing, only instances with stores have an entry.
        self.gauges: dict[int, Gauge] = {}
        self.shared: dict[tuple[str, str], Tier] = {}  # (pool, name of the store) -> shared store
        # What the event loop steps, by index of the instance: the instance, or the engine whose rank it is.
        self.steppers: list[Instance | Lockstep] = []
        self.instances = [self.build_instance(engine, scheduler) for engine in setup.engines]

    def build_instance(self, engine: EngineSetup, scheduler: Any) -> Instance:
        setup = self.setup
        if engine.transfer is not None:
            transfer = engine.transfer.spec
            self.outgoing[engine.view.index] = self.links.add(transfer.bandwidth, transfer.latency_ps)
        lockstep: Lockstep | None = None
        if engine.lockstep:
            last = self.steppers[-1] if engine.rank else None
            lockstep = last if isinstance(last, Lockstep) else Lockstep()
        instance = Instance(
            copy(engine.view) if setup.signals.poll_interval_ps else engine.view,
            engine,
            scheduler,
            self.recorder,
            block_tokens=setup.block_tokens,
            caching=setup.prefix_caching,
            walks=setup.leap is False,
            cuts=stream(setup.jitter_seed, f"cuts.{engine.view.index}") if setup.leap == "random-cuts" else None,
            first_tokens=self.first_tokens,
            ended=self.ended,
            handed=self.handed,
            links=self.links,
            tiers=self.build_tiers(engine),
            run=Run() if lockstep is None else RankRun(lockstep),
        )
        if lockstep is not None:
            lockstep.join(instance)
        self.steppers.append(lockstep or instance)
        return instance

    def build_tiers(self, engine: EngineSetup) -> list[Tier] | None:
        """Return the stores below an instance's GPU, or None if it has none. Instances of a pool use the same shared
        stores, so create each shared store only once."""
        if engine.kv.tiers is None:
            return None
        tiers = []
        for name, spec in engine.kv.tiers.items():
            tier = self.shared.get((engine.view.pool, name)) if spec.shared else None
            if tier is None:
                link = self.links.add(spec.bandwidth, spec.latency_ps)
                tier = Tier(name, spec.blocks, link, spec.shared, engine.kv.eviction != "lru")
                if spec.shared:
                    self.shared[(engine.view.pool, name)] = tier
            tiers.append(tier)
        return tiers

    def start_tracing(self, now: int) -> None:
        """Begin to sample the use of GPUs and stores, and to record the events that the `trace` setting requires."""
        trace = self.setup.trace
        if trace == "full":
            self.recorder.events = []
        for instance in self.instances:
            if instance.tiers is not None or trace != "minimal":
                self.gauges[instance.view.index] = Gauge(instance, now)
            if instance.tiers is not None:
                for tier in instance.tiers.tiers:
                    tier.samples = Samples(now)
            if self.recorder.events is not None:
                instance.loader.events = self.recorder.events
                instance.batches = BatchLog(instance.view, instance.batch, instance.run, self.recorder.events)

    def cached_tokens(self, request: Request, now: int) -> list[int]:
        """Return how many tokens of the prompt each instance has cached now, for oracle policies."""
        size = self.setup.block_tokens
        runs, limit = request.path.blocks(size), (request.prompt_tokens - 1) // size
        for instance in self.instances:
            instance.blocks.settle(now)
        tokens = []
        for instance in self.instances:
            blocks = instance.cache.match(runs, limit)
            if instance.tiers is not None:
                blocks = instance.tiers.match(runs, blocks, limit)
            tokens.append(blocks * size)
        for engine in self.setup.engines:
            if engine.servers:  # the engine may choose any of its ranks
                first = engine.view.index
                tokens[first] = max(tokens[first : first + engine.ranks])
        return tokens

    def stop(self, horizon: int) -> None:
        for index, gauge in self.gauges.items():
            gauge.record(self.instances[index], horizon)
        for instance in self.instances:
            stop_instance(instance, horizon)

    def gather(self, now: int) -> None:
        """Collect the statistics of instances and links at the end of the simulation."""
        gaps = self.recorder.gaps = array("q")
        for index, gauge in self.gauges.items():
            gauge.record(self.instances[index], now)
        for instance in self.instances:
            check_instance(instance)
            instance.scheduler.limits.close()
            if (tiers := instance.tiers) is not None:
                view, links = instance.view, self.links.links
                instance.stats.tiers = [
                    tier.stats(view.pool if tier.shared else view.id, links[tier.link], self.block_tokens, now)
                    for tier in tiers.tiers
                ]
                instance.stats.load_waits_ps = tiers.waits
                gauge = self.gauges[view.index]
                instance.stats.kv_samples = gauge.samples.values
                instance.stats.kv_interval_ps = gauge.samples.interval_ps
            gaps.extend(instance.gaps.runs)
            gaps.extend(instance.gaps.resumed)
            instance.stats.evicted_blocks = instance.cache.evicted
            instance.stats.peak_kv_blocks = instance.blocks.peak
            instance.stats.steps = instance.batch.steps
            if (adapters := instance.adapters) is not None:
                instance.stats.adapter_loads = adapters.loaded
                instance.stats.adapter_load_ps = adapters.loaded * adapters.load_ps
        self.recorder.limits.sort(key=lambda change: (change.at_ps, change.instance))
        for index, number in self.outgoing.items():
            link, stats = self.links.links[number], self.instances[index].stats
            link.settle(now)
            stats.sent_bytes = link.moved_bytes
            stats.link_busy_ps = link.busy_ps

    def series(self) -> list[Series]:
        """Return the KV use of each GPU over time. If it was not traced, return an empty list."""
        if self.setup.trace == "minimal":
            return []
        return [
            Series("kv_used", index, gauge.samples.origin, gauge.samples.interval_ps, gauge.samples.values)
            for index, gauge in self.gauges.items()
        ]

    @property
    def stats(self) -> list[InstanceStats]:
        return [instance.stats for instance in self.instances]

"""Builds the parts of an instance whose kind depends on its engine and its model: the KV cache, the batch, the sliding
windows, the blocks of its runs, the times of its steps, and its statistics."""

from headway.latency.base import LatencyModel
from headway.results.recorder import InstanceStats
from headway.sim.batch import Batch
from headway.sim.drafted_windows import DraftedWindows, GroupedSpeculativeBatch
from headway.sim.grouped_cache import GroupedCache
from headway.sim.kv_cache import KvCache
from headway.sim.lanes import SpeculativeBatch, priced
from headway.sim.leap import Run
from headway.sim.ranked_cache import RankedCache
from headway.sim.run_blocks import RunBlocks
from headway.sim.setup import EngineSetup
from headway.sim.windows import WindowedBatch, WindowedBlocks, Windows, windowed
from headway.views.instance import InstanceView


def new_stats(view: InstanceView, engine: EngineSetup) -> InstanceStats:
    stats = InstanceStats(view.id, view.pool if view.serves else None, view.model, kv_blocks=view.kv_blocks)
    stats.role = None if view.role == "both" else view.role
    stats.gpus = engine.gpus
    stats.usd_per_gpu_hour = engine.usd_per_gpu_hour
    stats.idle_watts = engine.idle_watts
    stats.busy_watts = engine.busy_watts
    return stats


def new_batch(block_tokens: int, engine: EngineSetup, cache: KvCache, stats: InstanceStats) -> Batch:
    if engine.speculation is not None:
        if isinstance(cache, GroupedCache):
            return GroupedSpeculativeBatch(block_tokens, engine.speculation, cache, stats)
        return SpeculativeBatch(block_tokens, engine.speculation, cache, stats)
    return WindowedBatch(block_tokens, cache) if isinstance(cache, GroupedCache) else Batch(block_tokens)


def new_cache(view: InstanceView, engine: EngineSetup, block_tokens: int, caching: bool) -> KvCache:
    if engine.groups is not None:
        ahead = 0 if engine.speculation is None else engine.speculation.ahead
        return GroupedCache(engine.groups, block_tokens, caching, view.max_batch_tokens, ahead)
    if engine.kv.eviction == "lru":
        return KvCache(view.kv_blocks)
    return RankedCache(view.kv_blocks, engine.kv.eviction == "lfu")


def new_windows(batch: Batch, run: Run) -> Windows | DraftedWindows | None:
    """Return the sliding windows of the model's layers; None if they have no windows."""
    if isinstance(batch, WindowedBatch) and batch.window:
        return Windows(batch, run)
    if isinstance(batch, GroupedSpeculativeBatch) and batch.pages.groups.windows:
        return DraftedWindows(batch)
    return None


def new_blocks(
    view: InstanceView, cache: KvCache, batch: Batch, run: Run, caching: bool, windows: Windows | DraftedWindows | None
) -> RunBlocks:
    if isinstance(windows, Windows):
        return WindowedBlocks(view, windows, caching)
    return RunBlocks(view, cache, batch, run, caching)


def new_latency(engine: EngineSetup, batch: Batch, windows: Windows | DraftedWindows | None) -> LatencyModel:
    """Return the latency model of the engine, for steps of this batch."""
    latency = priced(engine.latency, batch)
    return windowed(latency, windows.batch) if isinstance(windows, Windows) else latency

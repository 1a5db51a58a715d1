"""The parts of an instance, each built alone, for the tests of single parts."""

from __future__ import annotations

from headway.policies.queues import Ticket
from headway.sim.batch import Batch
from headway.sim.job import Job
from headway.sim.kv_cache import KvCache
from headway.sim.leap import Run
from headway.sim.run_blocks import RunBlocks
from headway.types import Path, Request
from headway.views.instance import InstanceView

SIZE = 16  # tokens of a block


def new_job(row: int = 0, prompt: int = 64, output: int = 10, key: int | None = None) -> Job:
    """A request with a prompt of its own, or with that of others which name the same key."""
    path = Path((100 + row if key is None else key,), (prompt,))
    job = Job(Request(row, 0, prompt, path), output, 1000 + row, SIZE, True)
    job.ticket = Ticket(job.request, 0.0, 0, row)
    job.computed = job.blocks = job.cached_to = 0
    return job


def new_view(blocks: int = 100, role: str = "both") -> InstanceView:
    return InstanceView(0, "engine-0", kv_blocks=blocks, max_batch_size=4, max_batch_tokens=64, role=role)


def new_blocks(blocks: int = 100, role: str = "both", caching: bool = True) -> RunBlocks:
    return RunBlocks(new_view(blocks, role), KvCache(blocks), Batch(SIZE), Run(), caching)


def begin_run(run: Run, now: int, first: int, increment: int, steps: int) -> None:
    run.start, run.first, run.increment, run.length = now, first, increment, steps
    run.end = run.boundary(steps)

"""The engine of benchmarks/gpu, on the CPU: its tokens are those of a plain version, whatever its scheduler does."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch; its CPU wheel is enough")
os.environ.setdefault("TRITON_INTERPRET", "1")

from benchmarks.gpu.model import SHAPES, Weights, generate  # noqa: E402
from benchmarks.gpu.plain import PlainBackend  # noqa: E402
from benchmarks.gpu.scheduler import Backend, Job, Limits, Replica, new_job  # noqa: E402

BLOCKS = 24
LIMITS = Limits(blocks=BLOCKS, max_batch_tokens=64, max_batch_size=4)


@pytest.fixture(scope="module")
def weights() -> Any:
    return Weights(SHAPES["tiny"], "cpu", torch.float32)


def serve(backend: Backend, limits: Limits, jobs: list[Job], gap: int) -> Replica:
    """Serve jobs of which one arrives every `gap` steps."""
    replica = Replica(backend, limits)
    for number in range(10_000):
        if number % gap == 0 and number // gap < len(jobs):
            replica.add(jobs[number // gap])
        if not replica.idle:
            replica.begin(number)
            replica.finish(number + 1)
        elif number // gap >= len(jobs):
            break
    return replica


def requests(count: int, most: int, longest: int = 40) -> list[Job]:
    """Return requests whose prompts share one of two beginnings."""
    draw = Random(1)
    starts = [[draw.randrange(1000) for _ in range(70)] for _ in range(2)]
    jobs = []
    for number in range(count):
        own = [draw.randrange(1000) for _ in range(draw.randrange(1, most))]
        prompt = starts[number % 2][: draw.choice((40, 70))] + own
        jobs.append(new_job(number, prompt, draw.randrange(1, longest), 16))
    return jobs


def check(jobs: list[Job], weights: Any) -> None:
    for job in jobs:
        tokens = job.tokens.tolist()
        assert tokens[job.prompt :] == generate(weights, tokens[: job.prompt], job.most), job.id


@pytest.mark.full
def test_tokens_are_those_of_a_plain_version_with_chunks_shared_blocks_evictions_and_preemptions(weights: Any) -> None:
    jobs = requests(10, 90)
    replica = serve(PlainBackend(weights, BLOCKS), LIMITS, jobs, 3)
    check(jobs, weights)
    assert sum(job.cached > 0 for job in jobs) >= 3
    assert replica.blocks.evicted > 10
    assert replica.preemptions > 0
    assert replica.blocks.held == 0


@pytest.mark.full
def test_the_kernels_compute_the_same_tokens_in_an_interpreter(weights: Any) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    from benchmarks.gpu.cuda import CudaBackend

    if torch.cuda.is_available():
        pytest.skip("with a GPU, `python -m benchmarks.gpu smoke` checks the compiled kernels")
    jobs = requests(3, 10, 8)
    limits = Limits(blocks=16, max_batch_tokens=64, max_batch_size=4)
    backend = CudaBackend(weights, 16, max_batch_tokens=64, max_batch_size=4, positions=512)
    serve(backend, limits, jobs, 2)
    check(jobs, weights)

"""Measured steps: of chosen compositions for the fit, of real traffic, and of one replica among others."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.cases import MODEL, POSITIONS
from benchmarks.gpu.scheduler import Job, Row

COLUMNS = (
    "source", "shape", "batch", "decode_kv_tokens", "n_prefill", "new_tokens", "past_context", "composition",
    "median_ms", "wall_ms",
)  # fmt: skip
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64)
CONTEXTS = (100, 500, 1000, 2000, 3200)
CHUNKS = (16, 40, 100, 180, 250, 400, 620, 900, 1250, 1600, 2048)
PASTS = (0, 300, 1000, 2000, 3000)


@dataclass(frozen=True)
class Composition:
    contexts: tuple[int, ...]  # tokens before the new one, for each decode
    chunks: tuple[tuple[int, int], ...]  # (new tokens, past tokens)


def composition_of(rows: Iterable[Row]) -> Composition:
    rows = list(rows)
    decodes = tuple(row.past for row in rows if row.samples and row.new == 1 and row.past >= row.job.prompt)
    chunks = [(row.new, row.past) for row in rows if not (row.samples and row.new == 1 and row.past >= row.job.prompt)]
    return Composition(decodes, tuple(chunks))


def step_row(source: str, step: Composition, gpu_s: float, wall_s: float) -> dict[str, Any]:
    """Return a row as `headway calibrate` reads it. The context of a decode includes its new token."""
    return {
        "source": source,
        "shape": MODEL,
        "batch": len(step.contexts),
        "decode_kv_tokens": sum(step.contexts) + len(step.contexts),
        "n_prefill": len(step.chunks),
        "new_tokens": sum(new for new, _ in step.chunks),
        "past_context": "",
        "composition": json.dumps({"prefill": step.chunks}) if step.chunks else "",
        "median_ms": f"{gpu_s * 1e3:.5f}",
        "wall_ms": f"{wall_s * 1e3:.5f}",
    }


def write_steps(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def grid() -> list[Composition]:
    """Return the compositions of the fit, in random order."""
    draw, steps = Random(7), []

    def contexts(count: int, mean: int) -> tuple[int, ...]:
        return tuple(max(16, round(draw.uniform(0.5, 1.5) * mean)) for _ in range(count))

    for batch in BATCHES:
        steps += [Composition(contexts(batch, mean), ()) for mean in CONTEXTS]
    for new in CHUNKS:
        steps += [Composition((), ((new, past),)) for past in PASTS]
        for batch in (1, 4, 8, 16, 32, 48):
            if new + batch <= 2048:
                for past in draw.sample(PASTS, 3):
                    steps.append(Composition(contexts(batch, draw.choice(CONTEXTS)), ((new, past),)))
    for _ in range(120):
        count = draw.randrange(2, 6)
        chunks = tuple((draw.randrange(2, 1900 // count), draw.choice(PASTS)) for _ in range(count))
        steps.append(Composition(contexts(draw.randrange(0, 40), draw.choice(CONTEXTS)), chunks))
    draw.shuffle(steps)
    return steps


class Maker:
    """Makes rows of a composition with random tokens, in random blocks of a replica."""

    def __init__(self, vocabulary: int, first: int, blocks: int, page: int = 16) -> None:
        self.vocabulary, self.first, self.blocks, self.page = vocabulary, first, blocks, page
        self.draw = np.random.default_rng(first)

    def rows(self, step: Composition) -> list[Row]:
        every = [(past, 1) for past in step.contexts] + [(past, new) for new, past in step.chunks]
        order = self.draw.permutation(self.blocks) + self.first
        rows, at = [], 0
        for past, new in every:
            need = -(-(past + new) // self.page)
            if at + need > len(order):  # a pool is smaller than the largest compositions, so blocks repeat
                order, at = self.draw.permutation(self.blocks) + self.first, 0
            tokens = self.draw.integers(0, self.vocabulary, past + new, dtype=np.int32)
            job = Job(0, tokens, past if new == 1 else past + new, past + new, 1, blocks=order[at : at + need].tolist())
            rows.append(Row(job, past, new))
            at += need
        return rows


def time_grid(backend: Any, maker: Maker, repeats: int = 5) -> list[dict[str, Any]]:
    found = []
    for step in grid():
        if max([past + 1 for past in step.contexts] + [new + past for new, past in step.chunks]) > POSITIONS:
            continue
        rows, times = maker.rows(step), []
        for _ in range(repeats + 1):
            backend.run(rows)
            times.append(backend.last)
        gpu, wall = (median(values) for values in zip(*((t.gpu_s, t.all_s) for t in times[1:]), strict=True))
        found.append(step_row("grid", step, gpu, wall))
    return found


def time_among_others(backend: Any, vocabulary: int, blocks: int, replicas: int, count: int = 40) -> dict[str, Any]:
    """Time the same steps of replica 0 alone, and in turn with steps of the other replicas. Return how the medians
    compare, for the GPU's time and for the whole step."""
    makers = [Maker(vocabulary, place * blocks, blocks) for place in range(replicas)]
    steps = grid()[:count]
    ratios: dict[str, list[float]] = {"gpu": [], "all": []}
    for number, step in enumerate(steps):
        own = makers[0].rows(step)
        others = [maker.rows(steps[(number + place) % count]) for place, maker in enumerate(makers[1:], 1)]
        alone, among = [], []
        for _ in range(4):
            for _ in range(6):
                backend.run(own)
                alone.append(backend.last)
            for _ in range(6):
                for rows in others:
                    backend.run(rows)
                backend.run(own)
                among.append(backend.last)
        ratios["gpu"].append(median(t.gpu_s for t in among) / median(t.gpu_s for t in alone))
        ratios["all"].append(median(t.all_s for t in among) / median(t.all_s for t in alone))
    return {
        kind: {"median": median(values), "least": min(values), "most": max(values)} for kind, values in ratios.items()
    }

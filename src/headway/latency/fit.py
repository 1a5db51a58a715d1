"""Fitting a GPU's constants to measured steps: damped Gauss-Newton in the logarithms of constants and times.

What counts is the relative error, and a step far off counts as its size, not its square: measured steps have outliers.
A constant that the steps say nothing about stays where it started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, fsum, log, sqrt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headway.latency.base import Chunk
from headway.latency.shards import Shard
from headway.latency.step_cost import Constants, step_us

USUAL_ERROR: Final = 0.02  # a relative error beyond it counts by its size
HOLD: Final = 2e-3  # how strongly a constant is held where it started
NUDGE: Final = 1e-4  # relative change by which slopes are taken
ROUNDS: Final = 60

# Where a fit starts, and the constants that it may move, with the least and the most that they may be. The bounds of
# rates are the card's own limits, which whoever fits gives.
START: Final = Constants(
    weights_tb_s=1.0,
    matmul_tflops=1.0,
    tile_share=0.2,
    elementwise_tb_s=1.0,
    logits_tb_s=1.0,
    step_us=60.0,
    layer_us=20.0,
    kv_tb_s=1.0,
    decode_us=2.0,
    crowd_us=4.0,
    crowd_half=6.0,
    mixed_kv=1.05,
    mixed_us=2.0,
    prefill_us=2.0,
    past_us=5.0,
    prefill_tflops=1.0,
    narrow_heads=0.3,
    short_read=1.1,
    short_pairs=1.5,
    fill_rows=16384.0,
    padded_rows=1.0,
    beside_us=0.3,
    beside_row_us=2e-4,
)
BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "tile_share": (1e-3, 1.0),
    "step_us": (1.0, 1e4),
    "layer_us": (0.1, 1e3),
    "decode_us": (0.05, 1e3),
    "crowd_us": (0.05, 1e3),
    "crowd_half": (0.5, 256.0),
    "mixed_kv": (1.0, 4.0),
    "mixed_us": (0.05, 1e3),
    "prefill_us": (0.05, 1e3),
    "past_us": (0.05, 1e3),
    "narrow_heads": (0.01, 4.0),
    "short_read": (1.0, 20.0),
    "short_pairs": (1e-3, 10.0),
    "fill_rows": (1024.0, 131072.0),
    "padded_rows": (0.01, 1000.0),
    "beside_us": (1e-4, 100.0),
    "beside_row_us": (1e-7, 0.1),
}


class Step(Struct, frozen=True):
    """A measured step."""

    part: Shard
    decodes: int
    context: int
    chunks: tuple[Chunk, ...]
    us: float

    def error(self, gpu: Constants) -> float:
        """Of a prediction, relative to what was measured."""
        return step_us(gpu, self.part, self.decodes, self.context, self.chunks) / self.us - 1.0


def fit(
    steps: Sequence[Step],
    memory_tb_s: float,
    tflops: float,
    start: Constants | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Constants:
    """The constants of a card that reads memory at most so fast and computes at most so much."""
    if start is None:
        start = replace(
            START,
            weights_tb_s=0.85 * memory_tb_s,
            kv_tb_s=0.95 * memory_tb_s,
            elementwise_tb_s=0.8 * memory_tb_s,
            logits_tb_s=0.4 * memory_tb_s,
            matmul_tflops=0.85 * tflops,
            prefill_tflops=0.7 * tflops,
        )
    limits = dict(BOUNDS)
    for name in ("weights_tb_s", "kv_tb_s", "elementwise_tb_s", "logits_tb_s"):
        limits[name] = (0.05 * memory_tb_s, memory_tb_s)
    for name in ("matmul_tflops", "prefill_tflops"):
        limits[name] = (0.05 * tflops, tflops)
    names = list(limits)
    lows, highs = ([log(limits[name][side]) for name in names] for side in (0, 1))
    origin = [
        min(max(log(getattr(start, name)), low), high) for name, low, high in zip(names, lows, highs, strict=True)
    ]

    def constants(at: Sequence[float]) -> Constants:
        return replace(start, **{name: exp(value) for name, value in zip(names, at, strict=True)})

    def residuals(at: Sequence[float]) -> list[float]:
        gpu = constants(at)
        return [log(1.0 + step.error(gpu)) for step in steps]

    def loss(found: Sequence[float], at: Sequence[float]) -> float:
        held = fsum((here - there) ** 2 for here, there in zip(at, origin, strict=True))
        return fsum(sqrt(1.0 + (one / USUAL_ERROR) ** 2) - 1.0 for one in found) / len(steps) + HOLD * held

    at, damping = origin, 1e-2
    found = residuals(at)
    best = loss(found, at)
    for turn in range(ROUNDS):
        slopes = []
        for index in range(len(names)):
            moved = list(at)
            moved[index] += NUDGE if at[index] + NUDGE <= highs[index] else -NUDGE
            sign = 1.0 if moved[index] > at[index] else -1.0
            slopes.append([(new - old) * sign / NUDGE for new, old in zip(residuals(moved), found, strict=True)])
        before = best
        while damping < 1e6:
            step = _step(slopes, found, at, origin, damping)
            tried = [min(max(a + d, low), high) for a, d, low, high in zip(at, step, lows, highs, strict=True)]
            new = residuals(tried)
            value = loss(new, tried)
            if value < best:
                at, found, best, damping = tried, new, value, damping / 5
                break
            damping *= 4
        if progress is not None:
            progress(turn, best)
        if before - best < 3e-5 * before:
            break
    return constants(at)


def _step(
    slopes: list[list[float]], found: list[float], at: Sequence[float], origin: Sequence[float], damping: float
) -> list[float]:
    """The change of all constants that a weighted least-squares fit of the slopes asks for."""
    count, size = len(found), len(slopes)
    weights = [1.0 / (USUAL_ERROR**2 * sqrt(1.0 + (one / USUAL_ERROR) ** 2) * count) for one in found]
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for row in range(size):
        weighted = [slope * weight for slope, weight in zip(slopes[row], weights, strict=True)]
        right[row] = -fsum(a * b for a, b in zip(weighted, found, strict=True))
        right[row] -= 2 * HOLD * (at[row] - origin[row])
        for column in range(row, size):
            matrix[row][column] = fsum(a * b for a, b in zip(weighted, slopes[column], strict=True))
            matrix[column][row] = matrix[row][column]
        matrix[row][row] += 2 * HOLD
    for row in range(size):
        matrix[row][row] *= 1.0 + damping
    return solve(matrix, right)


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the matrix is symmetric and positive, so that no row need be exchanged."""
    size = len(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            share = matrix[row][pivot] / matrix[pivot][pivot]
            if share:
                for column in range(pivot, size):
                    matrix[row][column] -= share * matrix[pivot][column]
                right[row] -= share * right[pivot]
    found = [0.0] * size
    for row in reversed(range(size)):
        rest = fsum(matrix[row][column] * found[column] for column in range(row + 1, size))
        found[row] = (right[row] - rest) / matrix[row][row]
    return found

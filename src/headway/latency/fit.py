"""Fitting a GPU's constants to measured steps: least squares in the logarithms of constants and times, by SciPy.

What counts is the relative error, and a step far off counts as its size, not its square: measured steps have outliers.
A constant that the steps say nothing about stays where it started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from math import exp, log, sqrt
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.latency.base import Chunk
from headway.latency.shards import Shard
from headway.latency.step_cost import Constants, step_us

USUAL_ERROR: Final = 0.02  # a relative error beyond it counts by its size
HOLD: Final = 2e-3  # how strongly a constant is held where it started
NUDGE: Final = 1e-4  # relative change by which slopes are taken
ENOUGH: Final = 3e-5  # a relative gain below it ends a fit
ROUNDS: Final = 60

# The constants that a fit may move: where each starts, the least and the most that it may be. Those of rates are shares
# of the card's own limits, of its memory's bandwidth in the first table and of its FLOP/s in the second.
FREE: Final = {
    "tile_share": (0.2, 1e-3, 1.0),
    "step_us": (60.0, 1.0, 1e4),
    "layer_us": (20.0, 0.1, 1e3),
    "decode_us": (2.0, 0.05, 1e3),
    "crowd_us": (4.0, 0.05, 1e3),
    "crowd_half": (6.0, 0.5, 256.0),
    "mixed_kv": (1.05, 1.0, 4.0),
    "mixed_us": (2.0, 0.05, 1e3),
    "prefill_us": (2.0, 0.05, 1e3),
    "past_us": (5.0, 0.05, 1e3),
    "narrow_heads": (0.3, 0.01, 4.0),
    "short_read": (1.1, 1.0, 20.0),
    "short_pairs": (1.5, 1e-3, 10.0),
    "fill_rows": (16384.0, 1024.0, 131072.0),
    "padded_rows": (1.0, 0.01, 1000.0),
    "beside_us": (0.3, 1e-4, 100.0),
    "beside_row_us": (2e-4, 1e-7, 0.1),
}
OF_BANDWIDTH: Final = {"weights_tb_s": 0.85, "kv_tb_s": 0.95, "elementwise_tb_s": 0.8, "logits_tb_s": 0.4}
OF_FLOPS: Final = {"matmul_tflops": 0.85, "prefill_tflops": 0.7}
SLOWEST: Final = 0.05  # share of a limit


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


def starting_constants(memory_tb_s: float, tflops: float) -> Constants:
    """Where the fit of a card starts that reads memory at most so fast and computes at most so much."""
    rates = {name: share * memory_tb_s for name, share in OF_BANDWIDTH.items()}
    rates |= {name: share * tflops for name, share in OF_FLOPS.items()}
    return Constants(**rates, **{name: start for name, (start, _, _) in FREE.items()})


def fit(
    steps: Sequence[Step],
    memory_tb_s: float,
    tflops: float,
    start: Constants | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Constants:
    """The constants of a card that reads memory at most so fast and computes at most so much."""
    np, optimize = load_library("numpy"), load_library("scipy.optimize")
    first = start or starting_constants(memory_tb_s, tflops)
    bounds = {name: (low, high) for name, (_, low, high) in FREE.items()}
    bounds |= dict.fromkeys(OF_BANDWIDTH, (SLOWEST * memory_tb_s, memory_tb_s))
    bounds |= dict.fromkeys(OF_FLOPS, (SLOWEST * tflops, tflops))
    lows, highs = np.log(list(bounds.values())).T
    origin = np.clip([log(getattr(first, name)) for name in bounds], lows, highs)
    count, turn = len(steps), 0

    def constants(at: Any) -> Constants:
        return replace(first, **{name: exp(value) for name, value in zip(bounds, at, strict=True)})

    def residuals(at: Any) -> Any:
        """Of each step in usual errors, and of each constant how far it is from where it is held."""
        gpu = constants(at)
        errors = [log(1.0 + step.error(gpu)) / USUAL_ERROR for step in steps]
        return np.concatenate((errors, sqrt(2.0 * HOLD) * (at - origin)))

    def slopes(at: Any) -> Any:
        nonlocal turn
        here = residuals(at)
        if progress is not None:
            progress(turn, 0.5 * loss(here**2)[0].sum())
        turn += 1
        nudges = np.diag(np.where(at + NUDGE <= highs, NUDGE, -NUDGE))
        return np.array([(residuals(at + nudge) - here) / nudge.sum() for nudge in nudges]).T

    def loss(squares: Any) -> Any:
        """Twice what each residual counts, and the slope and curvature of that: of steps beyond the usual error by its
        size, averaged over them; of constants by its square."""
        root = np.sqrt(1.0 + squares[:count])
        counts = np.array([squares, np.ones_like(squares), np.zeros_like(squares)])
        counts[:, :count] = np.array([2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3]) / count
        return counts

    solution = optimize.least_squares(
        residuals, origin, slopes, (lows, highs), ftol=ENOUGH, loss=loss, max_nfev=ROUNDS, method="dogbox"
    )
    return constants(solution.x)


def load_library(name: str) -> Any:
    """NumPy or SciPy, which only calibrations need."""
    try:
        return import_module(name)
    except ImportError:
        raise HeadwayError("calibrate: SciPy is not installed; install headway[calibrate] to fit latencies.") from None

"""Fit the constants of a GPU to measured steps. The method is damped Gauss-Newton on the logarithms of constants and
times.

The loss is a function of the relative error: quadratic if the error is small and linear if it is large, because
measurements have outliers. Constants that no step depends on keep their starting values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from math import exp, log
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import missing_extra
from headway.latency.base import Chunk
from headway.latency.shards import Shard
from headway.latency.step_cost import Constants, step_us

USUAL_ERROR: Final = 0.02  # relative error above which the loss grows linearly
HOLD: Final = 2e-3  # strength of the regularization that pulls a constant to its starting value
NUDGE: Final = 1e-4  # relative change of a constant for finite differences
ENOUGH: Final = 3e-5  # the fit ends when a round reduces the loss by less than this fraction
ROUNDS: Final = 60

# The constants that a fit may change, each with (start, minimum, maximum). A rate starts at a fraction of the card's
# peak: `OF_BANDWIDTH` has fractions of the memory bandwidth, and `OF_FLOPS` has fractions of the FLOP/s.
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
SLOWEST: Final = 0.05  # minimum of a rate, as a fraction of the card's peak


class Step(Struct, frozen=True):
    """A measured step."""

    part: Shard
    decodes: int
    context: int
    chunks: tuple[Chunk, ...]
    us: float
    shape: str = ""  # the model's name

    @property
    def phase(self) -> str:
        return ("mixed" if self.decodes else "prefill") if self.chunks else "decode"

    def error(self, gpu: Constants) -> float:
        """Return the error of the predicted time, relative to the measured time."""
        return step_us(gpu, self.part, self.decodes, self.context, self.chunks) / self.us - 1.0


def starting_constants(memory_tb_s: float, tflops: float) -> Constants:
    """Return the starting values of a fit for a card with this memory bandwidth and this peak TFLOP/s."""
    values: dict[str, Any] = {name: start for name, (start, _, _) in FREE.items()}
    values |= {name: share * memory_tb_s for name, share in OF_BANDWIDTH.items()}
    values |= {name: share * tflops for name, share in OF_FLOPS.items()}
    return Constants(**values)


def fit(
    steps: Sequence[Step],
    memory_tb_s: float,
    tflops: float,
    start: Constants | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Constants:
    """Return the fitted constants of a card with this memory bandwidth and this peak TFLOP/s."""
    np = load_library("numpy")
    first = start or starting_constants(memory_tb_s, tflops)
    bounds = {name: (low, high) for name, (_, low, high) in FREE.items()}
    bounds |= dict.fromkeys(OF_BANDWIDTH, (SLOWEST * memory_tb_s, memory_tb_s))
    bounds |= dict.fromkeys(OF_FLOPS, (SLOWEST * tflops, tflops))
    lows, highs = np.log(list(bounds.values())).T
    origin = np.clip([log(getattr(first, name)) for name in bounds], lows, highs)

    def constants(at: Any) -> Constants:
        return replace(first, **{name: exp(value) for name, value in zip(bounds, at, strict=True)})

    def residuals(at: Any) -> Any:
        gpu = constants(at)
        return np.array([log(1.0 + step.error(gpu)) for step in steps])

    def loss(errors: Any, at: Any) -> float:
        excess = np.sqrt(1.0 + (errors / USUAL_ERROR) ** 2) - 1.0
        return float(excess.mean() + HOLD * ((at - origin) ** 2).sum())

    at, damping = origin, 1e-2
    errors = residuals(at)
    best = loss(errors, at)
    for turn in range(ROUNDS):
        nudges = np.diag(np.where(at + NUDGE <= highs, NUDGE, -NUDGE))
        slopes = [(residuals(at + nudge) - errors) / nudge.sum() for nudge in nudges]
        weights = 1.0 / (USUAL_ERROR**2 * np.sqrt(1.0 + (errors / USUAL_ERROR) ** 2) * len(steps))
        before = best
        while damping < 1e6:
            step = damped_step(slopes, errors, weights, at - origin, HOLD, damping)
            candidate = np.clip(at + step, lows, highs)
            candidate_errors = residuals(candidate)
            value = loss(candidate_errors, candidate)
            if value < best:
                at, errors, best, damping = candidate, candidate_errors, value, damping / 5
                break
            damping *= 4
        if progress is not None:
            progress(turn, best)
        if before - best < ENOUGH * before:
            break
    return constants(at)


def damped_step(slopes: Any, residuals: Any, weights: Any, moved: Any, hold: float, damping: float) -> Any:
    """Return the changes of the parameters in one damped, weighted least-squares step.

    `slopes` has one row per parameter. The regularization with strength `hold` pulls each parameter to its starting
    value, and `moved` is the distance of each parameter from that value."""
    np, linalg = load_library("numpy"), load_library("scipy.linalg")
    rows = np.asarray(slopes)
    weighted = rows * np.asarray(weights)
    matrix = weighted @ rows.T + 2.0 * hold * np.eye(len(rows))
    matrix[np.diag_indices(len(rows))] *= 1.0 + damping
    right = -(weighted @ np.asarray(residuals)) - 2.0 * hold * np.asarray(moved)
    return linalg.solve(matrix, right, assume_a="pos")


def load_library(name: str) -> Any:
    """Import NumPy or SciPy, which only calibration needs."""
    try:
        return import_module(name)
    except ImportError:
        raise missing_extra("calibrate", "scipy", "data") from None

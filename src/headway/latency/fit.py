"""Fit the constants of a GPU to measured steps. The method is damped Gauss-Newton on the logarithms of constants and
times.

The loss is a function of the relative error: quadratic if the error is small and linear if it is large, because
measurements have outliers. Constants that no step depends on keep their starting values; `unidentified` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
# Constants of kinds of work that only some models have. The fit changes them if the steps have such work.
EXPERTS: Final = {
    "expert_pad": (64.0, 0.1, 256.0),
    "expert_half": (32.0, 0.01, 500.0),
    "route_us": (25.0, 0.05, 200.0),
    "route_bytes": (6.0, 0.01, 60.0),
}
FP8: Final = {"fp8_speedup": (1.6, 1.0, 2.2), "fp8_us": (3.0, 0.01, 40.0), "fp8_bytes": (2.0, 0.01, 60.0)}
KV8: Final = {"kv8_us": (1.0, 0.01, 50.0), "kv8_past": (3.0, 0.01, 30.0)}
OF_BANDWIDTH: Final = {"weights_tb_s": 0.85, "kv_tb_s": 0.95, "elementwise_tb_s": 0.8, "logits_tb_s": 0.4}
OF_FLOPS: Final = {"matmul_tflops": 0.85, "prefill_tflops": 0.7}
SLOWEST: Final = 0.05  # minimum of a rate, as a fraction of the card's peak


class Kind(Struct, frozen=True):
    """A kind of work: its constants, and the fractions of the card's peaks at which its rates start."""

    has: Callable[[Shard], bool]
    free: Mapping[str, tuple[float, float, float]]
    of_bandwidth: Mapping[str, float]
    of_flops: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return *self.free, *self.of_bandwidth, *self.of_flops


def _has_bytes(low: float, high: float) -> Callable[[Shard], bool]:
    return lambda part: any(low <= matmul.bytes_a_weight < high for matmul in part.matmuls)


# The keys are also those of `covers` in a profile, except KV caches of 8 bits.
CACHES_OF_8_BITS: Final = "KV caches of 8 bits"
KINDS: Final[dict[str, Kind]] = {
    "experts": Kind(lambda part: part.sparse_layers > 0, EXPERTS, {"expert_tb_s": 0.9}, {"expert_tflops": 0.65}),
    "fp8": Kind(lambda part: part.eight_bits or _has_bytes(1.0, 1.5)(part), FP8, {"fp8_tb_s": 0.8}, {}),
    CACHES_OF_8_BITS: Kind(lambda part: part.kv_eight_bits, KV8, {"kv8_tb_s": 0.65}, {}),
    "packed": Kind(_has_bytes(0.0, 1.0), {}, {"packed_tb_s": 0.7}, {"packed_tflops": 0.4}),
}

CHANGE: Final = 0.03  # relative change of a constant that shows whether a step depends on it
VISIBLE: Final = 1e-4  # minimum relative effect of this change on the time of at least one step
OWN: Final = 1e-3  # minimum part of a constant's effect that the other constants cannot reproduce
NO_STEP: Final = "no step depends on it"
NEARBY: Final = "no step depends on it near this value"
# Every step depends on `layer_us`, `decode_us`, `prefill_us` and `mixed_us` only by three sums. How the sums are shared
# out changes no predicted time, so this constant counts as known.
KNOWN: Final = "mixed_us"


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


def starting_constants(memory_tb_s: float, tflops: float, kinds: Collection[str] = ()) -> Constants:
    """Return the starting values of a fit for a card with this memory bandwidth and this peak TFLOP/s. The steps have
    these kinds of work."""
    values: dict[str, Any] = {name: start for name, (start, _, _) in _ranges(memory_tb_s, tflops, kinds).items()}
    return Constants(**values)


def kinds_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the keys of `KINDS` whose work at least one of the steps has."""
    parts = {id(step.part): step.part for step in steps}.values()
    return tuple(name for name, kind in KINDS.items() if any(kind.has(part) for part in parts))


def _ranges(memory_tb_s: float, tflops: float, kinds: Collection[str]) -> dict[str, tuple[float, float, float]]:
    """Return the start, the minimum and the maximum of each constant of these kinds and of all models."""
    groups = [Kind(lambda _: True, FREE, OF_BANDWIDTH, OF_FLOPS), *(KINDS[name] for name in kinds)]
    ranges: dict[str, tuple[float, float, float]] = {}
    for group in groups:
        ranges |= group.free
        for shares, peak in ((group.of_bandwidth, memory_tb_s), (group.of_flops, tflops)):
            ranges |= {name: (share * peak, SLOWEST * peak, peak) for name, share in shares.items()}
    return ranges


def unidentified(steps: Sequence[Step], gpu: Constants, memory_tb_s: float, tflops: float) -> dict[str, str]:
    """Return the constants that the steps do not determine, each with the reason.

    A constant is determined if it is not at one of its bounds, and if its change has an effect on the time of a step
    that no change of the other constants can undo.
    """
    np = load_library("numpy")
    ranges = _ranges(memory_tb_s, tflops, kinds_of(steps))

    def effects(name: str, change: float) -> Any:
        """Return the effects of this relative change on the logarithms of the times."""
        by = change if getattr(gpu, name) * (1.0 + change) <= ranges[name][2] else -change
        changed = replace(gpu, **{name: getattr(gpu, name) * (1.0 + by)})
        return np.array([log((1.0 + step.error(changed)) / (1.0 + step.error(gpu))) for step in steps])

    reasons: dict[str, str] = {}
    for name, (_, low, high) in ranges.items():
        value = getattr(gpu, name)
        if np.abs(effects(name, CHANGE)).max() <= VISIBLE:
            reasons[name] = NO_STEP
        elif value <= low * (1.0 + NUDGE) or value >= high * (1.0 - NUDGE):
            reasons[name] = f"ended at its {'minimum' if value < (low + high) / 2 else 'maximum'}"
    seen = [name for name in ranges if name not in reasons and name != KNOWN]
    slopes = {name: effects(name, NUDGE) for name in seen}
    for name in [name for name in seen if not slopes[name].any()]:  # such as the bound of a minimum or maximum
        reasons[name] = NEARBY
        seen.remove(name)
    slopes = {name: slopes[name] / np.abs(slopes[name]).max() for name in seen}
    for name in seen:
        others = [other for other in seen if other != name]
        basis = np.array([slopes[other] for other in others]).T
        shares = np.linalg.lstsq(basis, slopes[name], rcond=OWN / 100)[0]
        if np.abs(slopes[name] - basis @ shares).max() <= OWN:
            most = others[int(np.argmax(np.abs(shares)))]
            reasons[name] = f"the steps show only a combination with {most}"
    return reasons


def fit(
    steps: Sequence[Step],
    memory_tb_s: float,
    tflops: float,
    start: Constants | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Constants:
    """Return the fitted constants of a card with this memory bandwidth and this peak TFLOP/s."""
    np = load_library("numpy")
    kinds = kinds_of(steps)
    ranges = _ranges(memory_tb_s, tflops, kinds)
    first = start or starting_constants(memory_tb_s, tflops, kinds)
    bounds = {name: (low, high) for name, (_, low, high) in ranges.items()}
    lows, highs = np.log(list(bounds.values())).T
    origin = np.clip([log(getattr(first, name) or ranges[name][0]) for name in bounds], lows, highs)

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

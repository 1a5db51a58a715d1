"""Calibration: fit a hardware profile to a file of measured steps, and measure its error on held-out steps.

If the caller names the model, the file does not need the column `shape`. An optional column `composition`, {"decode":
[[context, count], ...], "prefill": [[tokens, past], ...]}, specifies the exact chunks. Without this column, a step has
`n_prefill` equal chunks.

Three more columns change the model of a row: `dtype_bytes` and `kv_dtype_bytes` (bytes of a weight and of a number of
the KV cache), and `expert_skew` (how unequally tokens choose experts).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from msgspec import Struct
from msgspec.structs import asdict

from headway.config.units import duration_text
from headway.config.wording import shown
from headway.display.displayed import Displayed, columns_of
from headway.errors import HeadwayError
from headway.latency.base import Chunk
from headway.latency.exact_numbers import not_negative, positive
from headway.latency.fit import CACHES_OF_8_BITS, Step, fit, kinds_of, unidentified
from headway.latency.gpus import Gpu, gpus
from headway.latency.profiles import HOST, MODEL_OF_OTHERS, read_profile
from headway.latency.shapes import read_model
from headway.latency.shards import Shard, shard
from headway.latency.step_cost import Constants
from headway.latency.tables import COLUMNS, read_rows, whole
from headway.types import Json

PHASES: Final = ("decode", "prefill", "mixed")
FEWEST: Final = 40  # minimum number of steps in a file
FEWEST_OF_A_KIND: Final = 8  # minimum number of steps that only decode, and minimum number of steps with prompts
BYTES: Final = ("dtype_bytes", "kv_dtype_bytes")
HELD_OUT: Final = 4  # every HELD_OUT-th step is held out of the fit


class PhaseError(Struct, frozen=True):
    """The errors on the held-out steps of one phase. Each error is the absolute difference from the measured time, as a
    fraction of the measured time."""

    phase: str
    steps: int
    median: float
    p90: float
    worst: float


class Calibration(Displayed, Struct, frozen=True):
    """A profile fitted to measured steps, with its errors on held-out steps."""

    _view: ClassVar[str] = "headway.report.notebook:calibration_view"

    gpu: str
    constants: Constants
    errors: tuple[PhaseError, ...]
    steps: int
    tokens: tuple[int, int]
    context: tuple[int, int]
    shapes: tuple[str, ...]
    covers: tuple[str, ...] = ()  # what the steps have beside dense work of 16 bits, as in `Profile.covers`
    assumed: dict[str, str] = {}  # constant that the steps do not determine -> the reason

    def columns(self) -> dict[str, list[Any]]:
        """Return the errors on held-out steps as a table with one row for each phase. Errors are fractions of the
        measured time."""
        return columns_of(map(asdict, self.errors))

    def summary(self) -> Json:
        """Return the constants and the held-out errors as JSON. Errors are fractions of the measured time."""
        return {
            "gpu": self.gpu,
            "steps": self.steps,
            "shapes": list(self.shapes),
            "covers": list(self.covers),
            "assumed": self.assumed,
            "range": {"tokens": list(self.tokens), "context": list(self.context)},
            "held_out": [asdict(phase) for phase in self.errors],
            "constants": asdict(self.constants),
        }

    def document(self, source: str, as_of: str, host: str | None = None) -> str:
        """Return the text of a profile file. Without a host time, that of the measured cards is assumed."""
        known = read_profile(MODEL_OF_OTHERS, gpus().entries[MODEL_OF_OTHERS], "gpu")
        assumed = self.assumed if host is not None else self.assumed | {HOST: known.assumed[HOST]}
        error = {
            f"{held.phase}, {held.steps} steps held out": f"median {held.median:.1%}, 90th percentile {held.p90:.1%}"
            for held in self.errors
        }
        content: dict[str, Any] = {
            "format": 1,
            "gpu": self.gpu,
            "as_of": as_of,
            "source": source,
            "measured": f"{self.steps:,} steps of the GPU alone",
            "error": error,
            "tokens": list(self.tokens),
            "context": list(self.context),
            "shapes": list(self.shapes),
            "covers": list(self.covers),
            "assumed": assumed,
            "host": host or duration_text(known.host_ps),
            "constants": {key: _short(value) for key, value in asdict(self.constants).items()},
        }
        return yaml.safe_dump(content, sort_keys=False, width=120)


def calibrate(
    path: str | Path,
    gpu: Gpu,
    model: str | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Calibration:
    """Fit the constants of a GPU to the steps of a file. No fitted rate exceeds the peak rate in the GPU's spec sheet.
    Constants of experts, of FP8, of KV caches in 8 bits and of smaller weights are fitted if the steps have such work.

    The constants come from a fit to all steps. The errors come from another fit, to all steps except the held-out ones.
    """
    steps = read_steps(path, gpu, model)
    limits = gpu.bandwidth / 1e12, float(gpu.flops) / 1e12
    held = [step for number, step in enumerate(steps) if number % HELD_OUT == HELD_OUT - 1]
    fitted = [step for number, step in enumerate(steps) if number % HELD_OUT != HELD_OUT - 1]
    blind = fit(fitted, *limits, progress=progress)
    constants = fit(steps, *limits, start=blind, progress=progress)
    sequences = [past + new for step in steps for new, past in step.chunks]
    sequences += [step.context // step.decodes for step in steps if step.decodes]
    tokens = [step.decodes + sum(new for new, _ in step.chunks) for step in steps]
    return Calibration(
        gpu.name,
        constants,
        tuple(_error(phase, held, blind) for phase in PHASES if any(step.phase == phase for step in held)),
        len(steps),
        (min(tokens), max(tokens)),
        (min(sequences), max(sequences)),
        tuple(dict.fromkeys(step.shape for step in steps)),
        tuple(kind for kind in kinds_of(steps) if kind != CACHES_OF_8_BITS),
        unidentified(steps, constants, *limits),
    )


def read_steps(path: str | Path, gpu: Gpu, model: str | None = None) -> list[Step]:
    """Read the steps of a file. Raise an error if a step is impossibly short or the file has too few steps."""
    rows = read_rows(path, COLUMNS if model is not None else ("shape", *COLUMNS))
    parts: dict[str, Shard] = {}
    steps = [_step(row, place, gpu, model, parts) for place, row in rows]
    _check_enough(steps, str(path))
    return steps


def _step(row: dict[str, Any], where: str, gpu: Gpu, model: str | None, parts: dict[str, Shard]) -> Step:
    name = model if model is not None else row["shape"]
    changes = {key: row[key] for key in BYTES if row.get(key)}
    skew = float(not_negative(row.get("expert_skew") or "0", f"{where}, expert_skew"))
    key = f"{name} {changes} {skew}"
    if key not in parts:
        shape = read_model({"like": name, **changes} if changes else name, f"{where}, shape")
        parts[key] = shard(shape, 1, skew=skew)
    part = parts[key]
    decodes, context, count, new = (
        whole(row[key], f"{where}, {key}") for key in ("batch", "decode_kv_tokens", "n_prefill", "new_tokens")
    )
    chunks = _chunks(row, where, count, new)
    us = float(positive(row["median_ms"], f"{where}, median_ms")) * 1000
    tokens = decodes + new
    if not tokens:
        raise HeadwayError(f"{where}: batch and new_tokens are both 0, but a step computes at least one token.")
    read = context * part.kv_bytes * part.attending
    # In a mixture of experts, a step reads an unknown fraction of the weights.
    if not any(matmul.experts > 1 for matmul in part.matmuls):
        read += part.weight_bytes - part.head.weights * part.head.bytes_a_weight
    least = read / gpu.bandwidth * 1e6
    if us < least:
        raise HeadwayError(
            f"{where}, median_ms: {us / 1000:g} ms is impossible: reading the weights and the KV cache takes a "
            f"{gpu.name} {least / 1000:.3g} ms. Check the unit (milliseconds), the GPU and the model."
        )
    return Step(part, decodes, context, chunks, us, name)


def _chunks(row: dict[str, Any], where: str, count: int, new: int) -> tuple[Chunk, ...]:
    if not count:
        if new:
            raise HeadwayError(f"{where}: n_prefill is 0, but new_tokens is {new}.")
        return ()
    if row.get("composition"):
        try:
            chunks = tuple((int(tokens), int(past)) for tokens, past in json.loads(row["composition"])["prefill"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise HeadwayError(
                f'{where}, composition: expected {{"prefill": [[tokens, past], ...]}}, got {shown(row["composition"])}.'
            ) from None
        if any(tokens < 1 or past < 0 for tokens, past in chunks) or sum(tokens for tokens, _ in chunks) != new:
            raise HeadwayError(f"{where}, composition: the tokens of its chunks must sum to new_tokens ({new}).")
        return chunks
    past = round(not_negative(row["past_context"] or "0", f"{where}, past_context"))
    if new < count:
        raise HeadwayError(f"{where}: new_tokens ({new}) must be at least n_prefill ({count}).")
    short, over = divmod(new, count)
    return tuple((short + (place < over), past) for place in range(count))


def _check_enough(steps: Sequence[Step], path: str) -> None:
    decode = sum(step.phase == "decode" for step in steps)
    prompts = len(steps) - decode
    if len(steps) < FEWEST or decode < FEWEST_OF_A_KIND or prompts < FEWEST_OF_A_KIND:
        raise HeadwayError(
            f"{path}: {len(steps)} steps ({decode} that only decode, {prompts} with prompts) are too few. A fit needs "
            f"at least {FEWEST} steps, {FEWEST_OF_A_KIND} of each kind, with many batch sizes and lengths."
        )


def _error(phase: str, held: Sequence[Step], constants: Constants) -> PhaseError:
    errors = sorted(abs(step.error(constants)) for step in held if step.phase == phase)
    count = len(errors)
    return PhaseError(phase, count, errors[count // 2], errors[count * 9 // 10], errors[-1])


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.5g}")

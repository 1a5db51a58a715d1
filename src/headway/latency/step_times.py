"""Asking for the time of one step: `headway.latency("h200", "llama-3.1-8b").step_ms(decode=[1024, 512])`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.gpus import gpus, read_gpu
from headway.latency.hardware import Hardware
from headway.latency.profiles import Profile
from headway.latency.shapes import ModelShape, read_model

PS_PER_MS: Final = 10**9
MOST_GPUS: Final = 64


class StepTimes:
    """Step times of a model on one GPU, or on `tp` of them, as the `hardware` model has them."""

    def __init__(self, hardware: Hardware, model: ModelShape) -> None:
        self.hardware = hardware.with_host(0)
        self.model = model
        self.host_ms = hardware.host_ps / PS_PER_MS  # of a step, beside the GPU's time

    @property
    def profile(self) -> Profile:
        return self.hardware.profile

    def step_ms(self, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = ()) -> float:
        """The GPU's time for a step: contexts of decoding sequences, (new tokens, past tokens) of prefill chunks."""
        contexts = [_whole(value, "decode", 0) for value in decode]
        chunks = [(_whole(new, "prefill", 1), _whole(past, "prefill", 0)) for new, past in prefill]
        if not contexts and not chunks:
            return 0.0
        context = 0
        for value in contexts:
            context += value
        return self.hardware.run(len(contexts), context, chunks)[0] / PS_PER_MS


def step_times(gpu: object, model: object, tp: int = 1, host: str | None = None) -> StepTimes:
    """`gpu` and `model` as a scenario names them, or the file of a profile (.yaml) and of a model (config.json)."""
    if isinstance(tp, bool) or not isinstance(tp, int) or not 1 <= tp <= MOST_GPUS:
        raise HeadwayError(f"tp: must be a whole number between 1 and {MOST_GPUS}, got {shown(tp)}.")
    shape = read_model(model, "model")
    keys = {} if host is None else {"host": host}
    if isinstance(gpu, str) and gpu.endswith((".yaml", ".yml")):
        first = next(iter(gpus().entries.values()))  # a profile of its own needs no card of the table
        return StepTimes(Hardware.read({"profile": gpu, **keys}, "latency", shape, first, tp), shape)
    return StepTimes(Hardware.read(keys, "latency", shape, read_gpu(gpu, "gpu"), tp), shape)


def _whole(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise HeadwayError(f"{where}: expected whole numbers of tokens, {least} or more, got {shown(value)}.")
    return value

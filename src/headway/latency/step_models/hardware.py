"""`hardware`: a step time is computed from the measured constants of a GPU and the shape of a model. `step_cost` has
the formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.dated_defaults import CURRENT, SETS
from headway.config.keys import QUIET, Doc, Form, Unit
from headway.config.schema import Names
from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.latency import step_cost
from headway.latency.all_reduce import AllReduce, all_reduce
from headway.latency.base import FOREVER, Chunk, LatencyKind, Run, times
from headway.latency.engines import ENGINE_NAME, Engine, engines
from headway.latency.exact_numbers import AutoDuration, not_negative
from headway.latency.gpus import Gpu, gpus, interconnect, read_gpu
from headway.latency.profiles import HOST, MODEL_OF_OTHERS, Profile, read_profile
from headway.latency.shapes import ModelShape, read_model
from headway.latency.shards import Shard, shard
from headway.latency.tables import SPELLED

REDUCES_PER_LAYER: Final = 2  # one after attention, and one after the feed-forward layer or the experts
MAX_ENTRIES: Final = 1 << 16  # maximum number of cached costs, because a policy's estimator may ask for many counts


PROFILE_NAME: Final = Form.of(Names(lambda: ["auto", *gpus().names], rf"{SPELLED}|\.ya?ml$"))


MOST_SKEW: Final = 4
SKEW: Final = Form.of({"type": "number", "minimum": 0, "maximum": MOST_SKEW})


def _read_skew(value: Any, where: str) -> float:
    skew = float(not_negative(value, where))
    if skew > MOST_SKEW:
        raise HeadwayError(f"{where}: must be at most {MOST_SKEW}, got {shown(value)}.")
    return skew


class HardwareParameters(Struct):
    """Keys of `latency: {model: hardware}`."""

    profile: Annotated[
        Any,
        PROFILE_NAME,
        Doc("measured constants: name of a GPU, or a YAML file; auto uses those of `gpu`", type="text"),
    ] = "auto"
    engine: Annotated[
        str,
        ENGINE_NAME,
        Doc("engine whose times are used; auto uses those of the profile", type="text"),
        QUIET,
    ] = "auto"
    default_engine: Annotated[
        str,
        ENGINE_NAME,
        Doc(
            "engine whose times are used if `engine` and the host times are auto, and the profile only assumes its "
            "host time; auto keeps the assumption",
            default=SETS[CURRENT].engine,
            type="text",
        ),
        QUIET,
    ] = "auto"
    host_ps: Annotated[AutoDuration, "added to each step for work on the host; auto uses the engine's time"] = "auto"
    host_sequence_ps: Annotated[
        AutoDuration, "added to that for each sequence of the step; auto uses the engine's time", QUIET
    ] = "auto"
    expert_skew: Annotated[
        float,
        Unit("number, 0 to 4", _read_skew, float, form=SKEW),
        "in a mixture of experts, how unequally tokens choose experts: the expert of rank r is chosen in proportion to "
        "1 / r^skew; 0 means equally",
        QUIET,
    ] = 0.0


class Hardware:
    """The constant part of a step time is a sum of table entries, each rounded once to whole picoseconds. A token of
    context or past costs a whole number of picoseconds, so the step time grows by exactly the same amount at each step
    of a run.

    If any chunk of a step has a past, a constant is added to the step time. In a run of steps that starts without a
    past, the chunks of the second step would have a past and add this constant. Such a run is therefore one step long.
    """

    def __init__(
        self,
        profile: Profile,
        part: Shard,
        host: tuple[int, int],  # picoseconds per step, and per sequence of the step
        reduce: AllReduce | None = None,  # None for a single GPU
        factor: Fraction = Fraction(1),
    ) -> None:
        self.profile, self.part, self.host, self.reduce = profile, part, host, reduce
        self._factor, self._unscaled = factor, factor == 1
        gpu = profile.constants
        self._host = times(host[0], factor)
        self._kv = self._ps(step_cost.context_us(gpu, part))
        self._mixed_kv = self._ps(step_cost.mixed_context_us(gpu, part))
        # Time of a decode in a step with chunks, and its increase per token of the longest chunk.
        self._beside = self._ps(step_cost.beside_us(gpu, part, 0))
        self._beside_row = self._ps(step_cost.beside_us(gpu, part, 1)) - self._beside
        # Constants of a step with chunks.
        # The first index is whether the step has decodes, and the second is whether any chunk has a past.
        self._mixed = [
            [self._ps(step_cost.attention_us(gpu, part, decoding, past)) for past in (False, True)]
            for decoding in (False, True)
        ]
        # For steps without chunks: (time without context, increase per step). The index is the number of decodes.
        self._decode: list[tuple[int, int]] = []
        self._decodes: list[int] = []  # by number of decodes: attention time that does not depend on context
        self._sequences: list[int] = []
        self._tokens: dict[int, int] = {}
        # Length of a chunk -> (time without past, time per past token, increase per step).
        self._chunks: dict[int, tuple[int, int, int]] = {}

    def scale(self, factor: Fraction) -> Hardware:
        return Hardware(self.profile, self.part, self.host, self.reduce, self._factor * factor)

    def doubts(self, tokens: int, sequences: int = 0) -> str | None:
        outside = self.profile.outside(tokens, 0)
        if outside:
            return outside
        matmuls, covered = self.part.matmuls, self.profile.covers
        kinds = {
            "mixtures of experts": self.part.sparse_layers and "experts" not in covered,
            "mixtures of experts in 8 bits": "experts" in covered
            and any(matmul.experts > 1 and matmul.bytes_a_weight == 1 for matmul in matmuls),
            "weights of 8 bits": any(matmul.bytes_a_weight == 1 for matmul in matmuls) and "fp8" not in covered,
            "weights below 8 bits": any(matmul.bytes_a_weight < 1 for matmul in matmuls) and "packed" not in covered,
            "all-reduces between its GPUs": self.reduce is not None and not self.reduce.measured,
        }
        present = [kind for kind, here in kinds.items() if here]
        return (
            f"{self.profile.name} was not measured with {join_words(present)}: times are computed." if present else None
        )

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        if not chunks:
            try:
                base, rise = self._decode[decodes]
            except IndexError:
                base, rise = self._extend(decodes)
            return base + self._kv * context, rise, FOREVER
        known = self._chunks
        first = increment = past = longest = 0
        tokens = decodes
        for length, before in chunks:
            base, slope, rise = known[length] if length in known else self._chunk(length)
            first += base + slope * before
            increment += rise
            tokens += length
            past |= before
            if length > longest:
                longest = length
        try:
            first += self._tokens[tokens]
        except KeyError:
            first += self._token(tokens)
        sequences = decodes + len(chunks)
        if sequences >= len(self._decode):
            self._extend(sequences)
        first += self._sequences[sequences] + self._mixed[decodes > 0][past > 0]
        if decodes:
            first += self._decodes[decodes] + self._mixed_kv * context
            first += decodes * (self._beside + self._beside_row * longest)
            increment += self._mixed_kv * decodes
        return first, increment, FOREVER if past else 1

    def _ps(self, microseconds: float) -> int:
        whole = round(microseconds * 1e6)
        return whole if self._unscaled else times(whole, self._factor)

    def _extend(self, most: int) -> tuple[int, int]:
        gpu, part = self.profile.constants, self.part
        for count in range(len(self._decode), most + 1):
            self._decodes.append(self._ps(step_cost.decodes_us(gpu, part, count)))
            host = times(self.host[1] * count, self._factor)
            self._sequences.append(host + self._ps(step_cost.sequences_us(gpu, part, count)))
            base = self._decodes[count] + self._sequences[count] + self._token(count)
            self._decode.append((base, self._kv * count))
        return self._decode[most]

    def _token(self, tokens: int) -> int:
        """Return the host time of a step plus the time of the work that depends only on the number of tokens."""
        us = step_cost.tokens_us(self.profile.constants, self.part, tokens)
        if self.reduce is not None:
            single = self.reduce.time_us(tokens * self.part.reduced_bytes)
            us += REDUCES_PER_LAYER * self.part.layers * single * self.profile.all_reduce_times
        cost = max(1, self._host + self._ps(us))
        if len(self._tokens) < MAX_ENTRIES:
            self._tokens[tokens] = cost
        return cost

    def _chunk(self, tokens: int) -> tuple[int, int, int]:
        gpu, part = self.profile.constants, self.part
        slope = self._ps(step_cost.past_token_us(gpu, part, tokens))
        costs = self._ps(step_cost.chunk_us(gpu, part, tokens)), slope, slope * tokens
        if len(self._chunks) < MAX_ENTRIES:
            self._chunks[tokens] = costs
        return costs


def _engine(name: str, where: str) -> Engine | None:
    if name == "auto":
        return None
    return engines().find(name, "engine", where, "set 'host' and 'host_sequence' instead")


def _build(keys: HardwareParameters, where: str, model: ModelShape, gpu: Gpu, tp: int) -> Hardware:
    if not isinstance(keys.profile, str):
        raise HeadwayError(f"{where}.profile: expected the name or the file of a profile, got {shown(keys.profile)}.")
    profile = read_profile(gpu.name if keys.profile == "auto" else keys.profile, gpu, f"{where}.profile")
    part = shard(model, tp, where, keys.expert_skew)
    step, sequence = profile.host_ps, profile.host_sequence_ps
    engine = _engine(keys.engine, f"{where}.engine")
    default = _engine(keys.default_engine, f"{where}.default_engine")
    if HOST in profile.assumed and keys.engine == keys.host_ps == keys.host_sequence_ps == "auto":
        engine = default
    if engine is not None:
        step, sequence = engine.step_ps, engine.sequence_ps
        speed = profile.constants.matmul_tflops / read_profile(MODEL_OF_OTHERS, gpu, where).constants.matmul_tflops
        profile = replace(profile, engine=engine.name, constants=engine.kernels(profile.constants, part.hidden, speed))
    if keys.host_ps != "auto":
        step = keys.host_ps
    if keys.host_sequence_ps != "auto":
        sequence = keys.host_sequence_ps
    reduce = all_reduce(interconnect(gpu, tp), tp) if tp > 1 else None
    return Hardware(profile, part, (step, sequence), reduce)


MODEL: Final = LatencyKind("hardware", HardwareParameters, _build)

# The public interface for single steps: `headway.latency("h200", "llama-3.1-8b").step_ms(decode=[1024, 512])`.

PS_PER_MS: Final = 10**9
MOST_GPUS: Final = 64


class StepTimes:
    """The step times of a model on one or several GPUs, computed by the latency model `hardware`."""

    def __init__(self, hardware: Hardware, model: ModelShape) -> None:
        self.hardware = Hardware(hardware.profile, hardware.part, (0, 0), hardware.reduce)
        self.model = model
        self.host_ms = hardware.host[0] / PS_PER_MS  # host time of a step, added to the GPU's time
        self.host_sequence_ms = hardware.host[1] / PS_PER_MS  # and for each sequence

    @property
    def profile(self) -> Profile:
        return self.hardware.profile

    def step_ms(self, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = ()) -> float:
        """Return the GPU's time for a step in ms. `decode` lists the context of each decode, and `prefill` lists the
        chunks as (new tokens, past tokens)."""
        contexts = [_whole(value, "decode", 0) for value in decode]
        chunks = [(_whole(new, "prefill", 1), _whole(past, "prefill", 0)) for new, past in prefill]
        if not contexts and not chunks:
            return 0.0
        return self.hardware.run(len(contexts), sum(contexts), chunks)[0] / PS_PER_MS


def step_times(gpu: object, model: object, tp: int = 1, host: str | None = None) -> StepTimes:
    """Return the step times of a model on a GPU. The GPU is a name, a mapping or a profile file (.yaml). The model is a
    name, a mapping or a config.json."""
    if isinstance(tp, bool) or not isinstance(tp, int) or not 1 <= tp <= MOST_GPUS:
        raise HeadwayError(f"tp: must be a whole number between 1 and {MOST_GPUS}, got {shown(tp)}.")
    shape = read_model(model, "model")
    data: dict[str, Any] = {} if host is None else {"host": host}
    if isinstance(gpu, str) and gpu.endswith((".yaml", ".yml")):
        data["profile"] = gpu
        card = next(iter(gpus().entries.values()))  # any card, because a profile from a file does not use it
    else:
        card = read_gpu(gpu, "gpu")
    keys = section.read(HardwareParameters, data, "latency")
    return StepTimes(_build(keys, "latency", shape, card, tp), shape)


def _whole(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise HeadwayError(f"{where}: expected whole numbers of tokens, {least} or more, got {shown(value)}.")
    return value

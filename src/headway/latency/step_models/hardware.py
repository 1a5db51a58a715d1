"""`hardware`: a step time is computed from the measured constants of a GPU and the shape of a model.
`hardware_times` computes it; this file has the keys, and the public interface for single steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.dated_defaults import CURRENT, SETS
from headway.config.keys import QUIET, Doc, Form, Unit
from headway.config.schema import Names
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.all_reduce import all_reduce, exchange
from headway.latency.base import LatencyKind, LatencyModel
from headway.latency.engines import ENGINE_NAME, Engine, engines, find_engine
from headway.latency.exact_numbers import AutoDuration, not_negative
from headway.latency.gpus import Gpu, gpus, interconnect, read_gpu
from headway.latency.graphs import AutoGraphSizes
from headway.latency.hardware_times import Hardware, WindowedHardware
from headway.latency.joint_steps import JointHardware
from headway.latency.profiles import HOST, MODEL_OF_OTHERS, Profile, read_profile
from headway.latency.shapes import ModelShape, read_model
from headway.latency.shards import shard
from headway.latency.tables import SPELLED

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
    graph_sizes: Annotated[
        AutoGraphSizes,
        "numbers of tokens for which the engine has captured CUDA graphs, or the name of a list: vllm, none; a step "
        "computes the next larger of these numbers. auto uses the list of the profile",
        QUIET,
    ] = "auto"
    expert_skew: Annotated[
        float,
        Unit("number, 0 to 4", _read_skew, float, form=SKEW),
        "in a mixture of experts, how unequally tokens choose experts: the expert of rank r is chosen in proportion to "
        "1 / r^skew; 0 means equally",
        QUIET,
    ] = 0.0


def _engine(name: str, where: str) -> Engine | None:
    if name == "auto":
        return None
    return engines().find(name, "engine", where, "set 'host' and 'host_sequence' instead")


def _build(
    keys: HardwareParameters, where: str, model: ModelShape, gpu: Gpu, tp: int, dp: int = 1, ep: bool = False
) -> Hardware:
    if not isinstance(keys.profile, str):
        raise HeadwayError(f"{where}.profile: expected the name or the file of a profile, got {shown(keys.profile)}.")
    profile = read_profile(gpu.name if keys.profile == "auto" else keys.profile, gpu, f"{where}.profile")
    part = shard(model, tp, where, keys.expert_skew, dp, ep)
    step, sequence, exposed = profile.host_ps, profile.host_sequence_ps, 0
    engine = _engine(keys.engine, f"{where}.engine")
    default = _engine(keys.default_engine, f"{where}.default_engine")
    if HOST in profile.assumed and keys.engine == keys.host_ps == keys.host_sequence_ps == "auto":
        engine = default
    if engine is not None:
        step, sequence, exposed = engine.step_ps, engine.sequence_ps, engine.exposed_ps
        profile = replace(profile, engine=engine.name)
    if (runs := find_engine(profile.engine)) is not None:
        known = read_profile(MODEL_OF_OTHERS, gpu, where).constants
        constants = runs.kernels(profile.constants, known, part.hidden, profile.gpu)
        profile = replace(profile, constants=constants)
    if keys.host_ps != "auto":
        step, exposed = keys.host_ps, 0
    if keys.host_sequence_ps != "auto":
        sequence = keys.host_sequence_ps
    reduce = all_reduce(interconnect(gpu, tp), tp, profile.engine) if tp > 1 else None
    sizes = profile.graph_sizes if keys.graph_sizes == "auto" else keys.graph_sizes
    kind = WindowedHardware if part.windowed else Hardware
    return kind(profile, part, (step, sequence), reduce, exposed_ps=exposed, graph_sizes=sizes)


def _build_ranks(
    keys: HardwareParameters, where: str, model: ModelShape, gpu: Gpu, tp: int, dp: int, ep: bool
) -> LatencyModel:
    """Return the times of an engine with data-parallel ranks, or with whole experts on its GPUs. Ranks of a model
    without experts do not wait for each other, so each has the times of an engine of its own."""
    if not model.experts:
        return _build(keys, where, model, gpu, tp)
    whole = _build(keys, where, model, gpu, tp, dp, ep)
    if dp == 1:
        return whole
    group = tp * dp if ep else dp
    return JointHardware(whole, dp, exchange(interconnect(gpu, tp * dp), group))


MODEL: Final = LatencyKind("hardware", HardwareParameters, _build, _build_ranks)

# The public interface for single steps: `headway.latency("h200", "llama-3.1-8b").step_ms(decode=[1024, 512])`.

PS_PER_MS: Final = 10**9
MOST_GPUS: Final = 64


class StepTimes:
    """The step times of a model on one or several GPUs, computed by the latency model `hardware`."""

    def __init__(self, hardware: Hardware, model: ModelShape) -> None:
        self.hardware = hardware.without_host()
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
        hardware = self.hardware
        if isinstance(hardware, WindowedHardware):
            near = sum(min(context, hardware.window) for context in contexts)
            return hardware.run_windows(len(contexts), sum(contexts), near, 0, chunks)[0] / PS_PER_MS
        return hardware.run(len(contexts), sum(contexts), chunks)[0] / PS_PER_MS


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

"""Hardware profiles: the constants of a GPU's step time, their source, and the range in which they were measured."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Unit
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.gpus import Gpu, gpus
from headway.latency.graphs import GraphSizes
from headway.latency.step_cost import Constants
from headway.latency.tables import document_of, plain

FOLDER: Final = "profiles"
MODEL_OF_OTHERS: Final = "h200"  # profile whose efficiencies are used for uncalibrated cards
HOST: Final = "host"  # in `assumed`: the host times of the profile belong to no engine that was measured


class Profile(Struct, frozen=True):
    """The keys of a profile file."""

    gpu: str
    constants: Constants
    host_ps: Duration  # time that the host adds to the GPU's time of a step
    as_of: Annotated[str, Unit("date", lambda date, _: str(date), str)]
    source: str
    measured: str
    error: dict[str, str]  # set of held-out steps -> error of the fit on these steps
    tokens: tuple[int, int]  # measured range of tokens in a step
    context: tuple[int, int]  # measured range of the context of a sequence
    shapes: tuple[str, ...] = ()
    host_sequence_ps: Duration = 0  # added to the host's time per sequence in the step
    engine: str = ""  # the engine and its version that the host's times belong to
    covers: tuple[Literal["experts", "fp8", "packed"], ...] = ()  # what was measured beside dense models of 16 bits
    graph_sizes: GraphSizes = ()  # numbers of tokens for which the engine has captured CUDA graphs
    assumed: dict[str, str] = {}  # constant (or "host") that the measurements do not determine -> the reason
    # The times of all-reduces, relative to those of the card's link. 1.0 unless a run on several GPUs was fitted.
    all_reduce_times: float = 1.0
    format: int = 1
    name: Annotated[str, INTERNAL] = ""
    calibrated: Annotated[bool, INTERNAL] = True

    def outside(self, tokens: int, context: int) -> str:
        """If a step of this size is outside the measured range, return a sentence that says so. Otherwise return an
        empty string."""
        if not self.calibrated:
            return f"{self.name} is not calibrated: its times are scaled from a spec sheet."
        for what, value, (_, most) in (("tokens in a step", tokens, self.tokens), ("context", context, self.context)):
            if value > most:
                return f"{self.name} was measured up to {most:,} {what}; {value:,} is outside that range."
        return ""


def read_profile(name: str, gpu: Gpu, where: str) -> Profile:
    """Return the profile in this `.yaml` file, or the packaged profile with this name. If the name belongs to a GPU
    that was not measured, return a profile from the spec sheet of this GPU."""
    if name.endswith((".yaml", ".yml")):
        try:
            document = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise HeadwayError(f"{where}: cannot read {shown(name)}: {error.strerror}.") from None
        except yaml.YAMLError:
            raise HeadwayError(f"{where}: {shown(name)} is not a YAML file.") from None
        return replace(section.read(Profile, document, where), name=Path(name).stem)
    key = plain(name)
    key = gpus().aliases.get(key, key)
    if key in measured_profiles():
        return _load_measured(key)
    cards = {**gpus().entries, gpu.name: gpu}
    if key in cards:
        return spec_sheet(cards[key])
    raise HeadwayError(
        f"{where}: no hardware profile is called {shown(name)}. Use a GPU's name or the path of a .yaml file."
        f"{suggest(key, measured_profiles())} Measured profiles: {', '.join(measured_profiles())}."
    )


@cache
def measured_profiles() -> tuple[str, ...]:
    folder = files("headway").joinpath("presets").joinpath(FOLDER)
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


@cache
def _load_measured(name: str) -> Profile:
    return replace(section.read(Profile, document_of(f"{FOLDER}/{name}.yaml"), f"profiles.{name}"), name=name)


def spec_sheet(gpu: Gpu) -> Profile:
    """Return the profile of an unmeasured card: the peak rates of this card times the efficiencies of a measured
    card."""
    known = _load_measured(MODEL_OF_OTHERS)
    reference = gpus().entries[known.gpu]
    memory = gpu.bandwidth / reference.bandwidth
    compute = float(gpu.flops / reference.flops)
    rates = {
        key: value * (memory if key.endswith("tb_s") else compute)
        for key, value in asdict(known.constants).items()
        if key.endswith(("_tb_s", "_tflops"))
    }
    if not gpu.fp8:
        rates |= {"fp8_speedup": 1.0, "fp8_us": 0.0, "fp8_bytes": 0.0}
    return replace(
        known,
        name=gpu.name,
        gpu=gpu.name,
        constants=replace(known.constants, **rates),
        calibrated=False,
        as_of=gpus().as_of,
        source=f"spec sheet of the {gpu.name}, at the efficiencies and constants of the {known.name}",
        measured="nothing",
        error={},
        tokens=(1, 0),
        context=(1, 0),
        shapes=(),
        covers=(),
        assumed={HOST: known.assumed[HOST]},
        engine="",
    )

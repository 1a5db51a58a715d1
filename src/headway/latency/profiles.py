"""Hardware profiles: the constants of a GPU's step time, where they come from and how far to trust them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import yaml
from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Unit
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.gpus import Gpu, gpus
from headway.latency.step_cost import Constants
from headway.latency.tables import document_of, plain

FOLDER: Final = "profiles"
MODEL_OF_OTHERS: Final = "h200"  # the profile whose efficiencies an uncalibrated card is given


class Profile(Struct, frozen=True):
    """Its keys are those of a profile's file."""

    gpu: str
    constants: Constants
    host_ps: Duration  # of a step, beside the GPU's time
    as_of: Annotated[str, Unit("date", lambda date, _: str(date), str)]
    source: str
    measured: str
    error: dict[str, str]  # of the fit, by what was held out
    tokens: tuple[int, int]  # of a step, in what was measured
    context: tuple[int, int]  # of a sequence
    shapes: tuple[str, ...] = ()
    format: int = 1
    name: Annotated[str, INTERNAL] = ""
    calibrated: Annotated[bool, INTERNAL] = True

    def outside(self, tokens: int, context: int) -> str:
        """A sentence where a step lies outside of what was measured; else nothing."""
        if not self.calibrated:
            return f"{self.name} is not calibrated: its times are scaled from a spec sheet."
        for what, value, (_, most) in (("tokens in a step", tokens, self.tokens), ("context", context, self.context)):
            if value > most:
                return f"{self.name} was measured up to {most:,} {what}; {value:,} is beyond that."
        return ""


def read_profile(name: str, gpu: Gpu, where: str) -> Profile:
    """A shipped profile by its name, one from a file (`.yaml`), or a spec-sheet one for a GPU that has none."""
    if name.endswith((".yaml", ".yml")):
        try:
            text = Path(name).read_text(encoding="utf-8")
            document = yaml.safe_load(text)
        except OSError as error:
            raise HeadwayError(f"{where}: cannot read {shown(name)}: {error.strerror}.") from None
        except yaml.YAMLError:
            raise HeadwayError(f"{where}: {shown(name)} is no YAML file.") from None
        return replace(section.read(Profile, document, where), name=Path(name).stem)
    key = plain(name)
    key = gpus().aliases.get(key, key)
    if key in measured_profiles():
        return _load_measured(key)
    if key == gpu.name:
        return spec_sheet(gpu)
    if key in gpus().entries:
        return spec_sheet(gpus().entries[key])
    raise HeadwayError(
        f"{where}: no hardware profile is called {shown(name)} (a file that ends in .yaml will do)."
        f"{suggest(key, measured_profiles())} Measured: {', '.join(measured_profiles())}."
    )


@cache
def measured_profiles() -> tuple[str, ...]:
    """Names of the profiles that were measured."""
    folder = files("headway").joinpath("presets").joinpath(FOLDER)
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


@cache
def _load_measured(name: str) -> Profile:
    return replace(section.read(Profile, document_of(f"{FOLDER}/{name}.yaml"), f"profiles.{name}"), name=name)


def spec_sheet(gpu: Gpu) -> Profile:
    """The constants of a card that was never measured: its peaks, at the efficiencies of one that was."""
    known = _load_measured(MODEL_OF_OTHERS)
    reference = gpus().entries[known.gpu]
    memory = gpu.bandwidth / reference.bandwidth
    compute = float(gpu.flops / reference.flops)
    rates = {
        key: value * (memory if key.endswith("tb_s") and key != "reduce_tb_s" else compute)
        for key, value in asdict(known.constants).items()
        if key.endswith(("_tb_s", "_tflops")) and key != "reduce_tb_s"
    }
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
    )

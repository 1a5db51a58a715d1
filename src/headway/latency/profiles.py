"""Hardware profiles: the constants of a GPU's step time, where they come from and how far to trust them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from headway.config import section
from headway.config.units import duration_ps
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.gpus import Gpu, gpus
from headway.latency.step_cost import Constants
from headway.latency.tables import plain

FOLDER: Final = "profiles"
MODEL_OF_OTHERS: Final = "h200"  # the profile whose efficiencies an uncalibrated card is given


class Profile(Struct, frozen=True):
    name: str
    gpu: str
    constants: Constants
    host_ps: int  # of a step, beside the GPU's time
    calibrated: bool
    as_of: str
    source: str
    measured: str
    error: dict[str, str]  # of the fit, by what was held out
    tokens: tuple[int, int]  # of a step, in what was measured
    context: tuple[int, int]  # of a sequence
    shapes: tuple[str, ...]

    def outside(self, tokens: int, context: int) -> str:
        """A sentence where a step lies outside of what was measured; else nothing."""
        if not self.calibrated:
            return f"{self.name} is not calibrated: its times are scaled from a spec sheet."
        for what, value, (_, most) in (("tokens in a step", tokens, self.tokens), ("context", context, self.context)):
            if value > most:
                return f"{self.name} was measured up to {most:,} {what}; {value:,} is beyond that."
        return ""


class ProfileKeys(Struct):
    """A profile as a file."""

    gpu: str
    constants: Any
    host: Any
    as_of: Any
    source: str
    measured: str
    error: dict[str, str]
    tokens: tuple[int, int]
    context: tuple[int, int]
    shapes: tuple[str, ...] = ()
    format: int = 1


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
        return _profile(Path(name).stem, document, where)
    wanted = plain(name)
    wanted = gpus().aliases.get(wanted, wanted)
    if wanted in shipped():
        return _shipped(wanted)
    if wanted == gpu.name:
        return spec_sheet(gpu)
    if wanted in gpus().entries:
        return spec_sheet(gpus().entries[wanted])
    raise HeadwayError(
        f"{where}: no hardware profile is called {shown(name)} (a file that ends in .yaml will do)."
        f"{suggest(wanted, shipped())} Measured: {', '.join(shipped())}."
    )


@cache
def shipped() -> tuple[str, ...]:
    """Names of the profiles that were measured."""
    folder = files("headway").joinpath("presets").joinpath(FOLDER)
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


@cache
def _shipped(name: str) -> Profile:
    text = files("headway").joinpath("presets").joinpath(FOLDER).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return _profile(name, yaml.safe_load(text), f"profiles.{name}")


def _profile(name: str, document: object, where: str) -> Profile:
    given = section.read(ProfileKeys, document, where)
    constants = section.read(Constants, given.constants, f"{where}.constants")
    check(constants, f"{where}.constants")
    return Profile(
        name,
        given.gpu,
        constants,
        duration_ps(given.host, f"{where}.host"),
        True,
        str(given.as_of),
        given.source,
        given.measured,
        given.error,
        given.tokens,
        given.context,
        given.shapes,
    )


def check(constants: Constants, where: str) -> None:
    """Refuse what would make a step of more work cheaper, or take no time."""
    for field in fields(Constants):
        value = getattr(constants, field.name)
        rate = field.name.endswith(("_tb_s", "_tflops")) or field.name in ("tile", "fp8_speedup")
        if not 0 <= value < 1e12 or (rate and not value):
            least = "above zero" if rate else "zero or more"
            raise HeadwayError(f"{where}.{field.name}: must be {least}, got {value}.")
    for name in ("mixed_kv", "short_read"):
        if getattr(constants, name) < 1:
            raise HeadwayError(f"{where}.{name}: must be 1 or more, got {getattr(constants, name)}.")
    if constants.step_us + constants.layer_us <= 0:
        raise HeadwayError(f"{where}: 'step_us' or 'layer_us' must be above zero, since no step takes no time.")


def spec_sheet(gpu: Gpu) -> Profile:
    """The constants of a card that was never measured: its peaks, at the efficiencies of one that was."""
    known = _shipped(MODEL_OF_OTHERS)
    reference = gpus().entries[known.gpu]
    memory = gpu.bandwidth / reference.bandwidth
    compute = float(gpu.flops / reference.flops)
    scaled = {
        key: value * (memory if key.endswith("tb_s") and key != "reduce_tb_s" else compute)
        for key, value in asdict(known.constants).items()
        if key.endswith(("_tb_s", "_tflops")) and key != "reduce_tb_s"
    }
    return Profile(
        gpu.name,
        gpu.name,
        replace(known.constants, **scaled),
        known.host_ps,
        False,
        gpus().as_of,
        f"spec sheet of the {gpu.name}, at the efficiencies and constants of the {known.name}",
        "nothing",
        {},
        (1, 0),
        (1, 0),
        (),
    )

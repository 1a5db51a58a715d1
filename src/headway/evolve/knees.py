"""Loads relative to the knee: the highest load of a scenario at which the suite's baseline meets an SLO.

A plan finds the knee of each scenario once. The knees that a search used are in its folder, so that a resumed search
does not look for them again. The same scenario has the same knee on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from headway.config.keys import Doc
from headway.errors import HeadwayError
from headway.evolve.cache import replace_file
from headway.experiment.load_levels import load_of
from headway.experiment.plan import plan
from headway.scenario.scenario import Scenario
from headway.types import Json

FILE: Final = "knees.json"
DIGITS: Final = 4  # significant digits of a load
LOWEST, HIGHEST = 0.01, 10.0  # range of a load, as a multiple of the knee


class Knee(Struct, frozen=True):
    """How the knee of a workload is found: the highest load at which the baseline meets the SLO."""

    slo: Annotated[str | None, Doc("bounds of the SLO, as for `headway plan`", default="99 % meet the SLO")] = None
    seeds: Annotated[int, Meta(ge=1, le=100), "number of seeds with which the SLO must hold"] = 3
    tolerance: Annotated[float, Meta(ge=0.001, le=1), "relative precision of the knee"] = 0.05


class Knees:
    """Finds knees. `known` has those of earlier searches; `used` has those of this suite."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = dict(known or {})
        self.used: dict[str, str] = {}

    @classmethod
    def read(cls, folder: str | Path | None) -> Knees:
        """Return the knees in the folder of a search. An unreadable file is the same as a missing one."""
        try:
            return cls({} if folder is None else msgspec.json.decode((Path(folder) / FILE).read_bytes(), type=KNOWN))
        except (OSError, msgspec.DecodeError):
            return cls()

    def write(self, folder: str | Path | None) -> None:
        """Write the knees of this suite to the folder of a search, if the suite has loads relative to knees."""
        if folder is not None and self.used:
            replace_file(Path(folder) / FILE, msgspec.json.format(msgspec.json.encode(self.used), indent=1) + b"\n")

    def load(self, share: float, scenario: Scenario, baseline: Json, knee: Knee, where: str) -> Fraction:
        """Return a share of a scenario's knee, in the unit of its load."""
        load = load_of(scenario)
        if load.why_not is not None:
            raise HeadwayError(f"{where}: {load.why_not}")
        found = self._find({**scenario.resolved(), "policies": baseline}, knee, where)
        return load.round(found * Fraction(str(share)), DIGITS)

    def _find(self, scenario: Json, knee: Knee, where: str) -> Fraction:
        content = {**{key: value for key, value in scenario.items() if key != "name"}, "knee": asdict(knee)}
        key = blake2b(msgspec.json.encode(content, order="sorted"), digest_size=8).hexdigest()
        text = self.used.get(key) or self.known.get(key) or _FOUND.get(key)
        if text is None:
            try:
                found = plan(scenario, knee.slo, find="load", seeds=knee.seeds, tolerance=knee.tolerance, points=0)
            except HeadwayError as error:
                raise HeadwayError(f"{where}: no knee was found: {error}") from None
            if found.holds is None or found.breaks is None:
                remedy = "Set a stricter `slo` in `knee`, or more requests"
                raise HeadwayError(f"{where}: no knee was found: the baseline meets the SLO at every load. {remedy}.")
            text = _FOUND[key] = str(found.holds)
        self.used[key] = text
        return Fraction(text)


KNOWN: Final = dict[str, Annotated[str, Meta(pattern=r"^[0-9]{1,30}(/[1-9][0-9]{0,30})?$")]]
_FOUND: Final[dict[str, str]] = {}  # the knees that this process found; the key of a knee determines it

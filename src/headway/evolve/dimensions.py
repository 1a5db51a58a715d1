"""The numbers of a policy that a search may choose: a catalogue policy's bounded parameters, those that code declares,
and the weights of a profile of scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.bundle import WRITTEN, Bundle, source_of
from headway.policies.code import Program
from headway.policies.profile import scorer_list
from headway.policies.registry import Bounds

DIGITS: Final = 4  # of a number that is chosen
FALLS, RISES = 100, 10  # how far below and above the heaviest scorer a weight is looked for


class Dimension(Struct, frozen=True):
    """A number, where it stands in its stage's policy, and the range that it is looked for in."""

    stage: str
    keys: tuple[str, ...]
    default: float
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.keys[-1]}"

    def nearest(self, value: float) -> float | int:
        """A value of few digits within the range."""
        found = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(found, self.low), self.high) if not self.whole else int(min(max(found, self.low), self.high))


def dimensions(bundle: Bundle, stages: Sequence[str]) -> list[Dimension]:
    """Of the policies of some stages; an error where there is none."""
    found = [one for stage in stages for one in _of(stage, bundle.policies[stage])]
    if not found:
        names = ", ".join(registry.split(bundle.policies[stage], stage)[0] for stage in stages)
        raise HeadwayError(
            f"--template: {names} has no number to choose; name a policy that has, such as prefill-cost-routing."
        )
    return found


def _of(stage: str, spec: Any) -> list[Dimension]:
    name, given = registry.split(spec, f"policies.{stage}")
    if name in WRITTEN:
        program = Program(source_of(stage, spec), stage, name)
        values = given.get("parameters") or {}
        return [
            Dimension(stage, ("parameters", one.name), values.get(one.name, one.default), one.low, one.high)
            for one in program.parameters
            if one.low < one.high
        ]
    found = []
    for one in registry.find(stage, name, f"policies.{stage}").parameters:
        value = given.get(one.name, one.default)
        if one.name == "scorers":
            found += _weights(stage, value)
        elif one.bounds is not None and isinstance(value, int | float) and not isinstance(value, bool):
            found += _bounded(stage, one.name, value, one.bounds, one.type is not float)
    return found


def _bounded(stage: str, name: str, value: float, bounds: Bounds, whole: bool) -> list[Dimension]:
    if not bounds.low < bounds.high:
        return []
    return [Dimension(stage, (name,), value, bounds.low, bounds.high, bounds.log and bounds.low > 0, whole)]


def _weights(stage: str, given: Any) -> list[Dimension]:
    """Only the ratios of weights count, so they are looked for on a logarithmic scale around the heaviest."""
    scorers = scorer_list(given)
    heaviest = float(max(one.get("weight", 1) for one in scorers))
    low, high = heaviest / FALLS, heaviest * RISES
    found = {one["name"]: min(max(float(one.get("weight", 1)), low), high) for one in scorers}
    return [Dimension(stage, ("scorers", name), weight, low, high, log=True) for name, weight in found.items()]


def with_values(bundle: Bundle, chosen: Mapping[Dimension, float], name: str, generation: int) -> Bundle:
    """The bundle with other numbers; it tells which of them have changed."""
    policies = dict(bundle.policies)
    told = []
    for one, value in chosen.items():
        policies[one.stage] = _put(policies[one.stage], one, value)
        if value != one.default:
            told.append(f"{one.keys[-1]} {one.default:g} -> {value:g}")
    return Bundle(name, policies, generation, bundle.id if told else bundle.parent, tuple(told))


def _put(spec: Any, one: Dimension, value: float) -> Any:
    name, given = registry.split(spec, one.stage)
    if one.keys[0] == "scorers":
        entry = registry.find(one.stage, name, one.stage)
        known = next(parameter.default for parameter in entry.parameters if parameter.name == "scorers")
        scorers = scorer_list(given.get("scorers", known))
        found = [{**each, "weight": value} if each["name"] == one.keys[1] else each for each in scorers]
        plain = all(set(each) == {"name", "weight"} for each in found)
        return {"name": name, **given, "scorers": {each["name"]: each["weight"] for each in found} if plain else found}
    if len(one.keys) == 2:
        return {"name": name, **given, one.keys[0]: {**(given.get(one.keys[0]) or {}), one.keys[1]: value}}
    return {"name": name, **given, one.keys[0]: value}

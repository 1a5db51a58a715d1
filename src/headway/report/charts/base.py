"""What all charts have in common: their frame, their axes and the colours of the policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headway.report.palette import Palette
from headway.types import Json

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT: Final = 220
DASHES: Final = [4, 3]
UNITS: Final = ((172_800, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))  # from that long on, seconds in one


def chart(description: str, values: Sequence[Json], *, height: int = HEIGHT, **rest: Any) -> Json:
    """A chart as wide as its box; the description is for those who cannot see it."""
    frame = {"$schema": SCHEMA, "description": description, "width": "container", "height": height}
    return {**frame, "data": {"values": list(values)}, **rest}


def axis(field: str, title: str, **rest: Any) -> Json:
    """A quantity along an axis."""
    scale = rest.pop("scale", {})
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **rest}


def by_policy(colours: Palette) -> Json:
    """The colour of a policy; the page has one legend for all."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": "policy", "type": "nominal", "scale": scale, "legend": None}


def dashed(baseline: str | None) -> Json:
    """The baseline's line is broken, so that grey is not all that tells it."""
    test = {"test": {"field": "policy", "equal": baseline or ""}, "value": DASHES}
    return {"condition": test, "value": [1, 0]}


def hints(*fields: tuple[str, str]) -> list[Json]:
    """What is shown of a mark under the pointer: fields and their titles."""
    return [{"field": field, "title": title} for field, title in fields]


def time_unit(span_s: float) -> tuple[float, str]:
    """The unit in which a time axis is written: its length in seconds, and its name."""
    return next((size, name) for least, size, name in UNITS if span_s >= least)


def brief(value: float) -> float:
    """A number with as many digits as a chart can show."""
    return float(f"{value:.5g}")


def largest(values: Iterable[float], at_least: float = 0.0) -> float:
    return max(values, default=at_least) or at_least

"""Links that KV blocks move over: the figures of one, as a scenario gives them or as they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.config import section
from headway.config.keys import QUIET, Duration, Unit, bytes_text
from headway.config.units import bandwidth, duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.tables import Table, load

FIGURES: Final = ("latency", "bandwidth")


def fill_link(keys: Any, where: str, usual: Mapping[str, str]) -> Any:
    """The keys of a section with the `latency` and `bandwidth` of the measured link that `profile` names, or as given;
    `usual` are those that are not.

    Nothing may stand beside the name: else a scenario with all its figures written out would take a profile in silence
    and ignore it.
    """
    if not isinstance(keys, dict):
        return keys
    present = {key: value for key, value in keys.items() if key not in FIGURES or value is not None}
    profile = present.pop("profile", None)
    if profile is None:
        return {**usual, **present}
    if not isinstance(profile, str):
        return keys
    for key in FIGURES:
        if key in present:
            raise HeadwayError(f"{where}.{key}: 'profile' gives it as well; leave one of them out.")
    link = links().find(profile, "measured link", f"{where}.profile", "'latency' and 'bandwidth' will do")
    return present | {"latency": duration_text(link.latency_ps), "bandwidth": write_speed(link.bandwidth)}


def read_speed(value: Any, where: str) -> int:
    speed = bandwidth(value, where)
    if speed < 1:
        raise HeadwayError(f"{where}: must be at least 1B/s, got {shown(value)}.")
    return speed


def write_speed(speed: int) -> str:
    return f"{speed}B/s"


Speed = Annotated[
    int, Unit("bandwidth", read_speed, write_speed, show=lambda speed: f"{bytes_text(speed)}/s")
]  # bytes a second
ProfileName = Annotated[
    str | None, "a measured link, below, that gives `latency` and `bandwidth`; neither may stand beside it", QUIET
]


class LinkProfile(Struct, frozen=True):
    """A measured link, and what its figures are the best line through."""

    name: str
    latency_ps: Duration
    bandwidth: Speed
    direction: str  # h2d, d2h or d2d: host memory and GPU
    methods: tuple[str, ...]  # of copying
    within: float  # no measured time is further from the line, relative to it


@cache
def links() -> Table[LinkProfile]:
    def read(name: str, figures: dict[str, Any]) -> LinkProfile:
        return section.read(LinkProfile, {"name": name, **figures}, f"links.{name}")

    return load("links.yaml", "links", read)

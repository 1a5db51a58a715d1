"""Links that KV blocks move over: the figures of one, as a scenario gives them or as they were measured."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import Struct

from headway.config.units import bandwidth, duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.tables import Table, load


class LinkProfile(Struct, frozen=True):
    """A measured link, and what its figures are the best line through."""

    name: str
    latency_ps: int
    bandwidth: int  # bytes a second
    direction: str  # h2d, d2h or d2d: host memory and GPU
    methods: tuple[str, ...]  # of copying
    within: float  # no measured time is further from the line, relative to it


def read_link(profile: str | None, latency: Any, speed: Any, usual: tuple[str, str], where: str) -> tuple[int, int]:
    """Picoseconds and bytes a second of a link: those of a measured one, or as given; `usual` is what is not given.

    Nothing may stand beside the name: else a scenario with all its figures written out would take a profile in silence
    and ignore it.
    """
    if profile is not None:
        for key, value in (("latency", latency), ("bandwidth", speed)):
            if value is not None:
                raise HeadwayError(f"{where}.{key}: 'profile' gives it as well; leave one of them out.")
        found = links().find(profile, "measured link", f"{where}.profile", "'latency' and 'bandwidth' will do")
        return found.latency_ps, found.bandwidth
    latency_ps = duration_ps(usual[0] if latency is None else latency, f"{where}.latency")
    found_speed = bandwidth(usual[1] if speed is None else speed, f"{where}.bandwidth")
    if found_speed < 1:
        raise HeadwayError(f"{where}.bandwidth: must be at least 1B/s, got {shown(speed)}.")
    return latency_ps, found_speed


@cache
def links() -> Table[LinkProfile]:
    return load("links.yaml", "links", _profile)


def _profile(name: str, figures: dict[str, Any]) -> LinkProfile:
    return LinkProfile(
        name,
        duration_ps(figures["latency"], f"links.{name}.latency"),
        bandwidth(figures["bandwidth"], f"links.{name}.bandwidth"),
        figures["direction"],
        tuple(figures["methods"]),
        figures["within"],
    )

"""Links that carry KV blocks. Their latency and bandwidth come from the scenario or from measured profiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.config import section
from headway.config.keys import BANDWIDTH, QUIET, Duration, Form, Unit, bytes_text
from headway.config.schema import Names
from headway.config.units import bandwidth, duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.tables import SPELLED, Table, load

FIGURES: Final = ("latency", "bandwidth")


def fill_link(keys: Any, where: str, usual: Mapping[str, str]) -> Any:
    """Return the keys of a link with `latency` and `bandwidth`. If `profile` names a measured link, take both from it.
    Otherwise a key that is not set gets its default from `usual`.

    `profile` together with `latency` or `bandwidth` raises an error. Otherwise a profile that the user adds to a
    resolved scenario would have no effect, because a resolved scenario always contains both keys.
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
            raise HeadwayError(f"{where}.{key}: 'profile' sets this key too. Remove one of the two.")
    link = links().find(profile, "measured link", f"{where}.profile", "set 'latency' and 'bandwidth' instead")
    return present | {"latency": duration_text(link.latency_ps), "bandwidth": write_speed(link.bandwidth)}


def read_speed(value: Any, where: str) -> int:
    speed = bandwidth(value, where)
    if speed < 1:
        raise HeadwayError(f"{where}: must be at least 1B/s, got {shown(value)}.")
    return speed


def write_speed(speed: int) -> str:
    return f"{speed}B/s"


def show_speed(speed: int) -> str:
    return f"{bytes_text(speed)}/s"


Speed = Annotated[int, Unit("bandwidth", read_speed, write_speed, show=show_speed, form=BANDWIDTH)]  # bytes per second
ProfileName = Annotated[
    str | None,
    Form.of(Names(lambda: links().names, SPELLED)),
    "measured link that sets `latency` and `bandwidth` (listed below); excludes these two keys",
    QUIET,
]


class LinkProfile(Struct, frozen=True):
    """A measured link. Its latency and bandwidth are those of the straight line that best fits the measured copy
    times."""

    name: str
    latency_ps: Duration
    bandwidth: Speed
    direction: str  # h2d, d2h or d2d; h is host memory and d is GPU memory
    methods: tuple[str, ...]  # copy methods that were measured
    within: float  # maximum relative deviation of a measured time from the fitted line


@cache
def links() -> Table[LinkProfile]:
    def read(name: str, figures: dict[str, Any]) -> LinkProfile:
        return section.read(LinkProfile, {"name": name, **figures}, f"links.{name}")

    return load("links.yaml", "links", read)

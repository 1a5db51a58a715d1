"""The section `routers` of a scenario: how many there are, who goes to which, and how often they tell each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.units import duration_ps, duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Json

MOST = 1024


class _Keys(Struct):
    count: Annotated[int, Meta(ge=1, le=MOST)] = 1
    sync_interval: Any = None
    spread: Literal["requests", "sessions"] = "requests"


class RouterSpec(Struct, frozen=True):
    """Equal routers before one cluster. Without an interval they know nothing of each other."""

    count: int = 1
    sync_interval_ps: int | None = None
    spread: Literal["requests", "sessions"] = "requests"

    def resolved(self) -> Json:
        return {"count": self.count, "sync_interval": duration_text(self.sync_interval_ps), "spread": self.spread}


def read_routers(value: Any) -> RouterSpec:
    """From a number, or a mapping with `count`; a router alone is a router alone, whatever else is said of it."""
    if value is None or isinstance(value, dict):
        section = value or {}
    elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST:
        section = {"count": value}
    else:
        right = f"a number of routers from 1 to {MOST}, or a mapping as in {{count: 4, sync_interval: 1s}}"
        raise HeadwayError(f"routers: expected {right}, got {shown(value)}.")
    keys = read(_Keys, section, "routers")
    interval = None
    if keys.sync_interval is not None:
        interval = duration_ps(keys.sync_interval, "routers.sync_interval")
        if interval <= 0:
            raise HeadwayError(f"routers.sync_interval: must be longer than nothing, got {shown(keys.sync_interval)}.")
    return RouterSpec() if keys.count == 1 else RouterSpec(keys.count, interval, keys.spread)

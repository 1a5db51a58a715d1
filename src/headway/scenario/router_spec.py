"""The section `routers` of a scenario: how many there are, who goes to which, and how often they tell each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headway.config.keys import Doc, PositiveDuration
from headway.config.wording import shown
from headway.errors import HeadwayError

MOST = 1024


class RouterSpec(Struct, frozen=True):
    """Equal routers before one cluster. Without an interval they know nothing of each other."""

    count: Annotated[int, Meta(ge=1, le=MOST), "how many; with 1 the rest says nothing"] = 1
    sync_interval_ps: Annotated[
        PositiveDuration | None,
        Doc(
            "at its multiples each takes over what the others have counted and where they have sent prompts",
            default="none: they know nothing of each other",
        ),
    ] = None
    spread: Annotated[
        Literal["requests", "sessions"],
        "who goes to which, by a hash with the simulation's seed: each request for itself, or all of a session to one",
    ] = "requests"

    @classmethod
    def expand(cls, value: Any, where: str) -> Any:
        """A number stands for `count`."""
        if value is None or isinstance(value, dict):
            return value or {}
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST:
            return {"count": value}
        right = f"a number of routers from 1 to {MOST}, or a mapping as in {{count: 4, sync_interval: 1s}}"
        raise HeadwayError(f"{where}: expected {right}, got {shown(value)}.")

    def settled(self, where: str) -> RouterSpec:
        """A router alone is a router alone, whatever else is said of it."""
        return RouterSpec() if self.count == 1 else self

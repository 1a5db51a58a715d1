"""The `workload:` section, and what it plans: requests with the truth that only the simulator may know."""

from __future__ import annotations

from msgspec import Struct

from headway.types import Request


class Planned(Struct, frozen=True, gc=False):
    """A request to come, and how many tokens it will really generate."""

    request: Request
    output_tokens: int

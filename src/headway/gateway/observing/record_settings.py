"""Where live traffic is written down, and how much of it in one folder."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from headway.config.keys import PositiveSeconds
from headway.gateway.settings import Folder


class RecordSettings(Struct, frozen=True):
    """The section `records:` of a gateway's file."""

    folder: Annotated[Folder, "where the run folders lie; may stand alone for the section"]
    roll_s: Annotated[PositiveSeconds, "a run folder holds so long"] = 3600.0
    requests: Annotated[int, Meta(ge=1, le=10**6), "or so many requests, whichever is less"] = 100_000
    decisions: Annotated[bool, "whether what each decision rested on is written too"] = True
    prompts: Annotated[bool, "whether the blocks of prompts are, by which the traffic can be replayed"] = True

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"folder": data} if isinstance(data, str) else data

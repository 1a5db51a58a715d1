"""Where live traffic is written down, and how much of it in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from headway.config.section import read
from headway.gateway.settings import seconds


class _Keys(Struct):
    folder: str
    roll: Any = "1h"
    requests: Annotated[int, Meta(ge=1, le=10**6)] = 100_000
    decisions: bool = True
    prompts: bool = True


class RecordSettings(Struct, frozen=True):
    folder: Path
    roll_s: float = 3600.0  # a folder holds so long
    requests: int = 100_000  # or so many requests, whichever is less
    decisions: bool = True  # and what each decision rested on
    prompts: bool = True  # and the blocks of each prompt, by which the traffic can be replayed

    @classmethod
    def read(cls, data: object, where: str = "records") -> RecordSettings:
        keys = read(_Keys, {"folder": data} if isinstance(data, str) else data, where)
        roll_s = seconds(keys.roll, f"{where}.roll")
        return cls(Path(keys.folder).expanduser(), roll_s, keys.requests, keys.decisions, keys.prompts)

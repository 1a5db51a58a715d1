"""What the sections of a gateway's file are made of."""

from __future__ import annotations

from typing import Any

from headway.config.units import duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError


def address(text: str, where: str) -> tuple[str, int]:
    """Host and port, from text such as 127.0.0.1:8000."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"{where}: expected an address such as 127.0.0.1:8000, got {shown(text)}.")
    return host.strip("[]"), int(port)


def seconds(value: Any, where: str) -> float:
    return longer_ps(value, where) / 1e12


def longer_ps(value: Any, where: str) -> int:
    """A duration that is longer than nothing."""
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found

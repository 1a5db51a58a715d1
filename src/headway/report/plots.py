"""Small plots of plain characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"


def bar(share: float, width: int = 30) -> str:
    """A horizontal bar; a share of 1 fills the width."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def columns(values: Sequence[float]) -> str:
    """One character a value, its height the value's share of the largest; what is above nothing shows."""
    top = max(values, default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(HEIGHTS[max(1, round(value / top * 8))] if value > 0 else " " for value in values)

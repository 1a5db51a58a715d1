"""Who was served within the SLO: each class or tenant under each policy."""

from __future__ import annotations

from collections.abc import Sequence

from headway.report.charts.base import axis, by_policy, chart, hints
from headway.report.palette import Palette
from headway.types import Json


def attainment(whom: str, rows: Sequence[Json], served: str, colours: Palette) -> Json:
    """A bar for each group and policy. A row has `policy`, `group` and `share`."""
    names = list(dict.fromkeys(row["group"] for row in rows))
    return chart(
        f"{served} by {whom} and policy.",
        rows,
        height=max(80, len(names) * (10 + 9 * len(colours))),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis("share", served, axis={"format": ".0%", "tickCount": 5}, scale={"domain": [0, 1]}),
            "y": {
                "field": "group",
                "type": "nominal",
                "title": None,
                "sort": names,
                "axis": {"labelLimit": 130, "ticks": False},
            },
            "yOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "color": by_policy(colours),
            "tooltip": hints(("group", whom), ("policy", "policy"), ("share", served)),
        },
    )

"""The cache: which share of the prompts was found in which tier, and how right the router's beliefs were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report.charts.base import axis, brief, by_policy, chart, hints
from headway.report.palette import Palette
from headway.types import Json

TIERS: Final = {"gpu": 1.0, "cpu": 0.6, "storage": 0.3}  # from the fastest on, and how full the colour is
CELL: Final = 0.1


def hits(rows: Mapping[str, Mapping[str, float | None]], colours: Palette) -> Json:
    """A bar a policy, of the shares of prompt tokens that its tiers had, the fainter the slower."""
    values = [
        {"policy": policy, "tier": tier, "share": brief(share), "order": place}
        for policy, tiers in rows.items()
        for place, (tier, share) in enumerate(tiers.items())
        if share is not None
    ]
    there = [tier for tier in TIERS if any(tier in tiers for tiers in rows.values())]
    scale = {"type": "ordinal", "domain": there, "range": [TIERS[tier] for tier in there]}
    legend = {"title": None, "orient": "top"} if len(there) > 1 else None
    return chart(
        "Share of prompt tokens found cached, by tier and policy.",
        values,
        height=max(40, 26 * len(rows)),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis(
                "share", "share of prompt tokens", axis={"format": ".0%", "tickCount": 5}, scale={"domain": [0, 1]}
            ),
            "y": {
                "field": "policy",
                "type": "nominal",
                "title": None,
                "sort": list(rows),
                "axis": {"labelLimit": 150, "ticks": False},
            },
            "color": by_policy(colours),
            "opacity": {"field": "tier", "type": "ordinal", "sort": there, "scale": scale, "legend": legend},
            "order": {"field": "order"},
            "tooltip": hints(("policy", "policy"), ("tier", "tier"), ("share", "share of prompt tokens")),
        },
    )


def calibration(label: str, cells: Mapping[tuple[int, int], int], top: int, colour: str) -> Json:
    """How many requests were believed to find a share of their prompts cached, and what they found. Right beliefs lie
    on the line."""
    values = [
        {
            "believed": brief(x * CELL),
            "believed_to": brief((x + 1) * CELL),
            "found": brief(y * CELL),
            "found_to": brief((y + 1) * CELL),
            "requests": count,
        }
        for (x, y), count in cells.items()
    ]
    ends = {"domain": [0, 1], "nice": False}
    tenths = {"format": ".0%", "grid": False, "tickCount": 5}
    scale = {"type": "log", "domain": [1, max(2, top)]}
    hint = hints(("believed", "believed, from"), ("found", "found, from"), ("requests", "requests"))
    across = axis("believed", "believed cached", scale=ends, axis=tenths)
    up = axis("found", "found cached", scale=ends, axis=tenths)
    cell: Json = {
        "mark": {"type": "rect", "color": colour},
        "encoding": {
            "x": across,
            "x2": {"field": "believed_to"},
            "y": up,
            "y2": {"field": "found_to"},
            "opacity": {
                "field": "requests",
                "type": "quantitative",
                "scale": {**scale, "range": [0.15, 1]},
                "legend": None,
            },
            "tooltip": hint,
        },
    }
    line = {
        "data": {"values": [{"believed": 0, "found": 0}, {"believed": 1, "found": 1}]},
        "mark": {"type": "line", "strokeDash": [4, 3], "strokeWidth": 1, "style": "target"},
        "encoding": {"x": across, "y": up},
    }
    return chart(f"{label}: share of a prompt believed cached against the share found.", values, layer=[cell, line])


def tier_shares(summary: Json) -> dict[str, float | None]:
    """The share of prompt tokens that each tier had."""
    tiers: Sequence[str] = [tier for tier in TIERS if tier in summary.get("tiers", {})]
    if not tiers:
        return {"gpu": summary["cache"]["token_hit_ratio"]}
    return {tier: summary["tiers"][tier]["hit_ratio"] for tier in tiers}

"""Decisions: what the scorers argued, and how much was lost by what was chosen."""

from __future__ import annotations

from collections.abc import Mapping

from headway.report.charts.base import axis, brief, by_policy, chart, hints
from headway.report.decided import CLASSES, Regrets
from headway.report.palette import Palette
from headway.types import Json


def contributions(rows: Mapping[str, Mapping[str, float]], colours: Palette) -> Json:
    """A bar for each scorer of each policy: how much more it gave to the chosen instance than to the average one."""
    values = [
        {"policy": policy, "scorer": scorer, "value": brief(value)}
        for policy, scorers in rows.items()
        for scorer, value in scorers.items()
    ]
    names = list(dict.fromkeys(row["scorer"] for row in values))
    return chart(
        "Mean contribution of each scorer to the choice, by policy.",
        values,
        height=max(40, 14 * len(values) + 12 * len(names)),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis("value", "more than the average candidate got"),
            "y": {
                "field": "scorer",
                "type": "nominal",
                "title": None,
                "sort": names,
                "axis": {"labelLimit": 150, "ticks": False, "domain": False},
            },
            "yOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "color": by_policy(colours),
            "tooltip": hints(("policy", "policy"), ("scorer", "scorer"), ("value", "contribution")),
        },
    )


def histogram(title: str, found: Mapping[str, Regrets], colours: Palette) -> Json:
    """Which share of the decisions lost how much, a bar for each policy and class of regret."""
    used = [place for place in range(len(CLASSES)) if any(one.counts[place] for one in found.values())]
    span = range(min(used, default=0), max(used, default=0) + 1)
    values = [
        {
            "policy": policy,
            "regret": CLASSES[place],
            "share": brief(one.counts[place] / one.total),
            "decisions": one.counts[place],
        }
        for policy, one in found.items()
        if one.total
        for place in span
    ]
    hint = hints(("policy", "policy"), ("regret", "ms"), ("decisions", "decisions"), ("share", "share"))
    return chart(
        f"{title}: share of the decisions by how many milliseconds sooner the first token would have come.",
        values,
        mark={"type": "bar"},
        encoding={
            "x": {
                "field": "regret",
                "type": "ordinal",
                "title": "regret, ms",
                "sort": list(CLASSES),
                "axis": {"labelAngle": -40, "labelOverlap": False},
            },
            "xOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "y": axis("share", "share of decisions", axis={"format": ".0%"}),
            "color": by_policy(colours),
            "tooltip": hint,
        },
    )

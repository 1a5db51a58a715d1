"""Distributions of latencies: the share of requests at or below each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report.charts.base import DASHES, axis, brief, by_policy, chart, dashed, hints
from headway.report.palette import Palette
from headway.results.percentiles import PS_PER_MS
from headway.types import Json

POINTS: Final = 120  # of a curve, at most, less those of its tail
TAIL: Final = (0.992, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999)  # where requests are few and matter most
WIDE: Final = 20  # a largest value so many times the median asks for a logarithmic axis

Curve = list[tuple[float, float]]  # milliseconds, and the share of requests that took no longer


def curve(values_ps: Sequence[float]) -> Curve:
    """Points of the exact distribution: order statistics, evenly spread over the ranks and denser in the tail."""
    ordered = sorted(values_ps)
    count = len(ordered)
    if not count:
        return []
    steps = min(POINTS, count)
    ranks = {count * place // steps for place in range(steps)} | {count - 1}
    ranks |= {min(count - 1, int(share * count)) for share in TAIL}
    return [(brief(ordered[rank] / PS_PER_MS), brief((rank + 1) / count)) for rank in sorted(ranks)]


def cdf(
    name: str, curves: Mapping[str, Curve], colours: Palette, baseline: str | None, target_ms: float | None
) -> Json:
    """One line a policy; a target is a broken line upwards."""
    values = [{"policy": policy, "ms": ms, "share": share} for policy, points in curves.items() for ms, share in points]
    wide = _wide(curves)
    scale = {"type": "log", "nice": False} if wide else {"zero": False}
    across = axis("ms", f"{name}, ms", scale=scale, axis={"tickCount": 5, "gridOpacity": 0.4 if wide else 1})
    up = axis("share", "share of requests", axis={"format": ".0%"}, scale={"domain": [0, 1]})
    shown = hints(("policy", "policy"), ("ms", f"{name}, ms"), ("share", "share of requests"))
    layers: list[Json] = [
        {
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "clip": True},
            "encoding": {"x": across, "y": up, "color": by_policy(colours), "strokeDash": dashed(baseline)},
        },
        {
            "mark": {"type": "point", "opacity": 0, "size": 60, "filled": True},
            "encoding": {"x": across, "y": up, "tooltip": shown},
        },
    ]
    if target_ms is not None:
        rule = {"type": "rule", "strokeDash": DASHES, "strokeWidth": 1.2, "style": "target"}
        where: Json = {"x": {"datum": target_ms}, "tooltip": {"value": f"target: {target_ms:g} ms"}}
        layers.append({"data": {"values": [{}]}, "mark": rule, "encoding": where})
    return chart(f"Distribution of {name} by policy: share of requests at or below a time.", values, layer=layers)


def _wide(curves: Mapping[str, Curve]) -> bool:
    low = min((points[0][0] for points in curves.values() if points), default=0.0)
    half = min((points[len(points) // 2][0] for points in curves.values() if points), default=0.0)
    return low > 0 and max(points[-1][0] for points in curves.values() if points) > WIDE * half

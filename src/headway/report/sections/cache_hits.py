"""The cache: hits by tier, and the router's predictions against the actual hits."""

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report import html
from headway.report.charts import DASHES, Palette, axis, by_policy, categories, chart, hints, side_by_side
from headway.report.digest import Book
from headway.report.number_format import brief, count, number, percent
from headway.types import Json

TIERS: Final = {"gpu": 1.0, "cpu": 0.6, "storage": 0.3}  # tier -> opacity of its colour, fastest tier first
CELL: Final = 0.1


def hits(rows: Mapping[str, Mapping[str, float | None]], colours: Palette) -> Json:
    """Return a chart with a bar per policy: the fraction of prompt tokens that each tier had cached. Slower tiers have
    fainter colours."""
    values = [
        {"policy": policy, "tier": tier, "share": brief(share), "order": place}
        for policy, tiers in rows.items()
        for place, (tier, share) in enumerate(tiers.items())
        if share is not None
    ]
    there = [tier for tier in TIERS if any(tier in tiers for tiers in rows.values())]
    scale = {"type": "ordinal", "domain": there, "range": [TIERS[tier] for tier in there]}
    legend = {"title": None, "orient": "top"} if len(there) > 1 else None
    share = "share of prompt tokens"
    return chart(
        "Share of prompt tokens that were cached, by tier and policy.",
        values,
        height=max(40, 26 * len(rows)),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis("share", share, axis={"format": ".0%", "tickCount": 5}, scale={"domain": [0, 1]}),
            "y": categories("policy", list(rows), labelLimit=150, ticks=False),
            "color": by_policy(colours),
            "opacity": {"field": "tier", "type": "ordinal", "sort": there, "scale": scale, "legend": legend},
            "order": {"field": "order"},
            "tooltip": hints(("policy", "policy"), ("tier", "tier"), ("share", share)),
        },
    )


def calibration(label: str, cells: Mapping[tuple[int, int], int], top: int, colour: str) -> Json:
    """Return a chart of requests by the believed and the actual cached fraction of their prompts. Correct predictions
    are on the diagonal."""
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
    scale = {"type": "log", "domain": [1, max(2, top)], "range": [0.15, 1]}
    across = axis("believed", "believed cached", scale=ends, axis=tenths)
    up = axis("found", "actually cached", scale=ends, axis=tenths)
    cell: Json = {
        "mark": {"type": "rect", "color": colour},
        "encoding": {
            "x": across,
            "x2": {"field": "believed_to"},
            "y": up,
            "y2": {"field": "found_to"},
            "opacity": {"field": "requests", "type": "quantitative", "scale": scale, "legend": None},
            "tooltip": hints(("believed", "believed, from"), ("found", "actual, from"), ("requests", "requests")),
        },
    }
    line = {
        "data": {"values": [{"believed": 0, "found": 0}, {"believed": 1, "found": 1}]},
        "mark": {"type": "line", "strokeDash": DASHES, "strokeWidth": 1, "style": "target"},
        "encoding": {"x": across, "y": up},
    }
    return chart(f"{label}: believed cached share of a prompt against the actual one.", values, layer=[cell, line])


def tier_shares(summary: Json) -> dict[str, float | None]:
    """Return the fraction of prompt tokens that each tier had cached."""
    tiers: Sequence[str] = [tier for tier in TIERS if tier in summary.get("tiers", {})]
    if not tiers:
        return {"gpu": summary["cache"]["token_hit_ratio"]}
    return {tier: summary["tiers"][tier]["hit_ratio"] for tier in tiers}


PANELS: Final = 4
BELIEFS: Final = (
    "The cached share of each prompt as the router believed it, against the actual share. A stronger colour means more "
    "requests. Correct predictions lie on the diagonal."
)
SHADOW: Final = (
    ("divergence_rate", "wrong predictions", percent),
    ("unexpected_misses", "too high", count),
    ("too_high_tokens", "by tokens", count),
    ("unexpected_hits", "too low", count),
    ("too_low_tokens", "by tokens", count),
    ("token_error", "mean token error", number),
    ("token_bias", "mean token bias", number),
)


def cache(book: Book) -> str:
    cases = book.cases.cases
    shares = {run.label: tier_shares(run.summary) for run in book.drawn}
    parts = []
    if any(share for tiers in shares.values() for share in tiers.values()):
        parts.append(book.figure("Cached prompt tokens", hits(shares, book.colours)))
    tiered = [tier for tier in TIERS if any(tier in case.summary.get("tiers", {}) for case in cases)]
    heads = ["run", "of tokens", "of blocks", "of requests", *(f"{tier}, of tokens" for tier in tiered)]
    rows = []
    for case in cases:
        section = case.summary["cache"]
        ratios = [section[name] for name in ("token_hit_ratio", "block_hit_ratio", "request_hit_ratio")]
        ratios += [case.summary.get("tiers", {}).get(tier, {}).get("hit_ratio") for tier in tiered]
        rows.append([book.key(case.label), *map(percent, ratios)])
    parts.append(html.table(heads, rows))
    return html.section("Cache", *parts, *_stores(book), _beliefs(book), name="cache")


def _stores(book: Book) -> list[str]:
    rows = []
    for case in book.cases.cases:
        for tier, its in case.summary.get("tiers", {}).items():
            if tier != "gpu":
                counts = [its["stored_blocks"], its["loaded_blocks"], its["thrashed_blocks"]]
                shares = [its["utilization"], its["peak_utilization"], its["link_utilization"]]
                rows.append([book.key(case.label), tier, *map(count, counts), *map(percent, shares)])
    heads = ["run", "tier", "blocks stored", "loaded", "thrashed", "mean use", "peak use", "link busy"]
    return [html.details("Tiers below the GPU", html.table(heads, rows))] if rows else []


def _beliefs(book: Book) -> str:
    cases = [case for case in book.cases.cases if "shadow" in case.summary]
    if not cases:
        return "<p>No policy of these runs predicts cache hits.</p>"
    drawn = [run for run in book.drawn if run.calibration][:PANELS]
    top = max((count for run in drawn for count in run.calibration.values()), default=1)
    figures = [
        book.figure(book.key(run.label), calibration(run.label, run.calibration, top, book.colours[run.label]))
        for run in drawn
    ]
    rows = [
        [book.key(case.label), *(write(case.summary["shadow"].get(name)) for name, _, write in SHADOW)]
        for case in cases
    ]
    title = f"<h3>Predicted and actual hits</h3><p>{BELIEFS}</p>"
    return title + side_by_side(figures) + html.table(["run", *(head for _, head, _ in SHADOW)], rows)

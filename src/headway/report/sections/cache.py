"""The cache: hits by tier, and what the router believed against what the instances found."""

from __future__ import annotations

from typing import Final

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.cache import TIERS, calibration, hits, tier_shares
from headway.report.terminal import number, percent
from headway.types import Json

PANELS: Final = 4
SHADOW: Final = (
    ("divergence_rate", "wrong about a hit", percent),
    ("unexpected_misses", "unexpected misses", lambda it: number(it, 0)),
    ("unexpected_hits", "unexpected hits", lambda it: number(it, 0)),
    ("token_error", "tokens off, mean", number),
    ("token_bias", "tokens too many, mean", number),
)


def cache(book: Book) -> str:
    cases = book.cases.cases
    shares = {one.label: tier_shares(one.summary) for one in book.drawn}
    parts = []
    if any(share for tiers in shares.values() for share in tiers.values()):
        parts.append(book.figure("Prompt tokens found cached", hits(shares, book.colours)))
    tiered = [tier for tier in TIERS if any(tier in case.summary.get("tiers", {}) for case in cases)]
    heads = ["run", "of tokens", "of blocks", "of requests", *(f"{tier}, of tokens" for tier in tiered)]
    rows = []
    for case in cases:
        found = case.summary["cache"]
        ratios = [found[name] for name in ("token_hit_ratio", "block_hit_ratio", "request_hit_ratio")]
        ratios += [case.summary.get("tiers", {}).get(tier, {}).get("hit_ratio") for tier in tiered]
        rows.append([book.key(case.label), *map(percent, ratios)])
    parts.append(html.table(heads, rows))
    parts += _stores(book)
    parts.append(_believed(book))
    return html.section("Cache", *parts, name="cache")


def _stores(book: Book) -> list[str]:
    """What the stores below the GPU did, where there are any."""
    rows = []
    for case in book.cases.cases:
        for tier, its in case.summary.get("tiers", {}).items():
            if tier != "gpu":
                counts = [its["stored_blocks"], its["loaded_blocks"], its["thrashed_blocks"]]
                shares = [its["utilization"], its["peak_utilization"], its["link_utilization"]]
                rows.append([book.key(case.label), tier, *(number(one, 0) for one in counts), *map(percent, shares)])
    heads = ["run", "tier", "blocks stored", "loaded", "thrashed", "full", "at most", "link busy"]
    return [html.details("The stores below the GPU", html.table(heads, rows))] if rows else []


def _believed(book: Book) -> str:
    told = [case for case in book.cases.cases if "shadow" in case.summary]
    if not told:
        return "<p>No policy here keeps an index of what it believes cached.</p>"
    drawn = [one for one in book.drawn if one.calibration][:PANELS]
    top = max((count for one in drawn for count in one.calibration.values()), default=1)
    figures = [
        book.figure(book.key(one.label), calibration(one.label, one.calibration, top, book.colours[one.label]))
        for one in drawn
    ]
    rows = [[book.key(case.label), *_shadow(case.summary["shadow"])] for case in told]
    note = (
        "The share of a prompt that the router believed cached against the share found: the fuller, the more requests."
    )
    title = f"<h3>Believed and found</h3><p>{note} Right beliefs lie on the line.</p>"
    return title + side_by_side(figures) + html.table(["run", *(head for _, head, _ in SHADOW)], rows)


def _shadow(found: Json) -> list[str]:
    return [write(found[name]) for name, _, write in SHADOW]

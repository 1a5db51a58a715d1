"""A scenario simulated and live, side by side, as a page for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headway.report.load import LATE_MS
from headway.report.terminal import number, percent, table
from headway.twin.check import HITS, LIMITS, SPREAD, TTFT, Pair, Twin

ROWS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
STATISTICS = ("mean", "p50", "p90", "p99")


def report(found: Twin) -> RenderableType:
    heading = f"{found.name}: {found.requests:,} requests, simulated and live at {found.speed:g} of its speed"
    parts: list[RenderableType] = [Text(heading, style="bold"), ""]
    for pair in found.pairs:
        parts += [Text(pair.policy, style="bold"), _pair(pair), ""]
    return Group(*parts, Text("\n".join(verdict(found))))


def _pair(pair: Pair) -> RenderableType:
    made = table("ms", *STATISTICS, "cache hits", "requests a replica")
    for side in ("simulated", "live"):
        summary = getattr(pair, side)
        shares = [one["requests"] for one in summary["instances"]]
        spread = f"{min(shares):,} to {max(shares):,}" if shares else ""
        for label, key in ROWS:
            values = summary["latency"][key]
            more = (percent(summary["cache"]["token_hit_ratio"]), spread) if key == "ttft" else ("", "")
            made.add_row(Text(f"{label}, {side}"), *(number(values[name]) for name in STATISTICS), *more)
    return made


def verdict(found: Twin) -> list[str]:
    """Each promise, and whether it was kept."""
    lines = []
    for name, unit in ((TTFT, " %"), (HITS, " points"), (SPREAD, " %")):
        worst = max(found.pairs, key=lambda pair: abs(pair.errors[name]))
        kept = abs(worst.errors[name]) <= LIMITS[name]
        sign = "✓" if kept else "✗"
        off = f"{100 * abs(worst.errors[name]):.1f}{unit} off at most ({worst.policy})"
        lines.append(f"{sign} {name} within {100 * LIMITS[name]:g}{unit}: {off}")
    if found.same_order:
        lines.append(f"✓ same order of the policies by mean TTFT: {', '.join(found.order('simulated'))}")
    else:
        lines.append(f"✗ order by mean TTFT, simulated: {', '.join(found.order('simulated'))}")
        lines.append(f"  live: {', '.join(found.order('live'))}")
    lag = max(pair.live["client"]["lag"]["p99"] or 0.0 for pair in found.pairs)
    if lag > LATE_MS:
        lines.append(f"This machine was late: 1 % of the requests were sent more than {number(lag)} ms too late.")
    return lines

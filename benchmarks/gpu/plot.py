"""A plot of predicted against measured means, as SVG: a panel for each figure, a point for each policy and cell."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from benchmarks.gpu.figures import FIGURES, Row

PANEL, GAP, MARGIN = 300, 60, 50
NAMES = {"ttft": "mean TTFT (ms)", "tpot": "mean TPOT (ms)", "e2e": "mean E2E (ms)", "hit": "hit ratio"}
COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#8250df", "#bf8700", "#0a7ea4", "#57606a", "#e16f24", "#1b1f24")
STYLE = "font-family:sans-serif;font-size:12px;fill:#57606a"


class Scale:
    """Maps values to places in a panel, on a logarithmic scale."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(values) / 1.1, max(values) * 1.1

    def __call__(self, value: float) -> float:
        return PANEL * log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> list[float]:
        steps = [digit * 10.0**power for power in range(-2, 4) for digit in (1, 1.5, 2, 3, 4, 5, 7)]
        return [step for step in steps if self.low <= step <= self.high]


def plot(rows: Sequence[Row]) -> str:
    policies = sorted({row.policy for row in rows})
    colours = dict(zip(policies, COLOURS, strict=False))
    width, height = 2 * (PANEL + GAP) + MARGIN, 2 * (PANEL + GAP) + MARGIN + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{STYLE}">']
    for number, figure in enumerate(FIGURES):
        left, top = MARGIN + number % 2 * (PANEL + GAP), 20 + number // 2 * (PANEL + GAP)
        own = [row for row in rows if row.figure == figure]
        parts.append(f'<g transform="translate({left} {top})">{panel(own, figure, colours)}</g>')
    for place, (policy, colour) in enumerate(colours.items()):
        x, y = MARGIN + place % 4 * 170, height - 54 + place // 4 * 18
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 8}" y="{y}">{policy}</text>')
    return "\n".join([*parts, "</svg>", ""])


def panel(rows: Sequence[Row], figure: str, colours: dict[str, str]) -> str:
    scale = Scale([value for row in rows for value in (row.predicted, row.measured.mean)])
    parts = [
        f'<rect width="{PANEL}" height="{PANEL}" fill="none" stroke="#8c959f"/>',
        f'<line x1="0" y1="{PANEL}" x2="{PANEL}" y2="0" stroke="#8c959f" stroke-dasharray="4"/>',
        f'<text x="{PANEL / 2}" y="-6" text-anchor="middle">{NAMES[figure]}</text>',
        f'<text x="{PANEL / 2}" y="{PANEL + 32}" text-anchor="middle">predicted</text>',
        f'<text transform="translate(-36 {PANEL / 2}) rotate(-90)" text-anchor="middle">measured</text>',
    ]
    for tick in scale.ticks():
        at = scale(tick)
        parts.append(f'<text x="{at:.1f}" y="{PANEL + 15}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="-5" y="{PANEL - at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for row in rows:
        x, colour = scale(row.predicted), colours[row.policy]
        low, high = (max(value or row.measured.mean, scale.low) for value in (row.measured.low, row.measured.high))
        ends = f'y1="{PANEL - scale(low):.1f}" y2="{PANEL - min(scale(high), PANEL):.1f}"'
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{PANEL - scale(row.measured.mean):.1f}" r="3.5" fill="{colour}"/>')
    return "".join(parts)

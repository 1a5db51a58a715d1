"""Charts as SVG, to stand in a page: rates over time and curves as lines, histograms as bars. The page's style has the
colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 28
INNER_WIDTH: Final = WIDTH - LEFT - RIGHT
INNER_HEIGHT: Final = HEIGHT - TOP - BOTTOM
COLOURS: Final = 8  # that the style names
LABELS: Final = 10  # below an axis, at most
UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))

Series = tuple[str, Sequence[float]]


def lines(series: Sequence[Series], start_s: float, span_s: float, unit: str) -> str:
    """Values in equal parts of a time, one stepped line a series, with a legend where there are several."""
    top = max((value for _, values in series for value in values), default=0.0) or 1.0
    ticks = _ticks(top)
    top = ticks[-1]
    drawn = []
    for number, (name, values) in enumerate(series):
        colour = f"var(--s{number % COLOURS + 1})"
        label = f"<title>{escape(name)}: up to {_short(max(values, default=0.0))} {escape(unit)}</title>"
        path = _steps(values, top)
        if len(series) == 1:
            floor_y = _number(TOP + INNER_HEIGHT)
            drawn.append(
                f'<path d="{path}V{floor_y}H{LEFT}Z" fill="{colour}" fill-opacity="0.18" stroke="none">{label}</path>'
            )
        drawn.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8">{label}</path>')
    marks = _times(start_s, span_s)
    said = f"{unit} over time: {', '.join(name for name, _ in series)}"
    chart = _svg(said, [*_across(ticks), *marks, *drawn])
    return chart + (_legend([name for name, _ in series]) if len(series) > 1 else "")


def bars(bins: Sequence[tuple[str, float]], unit: str, colour: int = 1) -> str:
    """A bar for each bin, its label below."""
    ticks = _ticks(max((value for _, value in bins), default=0.0) or 1.0)
    top = ticks[-1]
    step = INNER_WIDTH / max(len(bins), 1)
    every = ceil(len(bins) / LABELS)
    drawn = []
    for place, (label, value) in enumerate(bins):
        height = INNER_HEIGHT * value / top
        x, y = LEFT + place * step + step * 0.08, TOP + INNER_HEIGHT - height
        told = f"<title>{escape(label)}: {_short(value)} {escape(unit)}</title>"
        drawn.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(step * 0.84)}" height="{_number(height)}" '
            f'fill="var(--s{colour})">{told}</rect>'
        )
        if place % every == 0:
            drawn.append(_text(LEFT + (place + 0.5) * step, HEIGHT - 9, label, "middle"))
    said = f"{unit} by size: {', '.join(f'{label}: {_short(value)}' for label, value in bins)}"
    return _svg(said, [*_across(ticks), *drawn])


def curve(
    series: Sequence[tuple[str, Sequence[float | None]]],
    at: Sequence[float],
    unit: str,
    axis: str,
    limits: Sequence[tuple[str, float]] = (),
    mark: float | None = None,
) -> str:
    """Values at certain places of an axis, a line through those of each series; what is None is left out. A limit is a
    dashed line across, the mark one upwards."""
    found = [value for _, values in series for value in values if value is not None]
    ticks = _ticks(max([*found, *(limit for _, limit in limits)], default=0.0) or 1.0)
    most = max(at, default=0.0) or 1.0

    def place(x: float, y: float) -> str:
        return f"{_number(LEFT + INNER_WIDTH * x / most)} {_number(TOP + INNER_HEIGHT * (1 - y / ticks[-1]))}"

    drawn = []
    for number, (name, values) in enumerate(series):
        colour = f"var(--s{number % COLOURS + 1})"
        points = [place(x, y) for x, y in zip(at, values, strict=True) if y is not None]
        dots = "".join(f"M{point}h0" for point in points)
        highest = max((value for value in values if value is not None), default=0.0)
        label = f"<title>{escape(name)}: up to {_short(highest)} {escape(unit)}</title>"
        drawn.append(f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="1.8">{label}</path>')
        drawn.append(f'<path d="{dots}" stroke="{colour}" stroke-width="6" stroke-linecap="round"/>')
    dashed = 'stroke="var(--soft)" stroke-dasharray="4 3"'
    for name, limit in limits:
        label = f"<title>{escape(name)}: {_short(limit)}</title>"
        drawn.append(f'<path d="M{place(0, limit)}H{WIDTH - RIGHT}" {dashed}>{label}</path>')
    if mark is not None and mark <= most:
        drawn.append(f'<path d="M{place(mark, 0)}V{TOP}" {dashed}><title>{_short(mark)} {escape(axis)}</title></path>')
    below = [value for value in _ticks(most) if value <= 0.85 * most]  # the axis has its name at the end
    marks = [_text(LEFT + INNER_WIDTH * value / most, HEIGHT - 9, _short(value), "middle") for value in below]
    marks.append(_text(WIDTH - RIGHT, HEIGHT - 9, axis, "end"))
    said = f"{unit} against {axis}: {', '.join(name for name, _ in series)}"
    return _svg(said, [*_across(ticks), *marks, *drawn]) + _legend([name for name, _ in series])


def time_text(seconds: float) -> str:
    """A time in the largest unit that makes it at least one."""
    for size, unit in UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if not seconds else f"{seconds:.2g} s"


def _svg(label: str, parts: Sequence[str]) -> str:
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{inner}</svg>'


def _steps(values: Sequence[float], top: float) -> str:
    step = INNER_WIDTH / max(len(values), 1)
    heights = [TOP + INNER_HEIGHT * (1 - value / top) for value in values]
    parts = [f"M{LEFT} {_number(heights[0] if heights else TOP + INNER_HEIGHT)}"]
    for place, height in enumerate(heights):
        parts.append(f"V{_number(height)}H{_number(LEFT + (place + 1) * step)}")
    return "".join(parts)


def _across(ticks: Sequence[float]) -> list[str]:
    """Grid lines with their values."""
    found = []
    for tick in ticks:
        y = TOP + INNER_HEIGHT * (1 - tick / ticks[-1])
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_number(y)}" y2="{_number(y)}"/>')
        found.append(_text(LEFT - 8, y + 4, _short(tick), "end"))
    return found


def _times(start_s: float, span_s: float) -> list[str]:
    parts = 5
    return [
        _text(
            LEFT + INNER_WIDTH * part / parts,
            HEIGHT - 9,
            time_text(start_s + span_s * part / parts),
            "end" if part == parts else "middle" if part else "start",
        )
        for part in range(parts + 1)
    ]


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<li><span class="key" style="background:var(--s{number % COLOURS + 1})"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _ticks(top: float) -> list[float]:
    """About four round values from 0 to at least `top`."""
    power = 10.0 ** floor(log10(top / 4))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power * 4 >= top)
    return [step * number for number in range(ceil(top / step - 1e-9) + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")

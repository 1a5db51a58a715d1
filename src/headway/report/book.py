"""What the parts of a report have in common: the runs, their colours, and how a chart stands in the page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headway.report import html
from headway.report.cases import Cases
from headway.report.digest import Digest
from headway.report.palette import legend, palette
from headway.results.store import clean
from headway.types import Json


class Book:
    """One report in the making."""

    def __init__(self, cases: Cases, drawn: Sequence[Digest], note: str = "") -> None:
        self.cases = cases  # those that tables show
        self.drawn = list(drawn)  # those that charts show
        self.note = note  # said where these are fewer
        self.baseline = cases.baseline
        self.colours = palette((one.label for one in drawn), self.baseline)
        self._charts = 0

    def legend(self) -> str:
        return legend(self.colours, self.baseline)

    def figure(self, title: str, chart: Json) -> str:
        """A chart in its box."""
        self._charts += 1
        return figure(f"chart-{self._charts}", title, chart)

    def key(self, label: str) -> html.Markup:
        """A policy's name with its colour before it, where charts show it."""
        colour = self.colours.get(label)
        mark = f'<span class="key" style="background:{colour}"></span>' if colour and len(self.colours) > 1 else ""
        return html.unbroken(label, mark)


def figure(name: str, title: str, chart: Json) -> str:
    """A chart in its box, by a name of its own. Its data stands beside it and can end no script, whatever it holds."""
    data = msgspec.json.encode(clean(chart)).decode().replace("<", "\\u003c")
    caption = f"<figcaption>{html.text(title)}</figcaption>" if title else ""
    return (
        f'<figure>{caption}<div class="chart" id="{name}"></div>'
        f'<script type="application/json" data-chart="{name}">{data}</script></figure>'
    )


def side_by_side(figures: Sequence[str]) -> str:
    return f'<div class="pair">{"".join(figures)}</div>'

"""A result as its user sees it: the terminal's report as text or HTML, and a page's charts as Altair charts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from typing import Any, Final

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.config.wording import shown, suggest
from headway.display.displayed import library, printable
from headway.errors import HeadwayError
from headway.report.charts import GREY
from headway.report.terminal import Fitted
from headway.types import Json

LINES: Final = 39  # maximum number of lines of a result's text
LAST: Final = 7  # number of lines at the end, such as the verdict, that are kept if a text is too long
NARROW, WIDE = 80, 120  # minimum and maximum width of a text, in characters
LONG: Final = 60  # maximum number of characters of a cell that does not wrap
ROWS: Final = 100  # maximum number of rows of an HTML table
UNBROKEN: Final = 10_000  # a width in characters that is larger than any label

Figure = tuple[str, Json]  # a title, and a chart as a Vega-Lite specification
Charts = Callable[[], Sequence[Figure]]


class View(Struct, frozen=True):
    """What people see of a result. A user asks for charts by a name in `charts` or by the path of a figure. For the
    path of a figure, `draw` returns the charts."""

    page: RenderableType
    charts: Mapping[str, Charts] = {}  # functions that return charts, by name; the default chart is first
    draw: Callable[[str], Sequence[Figure]] | None = None

    def text(self) -> str:
        """Return the page in at most `LINES` lines. If the page is longer, keep its first lines and its last `LAST`
        lines. If the header of the table in the last lines would be left out, keep it too."""
        columns = shutil.get_terminal_size((100, 40)).columns
        console = Console(
            file=StringIO(), width=min(WIDE, max(NARROW, columns)), color_system=None, force_jupyter=False
        )
        lines: list[str] = []
        headers: list[range] = []  # for each line of a table, the lines of the table's header
        for part in _parts(self.page, console):
            with console.capture() as captured:
                console.print(Group(part))
            begin = len(lines)
            lines += [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]
            headers += [range(begin, begin + _header_height(part))] * (len(lines) - begin)
        while lines and not lines[-1]:
            lines.pop()
        if len(lines) > LINES:
            last = len(lines) - LAST
            header = headers[last]
            first = LINES - LAST - 1
            repeated = lines[header.start : min(header.stop, last)] if header.start > first - len(header) else []
            first -= len(repeated)
            lines = [*lines[:first], f" … {last - first - len(repeated)} lines left out", *repeated, *lines[last:]]
        return printable("\n".join(lines))

    def html(self) -> str:
        return f'<div class="headway">{_html(self.page)}</div>'

    def plot(self, name: str | None = None) -> Any:
        """Return the charts with this name as one Altair chart. By default, return the first charts."""
        if name is not None and not isinstance(name, str):
            raise HeadwayError(f"plot: expected the name of a chart, got {shown(name)}.")
        if not self.charts:
            raise HeadwayError("plot: this result has no charts; to_pandas() returns its table.")
        chosen = next(iter(self.charts)) if name is None else name
        if chosen in self.charts:
            figures = self.charts[chosen]()
        elif self.draw is not None and "." in chosen:
            figures = self.draw(chosen)
        else:
            more = " You may also pass the path of a figure, such as 'latency.ttft.p99'." if self.draw else ""
            raise HeadwayError(f"plot: no chart is called {chosen!r}.{suggest(chosen, self._drawable())}{more}")
        if not figures:
            rest = ", ".join(self._drawable())
            raise HeadwayError(f"plot: this result has no data for {chosen}." + (f" Try {rest}." if rest else ""))
        return altair_chart(figures)

    def _drawable(self) -> list[str]:
        """Return the names of the charts for which the result has data."""
        return [name for name, charts in self.charts.items() if charts()]


def _parts(page: RenderableType, console: Console) -> Iterator[RenderableType]:
    """Yield the tables and texts of a page."""
    if isinstance(page, Group):
        for part in page.renderables:
            yield from _parts(part, console)
    elif isinstance(page, Fitted):
        yield page.fit(console, console.options)
    else:
        yield page


def _header_height(part: RenderableType) -> int:
    if not isinstance(part, Table) or not part.show_header:
        return 0
    return 1 + max(str(column.header).count("\n") for column in part.columns)


def _html(part: RenderableType) -> str:
    """Return a part of a terminal's report as HTML."""
    if isinstance(part, Group):
        return "".join(map(_html, part.renderables))
    if isinstance(part, Fitted):
        return _html(part.build(part.figures, UNBROKEN))
    if isinstance(part, Table):
        return _table(part)
    text = part if isinstance(part, Text) else Text(str(part))
    if not text.plain.strip():
        return ""
    body = _lines(text)
    if text.no_wrap:
        return f"<pre>{escape(text.plain)}</pre>"
    return f"<p><b>{body}</b></p>" if text.style == "bold" else f"<p>{body}</p>"


def _table(table: Table) -> str:
    head = ""
    if table.show_header:
        cells = [_cell("th", column.header, column.justify) for column in table.columns]
        head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    bold = [row.style == "bold" for row in table.rows]
    columns = [
        [_cell("td", cell, column.justify, heavy) for cell, heavy in zip(column._cells[:ROWS], bold, strict=False)]
        for column in table.columns
    ]
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    left = len(table.rows) - ROWS
    more = f"<p>and {left:,} more rows</p>" if left > 0 else ""
    return f'<table style="margin:.6em 0">{head}<tbody>{rows}</tbody></table>{more}'


def _cell(tag: str, cell: RenderableType, justify: str, bold: bool = False) -> str:
    plain = cell if isinstance(cell, Text) else Text(str(cell))
    text = _lines(plain)
    side = "right" if justify == "right" else "left"
    wrap = "normal" if len(plain.plain) > LONG else "nowrap"
    style = f"text-align:{side};white-space:{wrap}"
    return f'<{tag} style="{style}">{f"<b>{text}</b>" if bold and text else text}</{tag}>'


def _lines(text: Text) -> str:
    return escape(text.plain.strip()).replace("\n", "<br>")


# --- Altair -----------------------------------------------------------------------------------------------------------

PLAIN: Final = re.compile(r"<[^>]*>")
SIZE: Final = (480, 300)  # width in pixels of a single chart, and of each of several charts side by side
ABREAST: Final = 3
CONFIG: Final[Json] = {
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 400, "labelOverlap": True},
    "legend": {"labelFontSize": 11, "titleFontSize": 11},
    "title": {"fontSize": 12, "anchor": "start"},
    "view": {"stroke": None},
    "style": {"target": {"stroke": GREY, "color": GREY}},
}


def altair_chart(figures: Sequence[Figure]) -> Any:
    """Return specifications as one Altair chart: a chart, or several side by side."""
    altair = library("altair", extra="notebook", purpose="charts")
    if len({title for title, _ in figures}) < len(figures):  # several charts have the same title, that of their run
        figures = [(spec["description"], spec) for _, spec in figures]
    width = SIZE[len(figures) > 1]
    # Charts with the same coloured names share a legend, which the last of these charts gets.
    last = {_names(spec): place for place, (_, spec) in enumerate(figures)}
    specs = [_own(title, spec, width, place in last.values()) for place, (title, spec) in enumerate(figures)]
    if len(specs) == 1:
        kind = altair.LayerChart if "layer" in specs[0] else altair.Chart
        return kind.from_dict({**specs[0], "config": CONFIG})
    independent = {"scale": {"color": "independent"}}
    concat = {"concat": specs, "columns": min(ABREAST, len(specs)), "resolve": independent, "config": CONFIG}
    return altair.ConcatChart.from_dict(concat)


def _own(title: str, spec: Json, width: int, legend: bool) -> Json:
    """Return a copy of a chart's specification with this title and width. If `legend` is true, add a legend, because
    the specifications of a page have none: the page shows its legend separately."""
    own = {key: value for key, value in spec.items() if key != "$schema"}
    text = PLAIN.sub("", title)
    own |= {"width": width, **({"title": text} if text else {})}
    if not legend or len(_names(spec)) < 2:
        return own
    if "layer" not in own:
        return _with_legend(own)
    place = next(place for place, layer in enumerate(own["layer"]) if _names(layer))
    layers = list(own["layer"])
    layers[place] = _with_legend(layers[place])
    return {**own, "layer": layers}


def _names(spec: Json) -> tuple[str, ...]:
    """If a chart has colours but no legend, return the names that have a colour; otherwise return an empty tuple."""
    for part in (spec, *spec.get("layer", ())):
        colour = part.get("encoding", {}).get("color", {})
        if "legend" in colour and colour["legend"] is None:
            return tuple(colour["scale"]["domain"])
    return ()


def _with_legend(spec: Json) -> Json:
    encoding = spec["encoding"]
    legend = {"title": None, "orient": "right", "labelLimit": 240}
    return {**spec, "encoding": {**encoding, "color": {**encoding["color"], "legend": legend}}}

"""Pages for a browser: one file each, nothing loaded from anywhere, no scripts, everything from outside escaped."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from headway.results.store import clean
from headway.types import HeadwayError


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page; `parts` are HTML already, the title is not."""
    template = Template(resources.files("headway.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), body="\n".join(parts))


def write(path: pathlib.Path, text: str, option: str = "--html") -> None:
    try:
        path.write_text(str(clean(text)), encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise HeadwayError(f"{option}: {str(path)!r} cannot be written ({why}).") from None


def heading(title: str, *notes: str) -> str:
    return "\n".join((f"<h1>{escape(title)}</h1>", *(f"<p>{escape(note)}</p>" for note in notes)))


def section(title: str, *parts: str, note: str = "") -> str:
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{said}" + "\n".join(parts) + "\n</section>"


def pair(*charts: tuple[str, str]) -> str:
    """Charts beside each other, each with its title."""
    return (
        f'<div class="pair">{"".join(f"<div><h3>{escape(title)}</h3>{chart}</div>" for title, chart in charts)}</div>'
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """The figures that matter most, large."""
    cards = (f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in rows)
    return f'<div class="facts">{"".join(cards)}</div>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

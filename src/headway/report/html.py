"""HTML pages of one file each. A page loads no other files and runs only its own scripts. All values are escaped."""

import pathlib
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from string import Template
from typing import Final

from headway.errors import HeadwayError
from headway.report.terminal import LONGEST, words
from headway.results.store import clean

SCRIPTS: Final = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js", "draw.js")
SCRIPTLESS: Final = '<p class="scriptless">Scripts are off, so there are no charts; tables have every figure.</p>'


class Markup(str):
    """A string that is already HTML."""

    __slots__ = ()


def page(title: str, parts: Iterable[str], refresh_s: int | None = None) -> str:
    """Return a whole page with the scripts that draw its charts, and their licences. `parts` are already HTML; the
    title is plain text. The page allows only these scripts, which it identifies by their hashes. With `refresh_s`, the
    browser loads the page again after so many seconds."""
    scripts = [_asset(name) for name in SCRIPTS]
    licences = details("Licences of the scripts that draw the charts", f"<pre>{text(_asset('LICENSES.txt'))}</pre>")
    template = Template(resources.files("headway.report").joinpath("page.html").read_text(encoding="utf-8"))
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return template.substitute(
        title=escape(title),
        refresh="" if refresh_s is None else f'\n<meta http-equiv="refresh" content="{refresh_s}">',
        body="\n".join([*parts, f"<footer>{licences}</footer>"]),
        allowed=f"; script-src {hashes}",
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _asset(name: str) -> str:
    return resources.files("headway.report").joinpath("assets", name).read_text(encoding="utf-8")


def write(path: pathlib.Path, text: str, option: str = "--html") -> None:
    try:
        path.write_text(str(clean(text)), encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise HeadwayError(f"{option}: {str(path)!r} cannot be written ({why}).") from None


def heading(title: str, *notes: str) -> str:
    return "\n".join((f"<h1>{escape(title)}</h1>", *(f"<p>{escape(note)}</p>" for note in notes)))


def section(title: str, *parts: str, note: str = "", name: str = "") -> str:
    """Return a section of a page. Links refer to the section by `name`."""
    before = f"<p>{escape(note)}</p>" if note else ""
    begin = f'<section id="{escape(name)}">' if name else "<section>"
    return f"{begin}\n<h2>{escape(title)}</h2>\n{before}" + "\n".join(parts) + "\n</section>"


def card(rows: Iterable[tuple[str, str]], style: str = "") -> str:
    """Return a list of names and values."""
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<dl class="card"{style}>{cells}</dl>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return the most important figures in large type."""
    cards = (f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in rows)
    return f'<div class="facts">{"".join(cards)}</div>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table. Use the kind `short` if the names in the first column are short, to save space on a phone, the
    kind `words` if cells contain sentences, and the kind `dense` for many columns of words."""
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    classes = f"wide {kind}".strip()
    return f'<div class="{classes}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def paragraph(sentence: str) -> str:
    """Return a paragraph; text in backticks becomes code."""
    marked = re.sub("`(.*?)`", r"<code>\1</code>", escape(sentence))
    return f"<p>{marked}</p>"


def details(title: str, *parts: str) -> str:
    """Return a collapsed part that the reader can open."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def unbroken(label: str, sign: str = "") -> Markup:
    """Return a label that a browser breaks only between its words, not at a hyphen inside a name. `sign` is HTML before
    the first word."""
    first, *others = words(label) or [""]
    spans = [_word(first, sign), *(_word(word) for word in others)]
    return Markup("<wbr>".join(spans))


def _word(word: str, sign: str = "") -> str:
    return sign + escape(word) if len(word) > LONGEST else f'<span class="word">{sign}{escape(word)}</span>'


def text(value: str) -> str:
    """Escape a string, unless it is already HTML."""
    return value if isinstance(value, Markup) else escape(value)

"""One colour a policy, the same in every chart and legend of a page, told apart by colour-blind readers too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

# Okabe and Ito's, less black and yellow, which do not show on a dark and on a white page.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY: Final = "#868686"  # the baseline
MOST: Final = len(COLOURS) + 1  # policies that charts show

Palette = Mapping[str, str]  # label -> colour


def palette(labels: Iterable[str], baseline: str | None) -> dict[str, str]:
    """Colours by label, in turn; the baseline is grey."""
    colours = iter(COLOURS)
    return {label: GREY if label == baseline else next(colours) for label in labels}


def legend(colours: Palette, baseline: str | None = None) -> str:
    """Which colour is whose, as HTML; nothing where there is only one."""
    if len(colours) < 2:
        return ""
    items = "".join(
        f'<li><span class="key" style="background:{colour}"></span>{escape(name)}'
        f"{' (baseline)' if name == baseline else ''}</li>"
        for name, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'

"""Policies as one text for a framework that edits programs: each stage's source between markers of its own.

    # EVOLVE-BLOCK-START routing
    def score(request, instance, cluster):
        ...
    # EVOLVE-BLOCK-END

What stands outside the markers is fixed. Frameworks promise to look after that and do not, so it is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway.config.wording import cut, shown
from headway.errors import HeadwayError

START: Final = "# EVOLVE-BLOCK-START"
END: Final = "# EVOLVE-BLOCK-END"
HEAD: Final = "# Policies in Headway's policy language. Only what stands between the markers may change.\n"


def program_of(sources: Mapping[str, str]) -> str:
    """One text of several sources, by stage."""
    for stage, source in sources.items():
        if any(line.strip().startswith((START, END)) for line in source.split("\n")):
            raise HeadwayError(f"{stage}: the source has a line that begins with {START} or {END}; take it out.")
    blocks = [f"{START} {stage}\n{source.strip()}\n{END}\n" for stage, source in sources.items()]
    return "\n".join((HEAD, *blocks))


def sources_in(program: str, original: str) -> dict[str, str]:
    """The sources of a text that was edited, if nothing but them was."""
    fixed, sources = _split(program)
    wanted, _ = _split(original)
    for mine, theirs in zip(wanted, fixed, strict=False):
        if mine != theirs:
            raise HeadwayError(f"outside the markers {shown(mine)} was changed to {shown(theirs)}; edit between them.")
    if len(fixed) > len(wanted):
        raise HeadwayError(f"outside the markers {shown(fixed[len(wanted)])} was added; edit between them.")
    if len(fixed) < len(wanted):
        raise HeadwayError(f"outside the markers {shown(wanted[len(fixed)])} is missing; edit between them.")
    return sources


def _split(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines outside, markers among them and empty ones aside, and what is inside."""
    fixed: list[str] = []
    sources: dict[str, list[str]] = {}
    inside: list[str] | None = None
    for line in text.split("\n"):
        plain = line.strip()
        if plain.startswith(START) and inside is None:
            stage = plain.removeprefix(START).strip()
            if stage in sources:
                raise HeadwayError(f"{cut(plain)} stands there twice; keep every marker as it was.")
            inside = sources.setdefault(stage, [])
            fixed.append(plain)
        elif plain.startswith(END) and inside is not None:
            inside = None
            fixed.append(plain)
        elif inside is not None:
            inside.append(line.rstrip())
        elif plain:
            fixed.append(plain)
    return fixed, {stage: "\n".join(lines).strip() + "\n" for stage, lines in sources.items()}

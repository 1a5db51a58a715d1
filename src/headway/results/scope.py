"""The scope of a reader: the stages of a scenario that the reader may change, and the suggestions for these stages."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.results.records import SCOPE, Finding, Findings


def stages_of(may: str | Iterable[str] | None, where: str = "may") -> tuple[str, ...]:
    """Return the stages that a reader may change; without `may`, all of them. `may` is a list of stages, or a string
    that separates them by commas."""
    if may is None:
        return SCOPE
    names = [part.strip() for text in ([may] if isinstance(may, str) else may) for part in str(text).split(",")]
    for name in names:
        if name not in SCOPE:
            raise HeadwayError(f"{where}: there is no stage {shown(name)}. The stages are {join_words(SCOPE)}.")
    return tuple(stage for stage in SCOPE if stage in names)


def within(findings: Iterable[Finding], stages: Collection[str]) -> Findings:
    """Return the findings with only the suggestions for these stages."""
    return Findings(
        replace(finding, suggestions=[each for each in finding.suggestions if each.stage in stages])
        for finding in findings
    )

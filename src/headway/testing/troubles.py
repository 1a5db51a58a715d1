"""Planted troubles: scenarios with one known problem, to measure how often findings name the right cause.

`diagnose` runs a trouble at a severity and compares the first-named cause with the planted one. The command
`python -m headway.testing.troubles` prints the table of docs/findings.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct

from headway.experiment.run import simulate
from headway.results.findings import ROLES, first_cause
from headway.results.findings.observed import SYMPTOM, Observed
from headway.results.records import NOTE, Finding
from headway.results.result import Result
from headway.testing.follow import effects, follow
from headway.testing.planted import TROUBLES
from headway.testing.planted.trouble import DROP, NONE, SEVERITIES, Trouble, changed

__all__ = ["DROP", "NONE", "SEVERITIES", "TROUBLES", "Diagnosis", "Trouble", "changed", "diagnose", "follow", "table"]


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What the findings of one run say, and whether that is right."""

    trouble: str
    severity: str
    seed: int
    late: float  # share of the counted requests that missed a target or were not completed
    cause: str  # the first-named cause, such as hot_prefix or bottleneck:kv; empty if no cause is named
    right: bool  # whether the cause is one of the trouble's; healthy: whether no finding is above the level "note"
    finding: Finding | None  # the finding that names the cause
    all: tuple[str, ...]  # the causes of all findings, in order


def diagnose(trouble: Trouble | str, severity: str, seed: int = 0) -> Diagnosis:
    """Run a trouble at a severity (`NONE` for the healthy scenario), and compare the first-named cause."""
    if isinstance(trouble, str):
        trouble = named(trouble)
    result = simulate(trouble.build(severity, seed), progress=False)
    findings = result.findings()
    first = first_cause(findings)
    if severity == NONE:
        right = all(finding.level == NOTE for finding in findings)
    else:
        right = first is not None and any(matches(first, cause) for cause in trouble.causes)
    return Diagnosis(
        trouble=trouble.name,
        severity=severity,
        seed=seed,
        late=late_share(result),
        cause=cause_of(first) if first else "",
        right=right,
        finding=first,
        all=tuple(cause_of(each) for each in findings if ROLES[each.kind] != SYMPTOM),
    )


def named(name: str) -> Trouble:
    """Return the trouble of this name."""
    for trouble in TROUBLES:
        if trouble.name == name:
            return trouble
    raise KeyError(f"No planted trouble is named {name!r}. The names are {', '.join(each.name for each in TROUBLES)}.")


def cause_of(finding: Finding) -> str:
    """Return the kind of a finding; for a bottleneck, with its resource."""
    return f"{finding.kind}:{finding.resource}" if finding.kind == "bottleneck" else finding.kind


def matches(finding: Finding, cause: str) -> bool:
    """Return whether a finding names a cause, written as in `Trouble.causes`."""
    kind, _, detail = cause.partition(":")
    if finding.kind != kind:
        return False
    blame, assigned, name = detail.partition("=")
    if assigned:
        return bool(finding.blames) and (finding.blames[0].kind, finding.blames[0].name) == (blame, name)
    return not detail or finding.resource == detail


def late_share(result: Result) -> float:
    """Return the share of the counted requests that missed a target or were not completed."""
    return Observed(result).loss.late_share


def table(diagnoses: Iterable[Diagnosis]) -> str:
    """Return the table trouble × severity × named cause as Markdown, with the share of right ones below it."""
    cells: dict[str, dict[str, list[Diagnosis]]] = {}
    for each in diagnoses:
        cells.setdefault(each.trouble, {}).setdefault(each.severity, []).append(each)
    severities = [severity for severity in (NONE, *SEVERITIES) if any(severity in row for row in cells.values())]
    lines = ["| Trouble | " + " | ".join(severities) + " |", "|---" * (1 + len(severities)) + "|"]
    for name, row in cells.items():
        lines.append(f"| {name} | " + " | ".join(_cell(row.get(severity, [])) for severity in severities) + " |")
    totals = []
    for severity in severities:
        all_ = [each.right for row in cells.values() for each in row.get(severity, [])]
        totals.append(f"{severity} {sum(all_)} of {len(all_)}")
    return "\n".join([*lines, "", f"Right: {', '.join(totals)}."])


def _cell(runs: Sequence[Diagnosis]) -> str:
    """Write the causes named at one severity, each once, wrong ones in bold."""
    words = []
    for cause in dict.fromkeys(each.cause for each in runs):
        same = [each for each in runs if each.cause == cause]
        count = f" ({len(same)})" if len(runs) > len(same) else ""
        word = f"`{cause}`" if cause else "none"
        words.append(f"{word}{count}" if all(each.right for each in same) else f"**{word}**{count}")
    return ", ".join(words)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headway.testing.troubles", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--trouble", action="append", metavar="NAME", help="run only this trouble; may be repeated")
    parser.add_argument("--severity", action="append", choices=(NONE, *SEVERITIES), help="run only this severity")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run each with the seeds 0 to N - 1")
    parser.add_argument("--details", action="store_true", help="print a line for each run in place of the table")
    parser.add_argument("--follow", action="store_true", help="follow the first suggestion, and print its effect")
    options = parser.parse_args(arguments)
    try:
        troubles = [named(name) for name in options.trouble] if options.trouble else list(TROUBLES)
    except KeyError as error:
        parser.error(str(error.args[0]))
    severities = options.severity or SEVERITIES
    cases = [
        (trouble, severity, seed) for trouble in troubles for severity in severities for seed in range(options.seeds)
    ]
    diagnoses = []
    followed = []
    for place, (trouble, severity, seed) in enumerate(cases, 1):
        print(f"\r{place} of {len(cases)}: {trouble.name} {severity}\x1b[K", end="", file=sys.stderr, flush=True)
        if options.follow:
            followed.append(follow(trouble, severity, seed))
            continue
        diagnoses.append(diagnose(trouble, severity, seed))
        if options.details:
            print("\r\x1b[K", end="", file=sys.stderr)
            print(_line(diagnoses[-1]), flush=True)
    print("\r\x1b[K", end="", file=sys.stderr)
    if options.follow:
        print(effects(followed))
    elif not options.details:
        print(table(diagnoses))


def _line(each: Diagnosis) -> str:
    mark, causes = "right" if each.right else "WRONG", ", ".join(each.all) or "none"
    return f"{each.trouble:24} {each.severity:7} seed {each.seed}  late {each.late:6.1%}  {mark}  {causes}"


if __name__ == "__main__":
    main()

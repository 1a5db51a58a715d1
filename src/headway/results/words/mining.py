"""Patterns: conditions known at routing time that correlate with bad outcomes.

Every request becomes a tuple of a few coarse features, and equal tuples are counted together. All conditions on one or
two features are then evaluated on these counts instead of on the requests, which is much less work.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from typing import Final

from msgspec import Struct

from headway.results.sample import MISSED, UNCOUNTED
from headway.results.survey import Survey
from headway.results.words.issues import explain_no_decisions
from headway.results.words.material import Material
from headway.results.words.phrases import Fact, Line, Section, clean, count, ms_of, percent, phrase

PROMPTS: Final = (256, 1024, 4096, 16384)  # lower edges of the bins of prompt lengths, in tokens
QUEUES: Final = (1, 5, 20)  # lower edges of the bins of queue lengths, in requests
PARTS: Final = ("first quarter", "second quarter", "third quarter", "last quarter")
SLOW: Final = 90  # percentile of TTFT above which a request without an SLO is slow
FEWEST: Final = 20  # minimum number of requests that a pattern covers
SMALLEST: Final = 0.01  # minimum fraction of all requests that a pattern covers
LIFT: Final = 1.2  # minimum lift of a pattern: its rate of bad requests divided by the rate of all requests
BETTER: Final = 1.25  # minimum factor by which a second condition must raise the rate of bad requests
UNKNOWN: Final = "unknown"


class Pattern(Struct, frozen=True):
    conditions: tuple[tuple[str, str], ...]  # (feature, value) pairs
    support: int  # number of requests that meet the conditions
    bad: int
    base: float  # fraction of bad requests among all requests

    @property
    def rate(self) -> float:
        return self.bad / self.support

    @property
    def lift(self) -> float:
        return self.rate / self.base

    @property
    def excess(self) -> float:
        """The number of bad requests that meet the conditions, minus the number expected if such requests were bad as
        often as all requests."""
        return self.bad - self.support * self.base

    def words(self) -> str:
        return " and ".join(f"{feature}={value}" for feature, value in self.conditions)


class Mined(Struct, frozen=True):
    patterns: list[Pattern]  # largest excess first
    requests: int
    bad: int
    slow_ps: int | None = None  # TTFT above which a request is slow; None if there is an SLO


def mine(run: Material) -> Mined:
    bad, slow_ps = _bad(run)
    features, columns = _features(run)
    rows = [row for row in range(run.rows) if bad[row] != UNCOUNTED]
    counts: Counter[tuple[tuple[str, ...], int]] = Counter(
        (tuple([column[row] for column in columns]), bad[row]) for row in rows
    )
    total, wrong = len(rows), sum(number for (_, flag), number in counts.items() if flag == MISSED)
    if not wrong:
        return Mined([], total, wrong, slow_ps)
    support: Counter[tuple[tuple[str, str], ...]] = Counter()
    missed: Counter[tuple[tuple[str, str], ...]] = Counter()
    for (values, flag), number in counts.items():
        known = [(feature, value) for feature, value in zip(features, values, strict=True) if value != UNKNOWN]
        for conditions in chain(combinations(known, 1), combinations(known, 2)):
            support[conditions] += number
            missed[conditions] += number if flag == MISSED else 0
    fewest = max(FEWEST, round(SMALLEST * total))
    patterns = {known: Pattern(known, number, missed[known], wrong / total) for known, number in support.items()}
    telling = []
    for conditions, pattern in patterns.items():
        alone = max(patterns[(condition,)].rate for condition in conditions)
        better = len(conditions) == 1 or pattern.rate >= BETTER * alone
        # Skip a condition that all requests meet, because it carries no information.
        if better and fewest <= pattern.support < total and pattern.lift >= LIFT:
            telling.append(pattern)
    return Mined(sorted(telling, key=lambda pattern: (-pattern.excess, pattern.conditions)), total, wrong, slow_ps)


def _bad(run: Material) -> tuple[Sequence[int], int | None]:
    """Return for each request whether it is bad, and the TTFT above which a request is slow. With an SLO, a request is
    bad if it missed the SLO. In this case, the returned TTFT is None. Without an SLO, a request is bad if it was lost
    or slow."""
    if run.has_slo:
        return run.missed, None
    waits = [run.ttft_ps(row) if flag == 0 else -1 for row, flag in enumerate(run.missed)]
    known = sorted(wait for wait in waits if wait >= 0)
    slow_ps = known[(len(known) - 1) * SLOW // 100] if known else 0
    flags = [MISSED if wait > slow_ps else flag for wait, flag in zip(waits, run.missed, strict=True)]
    return flags, slow_ps


def _features(run: Material) -> tuple[list[str], list[Sequence[str]]]:
    """Return the names of the features, and for each feature its value for every request."""
    features: dict[str, Sequence[str]] = {}
    column_of = {"tenant": "tenant", "class": "slo_class", "kind": "kind", "model": "model"}
    for feature, column in column_of.items():
        codes, words = run.codes_of(column)
        known = [column_of[name] for name in features]
        if len(set(words) - {""}) > 1 and not any(run.same(column, other) for other in known):
            features[feature] = [words[code] for code in codes]
    labels = bins(PROMPTS)
    prompts = run.column("prompt_tokens")
    features["prompt tokens"] = [labels[bisect_right(PROMPTS, tokens)] for tokens in prompts]
    ids = run.ids
    features["instance"] = [ids.get(index, UNKNOWN) for index in run.column("instance")]
    features["believed cached"] = [
        _hit(tokens, of) for tokens, of in zip(run.column("predicted_tokens"), prompts, strict=True)
    ]
    arrivals = run.column("arrival_ps")
    begun, length = (arrivals[0], max(1, arrivals[run.rows - 1] - arrivals[0] + 1)) if run.rows else (0, 1)
    features["time"] = [PARTS[(arrival - begun) * len(PARTS) // length] for arrival in arrivals]
    if run.survey is not None:
        features |= _decision_features(run.survey, prompts)
    return list(features), list(features.values())


def _decision_features(survey: Survey, prompts: Sequence[int]) -> dict[str, Sequence[str]]:
    labels = bins(QUEUES)
    both = zip(survey.believed, prompts, strict=True)
    return {
        "queue at target": [labels[bisect_right(QUEUES, depth)] if depth >= 0 else UNKNOWN for depth in survey.queued],
        "believed cached": [_hit(tokens, of) if tokens >= 0 else UNKNOWN for tokens, of in both],
    }


def _hit(tokens: int, of: int) -> str:
    return "nothing" if not tokens else "most" if 2 * tokens > of else "less than half"


def bins(edges: Sequence[int]) -> list[str]:
    """Return the labels of the bins: one below the first edge, and one that begins at each edge."""
    inner = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    first = "0" if edges[0] == 1 else f"0-{edges[0] - 1}"
    return [first, *inner, f"{edges[-1]}+"]


def write_patterns(run: Material, examples: int) -> Section:
    mined = mine(run)
    title = ("## Patterns",)
    what = "missed their SLO" if mined.slow_ps is None else "were lost or slow"
    if not mined.requests or not mined.bad:
        return Section(title, [Line((f"None: no request after the warm-up {what.replace('were', 'was')}.",), 8)])
    head = phrase(
        f"{{}} of {{}} requests {what} ({{}}){{}}.",
        count("patterns.bad", mined.bad),
        count("patterns.requests", mined.requests),
        percent("patterns.base", mined.bad / mined.requests),
        phrase("; slow is a TTFT above {}", ms_of("patterns.slow_ps", mined.slow_ps)) if mined.slow_ps else (),
    )
    lines = [Line(head, 6)]
    for turn, pattern in enumerate(mined.patterns[: 4 * examples]):
        source = f"pattern.{turn}"
        parts = phrase(
            "{}: {bad:count} of {support:count} requests ({rate:percent}), lift {lift:amount}, {} more than expected.",
            Fact(f"{source}.conditions", pattern.words(), clean(pattern.words())),
            count(f"{source}.excess", round(pattern.excess)),
            of=pattern,
            source=source,
        )
        lines.append(Line(parts, 7 + turn))
    if not mined.patterns:
        lines.append(Line(("No condition correlates with it.",), 7))
    if run.survey is None:
        lines.append(Line(explain_no_decisions(run), 30))
    return Section(title, lines)

"""Patterns: conditions known when a request was routed that go with a bad end more often than usual.

Every request becomes a tuple of a few coarse features, equal tuples are counted together, and every condition on one or
two features is then read from those counts, so that the work grows with the requests and not with the conditions.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final

from msgspec import Struct

from headway.results.survey import Survey
from headway.results.words.issues import explain_no_decisions
from headway.results.words.material import MISSED, UNCOUNTED, Material
from headway.results.words.phrases import Fact, Line, Section, clean, count, ms_of, percent, phrase

PROMPTS: Final = (256, 1024, 4096, 16384)  # tokens: the bins begin here
QUEUES: Final = (1, 5, 20)  # requests
PARTS: Final = ("first quarter", "second quarter", "third quarter", "last quarter")
SLOW: Final = 90  # without an SLO the slowest are those above this percentile of TTFT
FEWEST: Final = 20  # requests of a pattern
SMALLEST: Final = 0.01  # of all
LIFT: Final = 1.2  # at least
BETTER: Final = 1.25  # by which a second condition must raise the rate
UNKNOWN: Final = "unknown"


class Pattern(Struct, frozen=True):
    conditions: tuple[tuple[str, str], ...]  # feature and value
    support: int  # requests
    bad: int
    base: float  # share of bad ones among all

    @property
    def rate(self) -> float:
        return self.bad / self.support

    @property
    def lift(self) -> float:
        return self.rate / self.base

    @property
    def excess(self) -> float:
        """Bad ones beyond what the base rate gives."""
        return self.bad - self.support * self.base

    def words(self) -> str:
        return " and ".join(f"{feature}={value}" for feature, value in self.conditions)


class Mined(Struct, frozen=True):
    patterns: list[Pattern]  # the most telling first
    requests: int
    bad: int
    slow_ps: int | None = None  # TTFT above which a request is slow, where there is no SLO


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
    base, single, double = wrong / total, _Tally(), _Tally()
    for (values, flag), number in counts.items():
        known = [(feature, value) for feature, value in zip(features, values, strict=True) if value != UNKNOWN]
        for condition in known:
            single.add((condition,), number, flag)
        for pair in combinations(known, 2):
            double.add(pair, number, flag)
    fewest = max(FEWEST, round(SMALLEST * total))
    alone = {pattern.conditions[0]: pattern for pattern in single.patterns(base)}
    telling = list(alone.values())
    for pattern in double.patterns(base):
        if pattern.rate >= BETTER * max(alone[condition].rate for condition in pattern.conditions):
            telling.append(pattern)
    # A condition that all requests meet says nothing.
    telling = [pattern for pattern in telling if fewest <= pattern.support < total and pattern.lift >= LIFT]
    return Mined(sorted(telling, key=lambda pattern: (-pattern.excess, pattern.conditions)), total, wrong, slow_ps)


class _Tally:
    def __init__(self) -> None:
        self.support: Counter[tuple[tuple[str, str], ...]] = Counter()
        self.bad: Counter[tuple[tuple[str, str], ...]] = Counter()

    def add(self, conditions: tuple[tuple[str, str], ...], number: int, flag: int) -> None:
        self.support[conditions] += number
        if flag == MISSED:
            self.bad[conditions] += number

    def patterns(self, base: float) -> list[Pattern]:
        return [Pattern(known, number, self.bad[known], base) for known, number in sorted(self.support.items())]


def _bad(run: Material) -> tuple[Sequence[int], int | None]:
    """Of each request whether it ended badly: it missed its SLO or, without one, was lost or among the slowest."""
    if run.has_slo:
        return run.missed, None
    waits = [run.ttft_ps(row) if flag == 0 else -1 for row, flag in enumerate(run.missed)]
    known = sorted(wait for wait in waits if wait >= 0)
    slow_ps = known[(len(known) - 1) * SLOW // 100] if known else 0
    flags = [MISSED if wait > slow_ps else flag for wait, flag in zip(waits, run.missed, strict=True)]
    return flags, slow_ps


def _features(run: Material) -> tuple[list[str], list[Sequence[str]]]:
    """The names of the features and the value of each for every request."""
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
    """What the last decision on each request shows."""
    labels = bins(QUEUES)
    both = zip(survey.believed, prompts, strict=True)
    return {
        "queue at target": [labels[bisect_right(QUEUES, depth)] if depth >= 0 else UNKNOWN for depth in survey.queued],
        "believed cached": [_hit(tokens, of) if tokens >= 0 else UNKNOWN for tokens, of in both],
    }


def _hit(tokens: int, of: int) -> str:
    return "nothing" if not tokens else "most" if 2 * tokens > of else "less than half"


def bins(edges: Sequence[int]) -> list[str]:
    """The labels of the bins that the edges begin, and of that below."""
    inner = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    first = "0" if edges[0] == 1 else f"0-{edges[0] - 1}"
    return [first, *inner, f"{edges[-1]}+"]


def write_patterns(run: Material, examples: int) -> Section:
    mined = mine(run)
    title = ("## Patterns",)
    what = "missed their SLO" if mined.slow_ps is None else "were lost or slow"
    if not mined.requests or not mined.bad:
        return Section(title, [Line((f"None: no request that counts {what.replace('were', 'was')}.",), 8)])
    head = phrase(
        f"{{}} of {{}} requests {what} ({{}}){{}}.",
        count("patterns.bad", mined.bad),
        count("patterns.requests", mined.requests),
        percent("patterns.base", mined.bad / mined.requests),
        phrase(", slow being a TTFT above {}", ms_of("patterns.slow_ps", mined.slow_ps)) if mined.slow_ps else (),
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
        lines.append(Line(("No condition goes with it more often than usual.",), 7))
    if run.survey is None:
        lines.append(Line(explain_no_decisions(run), 30))
    return Section(title, lines)

"""What a search with a language model has tried so far, in words for its next prompt: the best policy, the policy that
the current one was made from, and the last attempts that were not better, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headway.config.wording import cut
from headway.evolve.evaluation import Case, Evaluation
from headway.evolve.feedback import harmless
from headway.evolve.fitness import mean, share
from headway.evolve.objectives import PRIMARY

MOST_FAILURES: Final = 3  # maximum number of attempts in a prompt
LONGEST: Final = 1200  # maximum number of characters of the source of a failed attempt
Texts = Mapping[str, str]  # stage -> source


class Attempt(Struct):
    """A candidate, its gain in each case that ran, and its parent."""

    texts: dict[str, str]
    parent: Attempt | None = None
    gains: dict[str, float] = {}
    error: str | None = None


class Attempts:
    """The candidates of a search, in order. `cases` is the number of train cases."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.tried: dict[tuple[tuple[str, str], ...], Attempt] = {}
        self.current: Attempt | None = None  # the candidate that the model improves

    def add(self, texts: Texts, cases: Sequence[Case], evaluation: Evaluation) -> None:
        """Add the results of a candidate. If it is new, its parent is the candidate that the model improved last."""
        attempt = self.tried.setdefault(_key(texts), Attempt(dict(texts), self.current))
        attempt.error = attempt.error or evaluation.error
        for case, result in zip(cases, evaluation.cases, strict=False):
            attempt.gains[case.label] = result.gains[PRIMARY]

    def improve(self, texts: Texts) -> None:
        """Note that the model improves this candidate next."""
        self.current = self.tried.get(_key(texts))

    def describe(self, stage: str) -> str:
        """Return what the next prompt says about the policies of this stage."""
        current = self.current
        if current is None:
            return ""
        lines: list[str] = []
        complete = [one for one in self.tried.values() if one.error is None and len(one.gains) == self.cases]
        best = max(complete, key=lambda one: mean(list(one.gains.values())), default=None)
        if best is not None and best.texts[stage] != current.texts[stage]:
            gain = share(mean(list(best.gains.values())))
            lines += [
                f"The best {stage} policy so far has a gain of {gain} over all cases:",
                *_block(best.texts[stage]),
            ]
        before = current.parent
        if before is not None and before is not best and before.texts[stage] != current.texts[stage]:
            lines += [f"The current policy was made from this one{_lead(current, before)}:"]
            lines += _block(before.texts[stage])
        failed = [(one.texts[stage], why) for one in self.tried.values() if (why := _why(one)) and one is not current]
        return harmless("\n".join([*lines, *describe_failures(failed)]))


def describe_failures(failed: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines about the last attempts that were not better. Each attempt is its source, and the reason."""
    lines = []
    for source, why in failed[-MOST_FAILURES:]:
        lines += [f"This attempt was no improvement. {cut(why, 300)}", *_block(source)]
    return lines


def _why(attempt: Attempt) -> str:
    """Return why a candidate was no improvement of its parent, or an empty string if it was one."""
    if attempt.error is not None:
        return f"It failed: {attempt.error}"
    before = attempt.parent
    if before is None or before is attempt:
        return ""
    own, old = _shared(attempt, before)
    return f"Its gain was {share(own)}, and its parent had {share(old)} in the same cases." if own <= old else ""


def _lead(attempt: Attempt, before: Attempt) -> str:
    if not attempt.gains.keys() & before.gains.keys():
        return ""
    own, old = _shared(attempt, before)
    return f", which had a gain of {share(old)} where the current one has {share(own)}"


def _shared(one: Attempt, other: Attempt) -> tuple[float, float]:
    """Return the mean gains of two candidates over the cases that both ran, or infinity and 0 if there are none."""
    labels = [label for label in one.gains if label in other.gains]
    if not labels:
        return float("inf"), 0.0
    return mean([one.gains[label] for label in labels]), mean([other.gains[label] for label in labels])


def _block(source: str) -> list[str]:
    text = source.strip()
    return ["```", text if len(text) <= LONGEST else text[:LONGEST] + "\n...", "```"]


def _key(texts: Texts) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(texts.items()))

"""A run in words, within a limit: all that could be said, of which the least important lines are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, to_builtins

from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.words.counterfactuals import simulated_again, write_counterfactuals
from headway.results.words.focus import write_focus
from headway.results.words.issues import FOCUS, Issue, issues, write_issues
from headway.results.words.material import Material
from headway.results.words.mining import write_patterns
from headway.results.words.outcome import outcome
from headway.results.words.phrases import (
    FEWEST_TOKENS,
    Fact,
    Line,
    Parts,
    Section,
    facts_of,
    made_up_words,
    text_of,
    tokens,
)
from headway.results.words.worst import imagined, write_audit, write_worst
from headway.types import Json


class Ask(Struct, frozen=True):
    """What somebody wants to be told."""

    focus: Collection[str] = ()
    examples: int = 3
    counters: bool = True


Sections = list[Section]


def issue_focused(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """The worst problems, each with its evidence."""
    decisions = write_worst(run, ask.examples) if ask.counters else None
    return [
        outcome(run),
        write_issues(run, found, ask.focus, ask.examples),
        *([write_counterfactuals(run)] if ask.counters else []),
        *([] if decisions is None else [decisions]),
        write_focus(run, found, ask.focus),
    ]


def decision_audit(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """Decisions at even distances through the run, each with what was believed and what happened."""
    return [
        outcome(run),
        write_audit(run, ask.examples),
        *([write_counterfactuals(run)] if ask.counters else []),
        _later(write_issues(run, found, ask.focus, ask.examples)),
        write_focus(run, found, ask.focus),
    ]


def counterfactual(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """What would have been had requests gone elsewhere, by gain."""
    return [
        outcome(run),
        write_counterfactuals(run),
        imagined(run, ask.examples),
        _later(write_issues(run, found, ask.focus, ask.examples)),
        write_focus(run, found, ask.focus),
    ]


def pattern_mining(run: Material, found: list[Issue], ask: Ask) -> Sections:
    """Conditions that go with bad ends."""
    return [
        outcome(run),
        write_patterns(run, ask.examples),
        *([write_counterfactuals(run)] if ask.counters else []),
        _later(write_issues(run, found, ask.focus, ask.examples)),
        write_focus(run, found, ask.focus),
    ]


def _later(section: Section) -> Section:
    """The section where it is not what was asked for first."""
    section.lines = [Line(line.parts, line.weight + 12, line.depth, line.bound) for line in section.lines]
    return section


STRATEGIES: Final[dict[str, Callable[[Material, list[Issue], Ask], Sections]]] = {
    "issue-focused": issue_focused,
    "decision-audit": decision_audit,
    "counterfactual": counterfactual,
    "pattern-mining": pattern_mining,
}


# What a search would go by, by the paths of the summary that hold them.
SCORES: Final = (
    "slo.goodput_ratio",
    "latency.ttft.mean",
    "latency.ttft.p99",
    "latency.tpot.p99",
    "latency.e2e.mean",
    "throughput.requests_per_s",
    "throughput.output_tokens_per_s",
    "cache.token_hit_ratio",
    "balance.jain",
    "fairness.jain_goodput",
    "cost.usd_per_1m_tokens",
)


class Summary(Struct, frozen=True):
    """A run in words: the text, how many tokens it is at most, and where each figure and name in it comes from."""

    text: str
    tokens: int
    facts: list[Fact]
    scores: dict[str, float | None]
    findings: list[Finding]

    def document(self) -> Json:
        found: Json = to_builtins(self)
        return found


def compose(
    result: Result,
    *,
    max_tokens: int = 1500,
    focus: Iterable[str] = (),
    examples: int = 3,
    counters: bool = True,
    strategy: str = "issue-focused",
    findings: Sequence[Finding] | None = None,
) -> Summary:
    """A run in words with all that belongs to them; `summarize` gives the text alone and says what the options do."""
    ask = Ask(_areas(focus), examples, counters)
    if strategy not in STRATEGIES:
        raise HeadwayError(f"strategy: there is no {strategy!r}.{suggest(strategy, STRATEGIES)}")
    if max_tokens < FEWEST_TOKENS:
        raise HeadwayError(f"max_tokens: the outcome alone takes {FEWEST_TOKENS} tokens, got {max_tokens}; allow more.")
    if examples < 0:
        raise HeadwayError(f"examples: must be 0 or more, got {examples}.")
    run = Material(result, findings)
    sections = STRATEGIES[strategy](run, issues(run), ask)
    parts, used = fitted(sections, max_tokens, made_up_words(_names(run)) - _our_words())
    return Summary(text_of(parts), used, list(facts_of(parts)), scores(run), run.findings)


def summarize(
    result: Result,
    *,
    max_tokens: int = 1500,
    focus: Iterable[str] = (),
    examples: int = 3,
    counters: bool = True,
    strategy: str = "issue-focused",
) -> str:
    """A run in words, as Markdown: what came of it against what was promised, what went wrong, what else there was to
    choose, and what to try.

    `max_tokens` is kept always, by a count that no common tokenizer exceeds. `focus` leaves only issues and suggestions
    of some areas, such as routing or cache. `examples` is how many of the worst decisions are shown, `counters` whether
    to speak of what other decisions would have given. `strategy` is issue-focused, decision-audit, counterfactual or
    pattern-mining.
    """
    return compose(
        result, max_tokens=max_tokens, focus=focus, examples=examples, counters=counters, strategy=strategy
    ).text


def facts(result: Result, **options: Any) -> list[Fact]:
    """Every figure and name that `summarize` prints with these options, in order."""
    return compose(result, **options).facts


def scores(run: Material) -> dict[str, float | None]:
    """The figures to go by, times in ms, and the regret where decisions were traced or simulated again."""
    found: dict[str, float | None] = {}
    for path in SCORES:
        value: Any = run.summary
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        found[path] = value
    if run.survey is not None and run.survey.estimated:
        found["regret.estimated"] = run.survey.regret_ps / run.survey.estimated / 1e9
    again = simulated_again(run)
    if again:
        found["regret.true"] = sum(max(0, one.regret_ps) for one in again) / len(again) / 1e9
    return found


def _areas(focus: Iterable[str]) -> tuple[str, ...]:
    given = (focus,) if isinstance(focus, str) else tuple(focus)
    for area in given:
        if area not in FOCUS:
            raise HeadwayError(f"focus: there is no area {area!r}.{suggest(area, FOCUS)}")
    return given


def _names(run: Material) -> list[str]:
    """All names that users may have made up and that the text may hold."""
    found = [str(run.scenario.get("name", "")), *run.ids.values(), *_strings(run.scenario.get("policies", {}))]
    for column in ("tenant", "slo_class", "kind", "model"):
        found += run.coded(column)[1]
    found += [str(pool["id"]) for pool in run.summary.get("scaling", {}).get("pools", ())]
    return found


def _our_words() -> frozenset[str]:
    """Those of our own policies' names and parameters."""
    entries = registry.entries()
    names = [name for one in entries for name in (one.name, *(given.name for given in one.parameters))]
    return made_up_words(names)


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (str(key), *_strings(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in _strings(inner)]
    return [value] if isinstance(value, str) else []


# --- within the limit --------------------------------------------------------------------------------------------


def fitted(sections: Sequence[Section], max_tokens: int, made_up: frozenset[str] = frozenset()) -> tuple[Parts, int]:
    """As many lines as fit, the most important first, in their order. Where a line of a section does not fit none of
    less weight does either, so that what is shown is never less than what is left out; what belongs to a line that is
    left out goes with it. The very first line is always there, without its heading if need be."""
    kept: dict[int, set[int]] = {}
    full: set[int] = set()
    used = 0
    order = [(line.weight, place, turn) for place, one in enumerate(sections) for turn, line in enumerate(one.lines)]
    for _, place, turn in sorted(order):
        section, line = sections[place], sections[place].lines[turn]
        above = max(before for before in range(turn + 1) if not section.lines[before].depth)
        if turn in kept.get(place, ()) or (place in full if above == turn else above not in kept.get(place, ())):
            continue
        group = range(turn, turn + 1 + line.bound)
        rows = [_mark(section.lines[one], one + 1, section) + section.lines[one].text for one in group]
        cost = sum(tokens(f"{row}\n", made_up) for row in rows)
        if place not in kept:
            cost += tokens(f"\n{text_of(section.title)}\n", made_up)
        if used + cost <= max_tokens:
            kept.setdefault(place, set()).update(group)
            used += cost
        elif not used:
            return (*line.parts, "\n"), tokens(f"{line.text}\n", made_up)
        elif above == turn:
            full.add(place)
    return _written(sections, kept), used


def _written(sections: Sequence[Section], kept: dict[int, set[int]]) -> Parts:
    parts: list[str | Fact] = []
    for place in sorted(kept):
        section, position = sections[place], 0
        shown = sum(not section.lines[turn].depth for turn in kept[place])
        title = section.title if section.titled is None else section.titled(shown)
        parts += ["\n"] * bool(parts) + [*title, "\n"]
        for turn in sorted(kept[place]):
            line = section.lines[turn]
            position += not line.depth
            parts += [_mark(line, position, section), *line.parts, "\n"]
    return tuple(parts)


def _mark(line: Line, position: int, section: Section) -> str:
    if line.depth:
        return "   - "
    return f"{position}. " if section.numbered else "- "

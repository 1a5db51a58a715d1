"""Describes a run in words within a token limit. If the text is too long, the least important lines are dropped."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headway.config.arguments import checked
from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.results.ranking import value
from headway.results.records import Finding
from headway.results.result import Result
from headway.results.scope import stages_of, within
from headway.results.words.counterfactuals import mean_regret_ms, simulated_again, write_counterfactuals
from headway.results.words.focus import write_focus
from headway.results.words.issues import FOCUS, issues, write_issues
from headway.results.words.material import Material
from headway.results.words.mining import write_patterns
from headway.results.words.outcome import outcome
from headway.results.words.phrases import FEWEST_TOKENS, Fact, Line, Parts, Section, made_up_words, text_of, tokens
from headway.results.words.worst import write_alternatives, write_audit, write_worst
from headway.types import Json

LEADS: Final[dict[str, Callable[[Material, int], Section]]] = {
    "decision-audit": write_audit,  # describes evenly spaced decisions, with predictions and outcomes
    "counterfactual": write_alternatives,  # describes other choices of instance, by gain
    "pattern-mining": write_patterns,  # describes conditions that correlate with bad outcomes
}
STRATEGIES: Final = ("issue-focused", *LEADS)


def _sections(
    run: Material, strategy: str, focus: Collection[str], examples: int, counters: bool, stages: Collection[str]
) -> list[Section]:
    """Return all sections of a strategy. The first section is the outcome, and the second is the one that the strategy
    is named after."""
    problems = issues(run)
    key_issues = write_issues(run, problems, focus, examples)
    alternatives = [write_counterfactuals(run)] if counters or strategy == "counterfactual" else []
    if strategy == "issue-focused":
        worst = write_worst(run, examples) if counters else None
        middle = [key_issues, *alternatives, *([] if worst is None else [worst])]
    else:
        key_issues.lines = [replace(line, weight=line.weight + 12) for line in key_issues.lines]
        lead = [LEADS[strategy](run, examples)]
        middle = [*alternatives, *lead] if strategy == "counterfactual" else [*lead, *alternatives]
        middle.append(key_issues)
    return [outcome(run), *middle, write_focus(run, problems, focus, stages)]


# Figures of the summary that a search optimises.
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
    """A run in words: the text, an upper bound on its tokens, and the source of each figure and name in it."""

    text: str
    tokens: int
    facts: list[Fact]
    scores: dict[str, float | None]
    findings: list[Finding]

    def document(self) -> Json:
        document: Json = to_builtins(self)
        return document


def compose(
    result: Result,
    *,
    max_tokens: int = 1500,
    focus: Iterable[str] = (),
    may: str | Iterable[str] | None = None,
    examples: int = 3,
    counters: bool = True,
    strategy: str = "issue-focused",
    findings: Sequence[Finding] | None = None,
) -> Summary:
    """Describe a run in words, and return the text with the sources of its figures and with scores. For the options,
    see `summarize`, which returns only the text."""
    areas, stages = _areas(focus), stages_of(may)
    if strategy not in STRATEGIES:
        raise HeadwayError(f"strategy: unknown strategy {strategy!r}.{suggest(strategy, STRATEGIES)}")
    if max_tokens < FEWEST_TOKENS:
        raise HeadwayError(f"max_tokens: must be {FEWEST_TOKENS} or more, to fit the outcome, got {max_tokens}.")
    if examples < 0:
        raise HeadwayError(f"examples: must be 0 or more, got {examples}.")
    run = Material(result, findings)
    sections = _sections(run, strategy, areas, examples, counters, stages)
    parts, used = fit(sections, max_tokens, made_up_words(_names(run)) - _our_words())
    stated = [part for part in parts if isinstance(part, Fact)]
    return Summary(text_of(parts), used, stated, scores(run), within(run.findings, stages))


@checked
def summarize(
    result: Result,
    *,
    max_tokens: int = 1500,
    focus: Iterable[str] = (),
    may: str | Iterable[str] | None = None,
    examples: int = 3,
    counters: bool = True,
    strategy: str = "issue-focused",
) -> str:
    """Return a run in words, as Markdown: outcome against targets, issues, alternatives, and suggestions.

    `max_tokens` is a hard limit, by a count that no common tokenizer exceeds. `focus` keeps only the issues and
    suggestions of the given areas, such as routing or cache. `may` names the stages that the reader may change, such as
    routing or admission: the text then has only suggestions for these stages. `examples` is the number of worst
    decisions to show. `counters` includes the estimated effect of other decisions. `strategy` is issue-focused,
    decision-audit, counterfactual or pattern-mining.
    """
    return compose(
        result, max_tokens=max_tokens, focus=focus, may=may, examples=examples, counters=counters, strategy=strategy
    ).text


def facts(result: Result, **options: Any) -> list[Fact]:
    """Return every figure and name that `summarize` prints with these options, in order."""
    return compose(result, **options).facts


def scores(run: Material) -> dict[str, float | None]:
    """Return the figures that one may want to optimise, with times in ms. If decisions were traced or simulated again,
    include their regret."""
    figures = {path: value(run.summary, path) for path in SCORES}
    if run.survey is not None and run.survey.estimated:
        figures["regret.estimated"] = run.survey.regret_ps / run.survey.estimated / 1e9
    if again := simulated_again(run):
        figures["regret.true"] = mean_regret_ms(again)
    return figures


def _areas(focus: Iterable[str]) -> tuple[str, ...]:
    areas = (focus,) if isinstance(focus, str) else tuple(focus)
    for area in areas:
        if area not in FOCUS:
            raise HeadwayError(f"focus: unknown area {area!r}.{suggest(area, FOCUS)}")
    return areas


def _names(run: Material) -> list[str]:
    """Return all names that users may have chosen and that the text may contain."""
    names = [str(run.scenario.get("name", "")), *run.ids.values(), *_strings(run.scenario.get("policies", {}))]
    for column in ("tenant", "slo_class", "kind", "model"):
        names += run.codes_of(column)[1]
    return names + [str(pool["id"]) for pool in run.summary.get("scaling", {}).get("pools", ())]


def _our_words() -> frozenset[str]:
    names = [name for entry in registry.entries() for name in (entry.name, *(each.name for each in entry.parameters))]
    return made_up_words(names)


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (str(key), *_strings(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in _strings(inner)]
    return [value] if isinstance(value, str) else []


# --- within the limit --------------------------------------------------------------------------------------------


def fit(sections: Sequence[Section], max_tokens: int, made_up: frozenset[str] = frozenset()) -> tuple[Parts, int]:
    """Return as many lines as fit into `max_tokens`, in their order, and the number of tokens of these lines.

    Lines of low weight are the most important and are chosen first. If a line does not fit, drop it, the lines that
    belong to it, and the less important lines of its section. Always keep the most important line of all, if necessary
    without the heading of its section.
    """
    chosen: dict[int, set[int]] = {}
    full: set[int] = set()
    used = 0
    order = [(line.weight, place, turn) for place, part in enumerate(sections) for turn, line in enumerate(part.lines)]
    for _, place, turn in sorted(order):
        section, line = sections[place], sections[place].lines[turn]
        above = max(before for before in range(turn + 1) if not section.lines[before].depth)
        if turn in chosen.get(place, ()) or (place in full if above == turn else above not in chosen.get(place, ())):
            continue
        group = range(turn, turn + 1 + line.bound)
        rows = [_mark(section.lines[row], row + 1, section) + section.lines[row].text for row in group]
        cost = sum(tokens(f"{row}\n", made_up) for row in rows)
        if place not in chosen:
            cost += tokens(f"\n{text_of(section.title)}\n", made_up)
        if used + cost <= max_tokens:
            chosen.setdefault(place, set()).update(group)
            used += cost
        elif not used:
            return (*line.parts, "\n"), tokens(f"{line.text}\n", made_up)
        elif above == turn:
            full.add(place)
    return _assemble(sections, chosen), used


def _assemble(sections: Sequence[Section], chosen: dict[int, set[int]]) -> Parts:
    parts: list[str | Fact] = []
    for place in sorted(chosen):
        section, position = sections[place], 0
        entries = sum(not section.lines[turn].depth for turn in chosen[place])
        title = section.title if section.titled is None else section.titled(entries)
        parts += ["\n"] * bool(parts) + [*title, "\n"]
        for turn in sorted(chosen[place]):
            line = section.lines[turn]
            position += not line.depth
            parts += [_mark(line, position, section), *line.parts, "\n"]
    return tuple(parts)


def _mark(line: Line, position: int, section: Section) -> str:
    if line.depth:
        return "   - "
    return f"{position}. " if section.numbered else "- "

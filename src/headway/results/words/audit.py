"""A look at decisions taken at even distances through the run: what was believed, and what happened."""

from __future__ import annotations

from headway.results.decisions import Decision
from headway.results.survey import Survey, best_estimate, best_holder
from headway.results.words.figures import Line, Parts, Section, count, percent, said
from headway.results.words.issues import undecided
from headway.results.words.material import Material
from headway.results.words.worst import candidate, happened, taken


def section(run: Material, examples: int) -> Section:
    title = ("## Decision Audit",)
    decisions = run.result.decisions
    if run.survey is None or decisions is None:
        return Section(title, [Line(undecided(run), 8)])
    wanted = min(len(decisions), 4 * examples)
    lines = [Line(parts, 6) for parts in _totals(run.survey, wanted)]
    for turn in range(wanted):
        place = turn * len(decisions) // wanted
        one = decisions[place]
        # Those in the middle go before the first and the last: what is left still spans the run.
        weight = 7 + abs(2 * turn - wanted) // 2
        lines.append(Line(taken(run, place, one), weight, bound=1))
        lines.append(Line(_believed(run, place, one), weight, 1))
    return Section(title, lines)


def _totals(survey: Survey, wanted: int) -> list[Parts]:
    agreed = survey.estimated - survey.regretted
    found = [
        said(
            "{} of {} decisions, at even distances, with {} to choose from on average.",
            count("audit.count", wanted),
            count("decisions.count", survey.count),
            count("decisions.candidates_mean", round(survey.candidates / survey.count)),
        )
    ]
    if survey.estimated:
        found.append(
            said(
                "{} went where the first token would come soonest by the latency model, {} where most of the prompt"
                " was believed cached.",
                percent("decisions.soonest_share", agreed / survey.estimated),
                percent("decisions.most_cached_share", 1 - survey.away.count / survey.count),
            )
        )
    return found


def _believed(run: Material, place: int, one: Decision) -> Parts:
    chosen, holder, soonest = one.place(one.judged), best_holder(one), best_estimate(one)
    parts = said("Believed: {}", candidate(run, place, one, chosen))
    if holder != chosen:
        source = f"decision.{place}.{one.candidates[holder]}.believed_tokens"
        parts += said(
            "; most on {}, {} tokens", run.instance(one.candidates[holder]), count(source, one.believed_tokens[holder])
        )
    if soonest != chosen and one.estimated_ttft_ps[soonest] < one.estimated_ttft_ps[chosen]:
        parts += said("; {} was expected to be sooner", run.instance(one.candidates[soonest]))
    return parts + said(". Happened: {}.", happened(run, one.request))

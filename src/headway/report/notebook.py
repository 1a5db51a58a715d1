"""The views of results. For each kind of result, a view has the report that the terminal shows, and the charts of the
result's HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from headway.experiment.check_policy import PolicyCheck
from headway.experiment.compare import Comparison
from headway.experiment.controls import BASE, Controls
from headway.experiment.counterfactual import Counterfactuals
from headway.experiment.engine_fit import EngineFit
from headway.experiment.explain import Explanation
from headway.experiment.hardware import ProfileDetails, Profiles
from headway.experiment.linear_fit import LinearFit
from headway.experiment.look import Preview, TraceFigures, WrittenTrace
from headway.experiment.paired import HEADLINE
from headway.experiment.plan import Plan
from headway.experiment.sweep import Sweep
from headway.experiment.validate import Validation
from headway.latency.calibration import Calibration
from headway.report import controls, explain, hardware, plan, summary_charts, sweep, validation, workload_tables
from headway.report.catalogue import policy_file_page
from headway.report.charts import COLOURS, GREY, axis, categories, events, grouped_bars, hints, ranked_bars
from headway.report.comparison import comparison_report
from headway.report.digest import regrets
from headway.report.number_format import count, number, time_text
from headway.report.result_view import Figure, View
from headway.report.run import run_report
from headway.report.sections.regrets import histogram
from headway.report.terminal import facts, table
from headway.results.records import Findings, best_alternatives
from headway.results.result import Result
from headway.results.statistics import PS_PER_MS
from headway.types import PS_PER_SECOND, Json

ROWS: Final = 20  # maximum number of rows in a list of findings or alternatives
POINTS: Final = 60  # maximum number of points of a sweep that the table shows


def run_view(result: Result) -> View:
    charts = {name: partial(summary_charts.run_part, result, name) for name in summary_charts.RUN_PARTS}
    return View(run_report(result.summary(), result.scenario), charts)


def comparison_view(comparison: Comparison) -> View:
    runs = comparison.runs or {name: [summary] for name, summary in comparison.ranked}
    policies = summary_charts.Policies(
        comparison.scenario, comparison.ranked, runs, comparison.best, comparison.baseline, comparison.by
    )
    return View(comparison_report(comparison), policies.charts(), policies.figure)


def controls_view(result: Controls) -> View:
    ranked = list(result.summaries.items())
    runs = {name: [summary] for name, summary in ranked}
    policies = summary_charts.Policies(result.scenario, ranked, runs, None, BASE, None)
    return View(controls.report(result), policies.charts(), policies.figure)


def sweep_view(result: Sweep) -> View:
    return View(
        sweep.report(result, () if result.show == HEADLINE else result.show, most=POINTS),
        {"sweep": partial(summary_charts.sweep_charts, result)},
        partial(summary_charts.sweep_figure, result),
    )


def plan_view(result: Plan) -> View:
    return View(plan.report(result), {"curve": partial(plan.charts, result)})


def validation_view(result: Validation) -> View:
    return View(validation.report(result), {"latencies": partial(_distributions, result)})


def _distributions(result: Validation) -> list[Figure]:
    return list(validation.charts(result).values())


def fit_view(fit: EngineFit | LinearFit) -> View:
    charts = {"after": partial(_distributions, fit.after), "before": partial(_distributions, fit.before)}
    return View(validation.of_run(fit), charts)


def calibration_view(result: Calibration) -> View:
    def errors() -> list[Figure]:
        colours = {"median": COLOURS[0], "p90": COLOURS[5], "worst": GREY}
        rows = [
            {"name": f"{phase.phase}, {name}", "value": getattr(phase, name), "role": name}
            for phase in result.errors
            for name in colours
        ]
        return [("Errors on held-out steps", ranked_bars("absolute error", rows, share=True, colours=colours))]

    return View(validation.calibration_report(result), {"errors": errors})


def preview_view(preview: Preview) -> View:
    return View(workload_tables.preview_report(preview), {"workload": partial(_workload, preview)})


def trace_view(trace: TraceFigures) -> View:
    return View(workload_tables.report(trace, "trace"), {"workload": partial(_workload, trace)})


def _workload(figures: Mapping[str, Any]) -> list[Figure]:
    if not figures["requests"]:
        return []
    timed = figures["arrivals"] is not None and figures["span_s"]
    rates = [("Requests per second", workload_tables.rate_chart(figures))] if timed else []
    return [*rates, *workload_tables.length_charts(figures)]


def written_view(written: WrittenTrace) -> View:
    rows = [(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
            for name, value in written.items() if not isinstance(value, list)]  # fmt: skip
    notes = [Text(f"The {written['format']} format cannot express {phrase}.") for phrase in written["lost"]]
    return View(Group(facts(rows), *notes, *map(Text, written["notes"])))


def profiles_view(profiles: Profiles) -> View:
    def cards() -> list[Figure]:
        figures = (("Memory bandwidth, TB/s", "bandwidth_tb_s"), ("TFLOP/s in BF16", "tflops"))
        cards = [each for each in profiles["profiles"] if each["card"]]
        return [
            (title, ranked_bars(title, [_profile_bar(each, key) for each in cards], colours=SOURCES))
            for title, key in figures
        ]

    return View(hardware.listing(profiles), {"cards": cards})


SOURCES: Final = {"measured": COLOURS[0], hardware.SPEC_SHEET: GREY}


def _profile_bar(profile: Json, key: str) -> Json:
    role = "measured" if profile["calibrated"] else hardware.SPEC_SHEET
    return {"name": profile["name"], "value": profile["card"][key], "role": role}


def profile_view(profile: ProfileDetails) -> View:
    def steps() -> list[Figure]:
        rows = [{"name": _step(step), "value": step["gpu_ms"], "role": "best"} for step in profile["examples"]["steps"]]
        return [(f"Steps of {profile['examples']['model']}", ranked_bars("ms per step", rows))]

    return View(hardware.page(profile), {"steps": steps})


def _step(step: Json) -> str:
    parts = [f"{step['decodes']} × decode at {step['context']:,}"] if step["decodes"] else []
    parts += [f"prefill {new:,}" + (f" after {past:,}" if past else "") for new, past in step["chunks"]]
    return " + ".join(parts)


def policy_check_view(check: PolicyCheck) -> View:
    if check["ok"]:
        return View(policy_file_page(check))
    return View(Group(*(Text(rejection["text"]) for rejection in check["rejections"])))


def explanation_view(explained: Explanation) -> View:
    return View(explain.explanation(explained), {"candidates": partial(_candidates, explained)})


def _candidates(explained: Mapping[str, Any]) -> list[Figure]:
    decision = explained["decision"]
    if decision is None:
        return []
    candidates = sorted(decision["candidates"], key=lambda each: not each["chosen"])[: explain.SHOWN]
    names = {each["id"]: f"▸ {each['id']}" if each["chosen"] else str(each["id"]) for each in candidates}
    times = [(each, kind, _ttft(each, kind)) for each in candidates for kind in TTFT]
    rows = [{"policy": kind, "candidate": names[each["id"]], "ms": ms} for each, kind, ms in times if ms is not None]
    places = categories("candidate", list(names.values()), labelLimit=150, ticks=False)
    hint = hints(("candidate", "candidate"), ("policy", "TTFT"), ("ms", "ms"))
    height = max(60, 26 * len(candidates))
    title = "TTFT of each candidate, as the latency model estimated it and in truth."
    chart = grouped_bars(title, rows, axis("ms", "TTFT, ms"), places, TTFT, hint, height=height)
    return [(f"Candidates for request {explained['request']['id']}", chart)]


TTFT: Final = {"estimated": GREY, "true": COLOURS[0]}


def _ttft(candidate: Json, kind: str) -> float | None:
    ms: float | None = (
        candidate["estimated_ttft_ms"] if kind == "estimated" else (candidate["true"] or {}).get("ttft_ms")
    )
    return ms


def counterfactuals_view(tried: Counterfactuals) -> View:
    best = [tried[place] for place in best_alternatives(tried).values()]
    better = sorted((each for each in best if (each.regret_ps or 0) > 0), key=lambda each: -(each.regret_ps or 0))
    head = f"{count(len(tried))} other choices for {count(len({each.request for each in tried}))} requests"
    verdict = f"{head}; for {count(len(better))} of them another choice gives an earlier first token."
    rows = [
        [
            str(each.request),
            time_text(each.at_ps / PS_PER_SECOND),
            str(each.chosen),
            str(each.changed),
            *(number(ps / PS_PER_MS) for ps in (each.ttft_ps, each.alternative_ttft_ps, each.regret_ps or 0)),
        ]
        for each in better[:ROWS]
    ]
    heads = ("request", "at", "instance", "better", "TTFT ms", "there", "regret ms")
    page = Group(Text(verdict), "", table(*heads, rows=rows)) if rows else Text(verdict)

    def regret() -> list[Figure]:
        known = regrets([each.regret_ps or 0 for each in best])
        return [("True regret", histogram("True regret", {"run": known}, {"run": COLOURS[0]}))] if best else []

    return View(page, {"regret": regret})


def findings_view(findings: Findings) -> View:
    rows = [
        [
            f"{finding.severity:.2f}",
            finding.kind.replace("_", " "),
            *(time_text(at / PS_PER_SECOND) for at in (finding.at_ps, finding.until_ps)),
            finding.title,
        ]
        for finding in findings[:ROWS]
    ]
    grid = table("severity", "kind", "from", "until", "", rows=rows, left=(0, 1, 4))
    grid.columns[4].no_wrap, grid.columns[4].overflow = False, "fold"
    left = len(findings) - len(rows)
    more = [Text(f" and {left:,} more; to_pandas() has all")] if left else []
    return View(Group(grid, *more) if rows else Text("No findings."), {"events": partial(_event_chart, findings)})


def _event_chart(findings: Sequence[Any]) -> list[Figure]:
    rows = [
        {
            "policy": "run",
            "kind": finding.kind.replace("_", " "),
            "at": finding.at_ps / PS_PER_SECOND,
            "until": finding.until_ps / PS_PER_SECOND,
            "count": finding.count,
            "text": finding.title,
            "link": "",
        }
        for finding in findings
    ]
    if not rows:
        return []
    span = (min(row["at"] for row in rows), max(row["until"] for row in rows))
    return [("Findings over time", events(rows, span, {"run": COLOURS[0]}))]

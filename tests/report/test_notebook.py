"""Results in a notebook: a short text, HTML, data frames and charts."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec.structs import replace
from rich.console import Group

import headway
from headway.display.displayed import Displayed
from headway.errors import HeadwayError
from headway.experiment.counterfactual import Counterfactuals
from headway.experiment.engine_fit import EngineFit
from headway.experiment.linear_fit import LinearFit
from headway.latency.calibration import PhaseError
from headway.latency.gpus import read_gpu
from headway.latency.profiles import read_profile
from headway.report.result_view import View
from headway.report.terminal import table
from headway.results.records import Finding, Findings

SCENARIO: dict[str, Any] = {
    "name": "small",
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
    "workload": {"rate": "20/s", "requests": 60, "prompt_tokens": 200, "output_tokens": 8},
    "slo": {"ttft": "300ms"},
}
POLICY = "def route(request, cluster):\n    return argmin(cluster.instances, lambda one: one.inflight)\n"
# Functions that return something else than a result.
OTHERS = {
    "policy": "a decorator",
    "schema": "a JSON Schema",
    "schema_file": "a path",
    "summarize": "a text",
    "write_starter": "a file",
}


@pytest.fixture(scope="module")
def run() -> headway.Result:
    return headway.simulate(SCENARIO, trace="decisions")


@pytest.fixture(scope="module")
def results(run: headway.Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small result of each kind, and the names of its charts."""
    folder = tmp_path_factory.mktemp("notebook")
    policy = folder / "policy.py"
    policy.write_text(POLICY)
    trace = folder / "trace.jsonl"
    policies = ["round-robin", "least-loaded"]
    vary = ["workload.rate=10..20:10", "policies.routing=round-robin,random"]
    errors = headway.validate(run, run)
    constants = read_profile("h200", read_gpu("h200", "gpu"), "gpu").constants
    phases = (PhaseError("decode", 9, 0.01, 0.02, 0.1), PhaseError("prefill", 8, 0.02, 0.03, 0.2))
    return {
        "run": run,
        "findings": run.findings(),
        "comparison": headway.compare(SCENARIO, policies, workers=1),
        "seeds": headway.compare(SCENARIO, policies, seeds=2, workers=1),
        "controls": headway.controls(SCENARIO, workers=1),
        "sweep": headway.sweep(SCENARIO, vary, workers=1),
        "plan": headway.plan(SCENARIO, "ttft_p99<=1s", seeds=1, points=2, workers=1),
        "explanation": headway.explain(run, 5, workers=1),
        "counterfactuals": headway.counterfactuals(run, 2, workers=1),
        "validation": errors,
        "fit": EngineFit("", 0.5, 1.1, 3, errors, errors),
        "linear-fit": LinearFit({"model": "linear", "decode_step": "1ms"}, "", 3, errors, errors),
        "calibration": headway.Calibration("h200", constants, phases, 68, (1, 512), (128, 2048), ("llama-3.1-8b",)),
        "preview": headway.preview(SCENARIO, requests=20),
        "written": headway.write_workload(SCENARIO, trace),
        "trace": headway.inspect_trace(trace),
        "converted": headway.convert_trace(trace, folder / "other.jsonl"),
        "profiles": headway.hardware(),
        "profile": headway.hardware("h200"),
        "check": headway.check_policy(policy),
    }


KINDS = [
    "run", "findings", "comparison", "seeds", "controls", "sweep", "plan", "explanation", "counterfactuals",
    "validation", "fit", "linear-fit", "calibration", "preview", "written", "trace", "converted", "profiles", "profile",
    "check",
]  # fmt: skip
WITHOUT_CHARTS = ("findings", "written", "converted", "check")  # this run has no findings


def rows_of(chart: Any) -> list[Any]:
    """Return the rows of all its charts. Altair checks a chart against the schema of Vega-Lite."""
    document = chart.to_dict()
    datasets = document.get("datasets", {})
    parts = document.get("concat", [document])
    data = [part.get("data", document.get("data")) for part in parts]
    return [row for each in data for row in (each["values"] if "values" in each else datasets[each["name"]])]


def returned(function: Callable[..., Any]) -> list[Any]:
    kind = get_type_hints(function)["return"]
    return list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]


def test_every_public_function_returns_a_result_that_shows_itself() -> None:
    names = [name for name in headway.__all__ if inspect.isfunction(getattr(headway, name)) and name not in OTHERS]
    assert {"simulate", "compare", "plan", "explain", "preview", "hardware"} <= set(names)
    functions = [getattr(headway, name) for name in names]
    functions += [headway.evolve.evolve, headway.evolve.evaluate, headway.Result.findings]
    for function in functions:
        for kind in returned(function):
            assert issubclass(kind, Displayed), f"{function.__name__} returns {kind}"


class Tags(HTMLParser):
    """Checks that every tag is closed, and counts them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_result_has_fewer_than_40_lines(results: Mapping[str, Any], kind: str) -> None:
    text = repr(results[kind])
    assert text == str(results[kind])
    assert 0 < len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_the_same_as_html(results: Mapping[str, Any], kind: str) -> None:
    tags = Tags(results[kind]._repr_html_())
    assert not tags.open
    assert {"table", "p"} & set(tags.seen)
    first = repr(results[kind]).split()[0]
    assert first in tags.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_a_data_frame(results: Mapping[str, Any], kind: str) -> None:
    pytest.importorskip("pandas", reason="the extra `data` is not installed")
    pytest.importorskip("polars", reason="the extra `data` is not installed")
    columns = results[kind].columns()
    pandas, polars = results[kind].to_pandas(), results[kind].to_polars()
    assert list(pandas.columns) == polars.columns == list(columns)
    assert len(pandas) == len(polars) == max(map(len, columns.values()), default=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_a_frame_has_a_type_even_without_values(results: Mapping[str, Any], kind: str) -> None:
    pytest.importorskip("pandas", reason="the extra `data` is not installed")
    polars = pytest.importorskip("polars", reason="the extra `data` is not installed")
    pandas_frame, polars_frame = results[kind].to_pandas(), results[kind].to_polars()
    assert len(pandas_frame.columns)
    assert not [name for name in pandas_frame if pandas_frame[name].dtype == object]
    assert not {polars.Null, polars.Object} & set(polars_frame.dtypes)


@pytest.mark.parametrize("kind", ["run", "findings", "counterfactuals", "explanation", "check", "decisions"])
def test_an_empty_frame_has_the_columns_and_types_of_a_full_one(
    results: Mapping[str, Any], run: headway.Result, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("pandas", reason="the extra `data` is not installed")
    pytest.importorskip("polars", reason="the extra `data` is not installed")
    none = headway.simulate({**SCENARIO, "horizon": "1us"}, trace="decisions")
    rejected = headway.simulate(SCENARIO, trace="decisions", admission={"name": "token-bucket", "rate": 1, "burst": 1})
    (tmp_path / "plain.py").write_text("def route(request, instances, cluster):\n    return instances[0]\n")
    (tmp_path / "tuned.py").write_text(
        "a = parameter(0.5, 0.0, 1.0)\n\n\ndef route(request, instances, cluster):\n"
        "    return instances[0] if a > 0.3 else instances[-1]\n"
    )
    finding = Finding("herding", 0, 10, 0.5, 3, "Many.")
    full, empty = {
        "run": lambda: (run, none),
        "decisions": lambda: (run.decisions, none.decisions),
        "findings": lambda: (Findings([finding]), Findings()),
        "counterfactuals": lambda: (results[kind], Counterfactuals()),
        "explanation": lambda: (results[kind], headway.explain(rejected, 1)),
        "check": lambda: (headway.check_policy(tmp_path / "tuned.py"), headway.check_policy(tmp_path / "plain.py")),
    }[kind]()
    assert len(empty.to_pandas()) == 0 < len(full.to_pandas())
    scores = [name for name in full.to_polars().columns if name.startswith("score")]  # named by the policy of a run
    assert empty.to_polars().schema == full.to_polars().drop(scores).schema
    kinds = {name: dtype.kind for name, dtype in empty.to_pandas().dtypes.items()}
    assert kinds == {name: dtype.kind for name, dtype in full.to_pandas().drop(columns=scores).dtypes.items()}


def test_a_column_with_whole_numbers_and_fractions_is_a_number(results: Mapping[str, Any]) -> None:
    polars = pytest.importorskip("polars", reason="the extra `data` is not installed")
    sweep = headway.sweep(SCENARIO, {"slo.ttft": [1, 0.5], "policies.routing": ["random"]}, workers=1)
    assert sweep.to_polars()["slo.ttft"].dtype == polars.Float64


def test_the_frame_of_a_disaggregated_explanation_has_only_figures_of_its_candidates() -> None:
    split = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}}
    cluster = {"deployments": {"split": {**split, "latency": {"model": "fixed"}}}}
    columns = headway.explain(headway.simulate({**SCENARIO, "cluster": cluster}), 3, workers=1).columns()
    assert len(columns["id"]) == 4 and None in columns["true.ttft_ms"]
    assert "true" not in columns and "scores" not in columns


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "comparison" else pytest.mark.full)
        for kind in KINDS
        if kind not in WITHOUT_CHARTS
    ],
)
def test_a_result_has_charts(results: Mapping[str, Any], kind: str) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    assert rows_of(results[kind].plot())


@pytest.mark.full
def test_the_charts_of_a_run_are_those_of_its_report(run: headway.Result, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    from headway.report.page import report

    page = report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    for part in ("latencies", "load", "cache", "decisions", "over-time"):
        chart = run.plot(part).to_dict()
        for single in chart.get("concat", [chart]):
            assert json.dumps(single["description"], ensure_ascii=False) in page


def test_a_figure_can_be_plotted_by_its_path(results: Mapping[str, Any]) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    comparison = results["seeds"]
    rows = rows_of(comparison.plot("latency.e2e.p99"))
    assert [row["name"] for row in rows] == [name for name, _ in comparison.ranked]
    assert [row["value"] for row in rows] == [summary["latency"]["e2e"]["p99"] for _, summary in comparison.ranked]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    points = rows_of(results["sweep"].plot("latency.tpot.mean"))
    assert sorted({point["at"] for point in points}) == [10.0, 20.0]


def test_a_chart_that_does_not_exist_is_an_error_that_lists_the_others(results: Mapping[str, Any]) -> None:
    for name, wrong, part in (
        ("run", "nothing", "Known: cache, decisions, latencies"),
        ("comparison", "headlines", "Did you mean 'headline'?"),
        ("comparison", "latency.ttft.p100", "unknown figure 'latency.ttft.p100'"),
        ("check", None, "has no charts; to_pandas() returns its table"),
        ("findings", None, "no data for events"),
    ):
        with pytest.raises(HeadwayError) as error:
            results[name].plot(wrong)
        assert part in str(error.value)


@pytest.mark.full
def test_suggested_charts_can_be_drawn(run: headway.Result) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    with pytest.raises(HeadwayError) as error:
        run.plot("nothing")
    suggested = str(error.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert "latencies" in suggested and "regret" not in suggested
    for name in suggested:
        assert rows_of(run.plot(name))
    bare = {key: value for key, value in SCENARIO.items() if key != "slo"}
    with pytest.raises(HeadwayError) as error:
        headway.compare(bare, ["random", "round-robin"], workers=1).plot("slo")
    assert str(error.value).endswith("has no data for slo. Try headline, latencies.")


def test_a_page_has_one_legend_but_a_notebook_shows_it_in_the_last_chart(results: Mapping[str, Any]) -> None:
    pytest.importorskip("altair", reason="the extra `notebook` is not installed")
    *others, last = results["comparison"].plot("latencies").to_dict()["concat"]
    legends = [chart["layer"][0]["encoding"]["color"]["legend"] for chart in (*others, last)]
    assert legends[:-1] == [None] * len(others)
    assert legends[-1]["orient"] == "right"


def test_quantities_are_numbers_in_base_units() -> None:
    vary = {"workload.rate": ["10/s", "1200/min"], "slo.ttft": ["250ms", "1s"], "policies.routing": ["random"]}
    columns = headway.sweep(SCENARIO, vary, workers=1).columns()
    assert columns["workload.rate"] == [10.0, 10.0, 20.0, 20.0]
    assert columns["slo.ttft"] == [0.25, 1.0, 0.25, 1.0]
    assert columns["policies.routing"] == ["random"] * 4


def test_the_frame_of_a_run_has_the_latencies_of_each_request(run: headway.Result) -> None:
    columns = run.columns()
    assert columns["arrival_ps"] == run.requests["arrival_ps"]
    for name in ("ttft", "tpot", "e2e"):
        values = columns[f"{name}_ms"]
        assert sum(values) / len(values) == pytest.approx(run.summary()["latency"][name]["mean"])
    rejected = headway.simulate(SCENARIO, admission={"name": "token-bucket", "rate": 5, "burst": 1}).columns()
    lost = [place for place, outcome in enumerate(rejected["outcome"]) if outcome == "rejected"]
    assert lost and all(rejected[name][lost[0]] is None for name in ("ttft_ms", "tpot_ms", "e2e_ms"))


def test_a_document_stays_a_mapping(results: Mapping[str, Any]) -> None:
    preview = results["preview"]
    assert preview == dict(preview) and json.loads(json.dumps(preview)) == json.loads(json.dumps(dict(preview)))
    assert preview["requests"] == 20 and isinstance(preview, dict)
    assert results["counterfactuals"] == list(results["counterfactuals"])


def test_a_large_sweep_is_cut_but_keeps_its_verdict(results: Mapping[str, Any]) -> None:
    swept = results["sweep"]
    many = replace(swept, points=swept.points * 50)
    lines = repr(many).splitlines()
    assert len(lines) == 39
    assert any(line.endswith("lines left out") for line in lines)
    assert "and 140 more points; to_pandas() has all" in repr(many)
    assert " ".join(repr(many).split()).endswith(swept.verdict)
    assert many._repr_html_().count("<tr>") < 105
    assert len(many.columns()["policy"]) == 200


@pytest.mark.parametrize("rows", range(20, 40))
def test_rows_after_a_cut_have_their_header(rows: int) -> None:
    first = table("name", "first\nfigure", rows=[[f"a{row}", "1"] for row in range(rows)])
    second = table("name", "second\nfigure", rows=[[f"b{row}", "2"] for row in range(12)])
    lines = View(Group("Title", first, "", second)).text().splitlines()
    assert len(lines) <= 39
    assert "b11" in lines[-1] and sum("second" in line for line in lines) == 1
    header = next(place for place, line in enumerate(lines) if "second" in line)
    assert "figure" in lines[header + 1]
    left_out = [int(line.split()[1]) for line in lines if line.endswith("lines left out")]
    assert len(lines) - len(left_out) + sum(left_out) == 1 + rows + 2 + 1 + 12 + 2


def test_names_in_html_are_escaped() -> None:
    html = headway.simulate({**SCENARIO, "name": "<script>alert(1)</script>"})._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("package", "extra", "ask"),
    [
        ("pandas", "data", lambda result: result.to_pandas()),
        ("polars", "data", lambda result: result.to_polars()),
        ("altair", "notebook", lambda result: result.plot()),
    ],
)
def test_a_missing_package_names_its_extra(
    results: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, package: str, extra: str, ask: Callable[[Any], Any]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeadwayError, match=rf"{package} is not installed. Run: pip install 'headway\[{extra}\]'\.$"):
        ask(results["comparison"])


def test_a_sweep_shows_the_figures_that_were_asked_for() -> None:
    result = headway.sweep(SCENARIO, "workload.rate=10,20", show="latency.itl.p99,balance.jain", workers=1)
    assert "itl ms" in repr(result) and "Jain" in repr(result) and "TTFT" not in repr(result)
    assert list(result.to_pandas().columns)[-2:] == ["latency.itl.p99", "balance.jain"]

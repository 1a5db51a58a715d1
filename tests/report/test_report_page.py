"""The page of a report as it is written: its parts, its figures, and that nothing from outside can act in it."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from reported import HOSTILE, POLICIES, SCENARIO, Read, compared, counterfactual, example, finding, read

from conftest import Run
from headway import simulate
from headway.errors import HeadwayError
from headway.report.charts import COLOURS, GREY
from headway.report.html import SCRIPTS
from headway.report.number_format import number, percent
from headway.report.page import report
from headway.report.sections.opening import delta
from headway.results import study
from headway.results.result import Result

ORDER = [
    "scenario",
    "headline",
    "latencies",
    "load",
    "cache",
    "decisions",
    "slo",
    "over-time",
    "findings",
    "parameters",
]  # as people read


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Read:
    return read(report(compared(), tmp_path_factory.mktemp("report") / "report.html"))


def test_the_parts_stand_in_reading_order(page: Read) -> None:
    assert [attributes["id"] for tag, attributes in page.seen if tag == "section"] == ORDER
    links = [attributes["href"] for tag, attributes in page.seen if tag == "a"]
    assert links[: len(ORDER) - 1] == [f"#{name}" for name in ORDER[1:]]
    assert page.text.index("serves this best") < page.text.index("Headline")


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_loaded(page: Read) -> None:
    policy = next(str(values["content"]) for tag, values in page.seen if "http-equiv" in values)
    assert policy.startswith("default-src 'none';")
    allowed = re.search(r"script-src ([^;]*)", policy)
    assert allowed is not None
    hashes = [f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" for each in page.scripts]
    assert len(hashes) == len(SCRIPTS) and allowed[1].split() == hashes
    for tag, values in page.seen:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert not {"src", "srcset", "action", "poster"} & set(values)
        assert not [name for name in values if name.startswith("on")]


def test_the_headline_has_the_summaries_figures_and_their_distance_to_the_baseline(page: Read) -> None:
    base, other = (result.summary() for result in compared()[:2])
    heads = next(row for row in page.cells if row[0] == "run")
    mine, its = (page.row(label, len(heads)) for label in ("lmetric", "round-robin"))
    assert "(baseline)" in its[0] and "(baseline)" not in mine[0]
    at = heads.index("TTFT p99, ms")
    value, before = (figures["latency"]["ttft"]["p99"] for figures in (other, base))
    assert mine[at] == f"{number(value)}▼ {100 * (1 - value / before):.1f} %"
    assert its[at] == number(before)
    at = heads.index("within the SLO")
    value, before = (figures["slo"]["goodput_ratio"] for figures in (other, base))
    assert mine[at] == f"{percent(value)}▲ {100 * (value - before):.1f} pp"


@pytest.mark.parametrize(
    ("path", "mine", "its", "sign", "word"),
    [
        ("latency.ttft.p99", 80.0, 100.0, "▼ 20.0 %", "better"),
        ("latency.ttft.p99", 150.0, 100.0, "△ 50.0 %", "worse"),
        ("throughput.requests_per_s", 30.0, 20.0, "▲ 50.0 %", "better"),
        ("slo.goodput_ratio", 0.5, 0.75, "▽ 25.0 pp", "worse"),
        ("latency.e2e.mean", 2000.0, 100.0, "△ × 20", "worse"),
        ("requests.rejected", 3.0, 0.0, "△ from 0", "worse"),
        ("latency.ttft.p99", 100.0, 100.0, "=", "even"),
        ("latency.ttft.p99", 100.0001, 100.0, "≈", "even"),
    ],
)
def test_better_and_worse_differ_in_sign_and_not_only_in_colour(
    path: str, mine: float, its: float, sign: str, word: str
) -> None:
    markup = delta(path, mine, its)
    assert f">{sign}</span>" in markup and f'class="delta {word}"' in markup


def test_a_policy_has_one_colour_in_every_chart_and_the_baseline_is_grey(page: Read) -> None:
    colours_of: dict[str, set[str]] = {}

    def look(value: Any) -> None:
        if isinstance(value, dict):
            scale = value.get("scale")
            if value.get("field") == "policy" and isinstance(scale, dict) and "range" in scale:
                for name, colour in zip(scale["domain"], scale["range"], strict=True):
                    colours_of.setdefault(name, set()).add(colour)
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(page.charts())
    assert len(colours_of) == len(POLICIES) and all(len(colours) == 1 for colours in colours_of.values())
    assert colours_of["round-robin"] == {GREY}
    assert {colour for name, (colour,) in colours_of.items() if name != "round-robin"} < set(COLOURS)
    keys = {values["style"] for tag, values in page.seen if tag == "span" and values.get("class") == "key"}
    assert keys == {f"background:{colour}" for (colour,) in colours_of.values()}


def test_every_chart_says_what_it_shows_and_has_a_box(page: Read) -> None:
    boxes = [values["id"] for tag, values in page.seen if values.get("class") == "chart"]
    sources = [values["data-chart"] for tag, values in page.seen if tag == "script" and "data-chart" in values]
    assert boxes == sources and len(set(boxes)) == len(boxes) >= 15
    assert all(chart["description"] for chart in page.charts())
    printed = {chart["description"].partition(":")[0].partition(",")[0] for chart in page.charts()}
    assert len(printed) >= 8, printed


def test_names_from_outside_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    tenants = {HOSTILE.replace("/", ""): {"weight": 5, "priority": "batch"}, "plain": {"weight": 5}}
    scenario = {**SCENARIO, "name": HOSTILE, "workload": {**SCENARIO["workload"], "requests": 60, "tenants": tenants}}
    results = [simulate(scenario, routing=each, trace="decisions") for each in ("lmetric", "round-robin")]
    for result in results:
        assert result.decisions is not None
        result.scenario["policies"]["routing"]["name"] += HOSTILE
        result._findings = [finding(HOSTILE)]
        for each in result.summary()["instances"]:
            each["id"] += HOSTILE
    plain, hostile = read(report(compared(), tmp_path / "plain.html")), read(report(results, tmp_path / "page.html"))
    assert hostile.scripts == plain.scripts
    assert {tag for tag, _ in hostile.seen} <= {tag for tag, _ in plain.seen}
    assert hostile.text.count(HOSTILE) > 20
    assert any(HOSTILE in row["policy"] for row in hostile.charts()[0]["data"]["values"])


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (report(compared(), tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_findings_are_told_with_their_evidence(tmp_path: Path) -> None:
    result = example()
    result._findings = [finding()]
    page = read(report(result, tmp_path / "page.html"))
    assert "12 requests waited long." in page.text
    assert "note: starvation; from 1 s to 3 s; on instance-0" in page.text
    assert ["share", "0.04"] in page.cells and ["severity", "0.7"] in page.cells
    assert "To explain a request, save the run with -o RUN." in page.text
    assert "headway explain RUN 1" in page.text


def test_a_finding_links_to_its_requests_to_its_command_and_to_its_mark_over_time(tmp_path: Path) -> None:
    late = {"workload": {"requests": 60, "rate": "60/s", "prompt_tokens": 2000}, "cluster": {"instances": 1}}
    result = simulate({**late, "slo": {"ttft": "300ms"}})
    result.save(tmp_path / "run")
    page = read(report(tmp_path / "run", tmp_path / "page.html"))
    first = result.findings()[0]
    assert first.kind == "bottleneck"
    assert f"headway explain {tmp_path / 'run'} {first.requests[0]}" in page.text
    assert "severe: bottleneck; explains 100.0 % of the loss; resource: prefill" in page.text
    assert first.suggestions[0].text in page.text and f"--set {first.suggestions[0].overrides()[0]}" in page.text
    anchors = {attributes.get("id") for tag, attributes in page.seen if tag == "div"}
    marks = [value for chart in page.charts() for value in chart.get("data", {}).get("values", []) if "link" in value]
    assert {mark["link"] for mark in marks} == {f"#finding-0-{turn}" for turn in range(len(result.findings()))}
    assert {mark["link"].removeprefix("#") for mark in marks} <= anchors
    rows = {attributes.get("id") for tag, attributes in page.seen if tag == "span"}
    links = {attributes.get("href") for tag, attributes in page.seen if tag == "a"}
    for turn, each in enumerate(result.findings()):
        assert f"#finding-0-{turn}" in links or each.kind in {other.kind for other in result.findings()[:turn]}
        for row in each.requests:
            assert f"#request-0-{row}" in links and f"request-0-{row}" in rows
            assert f"headway explain {tmp_path / 'run'} {row}" in {cells[-1] for cells in page.cells}


def test_the_time_of_late_requests_is_drawn_by_its_parts(tmp_path: Path) -> None:
    workload = {"requests": 60, "rate": "60/s", "prompt_tokens": 2000, "output_tokens": 10}
    result = simulate({"workload": workload, "cluster": {"instances": 1}, "slo": {"e2e": "1ms"}})
    page = read(report(result, tmp_path / "page.html"))
    (chart,) = [chart for chart in page.charts() if chart.get("description", "").startswith("Mean time of the late")]
    drawn = sum(value["seconds"] for value in chart["data"]["values"])
    assert drawn == pytest.approx(result.summary()["latency"]["e2e"]["mean"] / 1000, rel=1e-3)


def test_no_target_is_called_everybodys_where_tenants_have_their_own(tmp_path: Path) -> None:
    tenants = {"shop": {"slo": {"ttft": "50ms"}}, "crawler": {}}
    workload = {**SCENARIO["workload"], "tenants": tenants}
    result = simulate({**SCENARIO, "workload": workload, "slo": {"ttft": "10s"}}, routing="lmetric")
    met = percent(result.summary()["slo"]["ttft_attainment"])
    page = read(report(result, tmp_path / "page.html"))
    assert f"TTFT by tenant {met}" in page.text and f"≤ 10s {met}" not in page.text
    assert not any('"target: ' in each for each in page.data)
    assert any('"target: ' in each for each in read(report(example(), tmp_path / "page.html")).data)


def test_a_run_without_findings_says_so(tmp_path: Path) -> None:
    result = example()
    result._findings = []
    assert "No findings." in read(report(result, tmp_path / "page.html")).text


def test_what_a_run_lacks_is_told_with_the_command_that_gets_it(tmp_path: Path) -> None:
    page = read(report(example(), tmp_path / "page.html"))
    assert "run with --trace decisions -o FOLDER" in page.text
    assert "regret" not in page.text.partition("Parameters")[0]
    page = read(report(compared()[0], tmp_path / "page.html"))
    assert "--trace decisions" not in page.text
    assert "headway run --counterfactuals 50 -o FOLDER" in page.text


def test_true_regret_is_drawn_and_told_where_it_is_known(tmp_path: Path) -> None:
    result = example(routing="round-robin", trace="decisions")
    second = 10**12
    result.counterfactuals = [counterfactual(result, 5, 1000 * second), counterfactual(result, 7, -second // 200)]
    page = read(report(result, tmp_path / "page.html"))
    chart = next(chart for chart in page.charts() if chart["description"].startswith("True regret"))
    counts = {row["regret"]: row["decisions"] for row in chart["data"]["values"] if row["decisions"]}
    assert counts == {"above 1,000": 1, "-10 to -3": 1}
    heads = next(row for row in page.cells if row[0] == "request")
    assert result.decisions is not None
    worst = page.cells[page.cells.index(heads) + 1]
    assert worst[0] == str(result.decisions[5].request) and worst[heads.index("true regret, ms")] == "1,000,000"


def test_runs_in_folders_are_compared_with_the_first(headway: Run, tmp_path: Path) -> None:
    for name in ("round-robin", "lmetric"):
        example(routing=name).save(tmp_path / name)
    completed = headway("report", "round-robin", "lmetric", cwd=tmp_path)
    assert completed.returncode == 0 and completed.stdout == "Open report.html in a browser.\n", completed.stderr
    assert "wrote report.html" in completed.stderr
    page = read(tmp_path / "report.html")
    assert page.row("round-robin", len(page.cells[0]))[0].endswith("(baseline)")
    completed = headway("report", "lmetric", "--json", cwd=tmp_path)
    assert (tmp_path / "lmetric" / "report.html").is_file() and '"report": "lmetric/report.html"' in completed.stdout


def test_the_command_that_a_page_shows_gives_the_same_again(headway: Run, tmp_path: Path) -> None:
    scorers = {"name": "weighted", "scorers": {"queue-depth": 1}}
    results = {"a": example(routing="round-robin"), "b": example(routing=scorers)}
    for name, result in results.items():
        result.save(tmp_path / name)
    for values, verb in ((["a"], "run"), (["a", "b"], "compare")):
        text = report([tmp_path / name for name in values], tmp_path / "page.html").read_text(encoding="utf-8")
        command = shlex.split(_unescaped(re.findall(r"<pre>(.*?)</pre>", text)[0]))
        assert command[:2] == ["headway", verb]
        completed = headway(*command[1:], "--json", cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr
        for name in values:
            assert str(results[name].summary()["latency"]["ttft"]["p99"]) in completed.stdout


def _unescaped(text: str) -> str:
    return re.sub(r"<.*?>", "", text).replace("&quot;", '"').replace("&#x27;", "'").replace("&amp;", "&")


def write_study(folder: Path, kind: Any, runs: list[tuple[str, Result, dict[str, Any]]], **more: Any) -> Path:
    entries = []
    for place, (label, result, vary) in enumerate(runs):
        result.save(folder / f"run-{place}")
        entries.append(study.run_entry(f"run-{place}", label, vary=vary, seeds=more.get("seeds", 1)))
    more.pop("seeds", None)
    study.write(folder, kind, runs[0][1].scenario, entries, stage="routing", verdict="What came of it.", **more)
    return folder


def paired(*given: Any) -> dict[str, Any]:
    return dict(zip(("policy", "figure", "mean", "delta", "low", "high", "word"), given, strict=True))


def test_a_comparison_folder_has_its_verdict_and_its_paired_differences(tmp_path: Path) -> None:
    runs = [(name, example(routing=name), {}) for name in ("round-robin", "lmetric")]
    rows = [
        paired("round-robin", "latency.ttft.p99", 300.0, None, None, None, "baseline"),
        paired("lmetric", "latency.ttft.p99", 200.0, -100.0, -120.0, -80.0, "better"),
        paired("round-robin", "latency.e2e.mean", 900.0, None, None, None, "baseline"),
        paired("lmetric", "latency.e2e.mean", 905.0, 5.0, -9.0, 19.0, "within noise"),
    ]
    place = write_study(tmp_path / "study", "comparison", runs, baseline="round-robin", paired=rows, seeds=10)
    page = read(report(place))
    assert (place / "report.html").is_file() and "What came of it." in page.text
    assert ["lmetric", "200.0▼ 100.0 ± 20.0", "905.0within noise"] in page.cells
    assert "means over 10 seeds" in page.text and "--seeds 10" in page.text


def test_a_sweep_over_rates_is_drawn_along_them_and_told_where_the_runs_differ_most(tmp_path: Path) -> None:
    rates, policies = ("8/s", "40/s"), ("round-robin", "lmetric")
    runs = []
    for rate, policy in product(rates, policies):
        built = simulate(
            {**SCENARIO, "workload": {**SCENARIO["workload"], "requests": 80, "rate": rate}}, routing=policy
        )
        runs.append((policy, built, {"workload.rate": rate, "policies.routing": policy}))
    vary = {"workload.rate": list(rates), "policies.routing": list(policies)}
    page = read(report(write_study(tmp_path / "sweep", "sweep", runs, vary=vary)))
    chart = next(each for each in page.charts() if each["description"].startswith("goodput, requests/s against"))
    values = {(row["policy"], row["at"]): row["value"] for row in chart["data"]["values"]}
    assert set(values) == set(product(policies, (8.0, 40.0)))
    for policy, result, given in runs:
        exact = result.summary()["slo"]["goodput_requests_per_s"]
        assert values[policy, float(given["workload.rate"][:-2])] == pytest.approx(exact, rel=1e-4)
    assert "except the sweep show workload.rate=40/s, where the runs differ most" in page.text
    assert [given["id"] for tag, given in page.seen if tag == "section"][2:4] == ["latencies", "sweep"]
    assert "headway sweep" in page.text


def test_a_sweep_over_words_shows_what_no_other_run_beats(tmp_path: Path) -> None:
    policies = ("round-robin", "lmetric", "least-loaded")
    runs = [(name, example(routing=name), {"policies.routing": name}) for name in policies]
    page = read(report(write_study(tmp_path / "s", "sweep", runs, vary={"policies.routing": list(policies)})))
    chart = next(each for each in page.charts() if "with the Pareto front" in each["description"])
    points = {row["label"]: (row["x"], row["y"], row["front"]) for row in chart["data"]["values"]}
    assert set(points) == set(policies)
    for name, (x, y, front) in points.items():
        beaten = any(a <= x and b >= y and (a, b) != (x, y) for other, (a, b, _) in points.items() if other != name)
        assert front is not beaten


def test_more_runs_than_colours_are_all_in_the_tables(tmp_path: Path) -> None:
    names = [
        "round-robin",
        "random",
        "lmetric",
        "weighted",
        "least-loaded",
        "sticky",
        "unified",
        "load-only",
        "prefix-overlap",
    ]
    results = [example(30, routing=name) for name in names]
    page = read(report(results, tmp_path / "page.html"))
    assert "Charts show 7 of 9 runs" in page.text
    heads = next(row for row in page.cells if row[0] == "run")
    assert all(page.row(name, len(heads)) for name in names)
    drawn = {row["policy"] for row in page.charts()[0]["data"]["values"]}
    assert len(drawn) == 7 and "round-robin" in drawn


def test_runs_that_differ_in_more_than_their_policy_are_told_apart_by_it(tmp_path: Path) -> None:
    slow, fast = example(30), simulate({**SCENARIO, "workload": {**SCENARIO["workload"], "requests": 30}})
    again = example(30)
    assert "To run it again" not in read(report([slow, fast], tmp_path / "page.html")).text
    harder = simulate({**SCENARIO, "workload": {**SCENARIO["workload"], "requests": 20}})
    text = read(report([fast, harder], tmp_path / "page.html")).text
    assert "so they are not ranked: they differ in workload.requests." in text and "serves this best" not in text
    page = read(report([slow, again], tmp_path / "page.html"))
    assert "round-robin, run 1" in page.text and "round-robin, run 2" in page.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "report: no folder. Name one that"),
        (("nowhere",), "no such folder; `headway run -o` writes one."),
        (("run", "study"), "is a study folder; report it alone"),
        (("run", "-o", "run"), "--output: 'run' is a folder; name a file, as in 'run/report.html'."),
        (("run", "-o", "no/page.html"), "cannot be written"),
    ],
)
def test_wrong_wishes_are_told_in_a_sentence(
    arguments: tuple[str, ...], words: str, headway: Run, tmp_path: Path
) -> None:
    result = example(5)
    result.save(tmp_path / "run")
    write_study(tmp_path / "study", "comparison", [("round-robin", result, {})])
    completed = headway("report", *arguments, cwd=tmp_path)
    assert completed.returncode == 2 and words in completed.stderr and len(completed.stderr.strip().splitlines()) == 1


def test_nothing_to_report_is_an_error_from_python_too() -> None:
    with pytest.raises(HeadwayError, match="at least one"):
        report([])


@pytest.mark.parametrize(("horizon", "words"), [("1ms", "No request arrived"), ("300ms", "No request was completed")])
def test_a_run_that_gave_nothing_makes_a_page_all_the_same(horizon: str, words: str, tmp_path: Path) -> None:
    scenario = {**SCENARIO, "horizon": horizon, "workload": {**SCENARIO["workload"], "requests": 5}}
    result = simulate(scenario, trace="decisions")
    result.save(tmp_path / "run")
    for source in (result, tmp_path / "run"):
        page = read(report(source, tmp_path / "page.html"))
        assert words in page.text and "Parameters" in page.text

"""A run in words: true to the records in every figure, within its limit, the most important first."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from recount_groups import FullRecount
from told_runs import PREFIXES, RUNS, told_run

import headway.policies  # noqa: F401  (registers them)
from conftest import Run
from drawing import grid
from headway import simulate
from headway.errors import HeadwayError
from headway.results.decisions import Decision, Decisions, scorer_weights
from headway.results.findings import KINDS
from headway.results.records import Counterfactual, Finding
from headway.results.result import Result
from headway.results.survey import Survey, survey
from headway.results.words import FOCUS, STRATEGIES, Fact, compose, facts, material, summarize, tokens
from headway.results.words.compose import fit
from headway.results.words.focus import OTHERS
from headway.results.words.issues import AREAS
from headway.results.words.material import Material
from headway.results.words.mining import mine
from headway.results.words.phrases import FEWEST_TOKENS, Line, Section, amount, name, phrase

# A number that stands for itself: not a part of a name such as p99.
NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?:,\d{3})*(?:\.\d+)?")
LONG = 20_000  # tokens in which everything can be said


@pytest.fixture(scope="module", autouse=True)
def one_survey_of_a_run() -> Iterator[None]:
    """All decisions of a run are gone through once, however often something is told of it."""
    known: dict[tuple[int, int, bytes], tuple[Survey, Result, Any]] = {}

    def surveyed(result: Result, missed: Any) -> Survey:
        key = id(result), id(result.decisions), bytes(flag + 1 for flag in missed)
        if key not in known:
            known[key] = survey(result, missed), result, result.decisions  # so that no other object gets their ids
        return known[key][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(material, "survey", surveyed)
        yield


def numbers(text: str) -> list[str]:
    return NUMBER.findall(text)


def told(name: str, strategy: str, **options: Any) -> Any:
    return compose(told_run(name), strategy=strategy, **{"max_tokens": LONG, **options})


def written(text: str) -> tuple[float, float]:
    """The number that a fact is written as, in the unit of its value, and the width of its last digit."""
    number = numbers(text.removeprefix("t="))[0]
    decimals = len(number.partition(".")[2])
    scale = 0.01 if text.endswith(" %") else 1.0
    return float(number.replace(",", "")) * scale, scale * 10.0**-decimals


@pytest.mark.parametrize(("name", "strategy"), grid(list(RUNS), list(STRATEGIES)))
def test_every_number_in_the_text_is_a_fact_and_every_fact_is_as_the_records_have_it(name: str, strategy: str) -> None:
    summary = told(name, strategy)
    body = re.sub(r"(?m)^\d+\. ", "", summary.text)  # the numbers of a list
    assert numbers(body) == [number for fact in summary.facts for number in numbers(fact.text)]
    patterns = [fact.value for fact in summary.facts if fact.source.endswith(".conditions")]
    recount = FullRecount(told_run(name), {"examples": 3, "patterns": patterns})
    for fact in summary.facts:
        value = recount.value(fact.source)
        if isinstance(value, str):
            assert fact.value == value, fact
            continue
        assert isclose(fact.value, value, rel_tol=1e-9, abs_tol=1e-12), (fact, value)
        printed, last = written(fact.text)
        assert abs(printed - value) <= 0.5000001 * last, (fact, value)


def test_the_share_that_met_the_slo_is_one_of_the_requests_that_are_named() -> None:
    """Turns that clients gave up count as missed, and the warm-up does not count."""
    chat = {"requests": 200, "rate": "4/s", "kind": "chat", "timeout": "3s"}
    result = simulate(PREFIXES | {"warmup": 20, "workload": chat})
    rows, requests = result.requests.rows(), result.summary()["requests"]
    assert requests["abandoned"] > 20
    limits = {"ttft": 500 * 10**9, "tpot": 25 * 10**9}
    good = sum(
        row["outcome"] == "completed"
        and row["first_token_ps"] - row["arrival_ps"] <= limits["ttft"]
        and row["finished_ps"] - row["first_token_ps"] <= limits["tpot"] * (row["output_tokens"] - 1)
        for row in rows
        if row["request"] >= 20
    )
    planned = requests["arrived"] - 20 + requests["abandoned"]
    message = f"{100 * good / planned:.1f} % of {planned:,} planned requests after the warm-up met their SLO"
    assert message in compose(result).text


@pytest.mark.parametrize("name", RUNS)
def test_the_facts_stand_in_the_text_in_their_order(name: str) -> None:
    summary = told(name, "issue-focused")
    place = 0
    for fact in summary.facts:
        place = summary.text.index(fact.text, place) + len(fact.text)
    assert facts(told_run(name), max_tokens=LONG) == summary.facts


@pytest.mark.parametrize("name", RUNS)
def test_figures_in_the_title_of_a_finding_are_quoted_as_they_are(name: str) -> None:
    summary = told(name, "issue-focused")
    quoted = [fact for fact in summary.facts if re.fullmatch(r"finding\.\d+\.title", fact.source)]
    kinds = {each.kind for each in told_run(name).findings()}
    assert len(quoted) == len(kinds)
    assert all(fact.text == str(fact.value).rstrip(".") for fact in quoted)


# --- the limit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "strategy"), grid(list(RUNS), list(STRATEGIES)))
def test_the_limit_is_kept_and_the_outcome_is_always_there(name: str, strategy: str) -> None:
    result = told_run(name)
    for limit in (50, 75, 150, 400, 1000, 1500, LONG):
        summary = compose(result, strategy=strategy, max_tokens=limit)
        assert tokens(summary.text) <= summary.tokens <= limit
        lines = summary.text.splitlines()
        outcome = lines[0] if len(lines) == 1 else lines[1].removeprefix("- ")
        assert outcome.startswith(("✓ met: ", "✗ missed: ", "No SLO was set: ", "Nothing to judge: "))
        assert all(line.endswith(".") for line in lines if line and not line.startswith("#")), "whole sentences only"
        worst = summary.text.partition("## Worst Decisions")[2]
        assert len({worst.count(word) for word in (" went to ", "Context: ", "Result: ", "Regret: ")}) == 1
        counted = re.match(r" \((\d+) examples?\)", worst)
        assert counted is None or int(counted[1]) == worst.count("Context: "), "as many as are told of"


def test_a_run_with_something_to_say_takes_between_500_and_1500_tokens() -> None:
    for run in ("prefixes", "round-robin", "tenants", "autoscaled", "disaggregated", "preempted", "faults"):
        for strategy in STRATEGIES:
            assert 500 <= compose(told_run(run), strategy=strategy).tokens <= 1500


def test_the_outcome_of_a_huge_run_fits_into_the_smallest_limit() -> None:
    result = told_run("prefixes")
    summary = json.loads(result.to_json())
    summary["requests"] |= {"arrived": 10**9, "completed": 10**9 - 1}
    summary["latency"]["ttft"]["p99"] = 123_456_789.0
    huge = Result(result.scenario, result.requests, summary)
    for slo in (result.scenario["slo"], {}):
        huge.scenario = {**result.scenario, "slo": slo}
        text = compose(huge, max_tokens=FEWEST_TOKENS, findings=[])
        assert text.tokens <= FEWEST_TOKENS and "1,000,000,000 requests" in text.text


def test_a_limit_in_which_nothing_can_be_said_is_an_error() -> None:
    with pytest.raises(HeadwayError, match="must be 50 or more, to fit the outcome, got 49"):
        summarize(told_run("prefixes"), max_tokens=49)


def test_lines_go_by_weight_and_what_belongs_to_a_line_goes_with_it() -> None:
    def section(*lines: Line) -> list[Section]:
        return [Section(("## A",), list(lines))]

    head, detail = Line(("the head of it.",), 1), Line(("a detail.",), 5, 1)
    light, heavy = Line(("something light.",), 9), Line(("something heavy.",), 0)
    everything = section(light, head, detail, heavy)
    full = fit(everything, 1000)
    assert "".join(map(str, full[0])).splitlines()[1:] == [
        "- something light.",
        "- the head of it.",
        "   - a detail.",
        "- something heavy.",
    ]
    without = [fit(everything, limit) for limit in range(full[1] - 1, 0, -1)]
    printed = list(dict.fromkeys("".join(map(str, parts)) for parts, _ in without))
    assert [text.count("\n") for text in printed] == [4, 3, 2, 1]
    assert "light" not in printed[0] and "detail" not in printed[1] and "head" not in printed[2]
    assert printed[3] == "something heavy.\n"
    bound = section(heavy, Line(("an example.",), 1, bound=1), Line(("with its result.",), 1, 1))
    whole = fit(bound, 1000)[1]
    assert "example" not in "".join(map(str, fit(bound, whole - 1)[0]))


# --- tokens --------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_so_that_no_tokenizer_finds_more() -> None:
    # Each with what the worst of cl100k, o200k, p50k, Qwen's, Claude's, Tekken and Mistral's makes of it.
    for text, most in (
        ("", 0),
        ("The prefix was routed away.\n", 8),
        ("TTFT p99 5,990 ms (target 500 ms) ✗ missed, 87.1 % within.\n", 40),
        ("- Tenant crawler: 322 requests; instance-0 had 17 queued.\n", 25),
    ):
        assert tokens(text) >= most
    assert tokens("xqzjkv", {"xqzjkv"}) == 6 and tokens("KV") == 2 and tokens("é") == 2


def test_a_name_that_somebody_made_up_counts_by_its_letters() -> None:
    summary = told("odd names", "issue-focused", max_tokens=1500)
    assert summary.tokens > tokens(summary.text) >= summary.tokens / 2


# --- what it says --------------------------------------------------------------------------------------------------


def test_it_says_which_policy_ran_with_which_parameters() -> None:
    text = told("prefixes", "issue-focused").text
    assert "routing weighted (prefix-affinity 3, queue-depth 2, kv-utilization 2, picker max-score)" in text
    assert "routing round-robin." in told("round-robin", "issue-focused").text


def test_targets_are_signed_as_met_or_missed() -> None:
    text = told("round-robin", "issue-focused").text
    assert re.search(r"TTFT: p99 \d+ ms \(target 500 ms\) ✗ missed", text)
    assert re.search(r"TPOT: p99 21\.\d ms \(target 25\.0 ms\) ✓ met", told("prefixes", "issue-focused").text)
    tenants = told("tenants", "issue-focused").text
    assert re.search(r"Tenant crawler: .* \(target 10,000 ms\) ✓ met", tenants)
    assert re.search(r"Tenant shop: .* \(target 500 ms\) ✗ missed", tenants)


def test_requests_sent_away_from_their_prefix_are_an_issue_of_routing() -> None:
    text = told("round-robin", "issue-focused").text
    assert re.search(r"ROUTING: \d+ of 300 decisions passed over an instance believed to cache more", text)
    assert "Routing: use lmetric, which weighs the cached prefix against the load" in text


def test_a_bursting_tenant_that_others_suffer_from_is_an_issue_of_admission() -> None:
    text = told("tenants", "issue-focused").text
    assert "ADMISSION: Bursts of tenant crawler caused" in text
    assert "Bursts of tenant" not in told("admission", "issue-focused").text


def test_losses_are_an_issue_with_their_reason() -> None:
    text = told("all rejected", "issue-focused").text
    assert "ADMISSION: 283 of 300 requests (94.3 %) were rejected" in text
    assert "allowance of requests is spent (283 times)" in text


def test_an_empty_run_and_an_untraced_one_say_so_in_one_line() -> None:
    assert "Nothing to judge: 0 requests arrived." in told("empty", "issue-focused").text
    assert "No request was routed." in told("empty", "decision-audit").text
    for strategy in STRATEGIES:
        text = told("untraced", strategy).text
        assert "headway run --trace decisions" in text
        assert "not traced" not in told("prefixes", strategy).text


def test_decisions_that_were_simulated_again_come_first_by_what_they_gain() -> None:
    summary = told("simulated again", "counterfactual", examples=5)
    supposed = [line for line in summary.text.splitlines() if line.startswith("- If request")]
    simulated = [line for line in supposed if "by the latency model" not in line]
    assert len(simulated) == 15 and supposed[:15] == simulated
    gains = [float(re.findall(r"come ([\d,.]+) ms sooner", line)[0].replace(",", "")) for line in simulated]
    assert gains == sorted(gains, reverse=True)
    assert summary.scores["regret.true"] > 0
    worst = told("simulated again", "issue-focused").text
    assert worst.count("Regret: simulated again, ") == 3
    contexts = [line for line in worst.splitlines() if "Context: " in line]
    assert contexts and all(line.count(" was believed to cache ") == 2 for line in contexts), "chosen and better"


def test_an_audit_takes_decisions_at_even_distances() -> None:
    summary = told("prefixes", "decision-audit")
    places = [
        int(fact.source.split(".")[1]) for fact in summary.facts if re.fullmatch(r"decision\.\d+\.request", fact.source)
    ]
    assert places == [25 * turn for turn in range(12)]


def test_patterns_are_above_the_base_rate_and_the_most_telling_first() -> None:
    mined = mine(Material(told_run("tenants")))
    assert mined.patterns
    assert all(pattern.lift >= 1.2 and pattern.support >= 20 for pattern in mined.patterns)
    assert [pattern.excess for pattern in mined.patterns] == sorted(
        (pattern.excess for pattern in mined.patterns), reverse=True
    )
    assert any(dict(pattern.conditions).get("queue at target") == "20+" for pattern in mined.patterns)


def test_a_focus_leaves_only_its_own_areas() -> None:
    summary = told("tenants", "issue-focused", focus=("admission",))
    issues = re.findall(r"(?m)^\d+\. ([A-Z]+): ", summary.text)
    assert issues == ["ADMISSION"]
    assert "more issues in other areas" in summary.text
    suggested = summary.text.partition("## Suggested Focus\n")[2]
    assert suggested.count("\n- ") == 0 and "It should improve slo.goodput_ratio." in suggested


def test_counterfactuals_can_be_left_out_and_examples_are_as_many_as_asked_for() -> None:
    text = told("prefixes", "issue-focused", counters=False).text
    assert "Counterfactual" not in text and "Worst Decisions" not in text
    assert told("prefixes", "issue-focused", examples=5).text.count("Regret: ") == 5
    assert "Worst Decisions" not in told("prefixes", "issue-focused", examples=0).text


def test_what_is_not_known_is_an_error_that_says_what_was_meant() -> None:
    result = told_run("empty")
    with pytest.raises(HeadwayError, match=r"unknown area 'rooting'\. Did you mean 'routing'"):
        summarize(result, focus=["rooting"])
    with pytest.raises(HeadwayError, match="Did you mean 'decision-audit'"):
        summarize(result, strategy="decision_audit")
    with pytest.raises(HeadwayError, match="examples: must be 0 or more"):
        summarize(result, examples=-1)


def test_every_kind_of_finding_has_an_area() -> None:
    assert set(KINDS) <= set(AREAS) and set(OTHERS) <= set(AREAS)
    assert set(AREAS.values()) == set(FOCUS)


def test_a_reader_gets_only_suggestions_for_the_stages_that_he_may_change() -> None:
    def suggested(**options: Any) -> str:
        return str(told("tenants", "issue-focused", **options).text.partition("## Suggested Focus\n")[2])

    assert "- Cluster: " in suggested()
    assert set(re.findall(r"(?m)^- (\w+): ", suggested(may="admission"))) == {"Admission"}
    assert set(re.findall(r"(?m)^- (\w+): ", suggested(may=["routing", "admission"]))) <= {"Routing", "Admission"}
    assert suggested(may="scaling") == "- No suggestion for scaling: a change of another stage is needed.\n"
    kept = told("tenants", "issue-focused", may="scheduler").findings
    assert {each.stage for finding in kept for each in finding.suggestions} == {"scheduler"}
    with pytest.raises(HeadwayError, match=r"may: there is no stage 'rooting'\. The stages are admission, priority"):
        summarize(told_run("empty"), may="routing,rooting")


def test_findings_may_be_given_from_elsewhere_and_those_of_a_kind_are_told_once() -> None:
    values = [
        Finding("hot_spot", 5 * 10**12, 9 * 10**12, 0.9, 12, "12 requests waited on instance-0.", [3, 5], [0]),
        Finding("hot_spot", 10**12, 10**12, 0.1, 4, "4 requests waited on instance-1.", [], [1]),
    ]
    text = told("prefixes", "issue-focused", findings=values).text
    assert "1. ROUTING: 12 requests waited on instance-0.\n" in text
    assert "From t=5.000 s to t=9.000 s, on instance-0; for example requests 3, 5.\n" in text
    assert "1 more of this kind; 16 requests or events in total." in text


def test_odd_names_stand_in_the_text_without_the_signs_of_markdown() -> None:
    text = told("odd names", "issue-focused").text
    assert "Ran odd names 3 for" in text and "Tenant Zürich 4:" in text
    assert name("x", "a" * 99).text == "a" * 40 + "..." and name("x", "").text == '""'


def test_a_template_has_a_place_for_each_fact() -> None:
    with pytest.raises(ValueError, match="has 2 places for 1 facts"):
        phrase("{} of {}", amount("x", 1))
    assert phrase("{} of {}", amount("x", 1), amount("y", 2.5)) == (Fact("x", 1, "1"), " of ", Fact("y", 2.5, "2.50"))


@pytest.mark.full
def test_the_same_run_gives_the_same_words_also_from_its_folder(tmp_path: Path) -> None:
    for run in ("tenants", "disaggregated"):
        result = told_run(run)
        result.save(tmp_path / run)
        for strategy in STRATEGIES:
            once = compose(result, strategy=strategy)
            assert compose(Result.load(tmp_path / run), strategy=strategy) == once
            assert compose(RUNS[run](), strategy=strategy) == once


# --- decisions by hand -------------------------------------------------------------------------------------------


def decision(request: int, target: int, believed: list[int], queued: list[int], times: list[int]) -> Decision:
    return Decision(
        request=request,
        at_ps=10**12 + request,
        router=0,
        target=target,
        prefill=-1,
        reason="",
        priority=0.0,
        candidates=[0, 1, 2],
        inflight=queued,
        pending_prefill_tokens=[0, 0, 0],
        queued=queued,
        running=[1, 2, 3],
        kv_used=[],
        believed_tokens=believed,
        estimated_ttft_ps=times,
        scores={"near": [0.0, 0.5, 1.0], "idle": [1.0, 0.0, None]},
        totals=[1.0, 0.5, 1.0],
        lowest_wins=False,
    )


def test_what_decisions_come_to_is_as_counted_by_hand() -> None:
    source = told_run("prefixes")
    built = [
        decision(0, 0, [0, 64, 128], [0, 0, 4], [5 * 10**9, 3 * 10**9, 4 * 10**9]),  # away from 2, which has 4 queued
        decision(1, 0, [0, 64, 0], [0, 5, 0], [2 * 10**9, 2 * 10**9, 2 * 10**9]),  # away from 1, which has 5
        decision(2, 1, [0, 64, 64], [0, 0, 0], [1, 9 * 10**9, -1]),  # where most is, and not where it is soonest
        decision(3, 2, [512, 0, 0], [0, 0, 0], [-1, -1, -1]),  # nobody computes prompts
    ]
    result = Result(source.scenario, source.requests, source.summary(), decisions=Decisions(built))
    totals = survey(result, array("b", [0]) * len(source.requests))
    assert (totals.count, totals.estimated, totals.regretted, totals.candidates) == (4, 3, 2, 12)
    assert totals.regret_ps == 2 * 10**9 + 9 * 10**9 - 1
    assert [place for _, place in totals.worst] == [2, 0]
    away = totals.away
    assert (away.count, away.tokens, away.short_queue) == (2, 128 + 64, 1)
    assert away.deciders == {"idle": 1}
    assert list(totals.queued[:4]) == [0, 0, 0, 0] and list(totals.believed[:4]) == [0, 0, 64, 0]


def test_of_a_pair_the_half_is_named_that_would_have_been_another() -> None:
    source = told_run("disaggregated")
    ids = source.instance_ids()
    assert source.decisions is not None
    each = next(each for each in source.decisions if each.prefill >= 0 and each.ttft_ps > 0)
    other = next(index for index in each.candidates if ids[index].startswith("decode") and index != each.target)
    built = Counterfactual(
        request=each.request,
        at_ps=each.at_ps,
        chosen=each.target,
        alternative=other,
        ttft_ps=each.ttft_ps,
        alternative_ttft_ps=each.ttft_ps // 2,
        e2e_ps=each.e2e_ps,
        alternative_e2e_ps=each.e2e_ps,
        objective="slo.goodput_ratio",
        value=1.0,
        alternative_value=1.0,
        chosen_prefill=each.prefill,
        alternative_prefill=each.prefill,
    )
    requests, summary = source.requests, source.summary()
    result = Result(source.scenario, requests, summary, decisions=source.decisions, counterfactuals=[built])
    assert f"Regret: simulated again, {ids[other]} gave a TTFT of" in summarize(result, max_tokens=4000)


def test_of_a_number_of_equal_scorers_each_goes_by_its_own_weight() -> None:
    routing = {"scorers": [{"name": "a", "weight": 2}, {"name": "b", "weight": 1}, {"name": "a", "weight": 5}]}
    assert scorer_weights(routing) == {"a": 2.0, "b": 1.0, "a#2": 5.0}
    assert scorer_weights({"name": "random"}) == scorer_weights("random") == {}


# --- the verb ------------------------------------------------------------------------------------------------------


def test_the_verb_prints_the_text_or_one_document(tmp_path: Path, headway: Run) -> None:
    result = told_run("tenants")
    result.save(tmp_path / "run")
    folder = str(tmp_path / "run")
    completed = headway("summarize", folder)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == summarize(result)
    options_given = (
        "--max-tokens",
        "700",
        "--focus",
        "admission",
        "--focus",
        "scheduling",
        "--examples",
        "1",
        "--no-counters",
    )
    options: dict[str, Any] = {
        "max_tokens": 700,
        "focus": ("admission", "scheduling"),
        "examples": 1,
        "counters": False,
    }
    document = json.loads(headway("summarize", folder, *options_given, "--strategy", "pattern-mining", "--json").stdout)
    assert list(document) == ["text", "tokens", "facts", "scores", "findings"]
    assert document["text"] == summarize(result, strategy="pattern-mining", **options)
    assert document["scores"]["slo.goodput_ratio"] == result.summary()["slo"]["goodput_ratio"]
    assert document["tokens"] <= 700 and len(document["findings"]) == len(result.findings())


def test_the_verb_refuses_what_it_does_not_know(tmp_path: Path, headway: Run) -> None:
    told_run("empty").save(tmp_path / "run")
    completed = headway("summarize", str(tmp_path / "run"), "--focus", "rooting")
    assert completed.returncode == 2 and "Did you mean 'routing'?" in completed.stderr and not completed.stdout
    completed = headway("summarize", str(tmp_path / "run"), "--may", "routing,rooting")
    assert completed.returncode == 2 and "--may: there is no stage 'rooting'. The stages are" in completed.stderr
    assert headway("summarize", str(tmp_path / "nothing")).returncode == 2


def test_signs_that_a_terminal_cannot_show_are_replaced(tmp_path: Path, headway: Run) -> None:
    told_run("round-robin").save(tmp_path / "run")
    completed = headway("summarize", str(tmp_path / "run"), PYTHONIOENCODING="ascii")
    assert completed.returncode == 0 and "x missed: " in completed.stdout and "?" not in completed.stdout

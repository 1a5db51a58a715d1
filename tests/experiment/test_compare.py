"""Comparing from Python: every form of a policy, and verdicts that claim only what the figures show."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway
from conftest import ROOT
from headway import HeadwayError, Route
from headway.experiment import jobs
from headway.experiment.run import prepare
from headway.experiment.verdict import verdict
from headway.policies import registry
from headway.scenario.scenario import Scenario

SCENARIO: dict[str, Any] = {
    "seed": 5,
    "workload": {"requests": 40, "rate": "20/s", "prompt_tokens": 200, "output_tokens": 10},
    "cluster": {"instances": 3, "kv": {"gpu_blocks": 400}, "latency": {"model": "fixed"}},
    "slo": {"ttft": "500ms", "tpot": "50ms"},
}


class Last:
    def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
        return Route(cluster.instances[-1].id)


class Picky(Last):
    def __init__(self, taste: str) -> None:
        self.taste = taste


class Refuse:
    def admit(self, request: headway.Request, cluster: headway.ClusterView) -> headway.Reject:
        return headway.Reject("no")


def routed(result: headway.Result) -> list[int]:
    return [instance["requests"] for instance in result.summary()["instances"]]


# --- whatever names a policy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["always_busiest", {"name": "always-busiest"}])
def test_simulate_takes_a_name_or_a_mapping(policy: Any) -> None:
    result = headway.simulate(SCENARIO, routing=policy)
    assert routed(result) == [40, 0, 0]
    assert result.scenario["policies"]["routing"] == {"name": "always-busiest"}


@pytest.mark.parametrize("policy", [Last, Last(), Picky("sweet")])
def test_simulate_takes_a_class_or_an_object(policy: Any) -> None:
    assert routed(headway.simulate(SCENARIO, routing=policy)) == [0, 0, 40]


@pytest.mark.parametrize("policy", [Refuse, Refuse()])
def test_admission_is_taken_likewise(policy: Any) -> None:
    assert headway.simulate(SCENARIO, admission=policy).summary()["requests"]["rejected"] == 40
    assert headway.simulate(SCENARIO, admission="always").summary()["requests"]["rejected"] == 0


def test_an_object_of_the_catalogue_is_written_with_its_parameters() -> None:
    from headway.policies.b3 import Unified

    result = headway.simulate(SCENARIO, routing=Unified(overload_factor=3.0))
    spec = result.scenario["policies"]["routing"]
    assert (spec["name"], spec["overload_factor"]) == ("unified", 3.0)
    assert headway.simulate(result.scenario) == result


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (7, "routing: expected a policy's name, a mapping with 'name', or a class or object with the method 'route'"),
        (Refuse, "with the method 'route'"),
        (Picky, "routing: Picky() failed: TypeError"),
        ("rnadom", "no routing policy is called 'rnadom'. Did you mean 'random'?"),
        ({"name": "unified", "overload": 2}, "policies.routing.overload"),
    ],
)
def test_what_is_no_policy_is_told_without_a_word_of_the_command_line(policy: Any, message: str) -> None:
    for call in (lambda: headway.simulate(SCENARIO, routing=policy), lambda: headway.compare(SCENARIO, [policy])):
        with pytest.raises(HeadwayError) as caught:
            call()
        assert "--" not in str(caught.value)
    with pytest.raises(HeadwayError) as caught:
        headway.simulate(SCENARIO, routing=policy)
    assert message in str(caught.value)


def test_a_mistake_in_an_object_is_told_and_its_cause_kept() -> None:
    class Fails(Last):
        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            raise LookupError("lost")

    with pytest.raises(
        HeadwayError, match=r"test_compare\.py line \d+, in Fails\.route: LookupError: lost, at request 0\."
    ) as e:
        headway.simulate(SCENARIO, routing=Fails())
    assert isinstance(e.value.__cause__, LookupError)


def test_a_mistake_in_a_library_is_told_at_the_line_that_called_it() -> None:
    class Fails(Last):
        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            return Route(yaml.safe_load("[")[request.id])

    with pytest.raises(
        HeadwayError,
        match=r"^tests.experiment.test_compare\.py line \d+, in Fails\.route: ParserError: .*, at request 0\.",
    ):
        headway.simulate(SCENARIO, routing=Fails())


def test_the_request_of_a_mistake_is_the_one_in_hand_whatever_a_policy_calls_its_variables() -> None:
    class Fails(Last):
        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            if request.id == 3:
                self.look(request_id=77)
            return super().route(request, cluster)

        def look(self, request_id: int) -> None:
            raise LookupError("lost")

    with pytest.raises(HeadwayError, match=r"in Fails\.look: LookupError: lost, at request 3\.$"):
        headway.simulate(SCENARIO, routing=Fails())


def test_an_exception_of_the_callers_own_progress_is_left_alone() -> None:
    def stop(arrived: int, now_ps: int) -> None:
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        headway.simulate(SCENARIO, routing="random", progress=stop)


def test_what_a_policy_prints_goes_where_its_caller_prints(capsys: pytest.CaptureFixture[str]) -> None:
    class Noisy(Last):
        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            print("routed")
            return super().route(request, cluster)

    headway.simulate(SCENARIO, routing=Noisy)
    headway.compare(SCENARIO, [Noisy, "random", "round-robin"])
    assert capsys.readouterr() == ("routed\n" * 80, "")


def test_a_prepared_run_is_the_one_that_simulate_runs() -> None:
    prepared = prepare(Scenario.load(SCENARIO), routing="power-of-two")
    recorder = prepared.simulation().run(prepared.traffic())
    assert list(recorder.instance) == headway.simulate(SCENARIO, routing="power-of-two").requests["instance"]


def test_compare_takes_names_mappings_classes_and_objects() -> None:
    chosen = ["random", {"name": "unified", "overload_factor": 3}, Last, Picky("sour")]
    comparison = headway.compare(SCENARIO, chosen)
    assert sorted(name for name, _ in comparison.ranked) == ["Last", "Picky", "random", "unified(overload_factor=3)"]
    assert comparison["Last"] == headway.simulate(SCENARIO, routing=Last).summary()
    assert comparison["unified"] == headway.simulate(SCENARIO, routing=chosen[1]).summary()


@pytest.mark.parametrize("policies", ["random", {"name": "random"}, ["random"]])
def test_a_single_policy_needs_no_list(policies: Any) -> None:
    assert [name for name, _ in headway.compare(SCENARIO, policies).ranked] == ["random"]


def test_text_may_name_several() -> None:
    result = headway.compare(SCENARIO, "random, {name: weighted, scorers: {load-balance: 1}}").ranked
    assert {name for name, _ in result} == {"random", "weighted(load-balance:1)"}


def test_no_policy_is_an_error_that_lists_them() -> None:
    with pytest.raises(HeadwayError, match=r"^policies: name at least one routing policy\. Known: .*round-robin"):
        headway.compare(SCENARIO, [])


def test_the_scenarios_own_policy_is_labelled_with_what_is_not_default() -> None:
    routing = {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1, "lru_blocks": 9}]}
    own = {**SCENARIO, "policies": {"routing": routing}}
    names = [name for name, _ in headway.compare(own, ["weighted", "random"]).ranked]
    assert "weighted(prefix-affinity:1 lru_blocks=9)" in names
    profile = {"kv-utilization": 2, "prefix-affinity": 3, "queue-depth": 2}
    default = {**SCENARIO, "policies": {"routing": {"name": "weighted", "scorers": profile}}}
    assert "weighted" in [name for name, _ in headway.compare(default, ["weighted", "random"]).ranked]


def test_any_figure_ranks() -> None:
    result = headway.compare(SCENARIO, ["round-robin", "always-busiest"], by="latency.ttft.p99")
    tails = [summary["latency"]["ttft"]["p99"] for _, summary in result.ranked]
    assert tails == sorted(tails)
    assert result.summary()["by"] == result.by == "latency.ttft.p99"
    assert headway.compare(SCENARIO, "random").summary()["by"] is None


def test_an_unknown_figure_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.experiment.compare.simulate", lambda *_, **__: pytest.fail("simulated"))
    with pytest.raises(HeadwayError, match=r"^by: runs cannot be ranked by .* Did you mean 'latency\.tpot\.p99'\?$"):
        headway.compare(SCENARIO, ["random"], by="latency.tpot.p999")


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_part_that_the_caller_declared_is_known_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))  # the tests of the schemas list all scorers

    @headway.policy("scorer", "test-compare-spare")
    class Spare:
        def score(self, request: headway.Request, candidates: Any, cluster: headway.ClusterView) -> list[float]:
            return [1 - view.kv_utilization for view in candidates]

    chosen = [{"name": "weighted", "scorers": {"test_compare_spare": weight}} for weight in (1, 2)]
    with elsewhere():
        assert len(headway.compare(SCENARIO, [*chosen, "random", "round-robin"], workers=2).ranked) == 4


@contextmanager
def elsewhere() -> Iterator[None]:
    """A program with a second thread."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores are ours")
def test_there_is_a_worker_for_each_core_unless_a_number_is_given(
    one_core: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "cores", one_core)
    assert jobs.available(None) == len(os.sched_getaffinity(0))
    assert jobs.available(5) == 5


def test_a_program_with_threads_is_not_forked() -> None:
    with elsewhere():
        assert jobs._context().get_start_method() == "spawn"


@pytest.mark.full
@pytest.mark.parametrize("how", ["file", pytest.param("stdin", marks=pytest.mark.full)])
def test_a_script_with_threads_and_without_a_guard_runs_once(how: str, tmp_path: Path) -> None:
    script = (
        "import threading, headway\n"
        "print('once')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"print(len(headway.compare({SCENARIO!r}, 'random,round-robin', workers=2).ranked))\n"
    )
    file = tmp_path / "script.py"
    file.write_text(script)
    command = [sys.executable, str(file)] if how == "file" else [sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    settings = script if how == "stdin" else None
    process = subprocess.run(
        command, input=settings, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (process.stdout, process.stderr) == ("once\n2\n", "")


def _compared() -> int:
    return len(headway.compare(SCENARIO, "random,round-robin", workers=2).ranked)


@pytest.mark.full
def test_a_daemon_which_may_have_no_processes_compares_by_itself() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_compared).get(timeout=300) == 2  # a broken worker would block forever


# --- the verdict ------------------------------------------------------------------------------------------------------

SLO = {"slo": {"ttft": "1s", "tpot": None}, "warmup": 0}
NO_SLO = {"slo": {"ttft": None, "tpot": None}, "warmup": 0}


def summary(
    share: float = 1.0, ttft: float | None = 100.0, e2e: float | None = 1000.0, lost: int = 0
) -> dict[str, Any]:
    requests = {"arrived": 100, "completed": 100 - lost, "rejected": lost, "timed_out": 0, "failed": 0, "in_flight": 0}
    return {
        "requests": requests,
        "latency": {"ttft": {"p99": ttft}, "e2e": {"mean": e2e}},
        "slo": {"goodput_ratio": share, "ttft_attainment": share, "tpot_attainment": None},
    }


def test_a_clear_winner_is_named_against_round_robin() -> None:
    ranked = [("a", summary(0.98, 100)), ("b", summary(0.97, 120)), ("round-robin", summary(0.8, 300))]
    assert verdict(ranked, SLO) == (
        "a serves this best: 98.0 % within the SLO, TTFT p99 100.0 ms "
        "(round-robin: 80.0 % within the SLO, TTFT p99 300.0 ms)."
    )


def test_policies_that_hardly_differ_are_level() -> None:
    ranked = [
        ("unified", summary(0.9994, 100)),
        ("lmetric-plus-one", summary(0.9992, 101)),
        ("lmetric", summary(0.9991, 102)),
        ("weighted", summary(0.999, 103)),
        ("random", summary(0.9, 100)),
    ]
    assert verdict(ranked, SLO) == (
        "unified, lmetric-plus-one and lmetric are within 2 % of each other: 99.9 % within the SLO, "
        "TTFT p99 100.0 to 102.0 ms "
        "(weighted: 99.9 % within the SLO, TTFT p99 103.0 ms)."
    )


def test_many_level_policies_are_counted() -> None:
    sentence = verdict([(f"p{number}", summary()) for number in range(9)], SLO)
    tie = "are within 2 % of each other"
    assert sentence == f"p0, p1, p2, p3 and 5 others {tie}: 100.0 % within the SLO, TTFT p99 100.0 ms."


def test_without_an_slo_policies_are_level_by_end_to_end_time() -> None:
    ranked = [("a", summary(e2e=1000)), ("b", summary(e2e=1010)), ("c", summary(e2e=1010, lost=1))]
    tie = "are within 2 % of each other"
    sentence = f"a and b {tie}: E2E 1,000 to 1,010 ms on average (c: E2E 1,010 ms on average)."
    assert verdict(ranked, NO_SLO) == sentence


def test_ranked_by_a_figure_the_verdict_is_about_that_figure() -> None:
    ranked = [("a", summary(0.2, 100)), ("b", summary(0.9, 101)), ("round-robin", summary(0.8, 300.25))]
    by = "latency.ttft.p99"
    assert (
        verdict(ranked, SLO, by=by)
        == "a and b are within 2 % of each other: latency.ttft.p99 100 to 101 (round-robin: latency.ttft.p99 300.2)."
    )
    assert verdict(ranked[::2], SLO, by=by).startswith("a is lowest: latency.ttft.p99 100 (round-robin: ")
    assert verdict([ranked[1], ranked[0]], SLO, by="slo.goodput_ratio").startswith(
        "b is highest: slo.goodput_ratio 0.9000 (a"
    )


def test_where_nobody_meets_the_slo_nobody_is_best() -> None:
    ranked = [("a", summary(0.31, 9000)), ("b", summary(0.2, 9500))]
    assert verdict(ranked, SLO) == (
        "No policy serves this within the SLO: a comes closest, 31.0 % within the SLO, TTFT p99 9,000.0 ms "
        "(b: 20.0 % within the SLO, TTFT p99 9,500.0 ms)."
    )


def test_one_alone_and_nothing_at_all_are_said_plainly() -> None:
    assert verdict([("a", summary(0.9))], SLO) == "a ran alone: 90.0 % within the SLO, TTFT p99 100.0 ms."
    nothing = summary(0.0, None, None, lost=100)
    assert verdict([("a", nothing), ("b", nothing)], SLO) == "No request was completed: of 100, 100 rejected."
    assert verdict([("a", summary())], {**SLO, "warmup": 100}).startswith("No request is left to count")


def test_an_oracle_is_marked_and_never_best_unless_all_are() -> None:
    oracle = {"name": "weighted", "scorers": {"oracle-prefix": 1}}
    name = "weighted(oracle-prefix:1)"
    comparison = headway.compare(SCENARIO, [oracle, "always-busiest"])
    assert comparison.best == "always-busiest"
    assert comparison.oracles == (name,)
    entries = {entry["name"]: entry["oracle"] for entry in comparison.summary()["policies"]}
    assert entries == {name: True, "always-busiest": False}
    assert f"{name}, an oracle, shows what is still possible" in comparison.verdict
    assert headway.compare(SCENARIO, [oracle]).best == name


def test_policies_that_decide_alike_all_stay() -> None:
    names = [name for name, _ in headway.compare(SCENARIO, "all").ranked]
    pairs = ["least-loaded-pair", "pair", "prefix-pair"]  # the cluster has no pairs
    assert sorted([*names, *pairs]) == sorted(registry.names("routing"))


def test_a_pair_policy_that_seeks_prefixes_is_shown_with_and_without_copies_of_them() -> None:
    scenario = {
        "workload": {"requests": 60, "rate": "20/s", "prompt_tokens": 600, "prefix": {"groups": 2, "tokens": 512}},
        "cluster": {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}},
    }
    pairs = ["prefix-pair", "least-loaded-pair"]
    result = headway.compare(scenario, pairs, workers=1)
    assert sorted(name for name, _ in result.ranked) == ["least-loaded-pair", "prefix-pair", "prefix-pair(copies)"]
    hits = {name: summary["cache"]["token_hit_ratio"] for name, summary in result.ranked}
    assert hits["prefix-pair(copies)"] > 0.5 > hits["prefix-pair"]
    stored = headway.compare(scenario, pairs, overrides="cluster.transfer.keep_prefill_copy=true", workers=1)
    assert sorted(name for name, _ in stored.ranked) == ["least-loaded-pair", "prefix-pair"]
    assert stored["prefix-pair"] == result["prefix-pair(copies)"]

"""Candidates share the requests of a case, and have the same figures as with requests of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.evolve import evaluation
from headway.evolve.evaluation import PLAY, play, prepare_play
from headway.evolve.shared_cases import MOST_EACH, SharedCases
from headway.evolve.worker import confined
from headway.scenario.scenario import Scenario

COMMON = {"prompt_tokens": 300, "output_tokens": {"dist": "uniform", "min": 5, "max": 60}}
CHAT = {"kind": "chat", "turns": {"dist": "geometric", "mean": 4, "max": 9}, "think_time": "200ms"}
PREFIX = {"groups": 3, "tokens": 200}
TRACE = str(Path("examples/05_trace.jsonl").absolute())
WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": {"requests": 60, "rate": "40/s", **COMMON, "prefix": PREFIX},
    "timeouts": {"requests": 60, "rate": "400/s", **COMMON, "timeout": "1s", "retry": {"max": 2, "backoff": "10ms"}},
    "chat": {"requests": 60, "rate": "10/s", **COMMON, "kind": CHAT, "prefix": PREFIX},
    "bursts": {"requests": 60, "duration": "20s", "rate": "20/s", **COMMON, "behaviour": {"type": "bursty"}},
    "tenants": {
        "requests": 80,
        "rate": "20/s",
        **COMMON,
        "tenants": {"a": {"kind": CHAT}, "b": {"weight": 2, "arrival": {"process": "gamma", "cv": 2}}},
    },
    "closed": {"requests": 40, **COMMON, "kind": CHAT, "closed_loop": {"concurrency": 4}},
    "trace": {"trace": {"format": "mooncake", "path": TRACE, "limit": 30}},
}
FIGURES = ("latency.ttft.mean", "latency.e2e.p99", "requests.completed", "cache.token_hit_ratio", "balance.cv")
DEEP = ("rates.blocking_probability", "latency.itl.p99", "fairness.tokens", "sessions.count")


def case(workload: dict[str, Any], seed: int = 3) -> dict[str, Any]:
    return {"cluster": {"instances": 2, "kv": {"gpu_blocks": 400}}, "workload": workload, "seed": seed}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedCases:
    cases = SharedCases()
    monkeypatch.setattr(evaluation, "_SHARED", cases)
    return cases


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("routing", ["least-loaded", "round-robin"])
def test_shared_requests_give_the_same_figures_as_fresh_requests(
    shared: SharedCases, workload: dict[str, Any], routing: str
) -> None:
    document = case(workload)
    fresh = play(document, {"routing": routing}, FIGURES + DEEP)
    assert "figures" in fresh
    assert not prepare_play(document)  # the first run of a case shares nothing
    assert prepare_play(document)
    assert not prepare_play(document)  # it is ready
    assert shared._ready
    assert play(document, {"routing": routing}, FIGURES + DEEP) == fresh
    assert not shared._ready  # used up
    assert play(document, {"routing": routing}, FIGURES + DEEP) == fresh


def test_a_summary_for_few_figures_has_the_same_values_as_the_whole_summary(shared: SharedCases) -> None:
    document = case(WORKLOADS["tenants"])
    whole = play(document, {}, FIGURES + DEEP)["figures"]
    for figures in (FIGURES, *((figure,) for figure in DEEP)):
        prepare_play(document)
        prepare_play(document)
        assert play(document, {}, figures)["figures"] == {path: whole[path] for path in figures}


def test_every_child_of_a_worker_gives_the_same_figures() -> None:
    document = case(WORKLOADS["chat"], seed=71)
    arguments = [document, {"routing": "least-loaded"}, list(FIGURES)]
    answers = [confined(PLAY, arguments) for _ in range(4)]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == play(*arguments)


def test_a_case_with_many_requests_or_with_an_error_is_not_shared(shared: SharedCases) -> None:
    for workload in (
        {**WORKLOADS["plain"], "requests": MOST_EACH + 1},
        {"duration": "5s", "rate": "10/s", **COMMON},
        {"requests": 5, "rate": "nonsense", **COMMON},
        {"trace": {"format": "mooncake", "path": TRACE}},
    ):
        assert [prepare_play(case(workload)) for _ in range(3)] == [False] * 3
        assert shared.take(case(workload)) is None
    assert play(case({"requests": 5, "rate": "nonsense"}), {}, FIGURES).keys() == {"error"}


def test_a_trace_that_changed_is_read_again(shared: SharedCases, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = Path(TRACE).read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:10]))
    document = case({"trace": {"format": "mooncake", "path": str(file), "limit": 50}})
    prepare_play(document)
    assert prepare_play(document)
    file.write_text("".join(lines[:5]))
    assert play(document, {}, ("requests.arrived",))["figures"] == {"requests.arrived": 5.0}


def test_a_policy_of_an_unknown_stage_fails_as_before(shared: SharedCases) -> None:
    document = case(WORKLOADS["plain"])
    prepare_play(document)
    prepare_play(document)
    with pytest.raises(TypeError):
        play(document, {"cooking": "fcfs"}, FIGURES)
    assert Scenario.load(document).workload.requests == 60

"""The ranking under fresh signals and under polled ones."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import HeadwayError, Scenario
from headway.experiment import other_signals
from headway.experiment.contenders import contenders
from headway.experiment.other_signals import OtherRanking, reads_reports, with_signals
from headway.types import PS_PER_SECOND, Request, Route
from headway.views.cluster import ClusterView

SMALL: dict[str, Any] = {
    "defaults": "2026-11",
    "workload": {"requests": 300, "rate": "150/s", "prompt_tokens": 512, "output_tokens": 64},
    "cluster": {"instances": 4},
}
POLICIES = "least-loaded,least-kv,round-robin"


class Herd:
    def route(self, request, cluster):  # type: ignore[no-untyped-def]
        return Route(min(cluster.instances, key=lambda view: view.queued + view.running).id)


class ShortestQueue:
    """Runs in herds between reports, and keeps state that a second run must not see."""

    def __init__(self) -> None:
        self.asked = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.asked += 1
        assert self.asked <= 300
        return Route(min(cluster.instances, key=lambda view: view.queued + view.running).id)


def order(comparison: headway.Comparison) -> list[str]:
    return [name for name, _ in comparison.ranked]


def test_a_comparison_says_in_a_line_that_other_signals_rank_otherwise(headway: Any, tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    policy = tmp_path / "herd.py"
    policy.write_text("from headway import Route\n\n\n" + inspect.getsource(Herd))
    by = ("--by", "latency.ttft.p99")
    for option, words in ((), "polled every 500ms"), (("--fresh",), "polled every 500ms"), (("--polled",), "fresh"):
        shown = headway("compare", str(file), "--policies", f"{policy}:Herd,random", *by, *option)
        (line,) = [line for line in shown.stdout.splitlines() if "the ranking differs" in line]
        assert words in line


@pytest.mark.parametrize("kind", ["fresh", "polled"])
def test_signals_are_chosen_and_the_other_kind_is_ranked_too(kind: Any) -> None:
    chosen = headway.compare(SMALL, [ShortestQueue(), "least-loaded"], signals=kind, progress=False)
    interval = {"fresh": "0s", "polled": "500ms"}[kind]
    plain = headway.compare({**SMALL, "signals": {"poll_interval": interval}}, [ShortestQueue], progress=False)
    assert chosen["ShortestQueue"] == plain["ShortestQueue"]
    assert chosen.other is not None and plain.other is None  # a single policy has no ranking
    reverse = headway.compare(SMALL, [ShortestQueue, "least-loaded"], signals=other(kind), progress=False)
    assert chosen.other.ranking == order(reverse)
    assert chosen.other.differs == (chosen.other.ranking != order(chosen))
    assert (chosen.other.shown == "fresh") is (kind == "fresh")


def other(kind: str) -> Any:
    return "polled" if kind == "fresh" else "fresh"


def test_herds_change_the_ranking() -> None:
    compared = headway.compare(SMALL, [ShortestQueue, "random"], by="latency.ttft.p99", signals="fresh", progress=False)
    assert compared.other is not None
    assert order(compared) == ["ShortestQueue", "random"]
    assert compared.other.ranking == ["random", "ShortestQueue"]
    sentence = "With signals polled every 500ms the ranking differs: ShortestQueue 1 → 2, random 2 → 1."
    assert compared.other.sentence == sentence
    assert compared.summary()["other_signals"]["ranking"] == ["random", "ShortestQueue"]


def test_policies_that_read_no_report_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    simulate = headway.experiment.compare.simulate
    monkeypatch.setattr(
        headway.experiment.compare,
        "simulate",
        lambda resolved, **more: runs.append(more["routing"]) or simulate(resolved, **more),
    )
    compared = headway.compare(SMALL, "least-loaded,round-robin,least-kv", workers=1, progress=False)
    assert runs == ["least-loaded", "round-robin", "least-kv", "least-kv"]
    assert compared.other is not None and compared.other.signals == "polled every 500ms"
    runs.clear()
    alike = headway.compare(SMALL, "least-loaded,round-robin", workers=1, progress=False)
    assert len(runs) == 2
    assert alike.other is not None and not alike.other.differs


def test_a_large_comparison_ranks_twice_only_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_signals, "MOST_REQUESTS", 599)
    assert headway.compare(SMALL, "least-kv,least-outstanding", progress=False).other is None
    assert headway.compare(SMALL, "least-kv,least-loaded", progress=False).other is not None
    assert headway.compare(SMALL, "least-kv,least-outstanding", signals="fresh", progress=False).other is not None
    assert headway.compare(SMALL, [ShortestQueue, "least-loaded"], progress=False).other is None  # runs code of its own


def test_a_scenario_that_polls_keeps_its_interval() -> None:
    loaded = Scenario.load({**SMALL, "signals": {"poll_interval": "50ms", "poll_delay": "5ms"}})
    assert with_signals(loaded, "polled") == with_signals(loaded, None) == loaded
    assert with_signals(loaded, "fresh").signals.poll_interval_ps == 0
    polled = with_signals(Scenario.load(SMALL), "polled")
    assert polled.signals.poll_interval_ps == PS_PER_SECOND // 2
    with pytest.raises(HeadwayError, match="signals: 'stale' is unknown"):
        headway.compare(SMALL, signals="stale")  # type: ignore[arg-type]


def test_reports_are_read_by_any_stage_of_a_run() -> None:
    loaded = Scenario.load(SMALL)
    reads = {each.name: reads_reports(loaded, each) for each in contenders(loaded, "least-loaded,least-kv,weighted")}
    assert reads == {"least-loaded": False, "least-kv": True, "weighted": True}
    gated = Scenario.load({**SMALL, "policies": {"admission": "saturation"}})
    assert all(reads_reports(gated, each) for each in contenders(gated, "least-loaded,round-robin"))


def test_a_long_ranking_names_the_policies_that_move_most() -> None:
    loaded = Scenario.load(SMALL)
    names = list("abcdefgh")
    moved = OtherRanking.of(with_signals(loaded, "polled"), list("hbcdefga"), loaded, names)
    assert moved.sentence.endswith("differs: a 1 → 8, h 8 → 1.")
    all_moved = OtherRanking.of(with_signals(loaded, "polled"), names[::-1], loaded, names)
    assert all_moved.sentence.endswith("differs: a 1 → 8, b 2 → 7, g 7 → 2, h 8 → 1, and 4 more.")


def test_the_two_options_exclude_each_other(headway: Any) -> None:
    failed = headway("compare", "--fresh", "--polled")
    assert failed.returncode == 2
    assert "--fresh: cannot be combined with --polled" in failed.stderr

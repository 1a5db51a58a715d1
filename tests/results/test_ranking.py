from __future__ import annotations

from typing import Any

import pytest
from recorders import MS, facts, fleet, record

from headway.errors import HeadwayError
from headway.results.figure_table import FIGURES, declared
from headway.results.metrics import summarise
from headway.results.ranking import direction, every_figure, figure, paths, rank
from headway.results.recorder import Targets

Named = tuple[str, dict[str, Any]]


def run(name: str, ttft_ms: int, e2e_ms: int, lost: int = 0, **slo: Targets) -> Named:
    events = {
        "arrival_ps": 0, "started_ps": 0, "first_token_ps": ttft_ms * MS, "finished_ps": e2e_ms * MS,
        "instance": 0, "outcome": "completed", "output_tokens": 2,
    }  # fmt: skip
    rows = [events] + [{"arrival_ps": 0, "outcome": "rejected"}] * lost
    return name, summarise(record(rows), fleet(1), facts(policy_metrics={"spills": float(ttft_ms)}, **slo))


def order(results: list[Named], **options: Any) -> list[str]:
    return [name for name, _ in rank(results, **options)]


def test_without_an_slo_the_lowest_mean_e2e_wins_and_equals_keep_their_order() -> None:
    assert order([run("slow", 1, 90), run("b", 5, 50), run("a", 9, 50)]) == ["b", "a", "slow"]


def test_shedding_does_not_pay() -> None:
    assert order([run("sheds", 1, 10, lost=1), run("serves", 1, 90)]) == ["serves", "sheds"]
    slo = {"slo": Targets(50 * MS)}
    assert order([run("sheds", 1, 10, lost=1, **slo), run("serves", 40, 90, **slo)]) == ["serves", "sheds"]


def test_with_an_slo_goodput_comes_first_and_then_the_tail_of_ttft() -> None:
    slo = {"slo": Targets(50 * MS)}
    results = [run("late", 60, 61, **slo), run("good", 40, 90, **slo), run("better", 30, 95, **slo)]
    assert order(results) == ["better", "good", "late"]


def test_any_figure_can_be_chosen_and_the_path_tells_which_way_is_better() -> None:
    results = [run("a", 30, 40), run("b", 20, 90), run("c", 25, 60, lost=1)]
    assert order(results, by="latency.ttft.p99") == ["b", "c", "a"]
    assert order(results, by="requests.rejected") == ["a", "b", "c"]
    assert order(results, by="requests.completed") == ["a", "b", "c"]
    assert (direction("throughput.requests_per_s"), direction("balance.cv")) == ("high", "low")


def test_sessions_can_be_ranked_by_and_a_run_without_any_comes_last() -> None:
    plain = run("plain", 1, 2)
    slow, fast = (
        (name, {**plain[1], "sessions": {"duration": {"mean": mean}}}) for name, mean in (("slow", 9), ("fast", 4))
    )
    assert order([plain, slow, fast], by=figure("sessions.duration.mean")) == ["fast", "slow", "plain"]
    assert (figure("sessions.completed"), direction("sessions.completed")) == ("sessions.completed", "high")


def test_tiers_and_transfers_rank_where_a_run_has_them() -> None:
    plain = run("plain", 1, 2)
    more, less = (
        (name, {**plain[1], "tiers": {"cpu": {"hit_ratio": share}}, "transfer": {"wait": {"p99": 9 * share}}})
        for name, share in (("more", 0.4), ("less", 0.3))
    )
    assert order([plain, less, more], by=figure("tiers.cpu.hit_ratio")) == ["more", "less", "plain"]
    assert order([plain, more, less], by=figure("transfer.wait.p99")) == ["less", "more", "plain"]
    for path in ("tiers.storage.thrashed_blocks", "loads.wait.mean", "transfer.bytes", "tiers.gpu.hit_ratio"):
        assert figure(path) == path


def test_an_slo_of_whole_requests_ranks_too() -> None:
    slo = {"slo": Targets(e2e_ps=80 * MS)}
    assert order([run("late", 1, 90, **slo), run("good", 9, 80, **slo)]) == ["good", "late"]


def test_a_run_without_the_figure_comes_last() -> None:
    empty = ("empty", summarise(record([]), fleet(1), facts()))
    assert order([empty, run("a", 1, 2)], by="latency.e2e.mean") == ["a", "empty"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("latency.ttft.p98", "'latency.ttft.p98'. Did you mean 'latency.ttft.p99'?"),
        ("latency.ttft", "'latency.ttft'. Did you mean 'latency.ttft."),
        ("jain", "'jain'. Known: balance.jain, fairness.jain_goodput, fairness.jain_tokens."),
        ("policy_metrics.spills", "docs/metrics.md lists all figures."),
        ("requests.arrived", "'requests.arrived'. Did you mean"),
        ("", "''. An example is 'latency.ttft.p99'"),
    ],
)
def test_what_is_no_figure_to_rank_by_is_told_with_the_nearest_that_is(path: str, message: str) -> None:
    with pytest.raises(HeadwayError, match=r"^by: runs cannot be ranked by ") as caught:
        figure(path)
    assert message in str(caught.value)


def test_every_path_of_a_summary_but_the_policies_own_and_arrivals_can_rank() -> None:
    for path in paths(run("a", 1, 2)[1]):
        if not path.startswith(("policy_metrics", "requests.arrived")):
            assert figure(path) == figure(f" {path.replace('_', '-')} ") == path


def test_every_figure_of_a_summary_is_declared_and_every_declared_figure_exists() -> None:
    paths = every_figure()
    assert [path for path in paths if declared(path) is None] == []
    used = [declared(path) for path in paths]
    assert [path for path, figure in FIGURES.items() if not any(figure is other for other in used)] == []

"""Findings about where the work went: herding, hot spots, P/D backpressure, saturation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from findings_made import drawn, kinds, of_kind, request, result, seen
from recorders import SECOND

import headway
from headway.results.findings import backlog, herding, hot_spot, pd_backpressure, saturation
from headway.results.findings.observed import stays
from headway.results.recorder import StateChange
from headway.results.table import Columns

Json = dict[str, Any]
FOUR: Json = {"workload": {"requests": 1500, "rate": "100/s"}, "cluster": {"instances": 4}}


# --- herding ---------------------------------------------------------------------------------------------------------


def test_old_reports_make_herds() -> None:
    run = headway.simulate(FOUR | {"signals": {"poll_interval": "1s"}, "policies": {"routing": "least-kv"}})
    (finding,) = of_kind(run, "herding")
    assert finding.evidence["herds"] > 5
    assert finding.evidence["longest"] > 50
    assert finding.count == finding.evidence["late_decisions"] and finding.severity == finding.count / 1500
    assert finding.instances and run.instance_ids()[finding.instances[0]] in {f"instance-{k}" for k in range(4)}


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin", "random", "power-of-two"])
@pytest.mark.parametrize("instances", [2, 4])
def test_fresh_counts_turns_and_dice_make_none(routing: str, instances: int) -> None:
    run = headway.simulate(FOUR | {"cluster": {"instances": instances}, "policies": {"routing": routing}})
    assert "herding" not in kinds(run)


def test_how_long_a_herd_must_be_hangs_on_what_chance_would_do() -> None:
    # With 4 peers and 250 decisions, 4⁸ is the first power above 25,000: nine in a row.
    assert herding.by_chance(4, 250) == 9
    assert herding.by_chance(2, 1_000_000) == 28
    assert herding.by_chance(1000, 10) == 2


def herd(count: int, spacing: float = 0.1) -> list[Json]:
    """Requests that go to instance 1 of two, one after the other, and stay."""
    return [request(k * spacing, start=99, first=100, end=101, instance=1) for k in range(count)]


def test_the_figures_of_a_herd_are_exact() -> None:
    rows = herd(20)
    (finding,) = herding.find(seen(rows, instances=2))
    # With two peers and 20 decisions a herd has 12, and the first four find fewer than four there.
    assert finding.evidence == {
        "herds": 1, "late_decisions": 16, "decisions": 20, "limit": 12, "targets": 1, "longest": 16,
        "longest_from_s": 0.4, "longest_until_s": 1.9, "longest_had": 19, "longest_fewest": 0, "of_this_kind": 1,
    }  # fmt: skip
    assert (finding.at_ps, finding.until_ps, finding.instances) == (4 * SECOND // 10, 19 * SECOND // 10, [1])
    assert finding.title == (
        "1 herd of at least 12 requests went to one instance although another had at least 4 fewer; the longest sent "
        "16 requests to i1 from 0.4 s to 1.9 s, the last one to an instance that had 19 while another had 0."
    )


def test_a_herd_ends_where_a_second_passes_or_another_is_chosen() -> None:
    assert herding.find(seen(herd(20, spacing=1), instances=2))[0].count == 16
    assert herding.find(seen(herd(20, spacing=1.01), instances=2)) == []
    rows = herd(20)
    for place in (7, 15):
        rows[place]["instance"] = 0
    assert herding.find(seen(rows, instances=2)) == []


def test_a_herd_may_alternate_between_half_of_the_instances() -> None:
    rows = [row | {"instance": place % 2} for place, row in enumerate(herd(40))]
    assert herding.by_chance(4, 40, 2) == 15  # 2¹⁵ is the first power above 100 · 40 · 6
    (finding,) = herding.find(seen(rows, instances=4))
    assert (finding.evidence["limit"], finding.evidence["targets"], finding.count) == (15, 2, 32)
    assert finding.title == (
        "1 herd of at least 15 requests went to at most 2 of 4 instances although another had at least 4 fewer; the "
        "longest sent 32 requests to i0 and i1 from 0.8 s to 3.9 s, the last one to an instance that had 19 while "
        "another had 0."
    )
    assert herding.find(seen(rows, instances=3)) == []  # half of three instances is one


def test_routers_with_stale_reports_make_herds_together() -> None:
    stale = FOUR | {"signals": {"poll_interval": "3s", "effective_load": "snapshot"}, "routers": 4}
    scorers = {"name": "weighted", "scorers": {"queue-depth": 1}}
    run = headway.simulate(stale | {"cluster": {"instances": 8}, "policies": {"routing": scorers}})
    (finding,) = of_kind(run, "herding")
    assert finding.evidence["targets"] > 1


def test_a_session_that_returns_to_its_instance_makes_no_herd() -> None:
    sessions = [{"session": f"s{place % 5}", "turn": 1} for place in range(20)]
    rows = [row | more for row, more in zip(herd(20), sessions, strict=True)]
    assert herding.find(seen(rows, instances=2)) == []


def test_an_instance_that_is_not_there_is_nobodys_better_choice() -> None:
    rows = herd(20)
    away = [StateChange(0, 0, "stopped"), StateChange(0, 1, "ready"), StateChange(30 * SECOND, 0, "ready")]
    assert herding.find(seen(rows, instances=2, states=away)) == []
    there = [StateChange(0, 0, "ready"), StateChange(0, 1, "ready")]
    assert herding.find(seen(rows, instances=2, states=there))[0].count == 16


def test_only_instances_of_the_same_model_and_part_are_peers() -> None:
    apart = [{"id": "a", "model": "small"}, {"id": "b", "model": "large"}]
    assert herding.find(seen(herd(20), instances=apart)) == []
    assert herding.find(seen(herd(20), instances=[each | {"model": "same"} for each in apart])) != []


@pytest.mark.parametrize("seed", range(40))
def test_late_decisions_are_those_that_counting_anew_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(herding, "LEAST", 1)
    monkeypatch.setattr(herding, "ONCE_IN", 0)
    monkeypatch.setattr(herding, "EXCESS", 2)
    monkeypatch.setattr(herding, "SPACING_PS", 5)
    rows = drawn(Random(seed), 40, instances=2)
    states = [
        StateChange(at, Random(seed + at).randrange(2), state) for at in (0, 9, 20) for state in ("ready", "warming")
    ]
    states += [StateChange(0, 0, "ready"), StateChange(0, 1, "ready"), StateChange(12, 1, "draining")]
    states.sort(key=lambda change: change.at_ps)
    run = seen(rows, instances=2, states=states if seed % 2 else None)
    counted = [place for place, row in enumerate(rows) if not row.get("redirects")]
    order = sorted(counted, key=lambda place: (rows[place]["routed_ps"], place))
    ended = run.ended_ps
    late = set()
    for nth, place in enumerate(order):
        now = rows[place]["routed_ps"]
        there = [other for other in order[:nth] if rows[other].get("finished_ps", ended) > now]
        loads = [sum(rows[other]["instance"] == k for other in there) for k in range(2)]
        now_in = {change.instance: change.state for change in states if change.at_ps <= now}
        free = [loads[k] for k in range(2) if not seed % 2 or now_in[k] in ("ready", "warming")]
        if loads[rows[place]["instance"]] - min(free) >= 2:
            late.add(place)
    findings = herding.find(run)
    assert sum(finding.count for finding in findings) == len(late)
    assert not late or set(findings[0].requests) == set(sorted(late, key=lambda p: (-_waited(rows[p], ended), p))[:20])


def _waited(row: Json, ended: int) -> int:
    return int(row.get("started_ps", row.get("finished_ps", ended)) - row["enqueued_ps"])


# --- hot spots -------------------------------------------------------------------------------------------------------


def test_sending_to_the_busiest_makes_a_hot_spot() -> None:
    run = headway.simulate(FOUR | {"policies": {"routing": "always-busiest"}})
    finding = of_kind(run, "hot_spot")[0]
    assert finding.instances == [0]
    assert finding.severity > 0.9
    assert finding.evidence["mean_requests"] > 50 and finding.evidence["mean_requests_of_peers"] == 0


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin", "random"])
def test_even_loads_make_none(routing: str) -> None:
    assert "hot_spot" not in kinds(headway.simulate(FOUR | {"policies": {"routing": routing}}))


def spot(count: int, until: float, instance: int = 0) -> list[Json]:
    return [request(0, start=0, first=1, end=until, instance=instance) for _ in range(count)]


def test_the_figures_of_a_hot_spot_are_exact() -> None:
    # i0 has 12 for ten seconds, i1 has 2 for twenty.
    (finding,) = hot_spot.find(seen(spot(12, 10) + spot(2, 20, instance=1), instances=2))
    assert (finding.at_ps, finding.until_ps, finding.instances, finding.count) == (0, 10 * SECOND, [0], 12)
    assert finding.evidence["mean_requests"] == 12 and finding.evidence["mean_requests_of_peers"] == 2
    assert finding.severity == (120 - 20) / (120 + 40)
    assert finding.title == (
        "i0 had 12.0 requests on average from 0.0 s to 10.0 s while its peers had 2.0 each; 12 requests were there in "
        "total."
    )


@pytest.mark.parametrize(
    "rows",
    [
        spot(12, 2) + spot(2, 20, instance=1),  # not for three seconds
        spot(9, 10) + spot(2, 20, instance=1),  # not by eight
        spot(19, 10) + spot(10, 10, instance=1),  # not twice as many
    ],
)
def test_a_little_more_or_for_a_moment_is_no_hot_spot(rows: list[Json]) -> None:
    assert hot_spot.find(seen(rows, instances=2)) == []


def test_three_slices_are_enough() -> None:
    (finding,) = hot_spot.find(seen(spot(12, 3) + spot(2, 20, instance=1), instances=2))
    assert (finding.at_ps, finding.until_ps) == (0, 3 * SECOND)


def test_peers_that_are_not_there_do_not_make_an_instance_hot() -> None:
    rows = spot(12, 10) + spot(2, 20, instance=1)
    states = [StateChange(0, 0, "ready"), StateChange(0, 1, "ready"), StateChange(0, 2, "stopped")]
    lone = [StateChange(0, 0, "ready"), StateChange(0, 1, "stopped")]
    assert hot_spot.find(seen(rows, instances=3, states=states))[0].evidence["mean_requests_of_peers"] == 2
    assert hot_spot.find(seen(spot(12, 10), instances=2, states=lone)) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_time_in_each_slice_adds_up(seed: int) -> None:
    rng = Random(seed)
    grid = hot_spot.Grid(100, 7, 9)
    spans = [sorted((rng.randrange(100, 163), rng.randrange(100, 163))) for _ in range(30)]
    findings = hot_spot.sum_by_slice(grid, ((begin, end) for begin, end in spans))
    instants = [[at for begin, end in spans for at in range(begin, end) if (at - 100) // 7 == k] for k in range(9)]
    assert findings == [len(each) for each in instants]


# --- P/D backpressure ------------------------------------------------------------------------------------------------


def split(decodes: int, blocks: int | None = None, **transfer: Any) -> Json:
    decode: Json = {"instances": decodes} | ({"kv": {"gpu_blocks": blocks}} if blocks else {})
    return {
        "workload": {"requests": 400, "rate": "40/s", "prompt_tokens": 1000, "output_tokens": 200},
        "cluster": {
            "architecture": "disaggregated",
            "prefill": {"instances": 3},
            "decode": decode,
            "transfer": transfer,
        },
    }


def test_prompts_pile_up_before_an_instance_that_cannot_take_them() -> None:
    run = headway.simulate(split(1, blocks=2000))
    finding = of_kind(run, "pd_backpressure")[0]
    assert run.instance_ids()[finding.instances[0]] == "decode-0"
    assert finding.evidence["limit"] == pd_backpressure.PILE and finding.evidence["peak"] > 50
    assert finding.evidence["longest_wait_s"] == pytest.approx(run.summary()["transfer"]["wait"]["max"] / 1000)
    assert saturation(run) == "overloaded"  # though every first token comes at once


def test_with_a_limit_of_incoming_requests_that_many_are_too_many() -> None:
    finding = of_kind(headway.simulate(split(1, blocks=2000, max_incoming=4)), "pd_backpressure")[0]
    assert finding.evidence["limit"] == 4 and finding.evidence["peak"] >= 4


@pytest.mark.parametrize("limit", [{}, {"max_incoming": 64}])
def test_instances_with_room_have_no_backpressure(limit: Json) -> None:
    assert "pd_backpressure" not in kinds(headway.simulate(split(2, **limit)))


def handed(at: float, begun: float, **more: Any) -> Json:
    times = {"handed_ps": round(at * SECOND), "transfer_ps": round(begun * SECOND)}
    times["transferred_ps"] = times["transfer_ps"] + SECOND
    return request(0, start=0, first=at, end=20, prefill_instance=1, **times, **more)


PAIR = [{"id": "decode", "role": "decode"}, {"id": "prefill", "role": "prefill"}]


def test_the_figures_of_a_pile_are_exact() -> None:
    rows = [handed(1, 5) for _ in range(7)] + [handed(2, 4), handed(2.5, 6), handed(10, 11)]
    (finding,) = pd_backpressure.find(seen(rows, instances=PAIR))
    # Eight wait from 2 s on, nine from 2.5 s to 4 s, eight to 5 s.
    assert (finding.at_ps, finding.until_ps, finding.count, finding.instances) == (2 * SECOND, 5 * SECOND, 9, [0])
    assert finding.evidence["peak"] == 9 and finding.evidence["high_s"] == 3.0
    assert finding.evidence["longest_wait_s"] == 4.0
    assert finding.severity == (7 * 4 + 2 + 3.5) / (9 * 20)
    limited = {"cluster": {"transfer": {"max_incoming": 9}}}
    (finding,) = pd_backpressure.find(seen(rows, instances=PAIR, scenario=limited))
    assert (finding.at_ps, finding.until_ps) == (5 * SECOND // 2, 5 * SECOND)  # those on their way count as well
    assert finding.evidence["limit"] == 9


def test_a_pile_that_is_gone_within_a_second_is_not_told() -> None:
    assert pd_backpressure.find(seen([handed(1, 1.9) for _ in range(20)], instances=PAIR)) == []


# --- saturation ------------------------------------------------------------------------------------------------------


def loaded(rate: str, **more: Any) -> Json:
    workload = {"requests": 800, "rate": rate, "prompt_tokens": 2000, "output_tokens": 50, **more}
    return {"workload": workload, "cluster": {"instances": 1}}


def test_the_word_for_a_cluster_is_stable_backlogged_or_overloaded() -> None:
    burst = {"type": "adversarial", "interval": "40s", "size": 150, "factor": 1}
    runs = {
        "stable": headway.simulate(loaded("5/s")),
        "overloaded": headway.simulate(loaded("60/s")),
        "backlogged": headway.simulate(loaded("8/s", behaviour=burst)),
    }
    assert {word: saturation(run) for word, run in runs.items()} == {word: word for word in runs}
    assert of_kind(runs["stable"], "saturation") == []
    for word in ("overloaded", "backlogged"):
        (finding,) = of_kind(runs[word], "saturation")
        assert finding.evidence["word"] == word
        peak = finding.evidence["highest"]
        assert finding.title.startswith(f"The cluster is {word}: the backlog peaked at {peak} requests of 800")
    assert (
        of_kind(runs["overloaded"], "saturation")[0].severity
        > 0.5
        > of_kind(runs["backlogged"], "saturation")[0].severity
    )


def test_long_answers_alone_do_not_make_a_backlog() -> None:
    workload = {"requests": 100, "rate": "20/s", "prompt_tokens": 50, "output_tokens": 2000}
    run = headway.simulate({"workload": workload, "cluster": {"instances": 4}})
    assert min(run.requests["finished_ps"]) > max(run.requests["arrival_ps"])  # their number grows to the end
    assert saturation(run) == "stable"


def test_a_closed_loop_of_more_users_than_there_are_places_is_backlogged() -> None:
    workload = {"requests": 600, "closed_loop": {"concurrency": 80, "think_time": "10ms"}, "output_tokens": 50}
    assert (
        saturation(headway.simulate({"workload": workload, "cluster": {"instances": 1, "max_batch_size": 4}}))
        == "backlogged"
    )


def at_once(arrival: float) -> Json:
    return request(arrival, start=arrival, first=arrival, end=arrival)


def test_the_backlog_is_read_at_a_hundred_instants() -> None:
    # One a second from 0 s to 99 s; the first half is served at once, of the others nobody is.
    rows = [at_once(k) if k < 50 else request(k) for k in range(100)]
    findings = backlog.backlog(Columns(result(rows).requests))
    assert findings.limit == 20
    assert [findings.samples[place] for place in (0, 49, 99)] == [0, 0, 50]
    assert findings.word == "overloaded"


def test_a_backlog_that_is_worked_off_before_the_last_arrival_is_none_that_grows() -> None:
    rows = [at_once(k) if k < 50 else request(k, start=80, first=80, end=80) for k in range(79)]
    assert backlog.backlog(Columns(result(rows).requests)).word == "overloaded"
    rows += [at_once(k) for k in range(80, 140)]
    assert backlog.backlog(Columns(result(rows).requests)).word == "backlogged"


def test_a_backlog_that_was_higher_before_and_is_nearly_gone_does_not_grow() -> None:
    # 40 come within the 51st second, and all but ten of them have been served by the end.
    rows = [at_once(k) for k in range(50)] + [request(50 + k / 40, start=76, first=76, end=76) for k in range(30)]
    rows += [request(51) for _ in range(10)] + [at_once(52 + k) for k in range(48)]
    findings = backlog.backlog(Columns(result(rows).requests))
    second, fourth = (sum(findings.samples[at : at + 25]) for at in (25, 75))
    assert fourth > 2 * second and max(findings.samples) == 40
    assert findings.word == "backlogged"


def test_what_a_random_walk_may_leave_is_no_backlog() -> None:
    rows = [at_once(k) if k < 81 else request(k) for k in range(100)]  # 19 wait in the end, less than 2·√100
    assert backlog.backlog(Columns(result(rows).requests)).word == "stable"
    rows = [at_once(k) if k < 100 else request(k) for k in range(120)]  # 20 wait, and 2·√120 is 21.9
    findings = backlog.backlog(Columns(result(rows).requests))
    assert (findings.limit, findings.word) == (22, "stable")
    rows = [at_once(k) if k < 98 else request(k) for k in range(120)]  # 22 wait
    assert backlog.backlog(Columns(result(rows).requests)).word != "stable"


def test_a_prompt_that_the_first_instance_computes_stays_there_until_it_is_handed_over() -> None:
    times = {"arrival_ps": 0, "routed_ps": 1, "handed_ps": 4, "finished_ps": 9}
    columns = Columns(result([times | {"instance": 1, "prefill_instance": 0}]).requests)
    by_instance = stays(columns, ended_ps=20)
    spans = {index: [*zip(each.begin_ps, each.end_ps, strict=True)] for index, each in by_instance.items()}
    assert spans == {0: [(1, 4)], 1: [(4, 9)]}

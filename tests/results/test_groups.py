from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorders import MS, SECOND, facts, fleet, record, rows

from headway.results.metrics import summarise
from headway.results.recorder import Targets
from headway.types import OUTCOMES

Json = dict[str, Any]


def done(at: int, *, wait: int = 0, decode: int = 0, **more: Any) -> Json:
    """A request that comes at so many ms, has its first token after `wait` ms and its last `decode` ms later."""
    times = {"arrival_ps": at, "started_ps": at, "first_token_ps": at + wait, "finished_ps": at + wait + decode}
    rest = {"instance": 0, "outcome": "completed", "output_tokens": 3}
    return {**{name: value * MS for name, value in times.items()}, **rest, **more}


def lost(at: int, **more: Any) -> Json:
    return {"arrival_ps": at * MS, "outcome": "rejected", **more}


def summary(made: list[Json], **changes: Any) -> Json:
    return summarise(record(made), fleet(3), facts(**changes))


def test_a_run_of_one_tenant_and_one_kind_without_sessions_has_no_groups() -> None:
    assert not {"tenants", "classes", "kinds", "sessions", "fairness"} & set(summary([done(0), done(1)]))
    assert "classes" not in summary([done(0, slo_class="batch"), done(1, slo_class="batch")])


def test_each_tenant_has_its_own_figures() -> None:
    actual = summary(
        [
            done(0, wait=10, tenant="zoo", prompt_tokens=40, cached_tokens=10),
            done(1, wait=20, tenant="acme"),
            lost(2, tenant="zoo"),
            done(3, wait=30, tenant="zoo", prompt_tokens=60),
        ]
    )
    acme, zoo = actual["tenants"]
    assert (acme["id"], zoo["id"]) == ("acme", "zoo")
    assert zoo["requests"] == {
        "arrived": 3, "completed": 2, "rejected": 1, "timed_out": 0, "failed": 0, "in_flight": 0
    }  # fmt: skip
    assert (zoo["latency"]["ttft"]["mean"], acme["latency"]["ttft"]["mean"]) == (20, 20)
    assert (zoo["cache"]["token_hit_ratio"], acme["cache"]["token_hit_ratio"]) == (0.1, 0)
    assert zoo["throughput"]["requests_per_s"] == pytest.approx(0.2)
    assert zoo["slo"]["goodput_ratio"] == pytest.approx(2 / 3)


def test_each_class_has_its_own_figures_and_only_those_that_came_are_classes() -> None:
    rows = [
        done(0, wait=10, slo_class="realtime"),
        done(1, wait=20, slo_class="batch"),
        lost(2, slo_class="batch"),
        done(3, wait=40, slo_class="batch"),
    ]
    batch, realtime = summary(rows)["classes"]  # no request has the class standard
    assert (batch["id"], realtime["id"]) == ("batch", "realtime")
    assert (batch["requests"]["arrived"], batch["requests"]["rejected"]) == (3, 1)
    assert (batch["latency"]["ttft"]["mean"], realtime["latency"]["ttft"]["mean"]) == (30, 10)
    assert batch["slo"]["goodput_ratio"] == pytest.approx(2 / 3)
    both = summary([*rows, done(4)])["classes"]
    assert [each["id"] for each in both] == ["batch", "realtime", "standard"]


def test_fairness_is_jains_index_of_what_tenants_got() -> None:
    """a: 2 of 2 good, 100 + 100 tokens; b: 1 of 4 good, 40 tokens; c: 0 of 1."""
    a = {"tenant": "a", "prompt_tokens": 90, "output_tokens": 10}
    b = {"tenant": "b", "prompt_tokens": 15, "output_tokens": 5}
    rows = [
        done(0, **a),
        done(1, **a),
        done(2, wait=10, **b),
        done(3, wait=99, **b),
        lost(4, tenant="b"),
        {"arrival_ps": 5 * MS, "outcome": "timed_out", "tenant": "b"},
        lost(6, tenant="c"),
    ]
    actual = summary(rows, slo=Targets(ttft_ps=50 * MS))["fairness"]
    assert actual["jain_tokens"] == pytest.approx(240**2 / (3 * (200**2 + 40**2)))
    assert actual["jain_goodput"] == pytest.approx((1 + 0.25 + 0) ** 2 / (3 * (1 + 0.25**2)))
    without = summary(rows)["fairness"]  # every completed request is good
    assert without["jain_goodput"] == pytest.approx((1 + 0.5 + 0) ** 2 / (3 * (1 + 0.5**2)))


def test_equal_tenants_are_served_fairly_one_alone_is_not_and_nobody_is_no_sample() -> None:
    thirds = [done(0, tenant=name) for name in "abc"] + [lost(1, tenant=name) for name in "abcabc"]
    assert summary(thirds)["fairness"] == {"jain_tokens": 1.0, "jain_goodput": 1.0}
    assert summary([done(0, tenant="a"), lost(1, tenant="b")])["fairness"] == {"jain_tokens": 0.5, "jain_goodput": 0.5}
    empty = summary([lost(0, tenant="a"), lost(1, tenant="b")])["fairness"]
    assert empty == {"jain_tokens": None, "jain_goodput": None}


def test_a_tenant_whose_requests_are_all_warm_up_is_no_sample_of_fairness() -> None:
    rows = [lost(0, tenant="early"), done(1, tenant="a"), done(2, tenant="b"), lost(3, tenant="b")]
    assert summary(rows, warmup=1)["fairness"]["jain_goodput"] == pytest.approx(1.5**2 / (2 * 1.25))


def test_a_tenants_own_targets_hold_for_it_instead_of_the_runs() -> None:
    rows = [
        done(0, wait=10, decode=100, tenant="gold"),
        done(0, wait=30, tenant="gold"),
        done(0, wait=30),
        done(0, wait=60),
    ]
    own = {"gold": Targets(ttft_ps=20 * MS, tpot_ps=40 * MS)}
    actual = summary(rows, slo=Targets(ttft_ps=50 * MS, e2e_ps=10 * MS), tenant_slos=own)
    assert actual["slo"]["ttft_attainment"] == 0.5  # one of two each
    assert actual["slo"]["tpot_attainment"] == 0.5  # of gold's two
    assert actual["slo"]["e2e_attainment"] == 0.0  # of the others
    assert actual["slo"]["goodput_ratio"] == 0.0
    default, gold = actual["tenants"]
    assert gold["slo"]["e2e_attainment"] is default["slo"]["tpot_attainment"] is None
    assert (default["slo"]["ttft_attainment"], gold["slo"]["ttft_attainment"]) == (0.5, 0.5)


def test_targets_that_only_one_tenant_has_leave_the_others_good() -> None:
    actual = summary([done(0, wait=30), done(0, wait=30, tenant="gold")], tenant_slos={"gold": Targets(20 * MS)})
    assert (actual["slo"]["ttft_attainment"], actual["slo"]["goodput_ratio"]) == (0.0, 0.5)


def test_turns_given_up_after_a_refusal_count_against_goodput() -> None:
    recorder = record([done(0), lost(1)])
    recorder.not_issued, recorder.abandoned = 5, 2
    actual = summarise(recorder, fleet(1), facts())
    assert (actual["requests"]["not_issued"], actual["requests"]["abandoned"]) == (5, 2)
    assert actual["slo"]["goodput_ratio"] == 0.25


def test_sessions_are_counted_from_their_first_request_to_the_end_of_their_last() -> None:
    actual = summary(
        [
            done(0, wait=5, session="a", turn=0),
            lost(1, session="b", turn=0),
            done(2, wait=5, session="c", turn=0),
            done(3),
            done(4, wait=5, decode=6, session="a", turn=1),
            lost(5, session="c", turn=1),
            done(6, wait=9, session="c", turn=1),
        ]
    )["sessions"]
    assert (actual["count"], actual["turns"], actual["completed"]) == (3, 5 / 3, 2)  # c's second turn was sent again
    assert (actual["duration"]["min"], actual["duration"]["max"]) == (13, 15)


def test_a_session_that_began_in_the_warm_up_does_not_count() -> None:
    rows = [done(0, session="a"), done(1, session="b"), done(2, session="a", turn=1), done(3, session="c")]
    assert summary(rows, warmup=1)["sessions"]["count"] == 2
    assert summary(rows, warmup=4)["sessions"] == {
        "count": 0, "turns": None, "completed": 0, "duration": dict.fromkeys(summary(rows)["latency"]["ttft"])
    }  # fmt: skip


@given(rows(), st.data(), st.integers(0, 10))
def test_a_group_has_the_figures_of_a_run_of_its_requests_alone(
    made: list[Json], data: st.DataObject, warmup: int
) -> None:
    """But for what is of the run: the window, and how many requests were warm-up."""
    for row in made:
        row["tenant"] = data.draw(st.sampled_from(["a", "b", "c"]))
        row["kind"] = data.draw(st.sampled_from(["chat", "agentic"]))
        row["slo_class"] = data.draw(st.sampled_from(["standard", "batch"]))
    values = {"slo": Targets(SECOND // 2), "tenant_slos": {"b": Targets(e2e_ps=SECOND)}, "ended_ps": 20 * SECOND}
    actual = summary(made, warmup=warmup, **values)
    for group, column in (("tenants", "tenant"), ("classes", "slo_class"), ("kinds", "kind")):
        names = sorted({row[column] for row in made})
        assert [each["id"] for each in actual.get(group, [])] == (names if len(names) > 1 else [])
        for each in actual.get(group, []):
            mine = [(row, number < warmup) for number, row in enumerate(made) if row[column] == each["id"]]
            alone = summary([row for row, _ in mine], warmup=len([1 for _, early in mine if early]), **values)
            assert each["requests"] == {name: alone["requests"][name] for name in ("arrived", *OUTCOMES)}
            assert each["latency"] == {name: spread for name, spread in alone["latency"].items() if name != "itl"}
            assert each["cache"]["token_hit_ratio"] == alone["cache"]["token_hit_ratio"]
            shares = ("ttft_attainment", "tpot_attainment", "e2e_attainment", "goodput_ratio")
            assert [each["slo"][name] for name in shares] == [alone["slo"][name] for name in shares]


@pytest.mark.full
def test_a_thousand_tenants_take_no_thousand_passes() -> None:
    many = summary([done(number, tenant=f"t{number % 1000}") for number in range(20_000)])
    assert len(many["tenants"]) == 1000
    assert {each["requests"]["arrived"] for each in many["tenants"]} == {20}

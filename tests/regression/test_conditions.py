"""What a condition means, and what is said about one that means nothing."""

from __future__ import annotations

from math import log

import pytest

from headway.errors import HeadwayError
from headway.regression.conditions import no_worse_than, read_conditions, value_of


@pytest.mark.parametrize(
    ("text", "figure", "kind", "limit"),
    [
        ("ttft.p99>+5%", "latency.ttft.p99", "relative", 0.05),
        ("latency.ttft.p99 > +5 %", "latency.ttft.p99", "relative", 0.05),
        ("throughput.requests_per_s<-2.5%", "throughput.requests_per_s", "relative", -0.025),
        ("tpot.p99>+0.005s", "latency.tpot.p99", "change", 5.0),
        ("ttft.p99>500ms", "latency.ttft.p99", "level", 500.0),
        ("cache.token_hit_ratio<40%", "cache.token_hit_ratio", "level", 0.4),
        ("slo.goodput_ratio<-0.01", "slo.goodput_ratio", "change", -0.01),
        ("requests.rejected>+3", "requests.rejected", "change", 3.0),
        ("tenants.chat.latency.e2e.p99>+5%", "tenants.chat.latency.e2e.p99", "relative", 0.05),
        ("classes.gold.ttft.mean>+1ms", "classes.gold.latency.ttft.mean", "change", 1.0),
        ("policy_metrics.spills>+10%", "policy_metrics.spills", "relative", 0.1),
        ("cost.usd>+0%", "cost.usd", "relative", 0.0),
    ],
)
def test_a_condition_is_a_figure_a_sign_and_a_limit(text: str, figure: str, kind: str, limit: float) -> None:
    (condition,) = read_conditions(text)
    assert (condition.figure, condition.kind) == (figure, kind)
    assert condition.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft.p98>+5%", "unknown figure 'ttft.p98'. Known: latency.ttft.p99."),
        ("ttft.p99", "expected a figure, < or >, and a limit"),
        ("ttft.p99>=5%", "expected a figure, < or >, and a limit"),
        ("ttft.p99>5%", "write the sign of a change from the base, as in +5% or -5%"),
        ("ttft.p99>+5kg", "'kg' is not a unit of this figure; write a time such as 20ms"),
        ("cost.usd>+5ms", "'ms' is not a unit of this figure; write a number (USD)"),
        ("ttft.p99>+fast", "'fast' is not a limit"),
        ("ttft.p99>-100%", "a relative limit lies between"),
    ],
)
def test_a_mistake_in_a_condition_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        read_conditions(text)
    assert str(caught.value).startswith(f"fail_if '{text}'") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_check_needs_conditions_and_each_only_once() -> None:
    with pytest.raises(HeadwayError, match="name at least one condition"):
        read_conditions([])
    with pytest.raises(HeadwayError, match="bounded twice"):
        read_conditions(["ttft.p99>+5%", "latency.ttft.p99>+9%"])
    assert len(read_conditions(["ttft.p99>+5%", "ttft.p99>2s", "ttft.p99<-50%"])) == 3


def test_a_relative_change_is_a_logarithm_and_means_nothing_at_zero() -> None:
    (relative,) = read_conditions("ttft.p99>+5%")
    assert relative.number(200.0, 210.0) == pytest.approx(relative.bound) == pytest.approx(log(1.05))
    assert relative.number(0.0, 0.0) == 0.0
    assert "the base has 0" in str(relative.number(0.0, 3.0))
    assert relative.number(None, 3.0) == "no sample"


def test_a_figure_of_a_tenant_is_found_in_its_row() -> None:
    summary = {"tenants": [{"id": "a", "latency": {"ttft": {"p99": 3}}}], "cost": {"usd": None}}
    assert value_of(summary, "tenants.a.latency.ttft.p99") == 3.0
    assert value_of(summary, "tenants.b.latency.ttft.p99") is value_of(summary, "cost.usd") is None


def test_no_worse_looks_in_the_direction_that_is_worse() -> None:
    assert no_worse_than("ttft.p99", 0.05) == "ttft.p99>+5%"
    assert no_worse_than("cache.token_hit_ratio", 0.1) == "cache.token_hit_ratio<-10%"
    with pytest.raises(HeadwayError, match="by: expected a fraction"):
        no_worse_than("ttft.p99", 5)
    with pytest.raises(HeadwayError, match="requests"):
        no_worse_than("requests.arrived", 0.05)

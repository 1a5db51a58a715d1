"""The finding on transfers that share the link out of their prefill instance."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest
from findings_made import of_kind, request, seen

import headway
from headway.results.findings import link_saturation
from headway.results.result import Result
from headway.results.words import compose

Json = dict[str, Any]
SECOND = 10**12


@cache
def disaggregated(bandwidth: str, *overrides: str) -> Result:
    scenario: Json = {
        "seed": 4,
        "workload": {
            "requests": 300,
            "rate": "25/s",
            "prompt_tokens": {"dist": "lognormal", "mean": 2000, "std": 1500, "min": 50, "max": 12000},
            "output_tokens": 100,
        },
        "cluster": {
            "gpu": "h200",
            "latency": {"host": "500us"},  # so that steps without a wait keep the promised TPOT
            "architecture": "disaggregated",
            "prefill": {"instances": 2},
            "decode": {"instances": 4},
            "transfer": {"bandwidth": bandwidth},
        },
        "policies": {"routing": "least-loaded-pair"},
        "slo": {"ttft": "1s", "tpot": "8ms"},
    }
    return headway.simulate(scenario, overrides=list(overrides))


def test_a_fast_link_is_not_saturated() -> None:
    for bandwidth in ("50GB/s", "20GB/s", "10GB/s"):
        assert of_kind(disaggregated(bandwidth), "link_saturation") == []


def test_a_slow_link_is_named_and_its_figures_are_those_of_the_run() -> None:
    run = disaggregated("1GB/s")
    findings = of_kind(run, "link_saturation")
    assert {finding.evidence["link"] for finding in findings} == {"prefill-0", "prefill-1"}
    table, latency = run.requests, SECOND // 2000
    for finding in findings:
        (prefill,) = finding.instances
        rows = [row for row in range(300) if table["prefill_instance"][row] == prefill]
        spans = {row: (table["transfer_ps"][row], table["transferred_ps"][row] - latency) for row in rows}
        inside = {row: s for row, s in spans.items() if s[0] < finding.until_ps and s[1] > finding.at_ps}
        assert finding.count == len(inside)
        assert finding.evidence["peak"] == max(
            sum(begin <= at < end for begin, end in spans.values()) for at, _ in inside.values()
        )
        assert finding.evidence["busy"] > 0.95 and finding.severity > 0.5
        # Alone, a transfer takes its bytes over the bandwidth: 131,072 bytes a token, in blocks of 16 tokens.
        alone = [-(-table["prompt_tokens"][row] // 16) * 16 * 131_072 / 10**9 for row in inside]
        assert finding.evidence["mean_alone_s"] == pytest.approx(sum(alone) / len(alone), rel=1e-3)
        delay = sum(end - begin for begin, end in inside.values()) / SECOND - sum(alone)
        alive = sum(table["finished_ps"][row] - table["arrival_ps"][row] for row in inside) / SECOND
        assert finding.severity == pytest.approx(delay / alive, rel=1e-3)


@pytest.mark.parametrize("overrides", [(), ("cluster.transfer.max_incoming=16",)])
def test_a_summary_suggests_the_link_and_no_replicas_if_the_link_binds(overrides: tuple[str, ...]) -> None:
    text = compose(disaggregated("1GB/s", *overrides), max_tokens=4000).text
    issues, suggestions = text.split("## Suggested Focus")
    assert "the link out of prefill-" in issues
    first = suggestions.strip().splitlines()[0]
    assert "times as fast (cluster.transfer.bandwidth: " in first
    assert "instances instead of" not in suggestions
    healthy = compose(disaggregated("50GB/s"), max_tokens=4000).text
    assert "cluster.transfer" not in healthy


def handed(begin: float, end: float, **more: Any) -> Json:
    times = {"handed_ps": round(begin * SECOND), "transfer_ps": round(begin * SECOND)}
    row = request(begin - 1, start=begin - 1, first=begin, end=end + 1, prefill_instance=0, instance=1, **more)
    return row | times | {"transferred_ps": round(end * SECOND)}


def test_the_figures_of_an_episode_are_exact() -> None:
    """Five transfers at once for five seconds, each of which would take one alone."""
    rows = [handed(10, 15) for _ in range(5)]
    (finding,) = link_saturation.find(seen(rows, instances=2))
    assert (finding.at_ps, finding.until_ps, finding.count) == (10 * SECOND, 15 * SECOND, 5)
    assert finding.severity == 20 / 35  # four of the seven seconds that each lasts
    assert (finding.resource, [blame.name for blame in finding.blames]) == ("link", ["i0"])
    assert finding.evidence["mean_alone_s"] == 1 and finding.evidence["busy"] == 1 and finding.evidence["peak"] == 5
    assert finding.title == (
        "5 transfers shared the link out of i0 since 10.0 s, up to 5 at once: a transfer took 5.0 s on average and "
        "would take 1.0 s alone; the link was busy 100.0 % of that time, and sharing it is 57.1 % of these requests' "
        "time."
    )
    assert link_saturation.find(seen(rows[:3], instances=2)) == []
    short = [handed(10, 10.9) for _ in range(5)]
    assert link_saturation.find(seen(short, instances=2)) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_delay_is_what_a_walk_through_time_counts(seed: int) -> None:
    rng = Random(seed)
    begins = sorted(rng.randrange(20, 60) for _ in range(40))
    rows = [handed(begin / 10, begin / 10 + rng.randrange(5, 40) / 10) for begin in begins]
    (finding,) = link_saturation.find(seen(rows, instances=2))
    tick = SECOND // 10
    spans = [(row["transfer_ps"] // tick, row["transferred_ps"] // tick) for row in rows]
    inside = [s for s in spans if s[0] * tick < finding.until_ps and s[1] * tick > finding.at_ps]
    delay = 0.0
    for at in range(200):
        count = sum(begin <= at < end for begin, end in spans)
        delay += sum(1 - 1 / count for begin, end in inside if begin <= at < end)
    assert finding.evidence["delay_s"] == pytest.approx(delay / 10)

"""Measured links: their figures follow from the measurements, a scenario takes them by name, and the page has them."""

from __future__ import annotations

import csv
import math
import re
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.latency.links import LinkProfile, links
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND

MEASURED = ROOT.parent / "shared" / "calibration" / "h200" / "kv_movement.csv"
NAME = "h200-h2d-blocks-2026-11"
APART = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}}
PROFILES = [pytest.param(profile, id=name) for name, profile in links().entries.items()]


def load(**cluster: Any) -> Scenario:
    return Scenario.load({"workload": {"requests": 10, "rate": "10/s"}, "cluster": cluster})


def measured_copies() -> list[dict[str, str]]:
    if not MEASURED.is_file():
        pytest.skip("the measurements are not beside this checkout (../shared/calibration)")
    with MEASURED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def points(profile: LinkProfile, clock: str = "wall_ms") -> list[tuple[int, float]]:
    """What was measured of it, as (bytes, seconds)."""
    rows = [row for row in measured_copies() if row["direction"] == profile.direction]
    return [(int(row["bytes"]), float(row[clock]) / 1000) for row in rows if row["method"] in profile.methods]


def best_line(measured: list[tuple[int, float]]) -> tuple[float, float]:
    """Latency and seconds a byte with the least sum of ((latency + bytes·each) / seconds - 1)²."""
    constant = math.fsum(1 / time**2 for _, time in measured)
    mixed = math.fsum(size / time**2 for size, time in measured)
    square = math.fsum((size / time) ** 2 for size, time in measured)
    right = math.fsum(1 / time for _, time in measured)
    sized = math.fsum(size / time for size, time in measured)
    scale = constant * square - mixed**2
    return (square * right - mixed * sized) / scale, (constant * sized - mixed * right) / scale


@pytest.mark.parametrize("profile", PROFILES)
def test_the_figures_are_the_best_line_through_the_measurements(profile: LinkProfile) -> None:
    latency, each = best_line(points(profile))
    assert profile.latency_ps / PS_PER_SECOND == pytest.approx(latency, abs=0.06e-6)  # as they are rounded in the file
    assert profile.bandwidth == pytest.approx(1 / each, rel=0.001)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_measured_time_is_further_from_the_line_than_it_says(profile: LinkProfile) -> None:
    measured = points(profile)
    assert len({size for size, _ in measured}) >= 5  # from a few blocks to a thousand
    line = profile.latency_ps / PS_PER_SECOND
    worst = max(abs((line + size / profile.bandwidth) / time - 1) for size, time in measured)
    assert profile.within - 0.01 < worst <= profile.within


def test_without_a_profile_the_links_have_the_usual_figures() -> None:
    kv = {"tiers": {"cpu": {"blocks": 9}, "storage": {"blocks": 9}}}
    found = engines(load(**APART, kv=kv).cluster)[0]
    assert found.transfer is not None and found.kv.tiers is not None
    assert (found.transfer.spec.latency_ps, found.transfer.spec.bandwidth) == (500 * 10**6, 50 * 10**9)
    usual = [(20 * 10**6, 50 * 10**9), (10**9, 5 * 10**9)]
    assert [(tier.latency_ps, tier.bandwidth) for tier in found.kv.tiers.values()] == usual


@pytest.mark.parametrize("name", [NAME, "h200-host-2026-11", "H200_H2D_blocks 2026-11"])
def test_a_transfer_and_a_tier_take_the_figures_of_a_profile(name: str) -> None:
    kv = {"tiers": {"cpu": {"blocks": 9, "profile": name}, "storage": {"blocks": 9}}}
    found = engines(load(**APART, kv=kv, transfer={"profile": name, "granularity": "stream"}).cluster)[0]
    assert found.transfer is not None and found.kv.tiers is not None
    measured = (21 * 10**6, 50_900_000_000)
    assert (found.transfer.spec.latency_ps, found.transfer.spec.bandwidth, found.transfer.grain_tokens) == (
        *measured,
        1,
    )
    assert (found.kv.tiers["cpu"].latency_ps, found.kv.tiers["cpu"].bandwidth) == measured
    assert found.kv.tiers["storage"].bandwidth == 5 * 10**9


@pytest.mark.parametrize("profile", PROFILES)
def test_by_name_or_by_figures_it_is_the_same_run(profile: LinkProfile) -> None:
    named = {"profile": profile.name}
    figures = {"latency": f"{profile.latency_ps}ps", "bandwidth": f"{profile.bandwidth}B/s"}
    found = [load(**APART, transfer=link, kv={"tiers": {"cpu": {"blocks": 9, **link}}}) for link in (named, figures)]
    again = Scenario.load(found[0].resolved())
    assert found[0].resolved() == found[1].resolved() == again.resolved()
    assert found[0].key() == found[1].key() == again.key()
    written = found[0].resolved()["cluster"]
    for link in (written["transfer"], written["prefill"]["kv"]["tiers"]["cpu"]):
        assert "profile" not in link and link["bandwidth"] == figures["bandwidth"]


def test_a_prompt_arrives_after_the_latency_and_the_time_of_its_bytes() -> None:
    given = {
        "workload": {"requests": 1, "rate": "1/s", "prompt_tokens": 1024, "output_tokens": 4},
        "cluster": {**APART, "transfer": {"profile": NAME}},
    }
    rows = headway.simulate(given).requests
    moved = 1024 * 131_072  # of llama-3.1-8b
    expected = 21 * 10**6 + -(-moved * PS_PER_SECOND // 50_900_000_000)
    assert rows["transferred_ps"][0] - rows["transfer_ps"][0] == expected


BESIDE = "'profile' sets this key too. Remove one of the two."


@pytest.mark.parametrize(
    ("link", "told"),
    [
        (
            {"profile": "h200-nvlink"},
            ".profile: no measured link in the table is called 'h200-nvlink'; set 'latency' and",
        ),
        ({"profile": 5}, ".profile: expected text, got 5."),
        ({"profile": NAME, "latency": "1ms"}, f".latency: {BESIDE}"),
        ({"profile": NAME, "bandwidth": "50GB/s"}, f".bandwidth: {BESIDE}"),
        ({"bandwidth": "0B/s"}, ".bandwidth: must be at least 1B/s, got '0B/s'."),
        ({"latency": "5"}, ".latency: '5' is not a duration"),
    ],
)
def test_a_mistake_is_told_with_its_place(link: dict[str, Any], told: str) -> None:
    clusters: dict[str, dict[str, Any]] = {
        "cluster.transfer": {**APART, "transfer": link},
        "cluster.kv.tiers.cpu": {"kv": {"tiers": {"cpu": {"blocks": 9, **link}}}},
        "cluster.deployments.a.transfer": {"deployments": {"a": {**APART, "transfer": link}}},
    }
    for place, cluster in clusters.items():
        with pytest.raises(HeadwayError) as caught:
            load(**cluster)
        assert str(caught.value).startswith(f"{place}{told}")


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError) as caught:
        load(**APART, transfer={"profile": "h200-host-2026"})
    told = str(caught.value)
    assert "Did you mean 'h200-host-2026-11'?" in told
    assert told.endswith(f"Known: {', '.join(sorted(links().entries))}.")


def test_the_names_are_dated_as_the_table_is() -> None:
    for name in (*links().entries, *links().aliases):
        assert name.endswith(f"-{links().as_of}")


def test_the_page_lists_the_measured_links() -> None:
    page = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8").partition("### Measured links")[2]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.+?) µs \| (.+?) GB/s \| (\d+) % \|", page, re.MULTILINE)
    assert [name for name, *_ in rows] == list(links().entries)
    for name, others, latency, bandwidth, within in rows:
        found = links().entries[name]
        assert [other for other in others.split(", ") if other] == [
            alias for alias, of in links().aliases.items() if of == name
        ]
        assert (float(latency) * 10**6, float(bandwidth.replace(",", "")) * 10**9) == (
            found.latency_ps,
            found.bandwidth,
        )
        assert int(within) / 100 == found.within


def test_the_page_of_the_model_says_what_was_measured() -> None:
    """The section `Measured links` of model.md, sentence by sentence."""
    for profile in links().entries.values():
        assert profile.within <= (0.17 if profile.direction == "d2d" else 0.02)
        wall, gpu = (best_line(points(profile, clock)) for clock in ("wall_ms", "median_ms"))
        assert gpu[1] == pytest.approx(wall[1], rel=0.01)
        assert 6.5e-6 < wall[0] - gpu[0] < 9.5e-6
    rows = measured_copies()
    both = {float(row["gb_per_s"]) for row in rows if row["direction"] == "both"}
    assert {round(speed, 1) for speed in both} == {99.8}
    for method, low, high in (("layer-memcpy-loop", 10, 13), ("layer-memcpy-batch", 21, 43)):
        speeds = [
            float(row["gb_per_s"]) for row in rows if row["direction"] in ("h2d", "d2h") and row["method"] == method
        ]
        assert (round(min(speeds)), round(max(speeds))) == (low, high)
    took = {(row["direction"], row["blocks"], row["method"]): float(row["wall_ms"]) for row in rows}
    gains = [
        1 - took[way, blocks, "block-memcpy-batch"] / ms
        for (way, blocks, method), ms in took.items()
        if way in ("h2d", "d2h") and method.startswith("layer-kernel") and (way, blocks, "block-memcpy-batch") in took
    ]
    assert 0.06 < max(gains) < 0.07


def test_the_page_of_the_model_says_how_copies_slow_steps() -> None:
    """The row `Slowdown of steps by concurrent copies` of model.md."""
    file = MEASURED.with_name("interference.csv")
    if not file.is_file():
        pytest.skip("the measurements are not beside this checkout (../shared/calibration)")
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    alone = {row["composition"]: float(row["step_median_ms"]) for row in rows if row["copying"] == "none"}
    slower: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["copying"] != "none":
            phase = "prefill" if '"decode":[]' in row["composition"] else "decode"
            share = float(row["step_median_ms"]) / alone[row["composition"]] - 1
            slower.setdefault((phase, row["copying"]), []).append(round(100 * share))
    assert (min(slower["decode", "h2d"]), max(slower["decode", "h2d"])) == (3, 5)
    assert set(slower["decode", "d2h"]) == {1}
    prefill = [share for (phase, _), shares in slower.items() if phase == "prefill" for share in shares]
    assert (min(prefill), max(prefill)) == (1, 7)
    unsure = [row for row in rows if '"decode":[]' in row["composition"] and row["copies_outlasted_steps"] == "False"]
    assert len(unsure) == 2 and len(prefill) == 3

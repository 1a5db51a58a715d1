"""Admission on a burst trace: more goodput and more rejects, per class and per tenant."""

from __future__ import annotations

import re
from typing import Any

import pytest

import headway
from conftest import ROOT

pytestmark = pytest.mark.full  # their common comparison takes nine seconds

AZURE = ROOT.parent / "shared" / "traces" / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv"
TENANTS = {
    "ide": {"weight": 3, "slo_class": "realtime"},
    "review": {"weight": 2, "slo_class": "standard"},
    "index": {"weight": 3, "slo_class": "batch"},
}
SECOND = {"realtime": "1s", "standard": "1s", "batch": "1s"}
POLICIES: list[Any] = [
    "always",
    {"name": "tier-shed", "max_load": 32},
    "saturation",
    {"name": "deadline", "targets": SECOND},
    {"name": "token-bucket", "rate": 12, "burst": 40},
]


@pytest.fixture(scope="module")
def comparison() -> headway.Comparison:
    if not AZURE.is_file():
        pytest.skip(f"there is no {AZURE.name}: the real traces lie in ../shared/traces beside the repository")
    scenario = {
        "defaults": "2026-11",
        "workload": {"trace": {"path": str(AZURE), "speed": 4, "transforms": [{"assign": {"tenants": TENANTS}}]}},
        "cluster": {"instances": 2, "gpu": "h200"},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    }
    return headway.compare(scenario, POLICIES, stage="admission", workers=1)


def test_shedding_lifts_goodput_and_costs_rejects(comparison: headway.Comparison) -> None:
    plain = comparison["always"]
    assert plain["requests"]["rejected"] == 0 and plain["requests"]["completed"] == 8819
    for name in ("tier-shed", "saturation", "deadline"):
        summary = comparison[name]
        assert summary["requests"]["rejected"] > 0.05 * 8819
        assert summary["requests"]["completed"] + summary["requests"]["rejected"] == 8819
        # per planned request: rejected requests are misses
        assert summary["slo"]["goodput_ratio"] > plain["slo"]["goodput_ratio"] + 0.1
        assert summary["latency"]["ttft"]["p99"] < plain["latency"]["ttft"]["p99"]
    assert comparison.best.startswith("deadline")


def test_a_policy_that_turns_too_much_away_does_not_get_an_easier_score(comparison: headway.Comparison) -> None:
    strict, plain = comparison["token-bucket"], comparison["always"]
    assert strict["latency"]["ttft"]["mean"] < plain["latency"]["ttft"]["mean"] / 5
    assert strict["slo"]["ttft_attainment"] > 0.98 > plain["slo"]["ttft_attainment"]
    assert strict["slo"]["goodput_ratio"] < plain["slo"]["goodput_ratio"]


def test_low_classes_pay_for_the_high_ones_where_classes_are_shed(comparison: headway.Comparison) -> None:
    def shares(policy: str, group: str) -> dict[str, float]:
        rows = [row for row in comparison.per(group) if row["policy"].startswith(policy)]
        return {row["id"]: row["slo"]["goodput_ratio"] for row in rows}

    for policy in ("tier-shed", "saturation"):
        before, after = shares("always", "class"), shares(policy, "class")
        assert list(after) == ["batch", "realtime", "standard"]
        assert after["realtime"] > before["realtime"] + 0.1 and after["standard"] > before["standard"] + 0.1
        assert after["batch"] < after["realtime"] - 0.05
        turned_away = {
            row["id"]
            for row in comparison.per("class")
            if row["policy"].startswith(policy) and row["requests"]["rejected"]
        }
        assert turned_away == {"batch"}
    after = shares("deadline", "tenant")
    assert list(after) == ["ide", "index", "review"]
    assert max(after.values()) - min(after.values()) < 0.05  # a deadline ignores classes


def test_fairness_among_tenants_is_told(comparison: headway.Comparison) -> None:
    fair = {name.partition("(")[0]: summary["fairness"]["jain_goodput"] for name, summary in comparison.ranked}
    assert fair["always"] > 0.999 and fair["deadline"] > 0.999
    assert fair["saturation"] < fair["tier-shed"] < 0.999


def test_each_class_conserves_its_requests(comparison: headway.Comparison) -> None:
    for group in ("class", "tenant"):
        for name, summary in comparison.ranked:
            rows = [row for row in comparison.per(group) if row["policy"] == name]
            for outcome in ("arrived", "completed", "rejected", "timed_out"):
                assert sum(row["requests"][outcome] for row in rows) == summary["requests"][outcome]


def test_the_page_has_the_figures_of_this_comparison(comparison: headway.Comparison) -> None:
    page = (ROOT / "docs" / "control-plane.md").read_text(encoding="utf-8").partition("### Example: a bursty trace")[2]
    rows = re.findall(r"^\| `([\w-]+)`[^|]*\| (.+) \|$", page.partition("## Priority")[0], re.MULTILINE)
    assert {name for name, _ in rows} == {name.partition("(")[0] for name, _ in comparison.ranked}
    for name, cells in rows:
        summary = comparison[name]
        shares = {row["id"]: row for row in comparison.per("tenant") if row["policy"].partition("(")[0] == name}
        assert cells.split(" | ") == [
            f"{100 * summary['slo']['goodput_ratio']:.1f} %",
            f"{summary['requests']['rejected']:,}",
            f"{summary['latency']['ttft']['p99']:,.0f}",
            *(f"{100 * shares[tenant]['slo']['goodput_ratio']:.1f} %" for tenant in TENANTS),
            f"{summary['fairness']['jain_goodput']:.3f}",
        ], name

"""The finding on bursts of one tenant, which are blamed until the backlog that they left is done."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from findings_made import of_kind, request, result, seen

import headway
from headway.results.findings import tenant_burst
from headway.results.records import Finding
from headway.results.result import Result

Json = dict[str, Any]
SECOND = 10**12


def bursting(folder: Path, bursts: dict[str, tuple[int, int]], **more: Any) -> Result:
    """A quiet tenant sends four requests a second for 150 s. Each other tenant sends one every 10 s, and its burst of
    so many requests within half a second at this second."""
    rng, now = Random(5), 0.0
    rows: list[tuple[float, str]] = []
    while now < 150:
        now += rng.expovariate(4)
        rows.append((now, "quiet"))
    for tenant, (size, at) in bursts.items():
        rows += [(at + place / size / 2, tenant) for place in range(size)]
        rows += [(at + 0.3, tenant) for at in range(0, 150, 10)]
    lines: list[Json] = [{"headway_trace": 1, "origin": "drawn", "block_tokens": 16}]
    for at, tenant in sorted(rows):
        tokens = (800, 60) if tenant == "quiet" else (1500, 80)
        times = {"at_ps": round(at * 10**6) * 10**6, "tenant": tenant}
        lines.append({"prompt_tokens": tokens[0], "output_tokens": tokens[1], **times})
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    latency = {"model": "fixed", "prefill_tokens_per_s": 8000, "decode_tokens_per_s": 40}
    scenario: Json = {
        "workload": {"trace": {"path": str(folder / "trace.jsonl"), "sessions": "none"}},
        "cluster": {"instances": 1, "latency": latency},
        "slo": {"ttft": "1s"},
    }
    return headway.simulate(scenario | more)


def share_of(run: Result, tenant: str) -> float:
    return next((finding.severity for finding in of_kind(run, "tenant_burst") if tenant == blamed(finding)), 0.0)


def blamed(finding: Finding) -> str:
    (blame,) = finding.blames
    assert blame.kind == "tenant" and blame.name == finding.evidence["tenant"] and blame.share == finding.severity
    return blame.name


def test_a_larger_burst_is_blamed_for_at_least_as_large_a_share(tmp_path: Path) -> None:
    runs = [bursting(tmp_path, {"batch": (size, 20)}) for size in (60, 200, 400)]
    shares = [share_of(run, "batch") for run in runs]
    assert shares == sorted(shares) and shares[0] > 0.5 and shares[2] > 0.95
    finding = of_kind(runs[2], "tenant_burst")[0]
    assert finding.until_ps - finding.at_ps > 100 * SECOND  # long after the half second of the burst
    tenants = runs[2].requests["tenant"]
    assert finding.requests and all(tenants[row] == "quiet" for row in finding.requests)


def test_tenants_that_burst_together_share_the_blame_by_their_work(tmp_path: Path) -> None:
    run = bursting(tmp_path, {"large": (150, 20), "small": (50, 20)})
    large, small = share_of(run, "large"), share_of(run, "small")
    assert 2 * small < large < 4 * small and 0.8 < large + small <= 1


def test_a_burst_within_the_backlog_of_another_one_is_blamed_too(tmp_path: Path) -> None:
    run = bursting(tmp_path, {"first": (150, 20), "second": (150, 70)})
    assert share_of(run, "first") > 0.2 and share_of(run, "second") > 0.2


def test_a_burst_that_the_cluster_absorbs_is_no_finding(tmp_path: Path) -> None:
    run = bursting(tmp_path, {"batch": (60, 20)}, slo={"ttft": "60s"})
    assert of_kind(run, "tenant_burst") == []


@pytest.mark.parametrize(
    "loss", [{"outcome": "timed_out"}, {"outcome": "rejected", "instance": -1, "routed_ps": -1, "enqueued_ps": -1}]
)
def test_without_targets_lost_requests_count(loss: Json) -> None:
    """Twenty requests of a burst run for 50 s. Meanwhile the other tenant's requests are lost."""
    rows = [request(10 + k / 40, start=11, first=12, end=60, tenant="batch", prompt_tokens=1000) for k in range(20)]
    for k in range(80):
        lost = 10 < k < 60
        end = k + 0.5 + (0.5 if not lost else 5 if loss["outcome"] == "timed_out" else 0)
        row = request(k + 0.5, start=-1 if lost else k + 0.6, first=-1 if lost else k + 0.7, end=end, tenant="quiet")
        rows.append(row | {"prompt_tokens": 100} | (loss if lost else {}))
    rows.sort(key=lambda row: row["arrival_ps"])
    (finding,) = tenant_burst.find(seen(rows))
    assert finding.evidence["tenant"] == "batch" and finding.evidence["late"] == 49
    assert finding.severity > 0.9 and "of the other tenants' losses" in finding.title
    until = 60 if loss["outcome"] == "rejected" else 64.5  # the last request that waited behind the burst
    assert (finding.at_ps, finding.until_ps) == (10 * SECOND, until * SECOND)
    assert finding.title == (
        f"Bursts of tenant batch caused {100 * finding.severity:.1f} % of the other tenants' losses (about "
        f"{finding.evidence['blamed']:,.0f} of 49): the largest burst had 20 requests within 1.0 s at 10.0 s, and the "
        f"work that a burst left took up to {until - 10:.1f} s."
    )


# --- recomputed ------------------------------------------------------------------------------------------------------


def naive_blame(run: Result, target_ps: int) -> dict[str, float]:
    """The blame on each tenant by the definition, step by step, without any of the code under test. Instances do not
    share anything; requests that no instance received are not looked at."""
    rows = list(run.requests.rows())
    begin = rows[0]["arrival_ps"]
    length = rows[-1]["arrival_ps"] - begin
    width = max(SECOND, length // 200 + 1)
    windows: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (length // width + 1))
    for row in rows:
        windows[row["tenant"]][(row["arrival_ps"] - begin) // width] += 1

    def bursts(row: Any) -> bool:
        sent = windows[row["tenant"]]
        return sent[(row["arrival_ps"] - begin) // width] >= max(10, 3 * median(sent))

    def late(row: Any) -> bool:
        return bool(row["first_token_ps"] - row["arrival_ps"] > target_ps)

    def work(row: Any) -> int:
        return int(row["prompt_tokens"] - row["cached_tokens"] + row["output_tokens"])

    blame: defaultdict[str, float] = defaultdict(float)
    for instance in sorted({row["instance"] for row in rows}):
        here = [row for row in rows if row["instance"] == instance]
        levels = []
        for row in here:
            if not late(row):
                present = [
                    other for other in here
                    if other["arrival_ps"] <= row["arrival_ps"] < other["finished_ps"]
                    and other["request"] < row["request"]
                ]  # fmt: skip
                levels.append(sum(map(work, present)))
        usual = sorted(levels)[len(levels) // 10] if levels else 0
        times = sorted({row[name] for row in here for name in ("arrival_ps", "finished_ps", "first_token_ps")})
        left: defaultdict[str, float] = defaultdict(float)
        for at, until in pairwise(times):
            backlog = sum(work(row) for row in here if row["arrival_ps"] < at < row["finished_ps"])
            # First what leaves at this time, one by one, then what arrives, as the sweep does.
            steps = [-work(row) for row in here if row["finished_ps"] == at > row["arrival_ps"]]
            backlog -= sum(steps)
            changes: list[tuple[int, str | None]] = [(step, None) for step in steps]
            for row in here:
                if row["arrival_ps"] == at < row["finished_ps"]:
                    changes.append((work(row), row["tenant"] if bursts(row) else None))
            for change, tenant in changes:
                backlog += change
                if tenant is not None:
                    left[tenant] += change
                most = max(0, backlog - usual)
                if sum(left.values()) > most:
                    total = sum(left.values())
                    left = defaultdict(float, {name: each * most / total for name, each in left.items()})
            for row in here:
                if late(row) and row["arrival_ps"] <= at < row["first_token_ps"]:
                    wait = row["first_token_ps"] - row["arrival_ps"]
                    for tenant, tokens in left.items():
                        if tenant != row["tenant"] and tokens:
                            blame[tenant] += tokens / backlog * (until - at) / wait
    return blame


@pytest.mark.parametrize("seed", range(4))
def test_the_blame_is_the_integral_that_the_definition_names(seed: int) -> None:
    rng = Random(seed)
    rows, free = [], [0.0, 0.0]
    arrivals = [(rng.uniform(0, 30), rng.choice("abc")) for _ in range(60)]
    arrivals += [(rng.uniform(5, 6), "b") for _ in range(25)] + [(rng.uniform(5.5, 9), "c") for _ in range(45)]
    for at, tenant in sorted(arrivals):
        where, tokens = rng.randrange(2), rng.choice((100, 400, 900))
        start = max(at, free[where])
        free[where] = start + tokens / 1500
        more = {"prompt_tokens": tokens, "cached_tokens": rng.choice((0, 50)), "tenant": tenant, "instance": where}
        rows.append(request(at, start=start, first=free[where], end=free[where] + rng.uniform(0.1, 3), **more))
    run = result(rows, instances=2, scenario={"slo": {"ttft": "1s"}})
    expected = naive_blame(run, SECOND)
    findings = tenant_burst.find(seen(rows, instances=2, scenario={"slo": {"ttft": "1s"}}))
    assert {blamed(finding) for finding in findings} == {"b", "c"}
    for finding in findings:
        tenant = blamed(finding)
        late = sum(row["first_token_ps"] - row["arrival_ps"] > SECOND for row in rows if row["tenant"] != tenant)
        assert finding.evidence["blamed"] == pytest.approx(expected[tenant])
        assert finding.evidence["late"] == late
        assert finding.severity == pytest.approx(expected[tenant] / late)

"""Every row of the interface tables of the design of the policies has a program that uses it.

The table below names, for each row, programs of the modules beside this one. These modules run each program in the
simulator and live: the programs of routers and autoscalers in a gateway's control plane, and schedulers' programs in
emulated engines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from test_engine_programs import POOL_ROWS
from test_engine_programs import ROWS as ENGINE_ROWS
from test_interface import DECIDES, READS, SCORES

DESIGN = Path(__file__).parents[4] / "shared" / "seeds" / "evolutionary-cluster-simulator.txt"
TABLES = (  # of the design, by the part of the policies that sees or returns them
    *("RouterState", "TenantState", "GlobalRouterMetrics", "ObservedKVState", "ShadowKVModel", "KVLocation"),
    *("RoutingDecision", "CandidateScore", "InstanceSnapshot"),
    *("AutoScaleContext", "DeploymentMetrics", "ScaleDecision"),
    *("InstanceScheduler", "SchedulerContext", "BatchDecision"),
)
PROGRAMS = {*READS, *DECIDES, *SCORES, *ENGINE_ROWS, *POOL_ROWS}
LOAD = ("history: a window of the router", "history: a window of a tenant")
SCORED = ("routing: terms of scores",)
ROWS: dict[str, tuple[str, ...]] = {
    "ADMIT | REJECT | DELAY(duration)": ("admission: admit or reject", "admission: delay"),
    "priority_score (float), scheduling_hints (map)": ("routing: the priority score", "routing: hints"),
    "RoutingDecision": ("routing: priority and reason", "routing: reject"),
    "RouterState.PerTenant": ("tenants: all of them",),
    "RouterState.Global": ("router: in flight",),
    "RouterState.Historical": LOAD,
    "RouterState.ObservedKV": ("observed KV: utilization of the GPU",),
    "RouterState.ShadowKV": ("shadow KV: cached prefix",),
    "TenantState.RequestCount": ("tenant: request count",),
    "TenantState.ActiveRequests": ("tenant: active requests",),
    "TenantState.RecentRate": ("tenant: recent rate",),
    "TenantState.SLOClass": ("tenant: class",),
    "TenantState.BurstDetected": ("tenant: burst",),
    "GlobalRouterMetrics.InFlight": ("router: in flight",),
    "GlobalRouterMetrics.Throughput": ("router: throughput",),
    "GlobalRouterMetrics.RequestRate": ("router: request rate",),
    "ObservedKVState.Utilization": ("observed KV: utilization of the GPU", "observed KV: utilization of a tier"),
    "ObservedKVState.BlocksFree": ("observed KV: free blocks", "observed KV: blocks of a tier"),
    "ObservedKVState.CacheHitRate": ("observed KV: hit rate",),
    "ObservedKVState.OffloadRate": ("observed KV: offload rate",),
    "ObservedKVState.ReloadRate": ("observed KV: reload rate",),
    "ShadowKVModel.PrefixHashes": ("shadow KV: cached prefix",),
    "ShadowKVModel.EstimatedUtilization": ("shadow KV: estimated utilization",),
    "ShadowKVModel.EvictionQueue": ("shadow KV: eviction queue",),
    "KVLocation.Tier": ("shadow KV: cached prefix by tier",),
    "KVLocation.LastAccess": ("shadow KV: last access",),
    "RoutingDecision.TargetInstance": ("routing: priority and reason",),
    "RoutingDecision.PrefillInstance": ("routing: a pair", "decider: split or whole"),
    "RoutingDecision.DecodeInstance": ("routing: a pair", "decider: whole elsewhere"),
    "RoutingDecision.Reason": ("routing: priority and reason",),
    "RoutingDecision.Scores": SCORED,
    "RoutingDecision.FilteredOut": ("routing: what was filtered out",),
    "RoutingDecision.TopKCandidates": SCORED,  # the totals of a scorecard rank all candidates
    "CandidateScore.InstanceID": SCORED,
    "CandidateScore.Score": SCORED,
    "CandidateScore.ScoreBreakdown": SCORED,
    "InstanceSnapshot.InstanceID": ("instance: identity",),
    "InstanceSnapshot.PoolType": ("instance: pool, role, state and model",),
    "InstanceSnapshot.QueueDepth": ("instance: queue depth",),
    "InstanceSnapshot.BatchSize": ("instance: batch size",),
    "InstanceSnapshot.KVUtilization": ("observed KV: utilization of the GPU", "observed KV: utilization of a tier"),
    "InstanceSnapshot.InFlightCount": ("instance: in flight",),
    "InstanceSnapshot.RecentTTFT": ("instance: recent TTFT",),
    "InstanceSnapshot.RecentTPOT": ("instance: recent TPOT",),
    "InstanceSnapshot.CacheHitRate": ("observed KV: hit rate",),
    "InstanceSnapshot.AvailableCapacity": ("instance: available capacity",),
    "InstanceSnapshot.EstimatedWait": ("instance: estimated wait",),
    "AutoScaleContext.ConfigID": ("identity and bounds",),  # by model and role: programs see no names
    "AutoScaleContext.CurrentReplicas": ("current replicas",),
    "AutoScaleContext.MinReplicas": ("identity and bounds",),
    "AutoScaleContext.MaxReplicas": ("identity and bounds",),
    "AutoScaleContext.Metrics": ("average queue depth",),
    "AutoScaleContext.LoadHistory": ("load history",),
    "AutoScaleContext.PendingRequests": ("pending requests",),
    "AutoScaleContext.Clock": ("clock of the pool",),
    "AutoScaleContext.TimeSinceLastScale": ("time since the last scaling",),
    "DeploymentMetrics.AvgQueueDepth": ("average queue depth",),
    "DeploymentMetrics.AvgUtilization": ("average utilization",),
    "DeploymentMetrics.RequestRate": ("request rate",),
    "DeploymentMetrics.SLOAttainment": ("SLO attainment",),
    "DeploymentMetrics.AvgLatency": ("average and p99 latency",),
    "DeploymentMetrics.P99Latency": ("average and p99 latency",),
    "ScaleDecision.Action": ("current replicas",),  # a target above, at or below the current number
    "ScaleDecision.TargetReplicas": ("request rate",),
    "ScaleDecision.Reason": ("current replicas",),  # Headway words it: the program's name and what it wants
    "InstanceScheduler.MakeBatch": ("requests to schedule, by priority", "requests to schedule, by priority and hints"),
    "InstanceScheduler.SelectPreemptionVictim": ("preemption victim", "who yields"),
    "InstanceScheduler.OnRequestArrival": ("on arrival and end",),
    "SchedulerContext.WaitQueue": ("wait queue",),
    "SchedulerContext.RunningBatch": ("running batch", "requests of the batch"),
    "SchedulerContext.KVCacheState": ("KV cache state",),
    "SchedulerContext.Clock": ("clock",),
    "SchedulerContext.InstanceType": ("instance type and limits",),
    "SchedulerContext.MaxBatchSize": ("instance type and limits",),
    "SchedulerContext.MaxTokenBudget": ("instance type and limits",),
    "SchedulerContext.RecentMetrics": ("recent figures: output", "recent figures: wait", "recent figures: counts"),
    "BatchDecision.RequestsToSchedule": ("requests to schedule, by priority",),
    "BatchDecision.PrefillChunkSizes": ("prefill chunk sizes",),
}


def test_every_row_names_programs() -> None:
    assert {name for names in ROWS.values() for name in names} <= PROGRAMS


def test_every_row_of_the_design_s_interface_tables_has_a_program() -> None:
    if not DESIGN.is_file():
        pytest.skip("the design is not beside this checkout (../shared/seeds)")
    text = DESIGN.read_text(encoding="utf-8")
    rows = re.findall(r"Output: (.+?)\s*│", text)
    for table in TABLES:
        (body,) = re.findall(rf"^type {table} (?:struct|interface) {{\n(.*?)^}}", text, re.M | re.S)
        rows += [f"{table}.{field}" for field in re.findall(r"^    (\w+)(?:\s|\()", body, re.M)]
    assert sorted(rows) == sorted(ROWS)

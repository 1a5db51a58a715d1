"""Traced decisions: they have what the policy saw, do not change the run, and can be read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headway
from drawing import grid
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.registry import Entry
from headway.results.decisions import RECORDED, Decision
from headway.results.records import Batch, KvMove
from headway.types import NO_PRIORITY, Priority, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import SIGNALS

BASE: dict[str, Any] = {
    "name": "traced",
    "seed": 3,
    "workload": {
        "requests": 240,
        "rate": "60/s",
        "prompt_tokens": {"dist": "uniform", "min": 20, "max": 900},
        "output_tokens": {"dist": "uniform", "min": 2, "max": 120},
        "prefix": {"groups": 5, "tokens": 256},
    },
    "cluster": {"instances": 4, "max_batch_size": 12, "kv": {"gpu_blocks": 220}},
    "slo": {"ttft": "300ms"},
}
TIERED = {**BASE["cluster"], "kv": {"gpu_blocks": 120, "tiers": {"cpu": {"blocks": 300}}}}
APART = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 3}}
CLUSTERS = {"plain": BASE["cluster"], "tiered": TIERED, "apart": APART}


class Watching:
    """Routes round-robin and records what it sees."""

    def __init__(self) -> None:
        self.turn = 0
        self.seen: list[tuple[int, list[int], list[int], list[int], list[int], list[int]]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        views = cluster.instances
        self.seen.append(
            (
                request.id,
                [view.inflight for view in views],
                [view.pending_prefill_tokens for view in views],
                [view.queued for view in views],
                [view.running for view in views],
                [view.kv_used for view in views],
            )
        )
        self.turn += 1
        return Route(views[self.turn % len(views)].id, "round and round")


def test_a_decision_has_what_the_policy_saw() -> None:
    policy = Watching()
    result = headway.simulate(BASE, routing=policy, trace="decisions").decisions
    assert result is not None
    assert len(result) == len(policy.seen) == 240
    for each, values in zip(result, policy.seen, strict=True):
        assert (
            each.request,
            each.inflight,
            each.pending_prefill_tokens,
            each.queued,
            each.running,
            each.kv_used,
        ) == values
        assert each.reason == "round and round"
        assert each.candidates == [0, 1, 2, 3]
    assert max(max(each.queued) for each in result) > 0


class Reader:
    """Routes to the fewest requests in flight, and records all that it can read about the past."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        views, totals, tenant = cluster.instances, cluster.totals, cluster.tenants[request.tenant]
        self.seen.append(
            (
                (totals.inflight, totals.rate, totals.throughput),
                (tenant.requests, tenant.rate, tenant.burst, tenant.slo_class),
                [view.recent_ttft for view in views],
                [view.recent_tpot for view in views],
                [view.hit_rate for view in views],
                [dict(view.tier_used) for view in views],
                (totals.queued, tenant.active),
                [view.index for view in views],
            )
        )
        return Route(min(views, key=lambda view: view.inflight).id)


@pytest.mark.parametrize(("name", "flow"), grid(list(CLUSTERS), ["none", "bands"]))
def test_a_decision_has_the_past_that_the_policy_saw(name: str, flow: str) -> None:
    cluster = CLUSTERS[name]
    policy = Reader()
    own = {name: value for name, value in BASE["workload"].items() if name not in ("requests", "rate")}
    wild = {"arrival": {"process": "gamma", "cv": 5}, "priority": "batch"}
    workload = {"requests": 600, **own, "tenants": {"calm": {"rate": "30/s"}, "wild": {"rate": "30/s", **wild}}}
    settings = {**BASE, "cluster": cluster, "workload": workload, "policies": {"flow": flow}}
    decisions = headway.simulate(settings, routing=policy, trace="decisions").decisions
    assert decisions is not None and len(decisions) == len(policy.seen)
    for each, values in zip(decisions, policy.seen, strict=True):
        totals, tenant, ttft, tpot, hits, stores, counts, places = values
        state, own = each.router_state, each.tenant
        assert state is not None and own is not None
        assert (state.inflight, state.rate, state.throughput) == totals
        assert (own.requests, own.rate, own.burst, own.slo_class) == tenant
        for values, seen in (
            (each.recent_ttft, ttft),
            (each.recent_tpot, tpot),
            (each.hit_rate, hits),
            (each.tier_used or [{}] * len(each.candidates), stores),
        ):
            assert [values[each.place(index)] for index in places] == seen  # of a pair, the policy sees one half
        own_part = int(flow == "bands")  # the policy also sees the request itself in the queue
        assert (state.queued, own.active) == (counts[0] - own_part, counts[1] - own_part)
    assert len({each.tenant.burst for each in decisions if each.tenant}) == 2 or flow == "bands"
    assert max(each.router_state.queued for each in decisions if each.router_state) > 0 or flow == "none"


class HitRates:
    """Routes to the fewest requests in flight, and records the hit rates."""

    reported = ("hit_rate",)

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.seen.append([view.hit_rate for view in cluster.instances])
        return Route(min(cluster.instances, key=lambda view: view.inflight).id)


def test_a_decision_has_the_hit_rates_even_if_no_policy_reads_them() -> None:
    policy = HitRates()
    workload = {"requests": 500, "rate": "40/s", "prompt_tokens": 800, "prefix": {"groups": 20, "tokens": 512}}
    cluster = {"instances": 4, "kv": {"gpu_blocks": 2500}}
    settings = {"workload": workload, "cluster": cluster, "signals": {"poll_interval": "0s"}}
    headway.simulate(settings, routing=policy)
    decisions = headway.simulate(settings, routing="least-loaded", trace="decisions").decisions
    assert decisions is not None
    assert [each.hit_rate for each in decisions] == policy.seen
    assert len({rate for rates in policy.seen for rate in rates}) > 100


class Seeing:
    """Routes round-robin. A class that declares nothing is taken to read every signal."""

    turn = 0

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.turn += 1
        return Route(cluster.instances[self.turn % len(cluster.instances)].id)


class Blind(Seeing):
    """Declares that it reads no signal."""

    entry = Entry("routing", "blind", Seeing, (), (), oracle=False)


class Peeking(Seeing):
    """Reads a signal that it does not declare."""

    entry = Entry("routing", "peeking", Seeing, (), (), oracle=False)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        assert cluster.instances[0].kv_used >= 0
        return super().route(request, cluster)


TOY = {"hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy", "layers": 3}
WINDOWS = [{"kind": "full", "layers": 1}, {"kind": "sliding", "layers": 2, "window": 100}]
ENGINES = {
    **CLUSTERS,
    "windows": {**BASE["cluster"], "model": {**TOY, "kv_groups": WINDOWS}, "kv": {"gpu_blocks": 500}},
    "speculative": {**BASE["cluster"], "speculation": {"tokens": 3, "acceptance": 0.7}},
    "asynchronous": {**BASE["cluster"], "async_scheduling": True},
    "ranks": {**TIERED, "instances": 2, "dp": 2, "model": TOY},
}


@pytest.mark.parametrize(("interval", "routers"), [("0s", 1), ("100ms", 1), ("0s", 2), ("100ms", 2)])
@pytest.mark.parametrize("name", ENGINES)
def test_a_decision_has_the_used_blocks_as_a_policy_would_see_them(name: str, interval: str, routers: int) -> None:
    further = {"signals": {"poll_interval": interval}, "routers": {"count": routers}}
    settings = {**BASE, "cluster": ENGINES[name], **further}
    seen = headway.simulate(settings, routing=Seeing, trace="decisions").decisions
    blind = headway.simulate(settings, routing=Blind, trace="decisions").decisions
    assert seen is not None and blind is not None
    assert [each.kv_used for each in blind] == [each.kv_used for each in seen]
    assert [each.tier_used for each in blind] == [each.tier_used for each in seen]
    assert len({used for each in blind for used in each.kv_used}) > 20
    assert any(used for each in blind for used in each.tier_used) == ("tiers" in ENGINES[name].get("kv", {}))


def test_what_is_recorded_stays_hidden_from_policies() -> None:
    for trace in ("minimal", "decisions"):
        with pytest.raises(HeadwayError, match="the signal 'kv_used' was read, but no policy of this run declares it"):
            headway.simulate(BASE, routing=Peeking, trace=trace)


@pytest.mark.parametrize(("name", "routing"), grid(list(CLUSTERS), ["weighted", "round-robin", "lmetric"]))
def test_how_much_is_traced_changes_neither_requests_nor_summary(name: str, routing: str) -> None:
    runs = [
        headway.simulate({**BASE, "cluster": CLUSTERS[name]}, routing=routing, trace=trace)
        for trace in ("minimal", "decisions", "full")
    ]
    for run in runs[1:]:
        assert run.summary() == runs[0].summary()
        assert run.requests == runs[0].requests
    assert runs[0].decisions is None
    assert not runs[0].series
    assert runs[1].decisions == runs[2].decisions
    assert runs[1].series
    assert not runs[1].events
    assert runs[2].events


@pytest.mark.parametrize(("name", "routing"), grid(list(CLUSTERS), ["weighted", "round-robin"]))
def test_a_trace_is_the_same_however_the_run_is_computed(name: str, routing: str) -> None:
    leaps = [True, False, "random-cuts"]
    settings = {**BASE, "cluster": CLUSTERS[name]}
    first, *others = (headway.simulate({**settings, "leap": leap}, routing=routing, trace="full") for leap in leaps)
    for other in others:
        for part in ("decisions", "series", "events", "preemptions", "thrashes"):
            assert getattr(other, part) == getattr(first, part), part


def test_what_came_of_the_request_is_filled_in() -> None:
    result = headway.simulate({**BASE, "cluster": TIERED}, routing="lmetric", trace="decisions")
    assert result.decisions is not None
    tiers = set()
    for each in result.decisions:
        row = {name: result.requests[name][each.request] for name in result.requests}
        assert each.target == row["instance"]
        assert each.predicted_tokens == row["predicted_tokens"] == each.believed_tokens[each.place(each.target)]
        assert each.cached_tokens == row["cached_tokens"]
        assert each.ttft_ps == row["first_token_ps"] - row["arrival_ps"]
        assert each.e2e_ps == row["finished_ps"] - row["arrival_ps"]
        assert (each.tier != "") == (each.cached_tokens > 0)
        assert (each.tier == "cpu") == (row["loaded_tokens"] > 0)
        tiers.add(each.tier)
    assert tiers == {"", "gpu", "cpu"}


def test_scores_are_those_of_the_scorecard_and_rank_the_candidates() -> None:
    events: dict[int, Route] = {}
    result = headway.simulate(
        BASE, routing="weighted", trace="decisions", explain=lambda request, route: events.update({request.id: route})
    )
    assert result.decisions is not None
    for each in result.decisions:
        card = events[each.request].scorecard
        assert card is not None
        assert each.totals == card.totals
        assert each.scores == card.scores
        assert each.top(1) == [each.target]


class Silent:
    """Gives no reason."""

    def route(self, request: Request, cluster: ClusterView) -> Route:
        card = Scorecard([], "", left=[view.id for view in cluster.instances], totals=[1.0] * 4, lowest_wins=True)
        return Route(cluster.instances[0].id, scorecard=card if request.id % 2 else None)


def test_a_decision_has_a_reason_even_if_the_policy_gives_none() -> None:
    decisions = headway.simulate(BASE, routing=Silent(), trace="decisions").decisions
    assert decisions is not None
    assert {each.request % 2: each.reason for each in decisions} == {0: "chosen by Silent", 1: "lowest score"}


def test_estimated_regret_is_zero_where_the_estimate_decides_and_positive_for_who_goes_round() -> None:
    best = {"name": "weighted", "scorers": {"predicted-latency": 1}}
    for routing, least in ((best, 0), ("round-robin", 1)):
        result = headway.simulate(BASE, routing=routing, trace="decisions")
        assert result.decisions is not None
        regrets = [each.estimated_regret_ps() for each in result.decisions]
        assert min(regrets) >= 0
        assert (sum(regrets) > 10**9) == bool(least)


def test_a_prompt_left_to_an_instance_that_generates_is_judged_among_those() -> None:
    decider = {"name": "prompt-threshold", "colocate_below_tokens": 450}
    routing = {"name": "pair", "decider": decider}
    result = headway.simulate({**BASE, "cluster": APART}, routing=routing, trace="decisions")
    assert result.decisions is not None
    roles = {index: each["role"] for index, each in result.instances().items()}
    for each in result.decisions:
        able = "decode" if each.prefill < 0 else "prefill"
        assert roles[each.judged] == able
        assert [roles[index] == able for index in each.candidates] == [
            estimate >= 0 for estimate in each.estimated_ttft_ps
        ]
        assert each.estimated_regret_ps() >= 0
    assert len({each.prefill < 0 for each in result.decisions}) == 2


def test_admission_tells_whom_it_refused_and_whom_it_put_off() -> None:
    admission = {"name": "token-bucket", "rate": 20, "burst": 5}
    result = headway.simulate(BASE, admission=admission, trace="decisions")
    assert result.decisions is not None
    reported = {each.request for each in result.decisions.verdicts if each.verdict == "rejected"}
    rejected = {row for row, outcome in enumerate(result.requests["outcome"]) if outcome == "rejected"}
    assert reported == rejected
    assert len(rejected) > 10


def test_batches_tell_who_entered_and_how_many_there_are() -> None:
    result = headway.simulate({**BASE, "cluster": TIERED}, trace="full")
    entered = [row for each in result.events if isinstance(each, Batch) for row in each.entered]
    starts = result.requests["started_ps"]
    again = sum(1 for _ in result.preemptions)
    assert len(entered) == len(starts) + again
    assert set(entered) == set(range(len(starts)))
    moved = dict.fromkeys(("offload", "reload"), 0)
    for each in result.events:
        if isinstance(each, KvMove):
            moved[each.kind] += each.blocks
            assert each.end_ps == -1 or each.end_ps > each.at_ps
        else:
            assert each.running <= 12
    tier = result.summary()["tiers"]["cpu"]
    assert moved == {"offload": tier["stored_blocks"], "reload": tier["loaded_blocks"]}
    assert sum(each.blocks for each in result.thrashes) == tier["thrashed_blocks"]
    assert len(result.preemptions) == result.summary()["preemptions"]


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_a_folder_gives_back_what_was_traced(cluster: Any, tmp_path: Path) -> None:
    result = headway.simulate({**BASE, "cluster": cluster}, trace="full")
    result.save(tmp_path / "run")
    read = headway.Result.load(tmp_path / "run")
    assert read == result
    assert read.key() == result.key() != ""
    assert read.trace == "full"
    assert result.decisions is not None
    assert read.decisions is not None
    assert read.decisions[-1] == result.decisions[-1]
    assert read.decisions.of(7) == result.decisions.of(7)
    for outcome in (read.decisions, result.decisions):
        assert list(outcome.choices()) == [(each.request, len(each.candidates)) for each in outcome]
        assert outcome.find(outcome[9].at_ps, outcome[9].request) == 9
        assert outcome.find(outcome[9].at_ps, -1) is None
        with pytest.raises(IndexError):
            outcome[-len(outcome) - 1]
    assert [each.request for each in read.decisions[:3]] == [each.request for each in result.decisions[:3]]
    read.save(tmp_path / "again")
    for file in sorted((tmp_path / "run").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def test_a_decision_that_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    headway.simulate(BASE, trace="decisions").save(tmp_path)
    file = tmp_path / "decisions.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], b"{}\n", *lines[5:]]))
    result = headway.Result.load(tmp_path).decisions
    assert result is not None
    assert isinstance(result[3], Decision)
    with pytest.raises(HeadwayError, match=r"decisions.jsonl: line 5 is not a decision"):
        result[4]


def test_there_is_no_other_level() -> None:
    with pytest.raises(HeadwayError, match=r"trace: there is no level 'decision'\. Did you mean 'decisions'"):
        headway.simulate(BASE, trace="decision")


def test_decisions_make_a_row_for_each_candidate() -> None:
    decisions = headway.simulate(BASE, routing="weighted", trace="decisions").decisions
    assert decisions is not None
    rows = decisions.columns()
    assert {len(column) for column in rows.values()} == {4 * len(decisions)}
    single = decisions[30]
    assert rows["request"][120:124] == [single.request] * 4
    assert rows["inflight"][120:124] == single.inflight
    assert rows["total"][120:124] == single.totals
    assert rows["score.prefix-affinity"][120:124] == single.scores["prefix-affinity"]
    assert [place for place in range(4) if rows["chosen"][120 + place]] == [single.target]
    plain = headway.simulate(BASE, routing="round-robin", trace="decisions").decisions
    assert plain is not None
    assert set(plain.columns()["total"]) == {None}
    for library in ("pandas", "polars"):
        pytest.importorskip(library)
        frame = getattr(decisions, f"to_{library}")()
        assert frame.shape == (4 * len(decisions), len(rows))


def test_a_decision_has_a_field_for_each_recorded_signal_of_the_table() -> None:
    assert set(RECORDED) <= set(Decision.__struct_fields__)
    assert {name for name, signal in SIGNALS.items() if signal.recorded} == set(RECORDED)


def test_a_decision_names_the_prompt_by_its_beginning() -> None:
    decisions = headway.simulate(BASE, trace="decisions").decisions
    assert decisions is not None
    assert len({each.prefix for each in decisions}) == BASE["workload"]["prefix"]["groups"]
    assert all(each.prompt_tokens >= each.believed_tokens[0] for each in decisions)


class Halves:
    """Gives odd requests a priority without a reason, and even requests none."""

    def prioritise(self, request: Request, cluster: ClusterView) -> Priority:
        return Priority(2.0, {"odd": 1.0}) if request.id % 2 else NO_PRIORITY


def test_priorities_are_recorded_with_hints_and_reasons(tmp_path: Path) -> None:
    result = headway.simulate(BASE, priority="slo-deadline", trace="decisions")
    assert [each.request for each in result.priorities] == list(range(240))
    for each, arrival in zip(result.priorities, result.requests["arrival_ps"], strict=True):
        assert each.at_ps == arrival and each.score == result.requests["priority"][each.request]
        assert (list(each.hints), each.reason) == (["slack_s"], "deadline of the first token")
    result.save(tmp_path / "run")
    assert headway.Result.load(tmp_path / "run").priorities == result.priorities
    own = headway.simulate(BASE, priority=Halves(), trace="decisions").priorities
    assert {(each.request % 2, each.score, each.reason) for each in own} == {(1, 2.0, "scored by Halves")}
    assert len(own) == 120 and own[0].hints == {"odd": 1.0}
    assert headway.simulate(BASE, trace="full").priorities == []
    assert headway.simulate(BASE, priority="slo-deadline").priorities == []


@pytest.mark.parametrize("name", [name for name in registry.names("priority") if name != "none"])
def test_every_priority_policy_gives_a_reason(name: str) -> None:
    priorities = headway.simulate(BASE, overrides="workload.requests=3", priority=name, trace="decisions").priorities
    assert len(priorities) == 3 and all(each.reason for each in priorities)

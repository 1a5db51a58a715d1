"""The generator as a whole: the same workload whatever serves it, lazily, in full, and written out without a gap."""

from __future__ import annotations

import tracemalloc
from itertools import islice, pairwise
from typing import Any

import pytest
from generated import plan, serve_workload, sessions, spec, takes, uneven

from alone import alone
from headway import simulate
from headway.errors import HeadwayError
from headway.workload.spec import preset_names
from headway.workload.traffic import OpenLoop, Planned, Sessions

PRESETS = ("agentic", "batch-summaries", "chat", "completion", "mixed-tenants", "noisy-neighbour", "rag", "reasoning")
AGENT: dict[str, Any] = {"kind": "agentic", "turns": 2, "subagents": {"probability": 0.3}}
WORKLOADS: dict[str, dict[str, Any]] = {
    "completion": {"rate": "5/s", "retry": {"max": 1}},
    "chat": {"rate": "5/s", "kind": "chat", "prefix": {"groups": 5, "tokens": 50}, "correlations": {"prefix": 0.5}},
    "reasoning": {"rate": "5/s", "kind": "reasoning", "max_tokens": {"dist": "exponential", "mean": 900}},
    "agentic": {"rate": "2/s", "kind": AGENT},
    "bursty": {"rate": "2/s", "kind": "chat", "behaviour": "bursty", "correlations": {"burst_size": 1.0}},
    "abusive": {"rate": "2/s", "behaviour": "abusive", "profile": {"type": "diurnal", "period": "60s"}},
    "closed": {"closed_loop": {"concurrency": 6, "think_time": {"dist": "exponential", "mean": "1s"}}, "kind": AGENT},
    "mixed": {
        "rate": "5/s",
        "kinds": ["chat", {"kind": "completion", "weight": 2}],
        "models": [{"name": "a"}, {"name": "b", "weight": 2, "kind": "reasoning"}],
        "slo": {"ttft": "1s"},
        "tenants": {
            "a": {"weight": 2, "archetype": {"prompt_size": "small", "session_turns": 4}},
            "b": {"priority": "batch", "behaviour": {"type": "adversarial", "size": 3}},
            "c": {"closed_loop": {"concurrency": 2}, "kind": "chat"},
            "d": {"rate": "1/s", "prefix": {"groups": [{"name": "x", "tokens": 9}]}, "retry": {"max": 2}},
        },
    },
}


def facts(planned: list[Planned]) -> dict[Any, Any]:
    """What each request is, by session and turn, without its instant; and how long after the session's start."""
    return {
        (item.request.tenant, item.request.session or item.output_key, item.request.turn): (
            item.request.path,
            item.request.prompt_tokens,
            item.request.model,
            item.request.kind,
            item.request.slo_class,
            item.request.max_tokens,
            item.request.shared_prefix_tokens,
            item.output_tokens,
            item.output_key,
        )
        for item in planned
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_requests_come_however_they_are_served(name: str) -> None:
    workload = WORKLOADS[name] | {"requests": 400}
    at_once, slowly, unevenly = (
        plan(**workload),
        serve_workload(takes(9 * 10**12), **workload),
        serve_workload(uneven, **workload),
    )
    assert len(at_once) == 400
    assert facts(at_once) == facts(slowly.planned) == facts(unevenly.planned)


@pytest.mark.parametrize("kind", ["chat", "reasoning", "agentic"])
def test_think_times_and_tool_latencies_are_the_same_however_requests_are_served(kind: str) -> None:
    runs = []
    for service in (takes(10**12), uneven):
        traffic = serve_workload(service, requests=400, rate="5/s", kind={"kind": kind, "turns": 3})
        ends = traffic.served.ends
        runs.append(
            {
                (b.request.session, b.request.turn): b.request.arrival_ps - ends[a.request.id][0]
                for turns in sessions(traffic.planned)
                for a, b in pairwise(turns)
            }
        )
    assert len(runs[0]) > 200 and runs[0] == runs[1]


@pytest.mark.parametrize("name", ["completion", "abusive"])
def test_in_an_open_loop_requests_that_hang_together_with_no_other_come_at_the_same_instants(name: str) -> None:
    workload = WORKLOADS[name] | {"requests": 400}
    runs = [plan(**workload), serve_workload(uneven, **workload).planned]
    assert runs[0] == runs[1]


def test_sessions_start_at_the_same_instants_however_they_are_served() -> None:
    workload = WORKLOADS["chat"] | {"requests": 400}
    starts = [
        {turns[0].request.session: turns[0].request.arrival_ps for turns in sessions(planned)}
        for planned in (plan(**workload), serve_workload(uneven, **workload).planned)
    ]
    assert starts[0] == starts[1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_function_of_its_seed(name: str) -> None:
    workload = WORKLOADS[name] | {"requests": 200}
    assert plan(seed=3, **workload) == plan(seed=3, **workload)
    assert plan(seed=3, **workload) != plan(seed=4, **workload)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_written_out_reads_back_to_the_same_workload(name: str) -> None:
    workload = WORKLOADS[name] | {"requests": 200}
    written = spec(**workload).resolved()
    assert spec(**written).resolved() == written
    assert plan(**written) == plan(**workload)
    assert spec(**written).slos() == spec(**workload).slos()


def test_requests_alone_are_an_open_loop_and_the_same_as_their_sessions_would_be() -> None:
    section: dict[str, Any] = {
        "requests": 500,
        "rate": "9/s",
        "prefix": {"groups": 20, "tokens": 300, "share": 0.7},
        "max_tokens": {"dist": "exponential", "mean": 300},
        "priority": "batch",
        "profile": {"type": "ramp", "from": 0.5, "to": 2, "end": "30s"},
    }
    assert isinstance(spec(**section).plan(1, "m"), OpenLoop)
    assert isinstance(spec(**section, retry={"max": 1}).plan(1, "m"), Sessions)
    assert plan(**section) == plan(**section, retry={"max": 1})
    common = {name: section.pop(name) for name in ("prefix", "max_tokens", "priority", "profile")}
    assert plan(**section, **common) == plan(**section, tenants={"default": common})


def test_the_requests_asked_for_are_planned_in_order_of_the_sessions_starts_and_the_last_is_cut_short() -> None:
    kind = {"kind": "chat", "turns": 4}
    conversations = sessions(plan(requests=10, rate="1/s", kind=kind))
    assert [len(turns) for turns in conversations] == [4, 4, 2]
    slow = {"a": {"rate": "10/s"}, "b": {"rate": "1/h"}}
    assert {item.request.tenant for item in plan(requests=50, tenants=slow, kind=kind)} == {"a"}
    traffic = serve_workload(takes(10**12), requests=10, rate="1/s", kind=kind)
    assert traffic.not_issued == 0


def test_a_duration_ends_a_workload_and_counts_the_turns_that_never_came() -> None:
    kind = {"kind": "chat", "turns": 4, "think_time": "10s"}
    traffic = serve_workload(takes(10**12), duration="30s", rate="1/s", arrival="constant", kind=kind)
    assert max(item.request.arrival_ps for item in traffic.planned) < 30 * 10**12
    assert len(traffic.planned) + traffic.not_issued == 30 * 4
    assert len(traffic.planned) == sum(1 + (29 - start) // 11 for start in range(30))


def peak_of_a_million(count: int) -> int:
    kinds = [{"kind": "chat", "think_time": "1s"}, "completion"]
    tracemalloc.start()
    traffic = spec(requests=1_000_000, rate="20/s", kinds=kinds, prefix={"groups": 10, "tokens": 50}).plan(1, "m")
    assert len([item.request.id for item in islice(traffic, count)]) == count
    return tracemalloc.get_traced_memory()[1]


@pytest.mark.full
def test_a_million_requests_start_at_once_and_memory_does_not_grow_with_them() -> None:
    assert alone(peak_of_a_million, 0) < 1_000_000
    assert alone(peak_of_a_million, 20_000) < 2_000_000


def test_a_rate_too_low_for_the_clock_is_told() -> None:
    with pytest.raises(HeadwayError, match=r"^workload\.tenants\.a\.rate: session \d+ would arrive after 1\d\d days"):
        plan(requests=5000, tenants={"a": {"rate": "1/h", "kind": {"kind": "chat", "turns": 1}}})
    with pytest.raises(HeadwayError, match=r"^workload\.tenants\.a\.rate: 1e9/s for 9s is more than 1000000000"):
        spec(duration="9s", tenants={"a": {"rate": "1e9/s"}})


# --- presets ------------------------------------------------------------------------------------------------------


def test_a_preset_goes_by_its_name_or_its_dated_name() -> None:
    assert [name.rpartition("-2026")[0] for name in preset_names()] == list(PRESETS)
    for name, dated in zip(PRESETS, preset_names(), strict=True):
        assert spec(preset=name).resolved() == spec(preset=dated).resolved()
        assert "preset" not in spec(preset=name).resolved()


def test_what_is_given_beside_a_preset_takes_its_place() -> None:
    section = spec(preset="chat", requests=9, rate="1/s", kinds=["completion"]).resolved()
    assert (section["requests"], section["rate"], section["kind"]["kind"]) == (9, "1/s", "completion")
    assert "requests" not in spec(preset="chat", duration="9s").resolved()
    assert "closed_loop" not in spec(preset="batch-summaries", rate="1/s").resolved()
    assert "rate" not in spec(preset="chat", closed_loop={"concurrency": 3}).resolved()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_runs_on_the_default_cluster_and_serves_most_as_promised(name: str) -> None:
    result = simulate({"workload": {"preset": name, "requests": 300}})
    summary = result.summary()
    assert summary["requests"]["completed"] == 300
    assert summary["slo"]["goodput_ratio"] > 0.9
    written = spec(preset=name).resolved()
    assert spec(**written).resolved() == written


def test_synchronised_bursts_may_be_given_by_their_interval() -> None:
    arrival = {"process": "adversarial", "size": 7, "interval": "3s"}
    for section in ({"arrival": arrival}, {"tenants": {"a": {"arrival": arrival}}}):
        times = [planned.request.arrival_ps // 10**12 for planned in plan(requests=20, **section)]
        assert times == [0] * 7 + [3] * 7 + [6] * 6


def test_a_prefix_may_come_in_addition_to_the_prompt() -> None:
    prefix = {"groups": 3, "tokens": 300, "share": 0.5}
    section = {"requests": 200, "rate": "9/s", "prompt_tokens": {"dist": "exponential", "mean": 200}}
    without = plan(**section)
    inside, added = plan(**section, prefix=prefix), plan(**section, prefix={**prefix, "added": True})
    shares = [item.request.shared_prefix_tokens for item in added]
    assert set(shares) == {0, 300}
    for bare, part, whole, shared in zip(without, inside, added, shares, strict=True):
        assert part.request.prompt_tokens == bare.request.prompt_tokens
        assert whole.request.prompt_tokens == bare.request.prompt_tokens + shared
        assert whole.request.path.tokens == whole.request.prompt_tokens
        assert not shared or whole.request.path.keys[0] == part.request.path.keys[0]


def test_a_prefix_is_added_once_to_a_conversation() -> None:
    chat = {"kind": "chat", "turns": 3, "turn_tokens": 20, "think_time": "1s"}
    section = {"requests": 30, "rate": "9/s", "prompt_tokens": 50, "output_tokens": 7, "kind": chat}
    prefix = {"groups": 1, "tokens": 300, "added": True}
    for session in sessions(plan(**section, prefix=prefix)):
        assert [turn.request.prompt_tokens for turn in session] == [350, 377, 404]

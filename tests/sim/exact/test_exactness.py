"""The central promise: leaping, walking and cutting runs at random places give the same bytes, on every scenario.

Everything goes through the public API: a scenario as a mapping in, the summary, the columns and the run folder out.
`exact_runs.check` says what else each of the drawn scenarios is put to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import control_draws
import exact_runs
import headway
import session_plans
from draw_sources import Scattered, fresh_numbers
from drawn_policies import Hearing
from drawn_scenarios import (
    BASES,
    BELIEVING,
    FAMILIES,
    LOOKING,
    PLAIN,
    ROUTESIM,
    SCHEDULERS,
    draw_priced,
    scattered,
    searched,
    write_trace,
)
from drawn_traits import COMMON, demand, traits
from exact_runs import MODES, check, most_in_flight, run
from headway import ClusterView, Request, Route
from headway.experiment.run import prepare
from headway.policies import registry
from searching import search

Json = dict[str, Any]
QUICK, FULL, LONG, SEARCHED = 20, 240, 5000, 40  # scenarios a family
HEARD, HEARD_FULL = 3, 57  # scenarios a family in which a policy observes all events
SAVED = 10  # of so many scenarios, one is saved to disk in all modes
WATCHED = 3  # of so many scenarios, `make test` watches one after each event, which takes longer than its runs


def check_scattered(family: str, chosen: Iterable[int], folder: Path, watched: int = 1) -> Counter[str]:
    """Check the scenarios of these numbers, watch one of so many, and count how many showed each trait."""
    seen: Counter[str] = Counter()
    for number in chosen:
        scenario = scattered(family, number, folder)
        try:
            result = check(scenario, folder / "runs" if number % SAVED == 0 else None, number % watched == 0)
        except Exception as error:
            error.add_note(f"scattered({family!r}, {number}): {scenario!r}")
            raise
        seen.update(["scenarios", *traits(scenario, result)])
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_leaping_walking_and_cutting_give_the_same_bytes(family: str, tmp_path: Path) -> None:
    assert check_scattered(family, range(QUICK), tmp_path, WATCHED)["scenarios"] == QUICK


def check_hearing(family: str, chosen: Iterable[int], folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exact_runs, "Witness", Hearing)
    for number in chosen:
        scenario = scattered(family, number, folder)
        scenario["policies"]["routing"] = "witness"
        try:
            check(scenario, watching=False)  # the same scenarios are watched under their own policies
        except Exception as error:
            error.add_note(f"scattered({family!r}, {number}): {scenario!r}")
            raise


@pytest.mark.parametrize("family", FAMILIES)
def test_policies_observe_the_same_events_in_all_modes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_hearing(family, range(HEARD), tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_policies_observe_the_same_events_in_all_modes_on_many_scenarios(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_hearing(family, range(HEARD, HEARD + HEARD_FULL), tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_leaping_walking_and_cutting_give_the_same_bytes_on_many_scenarios(family: str, tmp_path: Path) -> None:
    demand(family, check_scattered(family, range(QUICK, QUICK + FULL), tmp_path))


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_hypothesis_does_not_falsify_that_they_give_the_same_bytes(family: str, tmp_path: Path) -> None:
    """What fails is reduced to something small."""
    search(SEARCHED, check, searched(family, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_leaping_walking_and_cutting_give_the_same_bytes_on_fresh_scenarios(family: str, tmp_path: Path) -> None:
    demand(family, check_scattered(family, fresh_numbers(LONG), tmp_path))


def check_priced(chosen: Iterable[int], folder: Path) -> None:
    for number in chosen:
        scenario = scattered(BASES[number % len(BASES)], number, folder)
        if "models" in scenario["workload"]:  # it names the models that the cluster serves
            continue
        scenario["cluster"] |= draw_priced(Scattered(number))
        try:
            check(scenario, watching=False)
        except Exception as error:
            error.add_note(f"priced {number}: {scenario!r}")
            raise


def test_experts_8_bits_and_several_gpus_give_the_same_bytes(tmp_path: Path) -> None:
    check_priced(range(QUICK), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("part", range(3))
def test_experts_8_bits_and_several_gpus_give_the_same_bytes_on_many_scenarios(part: int, tmp_path: Path) -> None:
    check_priced(range(QUICK + part * 134, QUICK + part * 134 + 134), tmp_path)


@pytest.mark.parametrize("stage", control_draws.STAGES)
def test_every_policy_of_the_catalogue_is_drawn(stage: str) -> None:
    assert sorted(control_draws.STAGES[stage]) == sorted(registry.names(stage))


@pytest.mark.parametrize("name", dict.fromkeys([*PLAIN, *BELIEVING, *ROUTESIM, *LOOKING, "kv-aware-spill"]))
def test_a_busy_cluster_is_the_same_under_every_policy(name: str) -> None:
    scenario = busy({"routing": name})
    assert set(traits(scenario, check(scenario, watching=False))) >= {*COMMON, "warm-up"}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_busy_cluster_is_the_same_under_every_scheduler(name: str) -> None:
    policies = {"routing": "witness", "priority": "by-class", "scheduler": {"name": name, "chunk_tokens": 20}}
    scenario = busy(policies)
    classes = {"realtime": {"priority": "realtime"}, "batch": {"priority": "batch", "timeout": "300ms"}}
    scenario["workload"]["tenants"] = classes
    result = check(scenario)
    assert set(traits(scenario, result)) >= {*COMMON, "warm-up"}
    assert set(result.requests["outcome"]) == {"completed", "timed_out"}


def busy(policies: Json) -> Json:
    """One scenario in which everything happens at once, whatever examples the search came up with."""
    none = dict.fromkeys(("prefill_token", "prefill_pair", "context_token"), "0s")
    return {
        "seed": 5,
        "workload": {
            "requests": 50,
            "rate": "200/s",
            "arrival": "constant",
            "prompt_tokens": {"dist": "normal", "mean": 40, "std": 25, "min": 1, "max": 90},
            "output_tokens": {"dist": "exponential", "mean": 12, "min": 1, "max": 30},
            "prefix": {"groups": 3, "tokens": 24, "share": 0.8},
        },
        "cluster": {
            "instances": 2,
            "max_batch_tokens": 32,
            "max_batch_size": 6,
            "kv": {"block_tokens": 4, "gpu_blocks": 32},
            "latency": {"model": "linear", "step": "1ms", "sequence": "1ms", **none},
        },
        "policies": policies,
        "warmup": 5,
        "slo": {"ttft": "500ms", "tpot": "50ms"},
    }


def rows(*requests: tuple[int, int, int]) -> list[Json]:
    """Requests as (stamp in ms, prompt tokens, output tokens), no two alike."""
    return [
        {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [number]}
        for number, (at, prompt, output) in enumerate(requests)
    ]


def small(folder: Path, requests: list[Json], **cluster: Any) -> Json:
    """A trace on instances that take 1 ms a token."""
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    return {
        "defaults": "2026-11",  # policies look at fresh signals
        "workload": {"trace": {"format": "mooncake", "path": str(write_trace(folder, requests))}},
        "cluster": {"instances": 1, "latency": even, **cluster},
        "policies": {"routing": "least-kv"},
        "warmup": 0,
    }


def test_a_reader_at_the_end_of_a_run_sees_the_blocks_that_its_end_released(tmp_path: Path) -> None:
    """Instance 0 gives up all its blocks at 28 ms; a request that comes at that very instant must see it, also where
    the KV use was looked at shortly before."""
    requests = rows((0, 4, 21), (0, 4, 21), (10, 4, 60), (24, 4, 60), (28, 4, 5))
    scenario = small(tmp_path, requests, instances=2, kv={"block_tokens": 16, "gpu_blocks": 20})
    for leap in MODES:
        result = headway.simulate({**scenario, "leap": leap})
        assert result.requests["finished_ps"][:2] == [28 * 10**9] * 2
        assert result.requests["instance"] == [0, 0, 1, 1, 0], f"leap: {leap}"


def test_a_cut_run_leaves_no_trace_at_the_end_of_time(tmp_path: Path) -> None:
    """Alone, the first request would decode until 1.01 s; the second speeds both up, and the clock stops with them."""
    curve = {"decode_tokens_per_s": 100, "saturation_batch": 2, "saturated_tokens_per_s": 1000}
    latency = {"model": "piecewise", "prefill_tokens_per_s": 1000, **curve}
    scenario = small(tmp_path, rows((0, 10, 101), (100, 10, 101)), latency=latency)
    for leap in MODES:
        result = headway.simulate({**scenario, "leap": leap})
        assert result.summary()["duration_s"] == max(result.requests["finished_ps"]) / 10**12, f"leap: {leap}"
    check({**scenario, "horizon": "1s"})


@pytest.mark.parametrize("horizon", [9, 10, 11, 40, 44, 45])
def test_the_horizon_may_fall_on_a_step(horizon: int, tmp_path: Path) -> None:
    """Prefill token by token until 40 ms, a block each, then five output tokens. Whether a step that begins at the
    horizon takes its block is a convention, but one and the same however the steps are counted."""
    kv = {"block_tokens": 1, "gpu_blocks": 50}
    scenario = small(tmp_path, rows((0, 40, 5)), max_batch_tokens=1, kv=kv)
    result = check({**scenario, "horizon": f"{horizon}ms"})
    (instance,) = result.summary()["instances"]
    assert instance["steps"] == min(horizon, 44)
    assert instance["peak_kv_utilization"] in (min(horizon, 44) / 50, min(horizon + 1, 44) / 50)
    assert result.requests["output_tokens"] == [min(5, max(0, horizon - 39))]
    assert result.requests["outcome"] == ["completed" if horizon >= 44 else "in_flight"]


def test_what_routers_are_due_to_tell_each_other_by_the_horizon_is_told(tmp_path: Path) -> None:
    """The second prompt is sent at 45 ms, and the other router hears of it at 49 ms, where at most a step ends."""
    believing = {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1, "block_tokens": 4}]}
    scenario = small(tmp_path, rows((0, 40, 100), (45, 40, 100)), instances=2)
    scenario |= {"policies": {"routing": believing}, "routers": {"count": 2, "sync_interval": "7ms"}, "horizon": "50ms"}
    result = check(scenario)
    assert result.summary()["policy_metrics"]["prefix_index_blocks"] == 2 * 2 * 10


def test_the_horizon_may_come_before_anybody(tmp_path: Path) -> None:
    scenario = small(tmp_path, rows((50, 4, 4)))
    result = check({**scenario, "horizon": "10ms"})
    assert len(result.requests) == 0
    assert set(result.summary()["requests"].values()) == {0}


def test_a_request_that_comes_at_the_horizon_has_arrived(tmp_path: Path) -> None:
    scenario = small(tmp_path, rows((0, 4, 4), (10, 4, 4), (11, 4, 4)))
    result = check({**scenario, "horizon": "10ms"})
    assert result.requests["outcome"] == ["completed", "in_flight"]


def chain(tenant: str, starts: Sequence[int], turns: int, **options: Any) -> Json:
    """Sessions at so many ms, each of so many turns of 2 tokens in and 2 out that follow at once."""
    one = {"new": 2, "output": 2, "delay_ps": 0}
    sessions = [{"start_ps": at * 10**9, "turns": [one] * turns, "after": None} for at in starts]
    usual = {"longest": 2, "retry": (0, 0), "users": None, "pause_ps": 0, "stop_ps": 10**15}
    return {"tenant": tenant, "sessions": sessions, **usual, **options}


class Listener:
    """Sends a tenant's requests to its own instance, and writes down what it is told and asked."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, str, str]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.heard.append((cluster.now_ps / 10**9, "asked", f"{request.session}/{request.turn}"))
        return Route(cluster.instances[int(request.tenant[1:])].id)

    def observe(self, event: Any) -> None:
        if type(event).__name__ != "Routed":
            name = f"{event.request.session}/{event.request.turn}"
            self.heard.append((event.at_ps / 10**9, type(event).__name__, name))


@pytest.mark.parametrize("leap", MODES)
def test_what_follows_at_once_is_asked_after_the_ends_of_its_instant_and_starts_there(leap: bool | str) -> None:
    """Two tokens in and two out take 3 ms. At 3 ms a turn ends on each instance, and a session that was known to
    start comes before the router hears of it; the follow-ups come after, by identity, and start at that instant."""
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    given = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"instances": 3, "latency": even}, "leap": leap}
    router = Listener()
    prepared = prepare(headway.Scenario.load(given), routing=router)
    simulation = prepared.simulation()
    sources = [chain("t1", [0], 2), chain("t0", [0], 2), chain("t2", [3], 1)]
    recorder = simulation.run(session_plans.traffic(sources))
    assert router.heard == [
        (0, "asked", "t1-0/0"),
        (0, "asked", "t0-0/0"),
        (2, "FirstToken", "t1-0/0"),
        (2, "FirstToken", "t0-0/0"),
        (3, "asked", "t2-0/0"),
        (3, "Finished", "t1-0/0"),
        (3, "Finished", "t0-0/0"),
        (3, "asked", "t1-0/1"),
        (3, "asked", "t0-0/1"),
        (5, "FirstToken", "t2-0/0"),
        (5, "FirstToken", "t1-0/1"),
        (5, "FirstToken", "t0-0/1"),
        (6, "Finished", "t2-0/0"),
        (6, "Finished", "t1-0/1"),
        (6, "Finished", "t0-0/1"),
    ]
    assert list(recorder.started_ps) == list(recorder.arrival_ps)


@pytest.mark.parametrize("leap", MODES)
@pytest.mark.parametrize("users", [1, 3])
def test_a_fixed_number_of_users_is_never_exceeded_and_always_reached(users: int, leap: bool | str) -> None:
    even = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    given = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": {"instances": 2, "latency": even}, "warmup": 0}
    sources = [chain("t0", [0] * 12, 3, users=users), chain("t1", [0] * 8, 2)]
    done = run({**given, "policies": {"routing": "least-loaded"}, "sessions": sources}, leap)
    assert done.summary()["requests"]["completed"] == 12 * 3 + 8 * 2
    assert most_in_flight(done.requests, "t0") == users
    assert most_in_flight(done.requests, "t1") == 8


@pytest.mark.parametrize("kind", ["completion", "chat", "agentic", "reasoning"])
def test_with_a_concurrency_never_more_requests_of_a_tenant_are_in_flight(kind: str) -> None:
    """Also where sub-agents branch off, nobody thinks, and some requests are too long to be served."""
    given: Json = {"kind": kind, "output_tokens": 30, "prompt_tokens": {"dist": "normal", "mean": 700, "std": 300}}
    if kind != "completion":
        given["think_time"] = "0s"
    if kind == "agentic":
        given |= {"subagents": {"probability": 0.5, "count": 3}, "tool_latency": "0s"}
    looped = {
        "closed_loop": {"concurrency": 3, "think_time": "0s"},
        "kind": given,
        "retry": {"max": 1, "backoff": "5ms"},
    }
    scenario = {
        "workload": {"duration": "4s", "tenants": {"looped": looped, "other": {"rate": "3/s"}}},
        "cluster": {"instances": 2, "kv": {"gpu_blocks": 60}},
        "policies": {"routing": "least-loaded"},
        "warmup": 0,
    }
    done = check(scenario)
    assert most_in_flight(done.requests, "looped") == 3
    assert done.summary()["requests"]["rejected"] > 0
    assert done.summary()["requests"]["retried"] > 0

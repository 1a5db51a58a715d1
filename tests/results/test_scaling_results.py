"""What the results say of instances that come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorders import MS, SECOND, facts, record

import headway
from conftest import Run
from headway.errors import InvariantError
from headway.results.checks import verify
from headway.results.metrics import PS_PER_HOUR, summarise
from headway.results.ranking import direction, figure, rank, value
from headway.results.recorder import FaultRecord, InstanceStats, PoolFacts, Recorder, ScaleRecord, StateChange
from headway.results.result import Result
from headway.results.scaling import OSCILLATION_PS
from headway.types import Scale

Json = dict[str, Any]
POOLS = [PoolFacts("chat", 0, 1, 3), PoolFacts("code", 3, 0, 1)]
# The first is there from beginning to end; the second comes, warms up, serves, and goes; the third and that of the
# other pool are never there.
CHANGES = [
    (0, 0, "ready"), (0, 1, "stopped"), (0, 2, "stopped"), (0, 3, "stopped"),
    (2, 1, "provisioning"), (3, 1, "loading"), (4, 1, "warming"), (5, 1, "ready"),
    (7, 1, "draining"), (8, 1, "stopped"),
]  # fmt: skip
SCALED = [(2, "chat", 1, 2), (7, "chat", 2, 1)]
DONE = {
    "arrival_ps": 0, "started_ps": 0, "first_token_ps": 5 * MS, "finished_ps": 10 * MS, "instance": 0,
    "outcome": "completed", "output_tokens": 8,
}  # fmt: skip


def recorded(
    changes: list[tuple[int, int, str]] | None = None,
    scaled: list[tuple[int, str, int, int]] | None = None,
    rows: list[Json] | None = None,
) -> Recorder:
    """Times are in seconds."""
    recorder = record([DONE, {**DONE, "instance": 1}, {**DONE, "instance": 1}] if rows is None else rows)
    recorder.states = [StateChange(at * SECOND, *rest) for at, *rest in (CHANGES if changes is None else changes)]
    recorder.scaled = [ScaleRecord(at * SECOND, *rest) for at, *rest in (SCALED if scaled is None else scaled)]
    return recorder


def instances(held: tuple[int, ...] = (10, 6, 0, 0), **more: Any) -> list[InstanceStats]:
    values = {"kv_blocks": 100, "gpus": 2, "usd_per_gpu_hour": 3.0, "idle_watts": 100.0, "busy_watts": 400.0} | more
    built = [InstanceStats(f"i{index}", held_ps=time * SECOND, **values) for index, time in enumerate(held)]
    built[0].busy_ps, built[1].busy_ps = 4 * SECOND, 3 * SECOND
    return built


def summary(recorder: Recorder | None = None, made: list[InstanceStats] | None = None, **more: Any) -> Json:
    figures = recorded() if recorder is None else recorder
    stats = instances() if made is None else made
    known = facts(pools=POOLS, **more)
    verify(figures, stats, known)
    return summarise(figures, stats, known)


def test_an_instance_costs_from_provisioning_until_it_is_stopped() -> None:
    cost = summary()["cost"]
    held = 2 * (10 + 6)
    assert cost["gpu_held_seconds"] == held
    assert cost["usd"] == held * SECOND / PS_PER_HOUR * 3.0
    tokens = 3 * (32 + 8)
    assert cost["usd_per_1k_tokens"] == cost["usd"] * 1000 / tokens
    assert cost["usd_per_1m_tokens"] == cost["usd"] * 1_000_000 / tokens
    assert cost["gpu_seconds_per_request"] == 2 * 7 / 3


def test_energy_is_that_of_busy_and_of_idle_time() -> None:
    energy = summary()["energy"]
    assert energy["kwh"] == pytest.approx((7 * 400 + 9 * 100) / 3600 / 1000, rel=1e-15)
    assert energy["wh_per_request"] == energy["kwh"] * 1000 / 3
    assert energy["kwh_per_1m_tokens"] == energy["kwh"] * 1_000_000 / 120


def test_energy_is_unknown_where_a_gpu_does_not_say_what_it_draws() -> None:
    assert set(summary(made=instances(busy_watts=0.0))["energy"].values()) == {None}


def test_replicas_are_counted_over_time() -> None:
    figures = summary()["scaling"]
    assert figures["replica_seconds"] == 16.0
    assert (figures["mean_replicas"], figures["mean_serving"]) == (1.6, 1.3)  # the second serves from 4 to 7
    assert figures["slo_per_replica"] == 1 / 1.6
    assert (figures["scale_ups"], figures["scale_downs"], figures["oscillations"]) == (1, 1, 1)
    chat, code = figures["pools"]
    assert (chat["id"], chat["replica_seconds"], chat["mean_replicas"]) == ("chat", 16.0, 1.6)
    assert (chat["min_replicas"], chat["max_replicas"]) == (1, 2)
    assert (chat["time_to_serve"]["mean"], chat["time_to_ready"]["max"]) == (2000.0, 3000.0)
    assert (code["replica_seconds"], code["mean_replicas"], code["max_replicas"]) == (0.0, 0.0, 0)
    assert code["slo_per_replica"] is None and code["time_to_ready"]["mean"] is None


def test_the_same_instant_counts_once() -> None:
    """One that crashes and is set up again at once was never away."""
    changes = [(0, 0, "ready"), (3, 0, "stopped"), (3, 0, "provisioning"), (4, 0, "loading"), (5, 0, "ready")]
    empty = [(0, index, "stopped") for index in (1, 2, 3)]
    recorder = recorded(changes[:1] + empty + changes[1:], [], [DONE])
    recorder.struck = [FaultRecord(3 * SECOND, 0, "crash")]
    figures = summary(recorder, instances((10, 0, 0, 0))[:1] + quiet(3))
    assert figures["scaling"]["faults"] == {"crash": 1, "slow": 0, "unreachable": 0}
    assert figures["scaling"]["pools"][0]["min_replicas"] == figures["scaling"]["pools"][0]["max_replicas"] == 1
    assert figures["scaling"]["mean_serving"] == 0.8


def quiet(count: int) -> list[InstanceStats]:
    return [InstanceStats(f"q{number}", kv_blocks=100, held_ps=0, busy_watts=1.0) for number in range(count)]


@pytest.mark.parametrize(
    ("apart", "second", "counted"),
    [(OSCILLATION_PS, -1, 1), (OSCILLATION_PS + 1, -1, 0), (1, 1, 0)],
)
def test_an_oscillation_is_a_change_of_direction_within_five_minutes(apart: int, second: int, counted: int) -> None:
    recorder = recorded([], [])
    recorder.states = [StateChange(0, 0, "ready")]
    recorder.scaled = [ScaleRecord(0, "chat", 3, 4), ScaleRecord(apart, "chat", 4, 4 + second)]
    recorder.scaled.append(ScaleRecord(apart, "code", 5, 4))  # of another pool
    figures = summarise(recorder, instances(), facts(pools=POOLS, ended_ps=2 * OSCILLATION_PS))["scaling"]
    assert (figures["oscillations"], figures["scale_ups"] + figures["scale_downs"]) == (counted, 3)
    assert [pool["oscillations"] for pool in figures["pools"]] == [counted, 0]


def test_a_place_that_was_never_used_is_no_instance() -> None:
    figures = summary()
    assert [(each["id"], each["index"], each["held_s"]) for each in figures["instances"]] == [
        ("i0", 0, 10.0),
        ("i1", 1, 6.0),
    ]
    assert [each["utilization"] for each in figures["instances"]] == [0.4, 0.5]
    assert figures["balance"]["jain"] == 9 / (2 * 5)


def test_lost_requests_are_counted() -> None:
    rows = [{**DONE, "retries": 2}, {**DONE, "redirects": 1}, DONE, {"arrival_ps": 0, "outcome": "failed"}]
    recorder = recorded(rows=rows)
    recorder.lost = 1
    figures = summary(recorder, retries=2)["scaling"]
    assert (figures["failed"], figures["retried"], figures["redirected"]) == (1, 1, 1)


def test_instances_that_stay_have_no_such_section() -> None:
    fixed = [InstanceStats("i0", kv_blocks=100, usd_per_gpu_hour=2.0)]
    figures = summarise(record([DONE]), fixed, facts())
    assert "scaling" not in figures and "held_s" not in figures["instances"][0]
    assert figures["cost"]["gpu_held_seconds"] == 10.0


@pytest.mark.parametrize(
    ("changes", "scaled", "held", "said"),
    [
        (CHANGES[:-1], SCALED, (10, 6, 0, 0), "i1 was held for"),
        (CHANGES, SCALED, (10, 7, 0, 0), "i1 was held for"),
        ([(0, 0, "ready"), (1, 0, "provisioning")], [], (10, 0, 0, 0), "i0 cannot become provisioning"),
        ([(0, 0, "ready"), (3, 0, "draining"), (2, 0, "stopped")], [], (3, 0, 0, 0), "cannot become stopped"),
        ([(0, 0, "ready"), (11, 0, "draining")], [], (10, 0, 0, 0), "cannot become draining"),
        ([(0, 0, "stopped")], [], (0, 0, 0, 0), "Pool chat had 0 replicas"),
        ([(0, 0, "ready"), (9, 0, "draining"), (10, 0, "stopped")], [], (10, 0, 0, 0), "Pool chat had 0 replicas"),
        (CHANGES, [(2, "chat", 1, 3)], (10, 6, 0, 0), "should have scaled from 1 to 3"),
        (CHANGES, [(6, "chat", 2, 1)], (10, 6, 0, 0), "had as many as before"),
    ],
)  # fmt: skip
def test_what_cannot_have_happened_is_refused(
    changes: list[tuple[int, int, str]], scaled: list[tuple[int, str, int, int]], held: tuple[int, ...], said: str
) -> None:
    built = instances(held)
    for stats in built:
        stats.busy_ps = 0
    with pytest.raises(InvariantError, match=said):
        verify(recorded(changes, scaled), built, facts(pools=POOLS))


def test_a_crash_may_leave_fewer_than_there_must_be() -> None:
    recorder = recorded([(0, 0, "ready"), (9, 0, "stopped")], [])
    built = instances((9, 0, 0, 0))
    built[1].busy_ps = 0
    with pytest.raises(InvariantError, match="Pool chat had 0 replicas"):
        verify(recorder, built, facts(pools=POOLS))
    recorder.struck = [FaultRecord(9 * SECOND, 0, "crash")]
    verify(recorder, built, facts(pools=POOLS))


@pytest.mark.parametrize(
    ("row", "said"),
    [({"retries": 2}, "retried 2 times, with 1 allowed"), ({"redirects": 1}, "no instance was drained")],
)
def test_no_request_moves_without_a_cause(row: Json, said: str) -> None:
    recorder = recorded([(0, 0, "ready")], [], [{**DONE, **row}])
    built = instances((10, 0, 0, 0))
    built[1].busy_ps = 0
    with pytest.raises(InvariantError, match=said):
        verify(recorder, built, facts(pools=POOLS, retries=1))


def test_more_failed_than_were_lost_but_never_fewer() -> None:
    recorder = recorded([(0, 0, "ready")], [], [DONE])
    recorder.lost = 1
    with pytest.raises(InvariantError, match="1 requests were lost"):
        verify(recorder, instances((10, 0, 0, 0)), facts(pools=POOLS))


def test_an_instance_is_not_busy_while_nobody_pays_for_it() -> None:
    built = instances()
    built[1].busy_ps = 7 * SECOND
    with pytest.raises(InvariantError, match="busy for 7 s and held for 6 s"):
        verify(recorded(), built, facts(pools=POOLS))


def test_states_without_pools_are_refused() -> None:
    with pytest.raises(InvariantError, match="Instances without a pool"):
        verify(recorded(), instances(), facts())
    with pytest.raises(InvariantError, match="Each of the 4 instances must be in exactly one pool"):
        verify(recorded(), instances(), facts(pools=POOLS[:1]))


# --- whole runs ------------------------------------------------------------------------------------------------------


class UpAndDown:
    """One more at every other check, and one less at the others."""

    def scale(self, pool: Any) -> Scale:
        return Scale(pool.replicas + (1 if len(pool.history) % 2 else -1), "as it goes")


LIVING: Json = {
    "name": "living",
    "workload": {"requests": 400, "rate": "40/s", "prompt_tokens": 200, "output_tokens": 60},
    "cluster": {"instances": 2, "min_replicas": 1, "max_replicas": 4, "latency": {"model": "fixed"}},
    "scaling": {"interval": "1s", "provisioning": "300ms", "model_load": "100ms", "drain": {"mode": "redirect"}},
    "faults": [{"at": "4500ms", "instance": "instance-0", "kind": "crash"}],
    "retries": 1,
    "slo": {"e2e": "10s"},
}


PLAIN: Json = {"workload": {"requests": 3, "rate": "1/s"}, "cluster": {"instances": 1}}


@pytest.fixture(scope="module")
def living() -> Result:
    return headway.simulate(LIVING, scaling=UpAndDown())


def test_replica_seconds_are_the_area_under_the_states(living: Result) -> None:
    figures = living.summary()
    end = living.states[0].at_ps + round(figures["duration_s"] * SECOND)
    state: dict[int, tuple[int, str]] = {}
    held = 0
    for change in [*living.states, *(StateChange(end, index, "stopped") for index in range(4))]:
        since, was = state.get(change.instance, (0, "stopped"))
        held += change.at_ps - since if was != "stopped" else 0
        state[change.instance] = change.at_ps, change.state
    assert held / SECOND == figures["scaling"]["replica_seconds"] == figures["cost"]["gpu_held_seconds"]
    assert figures["scaling"]["mean_replicas"] < 4
    ups = [event for event in living.scaling_events if event.after > event.before]
    assert len(ups) == figures["scaling"]["scale_ups"] > 0
    assert {event.reason for event in living.scaling_events} == {"as it goes"}
    assert figures["scaling"]["oscillations"] == len(living.scaling_events) - 1
    assert figures["scaling"]["pools"][0]["time_to_ready"]["min"] == 400.0
    assert figures["scaling"]["retried"] == sum(map(bool, living.requests["retries"])) > 0
    assert figures["scaling"]["redirected"] == sum(map(bool, living.requests["redirects"])) > 0


def test_a_run_folder_keeps_what_happened(living: Result, tmp_path: Path) -> None:
    written = living.save(tmp_path)
    assert written == sorted(file.name for file in tmp_path.iterdir())
    assert {"scaling.jsonl", "states.jsonl"} < set(written)
    again = Result.load(tmp_path)
    assert again == living
    assert again.states == living.states and again.scaling_events == living.scaling_events
    first = json.loads((tmp_path / "states.jsonl").read_text().splitlines()[0])
    assert first == {"at_ps": living.states[0].at_ps, "instance": 0, "state": "ready"}
    again.states.pop()
    assert again != living


def test_a_folder_of_a_run_without_scaling_has_no_such_files(living: Result, tmp_path: Path) -> None:
    living.save(tmp_path)
    plain = headway.simulate(PLAIN)
    assert plain.save(tmp_path) == ["manifest.json", "requests.jsonl", "scenario.yaml", "summary.json"]
    assert not (tmp_path / "states.jsonl").exists()
    assert Result.load(tmp_path) == plain and plain.states == plain.scaling_events == []


@pytest.mark.parametrize("path", ["cost.usd", "cost.usd_per_1m_tokens", "energy.kwh", "scaling.replica_seconds"])
def test_runs_can_be_ranked_by_what_they_took(path: str, living: Result) -> None:
    assert (figure(path), direction(path)) == (path, "low")
    more = headway.simulate(LIVING, overrides="cluster.instances=4").summary()
    ranked = rank([("more", more), ("fewer", living.summary())], path)
    assert [name for name, _ in ranked] == ["fewer", "more"]


def test_a_run_without_scaling_ranks_last_by_its_figures(living: Result) -> None:
    plain = headway.simulate(PLAIN).summary()
    assert value(plain, "scaling.replica_seconds") is None
    assert direction("scaling.slo_per_replica") == "high" and direction("scaling.faults.crash") is None
    ranked = rank([("plain", plain), ("living", living.summary())], "scaling.mean_replicas")
    assert [name for name, _ in ranked] == ["living", "plain"]


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "living.yaml"
    file.write_text(json.dumps(LIVING | {"policies": {"scaling": {"name": "concurrency", "target": 20}}}))
    return str(file)


def test_a_run_says_what_came_and_went_in_80_columns(headway: Run, scenario: str, tmp_path: Path) -> None:
    completed = headway("run", scenario, "-o", str(tmp_path / "out"))
    assert completed.returncode == 0, completed.stderr
    assert "1 to 4 instances of" in completed.stdout and "(1 to 4 GPUs)" in completed.stdout
    for word in ("replicas", "on average (", "replica-hours", "× up", "oscillation", "1 crash", "retried", "kWh"):
        assert word in " ".join(completed.stdout.split()), word
    assert max(map(len, completed.stdout.splitlines()[:-1])) <= 80
    assert "scaling.jsonl, scenario.yaml, states.jsonl" in completed.stderr


def test_a_comparison_of_autoscalers_shows_replica_hours_attainment_and_cost(headway: Run, scenario: str) -> None:
    completed = headway(
        "compare", scenario, "--stage", "scaling", "--policies", "static,concurrency", "--by", "cost.usd"
    )
    assert completed.returncode == 0, completed.stderr
    _, heads = completed.stdout.split("\n\n")[:2]
    assert heads.splitlines()[0].split()[:3] == ["goodput", "replica", "cost"]
    assert heads.splitlines()[1].split()[:4] == ["scaling", "share", "hours", "USD"]
    assert max(map(len, completed.stdout.splitlines())) <= 80

"""Programs of schedulers and autoscalers: each row of what they see and decide, alike however steps are computed, and
alike in the emulator's engines and in a gateway's plane."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.emulator.room import Room
from headway.errors import HeadwayError
from headway.experiment.engines import engine_room
from headway.policies import registry
from headway.policies.queues import Ticket, queue_of
from headway.scenario.scenario import Scenario
from headway.types import Path, Priority, Request
from headway.views.engine import EngineView

Json = dict[str, Any]
CROWDED: Json = {
    "seed": 2,
    "workload": {
        "requests": 70,
        "rate": "60/s",
        "prompt_tokens": {"dist": "uniform", "min": 40, "max": 900},
        "output_tokens": {"dist": "uniform", "min": 10, "max": 120},
        "prefix": {"groups": 4, "tokens": 128},
    },
    "cluster": {"instances": 2, "max_batch_size": 5, "max_batch_tokens": 512, "kv": {"gpu_blocks": 130}},
}


def key(expression: str, more: str = "") -> str:
    return f"def key(ticket, engine):\n    return {expression}\n{more}"


# Rows of what a scheduler sees and decides.
ROWS: dict[str, str] = {
    "wait queue": key("ticket.request.prompt_tokens * (1 if len(engine.waiting) > 3 else -1)"),
    "running batch": key("abs(ticket.request.prompt_tokens - 100 * len(engine.batch))"),
    "requests of the batch": key(
        "len([one for one in engine.batch if one.request.prompt_tokens > ticket.request.prompt_tokens])"
    ),
    "KV cache state": key("ticket.request.prompt_tokens * (0.5 - engine.kv_utilization) + engine.free_blocks"),
    "clock": key("ticket.request.prompt_tokens - 900 * (engine.now - ticket.enqueued)"),
    "instance type and limits": key(
        "ticket.request.prompt_tokens % (engine.max_batch_tokens // 2 + engine.max_batch_size + len(engine.role))"
    ),
    "recent figures: output": key("abs(ticket.request.prompt_tokens - 6 * (engine.recent_output or 0))"),
    "recent figures: wait": key("ticket.request.prompt_tokens * (1 if (engine.recent_wait or 0) < 0.1 else -1)"),
    "recent figures: counts": key("(ticket.number * (7 + engine.completed + engine.preempted)) % 11"),
    "requests to schedule, by priority and hints": (
        "def key(ticket):\n    return ticket.hints.get('length', 0) - ticket.priority + ticket.preemptions\n"
    ),
    "requests to schedule, by priority": "def key(ticket):\n    return ticket.preemptions - ticket.priority\n",
    "prefill chunk sizes": (
        "def key(ticket):\n    return -ticket.request.prompt_tokens\n"
        "def chunk(ticket, engine):\n"
        "    return 64 if engine.kv_utilization < 0.5 and len(engine.waiting) < 9 else None\n"
    ),
    "preemption victim": (
        "def key(ticket):\n    return ticket.number\n"
        "def victim(ticket, engine):\n    return ticket.request.prompt_tokens - 5 * len(engine.batch) * ticket.number\n"
    ),
    "who yields": (
        "def key(ticket):\n    return ticket.request.prompt_tokens\n"
        "def yields(waiting, running, engine):\n"
        "    return running.request.prompt_tokens > 3 * waiting.request.prompt_tokens and engine.kv_used > 40\n"
    ),
    "on arrival and end": (
        "def key(ticket):\n    remember('n', recall('n', 0) + 1)\n    return (recall('n', 0) + recall('t', 0)) % 5\n"
        "def ended(ticket, tokens, completed):\n    remember('t', recall('t', 0) + tokens * completed)\n"
    ),
}


HINTING = {
    "name": "code",
    "source": "def prioritise(request, cluster):\n    return (1, {'length': request.prompt_tokens})\n",
}


def scenario(source: str, **changes: Any) -> Json:
    """Return a scenario with this scheduler. If the scheduler reads hints, the priority policy gives some."""
    policies = {"routing": "round-robin", "priority": HINTING if "hints" in source else "aging"}
    return {**CROWDED, **changes, "policies": {**policies, "scheduler": {"name": "code", "source": source}}}


def requests(result: Any) -> Json:
    return {name: result.requests[name] for name in result.requests}


@pytest.mark.parametrize("row", ROWS)
def test_it_decides_alike_however_steps_are_computed(row: str) -> None:
    found = []
    for leap in (True, False, "random-cuts"):
        result = headway.simulate(scenario(ROWS[row], leap=leap))
        found.append((requests(result), result.summary()))
    assert found[0] == found[1] == found[2]
    assert sum(found[0][0]["preemptions"]) > 0
    plain = headway.simulate({**scenario(ROWS[row]), "policies": {"routing": "round-robin"}})
    assert requests(plain) != found[0][0]


VARIANTS: dict[str, Json] = {
    "asynchronous": {"cluster": {**CROWDED["cluster"], "async_scheduling": True}},
    "tiers": {"cluster": {**CROWDED["cluster"], "kv": {"gpu_blocks": 130, "tiers": {"cpu": {"blocks": 500}}}}},
    "impatient clients": {"workload": {**CROWDED["workload"], "timeout": "800ms"}},
    "large batches": {"cluster": {**CROWDED["cluster"], "max_batch_size": 64, "kv": {"gpu_blocks": 400}}},
}
SEEING = key(
    "ticket.request.prompt_tokens * (0.5 - engine.kv_utilization) - 300 * (engine.now - ticket.enqueued)"
    " + len(engine.batch) + (engine.recent_output or 0)",
    "def victim(ticket, engine):\n    return ticket.request.prompt_tokens * (1 if engine.completed % 2 else -1)\n"
    "def chunk(ticket, engine):\n    return 48 + len(engine.waiting) + len(engine.batch)\n",
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_also_where_the_engine_does_more(variant: str) -> None:
    found = []
    for leap in (True, False, "random-cuts"):
        result = headway.simulate(scenario(SEEING, leap=leap, **VARIANTS[variant]))
        found.append((requests(result), result.summary()))
    assert found[0] == found[1] == found[2]


class SlowClock:
    now = 0

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Any) -> Any:
        class Handle:
            def cancel(self) -> None: ...

        return Handle()


class Kept:
    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.end = -1

    def on_tokens(self, tokens: int, now: int) -> None:
        self.tokens.append((tokens, now))

    def on_finished(self, tokens: int, now: int) -> None:
        self.end = now


@pytest.mark.parametrize("row", ROWS)
def test_an_emulated_engine_schedules_alike(row: str) -> None:
    loaded = Scenario.load(scenario(ROWS[row]))
    result, clock = headway.simulate(loaded), SlowClock()
    room = Room(clock, *engine_room(loaded))  # type: ignore[arg-type]
    room.now_ps = lambda: clock.now  # type: ignore[method-assign]
    kept: list[Kept] = []
    scores = result.requests["priority"]
    for number, planned in enumerate(loaded.workload.plan(loaded.seed.workload, loaded.cluster.default_model())):
        clock.now = planned.request.arrival_ps
        kept.append(Kept())
        job = room.job(planned.request, planned.output_tokens, planned.output_key)
        hints = {"length": planned.request.prompt_tokens} if "hints" in row else {}
        room.submit(result.requests["instance"][number], job, kept[-1], Priority(scores[number], hints))
    clock.now = 10**16
    room.catch_up()
    assert [one.tokens[0] for one in kept if one.tokens] == [(1, at) for at in result.requests["first_token_ps"]]
    assert [one.end for one in kept] == list(result.requests["finished_ps"])


# --- what a queue answers --------------------------------------------------------------------------------------------


def ticket(number: int, tokens: int = 100, **fields: Any) -> Ticket:
    return Ticket(Request(number, 0, tokens, Path((4 * number + 1,), (tokens,))), 0.0, 0, number, **fields)


def queue(source: str, **keys: Any) -> Any:
    made = queue_of(registry.build("scheduler", {"name": "code", "source": source, **keys}, "policies.scheduler"))
    engine = EngineView("both", 100, 8, 512)
    getattr(made, "see", lambda engine: None)(engine)
    return made, engine


def test_the_order_changes_only_after_a_scheduling_change() -> None:
    made, engine = queue(key("ticket.number * (1 if engine.now < 1 else -1)"))
    tickets = [ticket(number) for number in range(3)]
    for one in tickets:
        made.add(one)
    engine.now_ps = 2 * 10**12
    assert made.first() is tickets[0]
    made.rerank()
    assert made.first() is tickets[2]
    made.take()
    assert made.first() is tickets[1]


def test_a_request_that_was_preempted_often_stays() -> None:
    made, _ = queue("def key(ticket):\n    return 0\ndef victim(ticket):\n    return -ticket.number\n")
    running = [ticket(1), ticket(2), ticket(3)]
    assert [one.number for one in made.order(running)] == [3, 2, 1]
    running[0].preemptions = 8
    assert [one.number for one in made.order(running)] == [1, 3, 2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("def chunk(ticket):\n    return 0\n", "chunk must return a whole number of tokens, at least 1, or None"),
        ("def chunk(ticket):\n    return 1.5\n", "but returned 1.5, at request 0"),
        ("def victim(ticket):\n    return None\n", "victim must return a number, and the highest is preempted first"),
        ("def yields(waiting, running):\n    return 1\n", "yields must return True or False, but returned 1"),
        ("def ended(ticket, tokens, completed):\n    return 1 // 0\n", "line 4: division by zero"),
    ],
)
def test_a_wrong_answer_is_told(more: str, told: str) -> None:
    made, _ = queue("def key(ticket):\n    return 0\n" + more)
    one, other = ticket(0), ticket(1)
    with pytest.raises(HeadwayError, match=told):
        made.add(one)
        for call in (
            lambda: made.chunk(one),
            lambda: made.order([one]),
            lambda: made.yields and made.yields(one, other),
            lambda: made.ended(one, 1, True),
        ):
            call()


def test_who_yields_needs_an_order_that_never_changes() -> None:
    with pytest.raises(HeadwayError, match="yields: needs an order that never changes"):
        queue(key("0", "def yields(waiting, running):\n    return True\n"))


def test_all_waiting_requests_share_one_limit_of_steps() -> None:
    made, _ = queue(key("sum([x for x in range(40)])"), steps=1000)
    for number in range(40):
        made.add(ticket(number))
    made.rerank()  # 40 x some 90 steps of 1,000 + 40 x 100
    made, _ = queue(key("sum([x for x in range(400)])"), steps=1000)
    for number in range(40):
        made.add(ticket(number))
    with pytest.raises(HeadwayError, match="more than 1,000 steps in one decision"):
        made.rerank()


# --- autoscalers -----------------------------------------------------------------------------------------------------

SCALED: Json = {
    "seed": 4,
    "workload": {"requests": 300, "rate": "20/s", "prompt_tokens": 800, "output_tokens": 100, "slo": {"ttft": "300ms"}},
    "cluster": {"instances": 1, "min_replicas": 1, "max_replicas": 4, "max_batch_size": 8},
    "scaling": {"interval": "2s", "provisioning": "1s", "model_load": "500ms"},
}
POOL_ROWS: dict[str, str] = {
    "identity and bounds": "pool.maximum if pool.role == 'both' and pool.inflight > 2 else pool.minimum",
    "current replicas": "pool.replicas + 1 if pool.inflight > 3 * pool.serving else pool.replicas - 1",
    "average queue depth": "1 + pool.queued",
    "average utilization": "1 + 6 * pool.kv_utilization + pool.running / pool.slots",
    "request rate": "rate(pool, 4) / 6",
    "SLO attainment": "pool.replicas + 1 if pool.attainment.get('standard', 1) < 0.9 else pool.replicas",
    "average and p99 latency": "2 if (pool.mean_latency or 0) + (pool.p99_latency or 0) < 2 else 4",
    "load history": "1 + max(one.concurrency for one in pool.history) / 8 + len(pool.history) / 40",
    "pending requests": "1 + pool.pending + pool.inflight / 8",
    "clock of the pool": "1 + int(pool.now / 3) % 4",
    "time since the last scaling": "pool.replicas + 1 if (pool.since_scaled or 9) > 3 else pool.replicas",
}


@pytest.mark.parametrize("row", POOL_ROWS)
def test_an_autoscaler_s_program_reads_it(row: str) -> None:
    source = f"def scale(pool):\n    return {POOL_ROWS[row]}\n"
    found = []
    for leap in (True, False):
        changed = {**SCALED, "leap": leap, "policies": {"scaling": {"name": "code", "source": source}}}
        result = headway.simulate(changed)
        found.append((requests(result), result.summary()["scaling"]))
    assert found[0] == found[1]
    assert found[0][1]["scale_ups"] > 0


TREE: Json = {
    "if": "pool.inflight > 6 * pool.serving",
    "then": "pool.replicas + 1",
    "else": {"if": "pool.inflight < 2 * pool.serving", "then": "pool.replicas - 1", "else": "stay"},
}
SCALERS: dict[str, Json] = {
    **{row: {"name": "code", "source": f"def scale(pool):\n    return {read}\n"} for row, read in POOL_ROWS.items()},
    "a tree": {"name": "tree", "tree": TREE},
    "concurrency": {"name": "concurrency", "target": 6},
    "queue-threshold": {"name": "queue-threshold", "above": 2, "sustained_s": 2, "sustained_down_s": 2},
    "slo-driven": {"name": "slo-driven"},
    "kv-token": {"name": "kv-token"},
}


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_gateway_wants_as_many_replicas_as_the_simulation_for_the_same_inputs(scaler: str) -> None:
    pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
    import both_worlds

    policy = SCALERS[scaler]
    inputs, decided, views = both_worlds.scaled({**SCALED, "policies": {"scaling": policy}})
    live: Json = {"policy": policy, "max_replicas": 4, "interval": "2s", "slo": {"ttft": "300ms"}}
    assert both_worlds.scaled_live(inputs, views, live) == decided
    assert decided

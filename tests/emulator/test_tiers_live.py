"""The same program over KV tiers, in simulation and in a gateway that hears emulated engines, decides the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from emulated import Emulated
from kv_engine import decode, hasher, path_of
from test_kv_publisher import Heard, ask, warm_up

import headway
from headway.control.flights import Flight
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.engines.member import BackendSpec
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.gateway.signals.kv_batches import Counts
from headway.gateway.signals.kv_ledger import EXACT, Ledger
from headway.gateway.signals.reading import Reading
from headway.gateway.signals.scrape import parse
from headway.types import PS_PER_SECOND, Request

MODEL, SIZE, BLOCK_BYTES = "llama-3.1-8b", 4, 131_072 * 4
STORES = {"cpu": 12, "storage": 24}
# Prefers a prefix in a fast tier, and otherwise an instance with empty stores.
PROGRAM = """
def value(instance):
    near, cpu = cached_within(instance, 'gpu'), cached_within(instance, 'cpu')
    full = tier_utilization(instance, 'cpu') + instance.tier_used.get('storage', 0) / 100
    return 2 * near + cpu - cached_within(instance, 'storage') / 3 - 9 * full

def route(request, instances, cluster):
    return max(instances, key=lambda one: value(one))
"""
POLICIES = {"routing": {"name": "code", "source": PROGRAM, "block_tokens": SIZE}}


def tokens(prompt: int) -> list[int]:
    """Prompts have four blocks and a token. Each begins with the first block of another."""
    return [prompt // 2 + 1] * SIZE + [prompt + 100] * (3 * SIZE + 1)


def cluster(offload: str) -> dict[str, Any]:
    links = {"bandwidth": "1GB/s", "latency": "1ms"}
    tiers = {name: {"blocks": blocks, **links} for name, blocks in STORES.items()}
    kv = {"block_tokens": SIZE, "gpu_blocks": 6, "tiers": tiers, "offload": offload}
    return {"instances": 2, "model": MODEL, "kv": kv, "latency": {"model": "fixed"}}


def simulated(folder: Path, prompts: list[int], offload: str) -> list[tuple[int, list[dict[str, int]]]]:
    """Return the target of each request, and the use of the stores of each instance at that time."""
    rows = [
        {
            "timestamp": 10_000 * at,
            "input_length": 17,
            "output_length": 1,
            "hash_ids": [prompt // 2, *[1000 + 10 * prompt + block for block in range(4)]],
        }
        for at, prompt in enumerate(prompts)
    ]
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = headway.simulate(
        {
            "workload": {"trace": {"format": "mooncake", "path": str(file), "block_tokens": SIZE}},
            "cluster": cluster(offload),
            "policies": POLICIES,
            "signals": {"kv_event_delay": "0s", "belief": "stored"},
        },
        trace="decisions",
    )
    return [(decision.target, decision.tier_used) for decision in result.decisions]


class Engine:
    """What a gateway knows of one emulated engine, and how it hears of it."""

    def __init__(self, emulated: Emulated, heard: Heard, plane: Plane, place: int) -> None:
        self.emulated, self.heard, self.plane, self.place = emulated, heard, plane, place
        self.counts, self.reading, self.now, self.number = Counts(), Reading(), 0, heard.publisher.number
        self.ledger = Ledger(self, hasher(SIZE), MODEL, counts=self.counts)
        self.spec = BackendSpec.read(
            f"instance-{place}",
            {
                "url": "http://a",
                "models": [MODEL],
                "cpu_blocks": 12,
                "storage_blocks": 24,
                "kv_block_bytes": BLOCK_BYTES,
            },
            "backends",
        )
        plane.join(0, place, self.spec.view_fields)
        plane.changed(0, place, "ready")
        self.ledger.clear(EXACT)

    def hear(self, now: int) -> None:
        self.now = now
        self.heard.batches.clear()
        sent = self.emulated.do(lambda: self.heard.publisher.number)
        self.heard.take(sent - self.number, 30.0)
        self.number = sent
        for _, _, batch in self.heard.batches:
            for event in decode(msgspec.msgpack.encode(batch), self.counts):
                self.ledger.apply(event)
        view, page = self.plane.views[self.place], parse(self.emulated.get("/metrics", self.place), "vllm")
        self.plane.report(now, self.place, self.reading.signals_of(page, view, SIZE, now, self.spec.kv_block_bytes))

    def stored(self, runs: list[Any]) -> None:
        self.plane.stored(self.now, self.place, runs)

    def moved(self, keys: list[int], level: int) -> None:
        self.plane.moved(self.now, self.place, keys, level)

    def removed(self, keys: list[int]) -> None:
        self.plane.removed(self.now, self.place, keys)

    def cleared(self, trust: str) -> None:
        self.plane.cleared(self.now, self.place, trust)


@pytest.fixture(params=["lazy", "eager"])
def offload(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engines(offload: str) -> Iterator[tuple[Emulated, list[Heard]]]:
    one = Emulated(cluster(offload), speed=100.0, events="tcp://127.0.0.1", events_port=0)
    heard = [Heard(one, replica) for replica in range(2)]
    for each in heard:
        warm_up(one, each)
    yield one, heard
    for each in heard:
        each.socket.close()
    one.stop()


def test_a_program_over_tiers_decides_alike_in_simulation_and_live(engines: Any, offload: str, tmp_path: Path) -> None:
    emulated, heard = engines
    draw = random.Random(7)
    prompts = [draw.randrange(14) for _ in range(80)]
    expected = simulated(tmp_path, prompts, offload)

    plane = Plane(PlaneSettings(2, read_policies(POLICIES), belief="stored", alone=False, block_tokens=SIZE))
    sides = [Engine(emulated, each, plane, place) for place, each in enumerate(heard)]
    decided: list[tuple[int, list[dict[str, int]]]] = []
    levels = set()
    for number, prompt in enumerate(prompts):
        now = number * 10 * PS_PER_SECOND
        for side in sides:
            side.hear(now)
        ids = tokens(prompt)
        answer = plane.arrive(now, Request(number, now, len(ids), path_of(ids, MODEL, SIZE), MODEL))
        assert isinstance(answer, Flight)
        decided.append((answer.view.index, [dict(view.tier_used) for view in plane.views]))
        index = plane.control.context.indexes[0]
        levels |= {tuple(index.matches_within(answer.request.path, tier)) for tier in ("gpu", "cpu", "storage")}
        ask(emulated, ids, replica=answer.view.index)
        plane.first_token(now, number)
        plane.finished(now, number, "completed", 1)
    assert decided == expected
    assert all(not (side.counts.orphans or side.counts.strangers or side.counts.malformed) for side in sides)
    assert len(levels) > 9 and {0, 1} == {target for target, _ in decided}
    assert all(any(used[name] for _, each in decided for used in each) for name in STORES)

"""What the views of the instances say, worked out by hand: queue, batch, KV use, utilisation and power."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import ClusterView, Request, Route
from headway.policies.registry import REPORTED, Entry

Seen = tuple[float, int, int, int, float, float]  # when in s; queued, running, KV blocks, busy, watts
LEAPS = pytest.mark.parametrize("leap", [True, False, "random-cuts"])
GPU = {"memory": "1GB", "bandwidth": "1GB/s", "tflops": 1, "usd_per_hour": 1, "idle_watts": 100, "busy_watts": 400}


class Watcher:
    """Sends the first so many requests to the first instance, all others to the second, and looks at the first."""

    def __init__(self, first: int) -> None:
        self.entry = Entry("routing", "watcher", Watcher, (), REPORTED, oracle=True)
        self.first = first
        self.seen: list[Seen] = []
        self.cached: list[int] = []  # tokens of each prompt, in truth

    def bind(self, context: Any) -> None:
        self.truth = context.truth

    def route(self, request: Request, cluster: ClusterView) -> Route:
        view = cluster.instances[0]
        self.seen.append((cluster.now, view.queued, view.running, view.kv_used, view.busy, view.watts))
        self.cached.append(self.truth(request)[0])
        return Route(cluster.instances[request.id >= self.first].id)


def watch(
    folder: Path, leap: bool | str, requests: list[tuple[float, int, int]], first: int = 1, **cluster: Any
) -> Watcher:
    """Requests as (arrival in s, prompt tokens, output tokens), all of one content, on instances that take 1 s a token
    or step."""
    rows = [
        {"timestamp": int(at * 1000), "input_length": prompt, "output_length": output, "hash_ids": [0]}
        for at, prompt, output in requests
    ]
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    watcher = Watcher(first)
    scenario = {
        "defaults": "2026-11",
        "workload": {"trace": {"format": "mooncake", "path": str(file)}},
        "cluster": {
            "instances": 2,
            "gpu": GPU,
            "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy"},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 1, "decode_tokens_per_s": 1},
            **cluster,
        },
        "leap": leap,
    }
    headway.simulate(scenario, routing=watcher)
    return watcher


@LEAPS
def test_utilisation_looks_back_five_seconds_and_power_thirty_but_not_beyond_the_first_decision(
    leap: bool | str, tmp_path: Path
) -> None:
    """Busy from 10 s to 14 s (the second request's prefill and the first one's last decode share a step of two
    seconds), and from 16 s to 17 s."""
    requests = [(10, 1, 3), (12, 1, 1), (16, 1, 1), (18, 1, 1), (46.5, 1, 1), (60, 1, 1)]
    seen = [(at, busy, watts) for at, _, _, _, busy, watts in watch(tmp_path, leap, requests, first=3).seen]
    assert seen == [
        (10, 0, 100),
        (12, 1, 400),
        (16, 3 / 5, 100 + 300 * (4 / 6)),
        (18, 2 / 5, 100 + 300 * (5 / 8)),
        (46.5, 0, 100 + 300 * (0.5 / 30)),
        (60, 0, 100),
    ]


@LEAPS
def test_kv_use_counts_the_steps_that_began_before(leap: bool | str, tmp_path: Path) -> None:
    """A prompt of seven in chunks of two, a second for each token, then a decode a second; a block of two tokens is
    taken when the step that needs it begins, and all are given up with the last token, at 19 s."""
    looks = [0, 1, 2, 2.5, 4, 4.5, 6.5, 7, 7.5, 8, 8.5, 9.5, 14, 18.5, 19]
    requests = [(0, 7, 13), *((at, 1, 1) for at in looks)]
    kv = {"block_tokens": 2, "gpu_blocks": 50}
    seen = watch(tmp_path, leap, requests, max_batch_tokens=2, kv=kv).seen[1:]
    blocks = [0, 1, 1, 2, 2, 3, 4, 4, 4, 4, 5, 5, 7, 10, 0]
    assert [(at, used) for at, _, _, used, _, _ in seen] == list(zip(looks, blocks, strict=True))


@LEAPS
def test_kv_use_is_right_where_steps_grow(leap: bool | str, tmp_path: Path) -> None:
    """After a second of prefill a decode of n tokens lasts n + 1 s, so the decodes begin at 1, 4, 8, 13, 19, 26, 34,
    43, 53, 64 and 76 s, and each takes a block."""
    looks = [1, 4, 4.5, 8.5, 18.7, 19.5, 43, 43.5, 70, 75.5]
    requests = [(0, 1, 20), *((at, 1, 1) for at in looks)]
    none = dict.fromkeys(("prefill_token", "prefill_pair", "sequence"), "0s")
    latency = {"model": "linear", "step": "1s", "context_token": "1s", **none}
    seen = watch(tmp_path, leap, requests, latency=latency, kv={"block_tokens": 1, "gpu_blocks": 50}).seen[1:]
    assert [(at, used) for at, _, _, used, _, _ in seen] == list(
        zip(looks, [1, 2, 3, 4, 5, 6, 8, 9, 11, 11], strict=True)
    )


@LEAPS
def test_queue_and_batch_change_when_a_step_begins_or_ends(leap: bool | str, tmp_path: Path) -> None:
    """Two of three requests find a place, for three seconds of prefill and three of decode; the third has theirs when
    they end, at 6 s, and leaves with its prefill, at 8 s."""
    requests = [(0, 1, 4), (0, 2, 4), (0, 2, 1), *((at, 1, 1) for at in (0, 1, 3, 5.5, 6, 6.5, 8))]
    seen = watch(tmp_path, leap, requests, first=3, max_batch_size=2).seen
    assert [(at, queued, running) for at, queued, running, _, _, _ in seen] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 0),
        (0, 3, 0),
        (1, 1, 2),
        (3, 1, 2),
        (5.5, 1, 2),
        (6, 1, 0),
        (6.5, 0, 1),
        (8, 0, 0),
    ]


@LEAPS
def test_the_true_cache_state_is_that_of_the_steps_that_have_ended(leap: bool | str, tmp_path: Path) -> None:
    """Two tokens in each step of two seconds, so a block is a hit every two seconds; one token is always left over."""
    looks = [0, 1.5, 2, 2.5, 3.5, 4, 6.5, 8, 8.5, 9]
    requests = [(0, 8, 2), *((at, 8, 1) for at in looks)]
    kv = {"block_tokens": 2, "gpu_blocks": 50}
    found = watch(tmp_path, leap, requests, max_batch_tokens=2, kv=kv).cached[1:]
    assert found == [0, 0, 2, 2, 2, 4, 6, 6, 6, 6]

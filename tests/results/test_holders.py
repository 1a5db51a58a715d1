"""What the requests do that hold the KV blocks of an instance."""

from __future__ import annotations

from findings_made import request, seen
from recorders import SECOND

from headway.results.findings import bottleneck
from headway.results.records import QueueLimit


def test_blocks_are_held_by_loads_work_and_transfers() -> None:
    rows = [
        request(0, start=0, first=4, end=10, prompt_tokens=100, output_tokens=0, loading_ps=2 * SECOND),
        request(0, start=0, first=1, end=10, prompt_tokens=300, output_tokens=0),
    ]
    holders = seen(rows).holders
    assert holders.shares(0, 0, 2 * SECOND) == {"load": 0.25, "transfer_wait": 0.0, "transfer": 0.0}
    assert holders.shares(0, 2 * SECOND, 10 * SECOND)["load"] == 0
    assert holders.shares(1, 0, SECOND) == {}


def test_a_prefill_instance_holds_the_blocks_until_they_are_sent() -> None:
    times = {"handed_ps": SECOND, "transfer_ps": 2 * SECOND, "transferred_ps": 5 * SECOND}
    holders = seen([request(0, start=0, first=1, end=9, prefill_instance=0, instance=1, **times)], instances=2).holders
    assert holders.shares(0, SECOND, 2 * SECOND)["transfer_wait"] == 1
    assert holders.shares(0, 2 * SECOND, 5 * SECOND)["transfer"] == 1


def test_a_wait_for_blocks_behind_loads_is_a_wait_for_the_store() -> None:
    def resources(loading: int) -> list[str]:
        first = [request(k * 0.01, start=k * 0.01, first=9, end=9.5, loading_ps=loading) for k in range(10)]
        waiting = [request(1 + k * 0.01, start=9, first=9.1, end=9.5) for k in range(10)]
        limits = [QueueLimit(SECOND, 0, "kv"), QueueLimit(9 * SECOND, 0, "")]
        run = seen([*first, *waiting], scenario={"slo": {"ttft": "1s"}}, queue_limits=limits)
        return [finding.resource for finding in bottleneck.find(run)]

    assert resources(0) == ["prefill", "kv"] or resources(0) == ["kv", "prefill"]
    assert resources(round(8.8 * SECOND)) == ["store"]

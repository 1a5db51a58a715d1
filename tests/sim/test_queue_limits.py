"""What keeps waiting requests out of the batch of an instance, and the time that a preemption takes.

A token of a prompt takes 0.1 ms, a step that decodes 10 ms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lived import MS, lived, ms, requests, scenario


def changes(result: Any) -> list[tuple[float, str]]:
    return [(change.at_ps / MS, change.limit) for change in result.queue_limits]


def test_a_full_batch_limits_the_queue_until_a_request_leaves(tmp_path: Path) -> None:
    result = lived(scenario(requests(tmp_path, (0, 100, 5), (23, 100, 5)), max_batch_size=1))
    assert changes(result) == [(23, "slots"), (50, "")]


def test_a_prompt_in_chunks_limits_the_queue_and_then_the_tokens_of_the_step_do(tmp_path: Path) -> None:
    # The chunks of the first prompt begin at 0, 16 and 32 ms. The last one ends the prompt, and fills its step.
    result = lived(scenario(requests(tmp_path, (0, 480, 2), (5, 16, 2)), max_batch_tokens=160))
    assert changes(result) == [(5, "prompt"), (32, "tokens"), (48, "")]


def test_too_few_blocks_limit_the_queue(tmp_path: Path) -> None:
    result = lived(scenario(requests(tmp_path, (0, 320, 5), (5, 480, 2)), kv={"gpu_blocks": 40}))
    assert changes(result) == [(32, "kv"), (72, "")]


def test_a_wait_for_the_end_of_the_step_is_no_limit(tmp_path: Path) -> None:
    result = lived(scenario(requests(tmp_path, (0, 100, 5), (23, 100, 5))))
    assert ms(result, "started_ps") == [0, 30] and changes(result) == []


def test_a_client_that_gives_up_ends_the_limit(tmp_path: Path) -> None:
    workload = requests(tmp_path, (0, 100, 50), (23, 100, 5)) | {"timeout": "100ms"}
    result = lived(scenario(workload, max_batch_size=1))
    assert result.requests["outcome"] == ["timed_out", "timed_out"]
    assert changes(result) == [(23, "slots"), (100, "")]


def test_the_time_of_a_preemption_is_the_gap_between_the_tokens_around_it(tmp_path: Path) -> None:
    result = lived(scenario(requests(tmp_path, (0, 32, 40), (1, 32, 40)), kv={"gpu_blocks": 6}))
    assert result.requests["preemptions"] == [0, 1]
    first, end = result.requests["first_token_ps"][1], result.requests["finished_ps"][1]
    assert result.requests["preempted_ps"] == [0, end - first - 38 * 10 * MS]  # 38 of the 39 gaps are single steps

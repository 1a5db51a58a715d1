"""The reference simulator on examples small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given

from drawing import draws
from headway import hashing
from headway.latency.base import Chunk, Run
from headway.types import Path
from reference import ReferenceRun, simulate
from strategies import Affine, Scenario, scenarios

TEN = Affine(step=10)


class Listening:
    """Ten picoseconds a step; remembers what each step was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, list[Chunk]]] = []

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        self.calls.append((decodes, context, list(chunks)))
        return 10, 0, 1


def fresh(row: int, tokens: int) -> Path:
    return Path((hashing.key(hashing.PROMPT, row),), (tokens,))


def run(*requests: tuple[int, Path, int], **settings: Any) -> ReferenceRun:
    """One roomy instance with blocks of four tokens and steps of ten picoseconds, unless told otherwise."""
    values: dict[str, Any] = {
        "instances": 1,
        "blocks": 100,
        "block_tokens": 4,
        "max_batch_tokens": 64,
        "max_batch_size": 8,
        "latency": TEN,
    }
    values.update(settings)
    return simulate([(at, path, path.tokens, output) for at, path, output in requests], **values)


def test_a_lone_request_gets_its_first_token_with_the_last_prefill_step() -> None:
    done = run((7, fresh(0, 5), 3))
    job = done.rows[0]
    assert (job.started, job.token_times, job.finished, job.outcome) == (7, [17, 27, 37], 37, "completed")
    assert done.gaps() == [10, 10]
    # Five prompt tokens and two generated ones were computed: two blocks of four.
    assert (done.instances[0].busy, done.instances[0].steps, done.instances[0].peak_blocks) == (30, 3, 2)


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    # 5 + 5 + 3 for chunks of 4, 4, 2 at one a token and one a step; then one decode of one.
    done = run((0, fresh(0, 10), 2), max_batch_tokens=4, latency=Affine(step=1, a=1))
    assert done.rows[0].token_times == [13, 14]


def test_attention_pairs_count_the_past_and_the_chunk_itself() -> None:
    assert Affine(step=1, b=1).run(0, 0, [(4, 8)]) == (1 + 4 * 8 + 10, 16, 1 << 60)


def test_decodes_share_a_step_with_a_chunk_and_leave_it_the_rest_of_the_budget() -> None:
    latency = Listening()
    run((0, fresh(0, 3), 4), (10, fresh(1, 6), 1), max_batch_tokens=5, latency=latency)
    assert latency.calls == [
        (0, 0, [(3, 0)]),
        (1, 4, [(4, 0)]),
        (1, 5, [(2, 4)]),
        (1, 6, []),
    ]


def test_an_arrival_on_a_step_end_enters_at_once_and_one_inside_a_step_waits_for_its_end() -> None:
    done = run((0, fresh(0, 4), 5), (10, fresh(1, 4), 1), (11, fresh(2, 4), 1))
    assert [job.started for job in done.rows] == [0, 10, 20]
    assert [job.finished for job in done.rows] == [50, 20, 30]


def test_the_sequence_limit_holds_back_the_next_request() -> None:
    done = run((0, fresh(0, 4), 2), (0, fresh(1, 4), 1), max_batch_size=1)
    assert [job.started for job in done.rows] == [0, 20]


def test_only_the_head_of_the_queue_may_enter() -> None:
    # Row 1 needs four blocks while two are free; row 2 would fit but stands behind it.
    done = run((0, fresh(0, 8), 1), (0, fresh(1, 16), 1), (0, fresh(2, 4), 1), blocks=4)
    assert [job.started for job in done.rows] == [0, 10, 20]


def test_a_repeated_prompt_hits_whole_blocks_but_computes_at_least_one_token() -> None:
    same = fresh(0, 8)
    done = run((0, same, 1), (50, same, 1), (100, Path(same.keys, (9,)), 1), (150, Path(same.keys, (7,)), 1))
    assert [job.cached_tokens for job in done.rows] == [0, 4, 8, 4]


def test_nothing_is_cached_with_prefix_caching_off() -> None:
    same = fresh(0, 8)
    done = run((0, same, 1), (50, same, 1), prefix_caching=False)
    assert [job.cached_tokens for job in done.rows] == [0, 0]


def test_the_block_of_a_branching_point_belongs_to_the_branch() -> None:
    left = Path((hashing.key(hashing.GROUP, 0), hashing.key(hashing.PROMPT, 0)), (6, 12))
    right = Path((hashing.key(hashing.GROUP, 0), hashing.key(hashing.PROMPT, 1)), (6, 12))
    assert run((0, left, 1), (50, right, 1)).rows[1].cached_tokens == 4


def test_a_prompt_block_is_a_hit_from_the_end_of_the_step_that_computed_it() -> None:
    same = fresh(0, 9)
    # Rows 0 and 1 start together, so neither hits; row 2 enters while both still decode.
    done = run((0, same, 4), (0, same, 4), (10, same, 1))
    assert [job.cached_tokens for job in done.rows] == [0, 0, 8]
    # Three blocks each for rows 0 and 1 (at most 12 tokens), one own block for row 2 beside the two shared ones.
    assert done.instances[0].peak_blocks == 7


def test_generated_blocks_are_hits_once_the_request_has_ended() -> None:
    first = fresh(0, 8)
    said = Path((*first.keys, hashing.key(hashing.OUTPUT, 0)), (8, 13))
    turn = Path((*said.keys, hashing.key(hashing.PROMPT, 1)), (8, 13, 16))
    # Of five generated tokens four are computed: 12 tokens, three full blocks. Ended at 50.
    assert run((0, first, 5), (50, turn, 1)).rows[1].cached_tokens == 12
    assert run((0, first, 5), (40, turn, 1)).rows[1].cached_tokens == 8


def test_a_duplicate_stays_private_and_is_empty_when_released() -> None:
    same = fresh(0, 4)
    # Both compute the one block; one copy is cached, the other is empty again, so row 2 evicts one block only.
    done = run((0, same, 1), (0, same, 1), (20, fresh(2, 8), 1), blocks=2)
    assert done.instances[0].evicted_blocks == 1


def test_the_tail_is_evicted_before_the_head_and_the_older_release_first() -> None:
    old, new = fresh(0, 8), fresh(1, 8)
    done = run((0, old, 1), (20, new, 1), (40, fresh(2, 4), 1), (60, Path(old.keys, (9,)), 1), blocks=4)
    # Row 2 evicts block 1 of `old`; its block 0 is still there for row 3.
    assert done.rows[3].cached_tokens == 4
    # Row 3 needs two more blocks: it evicts both of `new`, the least recently released.
    assert done.instances[0].evicted_blocks == 3


def test_hit_blocks_without_a_holder_are_not_taken_for_the_same_request() -> None:
    stem = fresh(0, 4)
    longer = Path((*stem.keys, hashing.key(hashing.PROMPT, 2)), (4, 12))
    # At 20 row 1 holds one block of three (then two); the hit and one more are free, but row 2 needs two more.
    done = run((0, stem, 1), (20, fresh(1, 3), 2), (20, longer, 1), blocks=3)
    assert [job.started for job in done.rows] == [0, 20, 40]
    assert done.rows[2].cached_tokens == 4


def test_the_newest_is_preempted_and_resumes_from_what_is_left_of_its_blocks() -> None:
    latency = Listening()
    done = run((0, fresh(0, 7), 6), (0, fresh(1, 7), 6), blocks=4, latency=latency)
    older, newer = done.rows
    assert older.token_times == [10, 20, 30, 40, 50, 60]
    # At 20 row 0 needs a third block: row 1 yields and its tail is evicted. At 30 its head is a hit, but the two
    # blocks it lacks come only when row 0 ends. Then the tokens 4..8 are recomputed in one chunk.
    assert newer.token_times == [10, 20, 70, 80, 90, 100]
    assert (older.preemptions, newer.preemptions, newer.started, newer.cached_tokens) == (0, 1, 0, 0)
    assert latency.calls == [
        (0, 0, [(7, 0), (7, 0)]),
        (2, 16, []),
        (1, 9, []),
        (1, 10, []),
        (1, 11, []),
        (1, 12, []),
        (0, 0, [(5, 4)]),
        (1, 10, []),
        (1, 11, []),
        (1, 12, []),
    ]
    assert (done.instances[0].evicted_blocks, done.instances[0].peak_blocks) == (3, 4)


def test_recomputing_one_last_token_is_a_chunk() -> None:
    latency = Listening()
    done = run((0, fresh(0, 7), 2), (0, fresh(1, 8), 3), blocks=4, latency=latency)
    # At 10 row 1 needs a third block for its ninth token, is itself the newest and yields. Its two full blocks are
    # still cached when row 0 ends at 20, so a single token is left to compute.
    assert latency.calls == [(0, 0, [(7, 0), (8, 0)]), (1, 8, []), (0, 0, [(1, 8)]), (1, 10, [])]
    assert [job.token_times for job in done.rows] == [[10, 20], [10, 30, 40]]
    assert [job.preemptions for job in done.rows] == [0, 1]
    assert done.instances[0].evicted_blocks == 1


def test_nobody_enters_in_a_step_that_preempts() -> None:
    # As above; row 2 could have the head of row 1's two freed blocks at 10, but waits, and stands behind row 1.
    done = run((0, fresh(0, 7), 2), (0, fresh(1, 8), 3), (5, fresh(2, 4), 1), blocks=4)
    assert [job.started for job in done.rows] == [0, 0, 20]
    assert done.rows[1].token_times == [10, 30, 40]


def test_what_can_never_fit_is_rejected_on_arrival() -> None:
    # 12 + 6 - 1 = 17 tokens need five blocks; 16 tokens need four.
    done = run((3, fresh(0, 12), 6), (3, fresh(1, 12), 5), blocks=4)
    assert [job.outcome for job in done.rows] == ["rejected", "completed"]
    assert (done.rows[0].finished, done.rows[0].started, done.rows[0].token_times) == (3, -1, [])
    assert done.rows[1].started == 3


def test_the_router_hears_of_an_end_after_the_arrivals_of_the_same_instant() -> None:
    two: dict[str, Any] = {"instances": 2, "policy": "least-loaded"}
    early = run((0, fresh(0, 4), 5), (0, fresh(1, 4), 1), (10, fresh(2, 4), 1), **two)
    late = run((0, fresh(0, 4), 5), (0, fresh(1, 4), 1), (11, fresh(2, 4), 1), **two)
    assert [job.instance for job in early.rows] == [0, 1, 0]
    assert [job.instance for job in late.rows] == [0, 1, 1]


def test_a_rejected_request_counts_until_the_arrivals_of_its_instant_are_routed() -> None:
    two: dict[str, Any] = {"instances": 2, "policy": "least-loaded", "blocks": 4}
    done = run((0, fresh(0, 40), 1), (0, fresh(1, 4), 1), (1, fresh(2, 4), 1), **two)
    assert [job.instance for job in done.rows] == [0, 1, 0]


def test_round_robin_and_a_given_assignment_place_by_row() -> None:
    jobs = [(0, fresh(row, 4), 1) for row in range(4)]
    assert [job.instance for job in run(*jobs, instances=3).rows] == [0, 1, 2, 0]
    assert [job.instance for job in run(*jobs, instances=3, policy=[2, 2, 0, 1]).rows] == [2, 2, 0, 1]


@pytest.mark.full
@draws(20)
@given(scenarios())
def test_random_scenarios_drain_with_every_token_in_order(scenario: Scenario) -> None:
    done = simulate(**vars(scenario))
    for job in done.rows:
        if job.outcome == "completed":
            assert job.arrival <= job.started < job.first_token <= job.finished == job.token_times[-1]
            assert len(job.token_times) == job.output
            assert job.token_times == sorted(set(job.token_times))
            assert job.cached_tokens < job.prompt

"""A batch alone: its counters are those of the requests in it."""

from __future__ import annotations

from engine_parts import SIZE, new_job

from headway.sim.batch import Batch


def test_requests_have_the_order_of_their_entry() -> None:
    batch, jobs = Batch(SIZE), [new_job(row) for row in range(3)]
    for job in reversed(jobs):
        batch.enter(job)
    assert [job.order for job in batch.running] == [1, 2, 3]
    assert [job.row for job in batch.running] == [2, 1, 0]


def test_decodes_take_a_block_whenever_their_last_one_is_full() -> None:
    batch = Batch(SIZE)
    for row, prompt in enumerate((16, 17, 40, 64)):
        job = new_job(row, prompt, output=200)
        job.computed, job.generated = prompt, 1  # the first token has come with the prompt
        batch.enter(job)
        batch.start_decoding(job)
    for steps in (1, 5, 16, 37):
        walked = sum((job.known + step) % SIZE == 0 for job in batch.running for step in range(steps))
        assert batch.decode_blocks(0, steps) == walked


def test_who_stops_decoding_has_generated_a_token_a_step_and_leaves_nothing_behind() -> None:
    batch, job = Batch(SIZE), new_job(prompt=20, output=50)
    job.computed, job.generated = 20, 1
    batch.enter(job)
    batch.start_decoding(job)
    assert (batch.decodes, batch.context, job.ends_at_step) == (1, 21, 49)
    batch.steps += 30
    batch.context += 30
    batch.stop_decoding(job)
    batch.forget_end(job)
    assert (job.generated, job.computed, job.blocks) == (31, 50, 4)
    assert (batch.decodes, batch.counted, batch.context, batch.ending) == (0, 0, 0, [])
    assert not any(batch.phases)

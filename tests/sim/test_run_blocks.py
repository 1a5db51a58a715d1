"""The blocks of a run alone: nobody counts them before somebody looks, and then they are all there."""

from __future__ import annotations

from engine_parts import SIZE, begin_run, new_blocks, new_job

from headway.sim.run_blocks import RunBlocks, report_kv


def decoding(blocks: RunBlocks, prompt: int = 16) -> None:
    """One request decodes, in a run of 40 steps of 10 ps that has just begun; its first step takes a block."""
    job = new_job(prompt=prompt, output=100)
    job.computed, job.generated, job.blocks = prompt, 1, -(-prompt // SIZE)
    blocks.batch.enter(job)
    blocks.batch.start_decoding(job)
    blocks.cache.take(job.blocks + 1)
    begin_run(blocks.run, 0, 10, 0, 40)
    blocks.taken_steps = 1


def test_a_look_takes_the_blocks_of_the_steps_that_have_begun() -> None:
    blocks = new_blocks()
    decoding(blocks)
    for at, held in ((1, 2), (160, 2), (161, 3), (320, 3), (321, 4), (400, 4)):
        blocks.settle(at)
        assert blocks.cache.held == held, at


def test_a_run_is_no_longer_than_its_blocks_suffice() -> None:
    blocks = new_blocks(blocks=3)
    decoding(blocks)
    assert blocks.affordable(40) == 32
    assert blocks.affordable(20) == 20


def test_what_is_computed_of_a_prompt_becomes_hits_once() -> None:
    blocks, job = new_blocks(), new_job(prompt=64)
    blocks.cache.take(4)
    job.blocks = 4
    for end in (2, 2, 4):
        blocks.offer(job, end, 0)
        assert blocks.cache.match(job.runs, 4) == job.cached_to == end


def test_nothing_becomes_a_hit_without_prefix_caching() -> None:
    blocks, job = new_blocks(caching=False), new_job(prompt=64)
    blocks.cache.take(4)
    blocks.offer(job, 4, 0)
    assert blocks.cache.match(job.runs, 4) == 0


def test_the_view_is_told_of_steps_begun_since_the_last_look() -> None:
    lazy, told = new_blocks(), new_blocks()
    for blocks in (lazy, told):
        decoding(blocks)
    told.looked, told.reported_to, told.next_step = 1, 10, 10
    told.view.kv_used = told.cache.held
    for at in (5, 10, 11, 155, 161, 162, 390):
        report_kv([told], at)
        lazy.settle(at)
        assert told.view.kv_used == lazy.cache.held, at
    assert told.cache.held == 2  # a look at the view takes nothing

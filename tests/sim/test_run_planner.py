"""A planner alone: a run goes to the first boundary at which anything can change."""

from __future__ import annotations

from fractions import Fraction

from engine_parts import SIZE, new_blocks, new_job

from headway.latency.step_models.fixed import Fixed
from headway.sim.run_blocks import RunBlocks
from headway.sim.run_planner import Pace, RunPlanner
from headway.types import NEVER


def planning(blocks: RunBlocks, walks: bool = False) -> RunPlanner:
    return RunPlanner(blocks.run, blocks.batch, blocks, None, Fixed(prefill_ps=2, decode_ps=10), walks, None)


def decode(blocks: RunBlocks, output: int) -> None:
    job = new_job(prompt=SIZE - 1, output=output)
    job.generated, job.blocks = 1, 1
    blocks.batch.enter(job)
    blocks.batch.start_decoding(job)
    blocks.cache.take(1)


def test_a_run_of_decodes_goes_to_the_first_end_of_one() -> None:
    blocks = new_blocks()
    decode(blocks, 30)
    decode(blocks, 12)
    planning(blocks).plan(100, once=False)
    run = blocks.run
    assert (run.start, run.first, run.increment, run.length, run.end) == (100, 10, 0, 11, 210)


def test_a_run_is_one_step_where_the_next_may_differ_or_every_step_is_walked() -> None:
    for once, walks in ((True, False), (False, True)):
        blocks = new_blocks()
        decode(blocks, 30)
        planning(blocks, walks).plan(0, once)
        assert (blocks.run.length, blocks.run.end) == (1, 10)


def test_an_unfinished_prompt_repeats_its_chunk_until_the_last() -> None:
    blocks, job = new_blocks(), new_job(prompt=100)
    job.blocks = 2
    blocks.batch.enter(job)
    blocks.batch.partial = job
    blocks.run.chunks = [(job, 32)]
    planning(blocks).plan(0, once=False)
    assert (blocks.run.length, blocks.run.end) == (3, 3 * 64)


def test_a_run_ends_where_the_instance_gets_faster_again() -> None:
    blocks = new_blocks()
    decode(blocks, 100)
    planner = planning(blocks)
    planner.slow(0, Fraction(2), until=50)
    planner.plan(0, once=False)
    assert (blocks.run.first, blocks.run.length) == (20, 3)  # the last of them begins before that
    blocks.batch.steps += 3
    planner.plan(60, once=False)
    assert (blocks.run.first, blocks.run.length) == (10, 96)


def test_a_pace_multiplies_what_slows_it_down() -> None:
    pace = Pace(Fixed(prefill_ps=2, decode_ps=10))
    pace.slowed = [(100, Fraction(3)), (NEVER, Fraction(2))]
    model, until = pace.at(40)
    assert (model.run(1, 1, ())[0], until) == (60, 100)
    model, until = pace.at(100)
    assert (model.run(1, 1, ())[0], until) == (20, NEVER)

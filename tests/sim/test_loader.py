"""A loader alone: blocks come over a link, and their request waits for them with its place in memory."""

from __future__ import annotations

from engine_parts import SIZE, new_blocks, new_job

from headway.scenario.pd_spec import Transfer
from headway.sim.handover import Handover, Incoming
from headway.sim.job import Job
from headway.sim.link import Links
from headway.sim.loader import Loader
from headway.sim.setup import TransferSetup

TRANSFER = TransferSetup(Transfer(50, 10**12), token_bytes=1, grain_tokens=1)  # a byte a picosecond


def waiting_for_its_prompt() -> tuple[Loader, Job]:
    links, blocks = Links(), new_blocks()
    loader = Loader(0, blocks, links, None, active=True)
    job = new_job(prompt=64)
    job.awaits = Handover(new_job(prompt=64), job, 1, 0, links.add(10**12, 50), TRANSFER, Incoming(None))
    job.awaits.computed = True
    return loader, job


def test_a_prompt_comes_from_another_instance_while_its_place_is_held() -> None:
    loader, job = waiting_for_its_prompt()
    end = loader.reach(job, 0)
    assert end == 4
    loader.load(job, 0, end, 1000)
    assert (loader.cache.held, job.blocks, [*loader.loading]) == (4, 4, [job])
    assert loader.links.next_ps == 1000 + 64 + 50
    (load,) = loader.links.take_arrived(1114)
    loader.arrive(load.job, 1114)
    assert (loader.ready, loader.loading) == ([job], {})
    assert job.resumes and job.computed == 64
    assert loader.cache.match(job.runs, 4) == 4  # and it is a hit for others


def test_hits_are_held_and_not_loaded() -> None:
    loader, job = waiting_for_its_prompt()
    other = new_job(row=0, prompt=64)
    loader.cache.take(2)
    loader.blocks.offer(other, 2, 0)
    loader.load(job, 2, 4, 0)
    assert loader.cache.held == 4
    assert loader.links.next_ps == 64 - 2 * SIZE + 50


def test_who_gives_up_leaves_its_place_and_what_is_on_its_way_comes_for_nobody() -> None:
    loader, job = waiting_for_its_prompt()
    loader.load(job, 0, 4, 0)
    loader.drop(job, 10)
    assert (loader.cache.held, loader.loading, loader.ready) == (0, {}, [])
    assert loader.links.take_arrived(114) == []


def test_without_stores_or_handover_there_is_nothing_to_load() -> None:
    loader = Loader(0, new_blocks(), Links(), None, active=False)
    assert loader.reach(new_job(), 1) == 1

"""Data-parallel ranks that step in lockstep: one engine whose ranks have queues, batches and caches of their own.

Each rank is an `Instance`. At a step boundary every rank forms its step, and the ranks plan one joint run: all begin
together, every step takes as long as the slowest rank's, and all end together. An idle rank takes part with dummy steps
as long as any rank has work. What cuts the run of one rank cuts the runs of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.latency.joint_steps import run_group_after_pause, run_group_of
from headway.sim.ahead import form_again, has_work
from headway.sim.leap import Run, steps_begun

if TYPE_CHECKING:
    from headway.latency.base import StepShape
    from headway.sim.instance import Instance


class RankRun(Run):
    """The run of a rank. It is cut together with the runs of the other ranks."""

    __slots__ = ("lockstep",)

    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__()
        self.lockstep = lockstep

    def cut(self, now: int) -> bool:
        return self.lockstep.cut(now, self)

    def cut_later(self, now: int) -> None:
        self.lockstep.cut_later(now, self)


class Lockstep:
    """The ranks of an engine. To the event loop, they are one instance."""

    __slots__ = ("planner", "ranks", "run", "run_group")

    def __init__(self) -> None:
        self.ranks: list[Instance] = []

    def join(self, rank: Instance) -> None:
        """Add the next rank. All ranks have the planner of the first one, so that a slow engine slows all of them."""
        if not self.ranks:
            self.run = rank.run
            self.planner = rank.planner
            self.run_group = run_group_of(rank.planner.pace.model)
        rank.planner = self.planner
        if rank.ahead is not None:
            rank.ahead.joint = True
        self.ranks.append(rank)
        self.ranks[0].batch.peers.append(rank.batch)  # its latency model prices the steps of all ranks

    def begin(self, now: int) -> int:
        """Form the next step of every rank, and plan how often the joint step repeats. Return when this run of steps
        ends. If no rank has anything to do, or the last run has not ended, return -1."""
        if self.run.end >= 0:
            return -1
        once = False
        for rank in self.ranks:
            once = rank.form(now) or once
        if self.ranks[0].ahead is not None:
            empty = not any(map(has_work, self.ranks))
            for rank in self.ranks:
                once = form_again(rank, now, False, empty) or once
        if not any(map(has_work, self.ranks)):
            for rank in self.ranks:
                rank.go_idle(now)
            return -1
        for rank in self.ranks:
            if rank.busy_from < 0:
                rank.busy_from = now
            if rank.batches is not None and rank.batch.running:
                rank.batches.note(now)
        return self.plan(now, once)

    def plan(self, now: int, once: bool) -> int:
        """Plan the joint run that begins now with the steps that were formed, and return when it ends. If `once` is
        set, the step does not repeat."""
        planner, paused, wasted = self.planner, False, False
        if 0 <= planner.paced_until <= now:
            planner.renew(now)
            self.run_group = run_group_of(planner.model)
        for rank in self.ranks:
            if rank.ahead is not None:
                rank.batch.add_wasted(rank.ahead.wasted, 1)
                paused, wasted = paused or rank.ahead.paused, wasted or bool(rank.ahead.wasted)
        shapes: list[StepShape] = [
            (rank.batch.decodes, rank.batch.context, [(want, job.computed) for job, want in rank.run.chunks])
            for rank in self.ranks
        ]
        if wasted:
            for rank in self.ranks:
                assert rank.ahead is not None
                rank.batch.add_wasted(rank.ahead.wasted, -1)
                rank.ahead.wasted.clear()
        if paused:
            first, increment, steps = run_group_after_pause(planner.pace.at(now)[0], shapes)
        else:
            first, increment, steps = self.run_group(shapes)
        loading = 0
        for rank in self.ranks:
            if rank.adapters is not None and rank.adapters.loading_ps:
                loading = max(loading, rank.adapters.take_loading())
        first += loading
        if once or paused or wasted or loading or planner.walks:
            steps = 1
        for rank in self.ranks:
            if steps > 1:
                steps = repeats(rank, steps)
        if steps > 1:
            if planner.paced_until >= 0:  # a step keeps the factor that is valid at its start
                steps = min(steps, steps_begun(first, increment, planner.paced_until - now))
            if planner.cuts is not None:
                steps = planner.cuts.randint(1, steps)
        end = now + steps * first + increment * (steps * (steps - 1) // 2)
        for rank in self.ranks:
            run = rank.run
            run.start, run.first, run.increment, run.length, run.end = now, first, increment, steps, end
            rank.blocks.taken_steps = 1
            if rank.blocks.report is not None:
                rank.blocks.report_run(rank.blocks.report)
        return end

    def finish_run(self, now: int) -> None:
        for rank in self.ranks:
            rank.finish_run(now)

    def cut(self, now: int, own: RankRun) -> bool:
        """End the joint run at the first step boundary at or after this instant. Return whether it was cut and ends
        now. If so, finish the runs of all ranks except `own`, whose instance finishes it."""
        ends = Run.cut(own, now)
        for rank in self.others(own):
            rank.run.length, rank.run.end = own.length, own.end
            if ends:
                rank.finish_run(now)
        return ends

    def cut_later(self, now: int, own: RankRun) -> None:
        """End the joint run one step after the first step boundary at or after this instant, unless it ends there or
        earlier."""
        Run.cut_later(own, now)
        for rank in self.others(own):
            rank.run.length, rank.run.end = own.length, own.end

    def others(self, own: RankRun) -> list[Instance]:
        """Return the other ranks with a run. A rank that has lost its requests has none."""
        return [rank for rank in self.ranks if rank.run is not own and rank.run.end >= 0]


def repeats(rank: Instance, steps: int) -> int:
    """Return how many of the next `steps` steps have the same requests and chunks on a rank."""
    run, batch, blocks = rank.run, rank.batch, rank.blocks
    if run.chunks:
        job, want = run.chunks[0]
        if len(run.chunks) > 1 or job.pipelined or not blocks.repeats(job, want):
            return 1
        steps = min(steps, (job.known - job.computed - 1) // want)
    if batch.decodes:
        steps = min(steps, batch.ending[0][0] - batch.steps)
    if steps > 1 and batch.running:
        steps = blocks.affordable(steps)
    return steps

"""Plans runs of steps: how long the next step takes, and how often it repeats before anything can change."""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from random import Random

from headway.latency.base import LatencyModel, scale_model
from headway.sim.adapters import Adapters
from headway.sim.batch import Batch
from headway.sim.leap import Run, steps_begun
from headway.sim.run_blocks import RunBlocks
from headway.types import NEVER


class Pace:
    """The speed of an instance over time: the factor by which warm-up and slow faults lengthen its steps."""

    __slots__ = ("model", "models", "slowed", "warming")

    def __init__(self, model: LatencyModel) -> None:
        self.model = model
        self.models: dict[Fraction, LatencyModel] = {}
        self.warming: list[tuple[int, Fraction]] = []  # (start, factor) of each part of the warm-up, in order
        self.slowed: list[tuple[int, Fraction]] = []  # (end, factor) of each slow fault

    def at(self, now: int) -> tuple[LatencyModel, int]:
        """Return the latency model of a step that begins now, and the time until which this model is valid."""
        factor, until = Fraction(1), NEVER
        for since, own in self.warming:  # the last entry has the factor 1, which ends the warm-up
            if since > now:
                until = since
                break
            factor = own
        self.slowed = [(end, own) for end, own in self.slowed if end > now]
        for end, own in self.slowed:
            factor *= own
            until = min(until, end)
        model = self.models.get(factor)
        if model is None:
            model = self.models[factor] = scale_model(self.model, factor)
        return model, until


class RunPlanner:
    __slots__ = ("adapters", "batch", "blocks", "cuts", "model", "pace", "paced_until", "run", "step_times", "walks")

    def __init__(
        self,
        run: Run,
        batch: Batch,
        blocks: RunBlocks,
        adapters: Adapters | None,
        latency: LatencyModel,
        walks: bool,
        cuts: Random | None,
    ) -> None:
        self.run = run
        self.batch = batch
        self.blocks = blocks
        self.adapters = adapters
        self.walks = walks  # whether each run is a single step
        # Random stream of the steps at which runs are cut. None: runs are not cut.
        # Tests use cuts to check that results do not depend on them.
        self.cuts = cuts
        self.pace = Pace(latency)
        self.paced_until = -1  # time until which `step_times` is valid; -1: always
        self.model = latency
        self.step_times = latency.run

    def plan(self, now: int, once: bool) -> int:
        """Plan the run that begins now with the step that was formed, and return when the run ends. If `once` is set,
        the step does not repeat."""
        if 0 <= self.paced_until <= now:
            self.renew(now)
        run, batch, blocks = self.run, self.batch, self.blocks
        chunks, decodes = run.chunks, batch.decodes
        if chunks:
            if len(chunks) == 1:
                job, want = chunks[0]
                first, increment, steps = self.step_times(decodes, batch.context, [(want, job.computed)])
                if job.pipelined or not blocks.repeats(job, want):
                    steps = 1
                else:
                    # While a prefill uses the whole budget and does not end, no other request can enter: the step
                    # repeats.
                    steps = min(steps, (job.known - job.computed - 1) // want)
            else:
                shape = [(want, job.computed) for job, want in chunks]
                first, increment, steps = self.step_times(decodes, batch.context, shape)
                steps = 1
            if self.adapters is not None and self.adapters.loading_ps:
                first += self.adapters.take_loading()
                steps = 1
        else:
            first, increment, steps = self.step_times(decodes, batch.context, ())
        if once or self.walks:
            steps = 1
        elif steps > 1:
            if decodes and (left := batch.ending[0][0] - batch.steps) < steps:
                steps = left
            cache = blocks.cache
            if chunks or decodes * (steps // batch.block_steps + 1) > cache.total - cache.held:
                steps = blocks.affordable(steps)
            if self.paced_until >= 0:  # a step keeps the factor that is valid at its start
                steps = min(steps, steps_begun(first, increment, self.paced_until - now))
            if self.cuts is not None:
                steps = self.cuts.randint(1, steps)
        run.start = now
        run.first = first
        run.increment = increment
        run.length = steps
        end = run.end = now + first if steps == 1 else now + steps * first + increment * (steps * (steps - 1) // 2)
        blocks.taken_steps = 1
        if blocks.report is not None:
            blocks.report_run(blocks.report)
        return end

    def renew(self, now: int) -> None:
        """Use the step times of the speed that the instance has now."""
        self.model, until = self.pace.at(now)
        self.step_times = self.model.run
        self.paced_until = until if until < NEVER else -1

    def plan_after_pause(self, now: int) -> int:
        """Plan a single step that begins after a pause of the GPU, so that the host's work for this step is not hidden
        behind an earlier step. Return when the step ends."""
        if 0 <= self.paced_until <= now:
            self.renew(now)
        self.step_times = getattr(self.model, "run_after_pause", self.model.run)
        end = self.plan(now, True)
        self.step_times = self.model.run
        return end

    def warm(self, now: int, pieces: Sequence[tuple[int, Fraction]]) -> None:
        """Begin a warm-up. `pieces` has pairs (offset, factor): from the time now + offset on, steps take `factor`
        times as long."""
        self.pace.warming = [(now + offset, factor) for offset, factor in pieces]
        self.paced_until = now

    def slow(self, now: int, factor: Fraction, until: int) -> None:
        self.pace.slowed.append((until, factor))
        self.paced_until = now

    def heal(self, now: int) -> Fraction:
        """End all slow faults from the next step on, and return the product of their factors."""
        factor = prod((own for _, own in self.pace.slowed), start=Fraction(1))
        self.pace.slowed.clear()
        self.paced_until = now
        return factor

    def replace(self, now: int) -> None:
        """Reset the speed, because a new instance replaces this one."""
        self.pace = Pace(self.pace.model)
        self.paced_until = now

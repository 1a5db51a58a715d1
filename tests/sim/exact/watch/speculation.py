"""The tokens of decodes that verify drafts, and the tokens for which they have blocks, told step by step."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import floor

from headway.sim.instance import Instance
from headway.sim.job import Job
from headway.sim.simulation import Simulation


class Positions:
    """What a decode has generated is a whole number of tokens and a rest, which the next steps go on with."""

    def __init__(self, simulation: Simulation, generated: defaultdict[int, int]) -> None:
        self.setups = [engine.speculation for engine in simulation.setup.engines]
        self.generated = generated
        self.rest: defaultdict[int, Fraction] = defaultdict(Fraction)  # by request
        self.before: dict[int, int] = {}  # by request: tokens before its last step of decoding, if there was one

    def begin(self, job: Job) -> None:
        """A prefill has ended."""
        self.before.pop(job.row, None)

    def rate(self, index: int, job: Job) -> Fraction:
        setup = self.setups[index]
        return Fraction(1) if setup is None else Fraction(setup.rates.get(job.request.slo_class, setup.rate), 64)

    def steps(self, instance: Instance, job: Job, count: int, delivered: int) -> None:
        """A request has decoded for so many steps; the tokens of the last ones may not count."""
        row, rate = job.row, self.rate(instance.view.index, job)
        for number in range(count):
            tokens = self.rest[row] + rate
            self.rest[row] = tokens - floor(tokens)
            if number < delivered:
                self.before[row] = self.generated[row]
                self.generated[row] = min(self.generated[row] + floor(tokens), job.output_tokens)

    def held(self, index: int, job: Job, taken: int) -> int | None:
        """The tokens for which a decode has blocks, once so many steps of a run have begun; None if it does not
        speculate."""
        setup = self.setups[index]
        if setup is None:
            return None
        row, prompt = job.row, job.request.prompt_tokens
        if taken:
            tokens = self.generated[row] + floor(self.rest[row] + self.rate(index, job) * (taken - 1))
        elif row in self.before:
            tokens = self.before[row]
        else:
            return job.known
        return prompt + tokens + setup.ahead

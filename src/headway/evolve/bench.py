"""Run candidates on cases. Each simulation runs in its own process. If the cache already has a result, it is not
simulated again."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from headway.evolve.cache import Cache, Key, Record
from headway.evolve.evaluation import PLAY, Case
from headway.evolve.fitness import COMPLETED
from headway.evolve.limits import Limits
from headway.evolve.objectives import Objective
from headway.evolve.worker import Failure, Task, confined, confined_many
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.scenario import references
from headway.types import Json

Progress = Callable[[], None]  # a callback that is called after every run
# Figures that every feedback shows in addition to those of the objectives.
ALWAYS_SHOWN: Final = (
    COMPLETED,
    "requests.arrived",
    "latency.ttft.mean",
    "latency.ttft.p99",
    "latency.tpot.mean",
    "latency.e2e.mean",
    "latency.e2e.p99",
    "cache.token_hit_ratio",
    "slo.goodput_ratio",
    "balance.cv",
)


class PlannedRun(NamedTuple):
    bundle: Bundle
    case: Case
    explain: bool = False  # whether to also summarize the run in words
    may: tuple[str, ...] | None = None  # stages of the suggestions in the summary; None: the stages of the bundle

    def key(self) -> Key:
        scope = "+".join(self.may or ()) if self.explain else ""
        return Key(policies_key(self.bundle), self.case.key, self.case.seed, scope)


class Bench:
    """Runs candidates on cases within limits, and caches the records. A runner distributes the runs; without a runner,
    they run one by one."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        cache: Cache,
        limits: Limits,
        runner: Runner | None = None,
        progress: Progress | None = None,
    ) -> None:
        paths = [path for objective in objectives for path in objective.terms]
        self.figures = tuple(dict.fromkeys((*paths, *ALWAYS_SHOWN)))
        self.cache, self.limits, self.runner = cache, limits, runner
        self.progress = progress or (lambda: None)

    def records(self, runs: Sequence[PlannedRun], left_s: float | None = None) -> list[Record]:
        """Return the record of each run, in order. `left_s` is the wall-clock time that is left for the evaluation. The
        time limit of a run is never longer than `left_s`."""
        keys = [(run.key(), run.explain) for run in runs]
        records: dict[tuple[Key, bool], Record] = {}
        missing: dict[tuple[Key, bool], PlannedRun] = {}
        for (key, explain), run in zip(keys, runs, strict=True):
            record = self.cache.find(key, self.figures, explain)
            if record is None:
                missing[key, explain] = run
            else:
                records[key, explain] = record
        answers = self._run(list(missing.values()), left_s)
        for (key, explain), answer in zip(missing, answers, strict=True):
            record = self._record(answer)
            if record is None:  # do not cache the failure, because a later run may stay within limits
                record = Record(error=answer.why if isinstance(answer, Failure) else "the run returned no figures.")
            else:
                self.cache.keep(key, record)
            records[key, explain] = record
        return [records[key] for key in keys]

    def _run(self, runs: Sequence[PlannedRun], left_s: float | None) -> list[Any]:
        limits = self.limits
        if left_s is not None and left_s < limits.deadline_s:
            limits = msgspec.structs.replace(limits, deadline_s=left_s)
        figures = list(self.figures)
        tasks = [Task(PLAY, [run.case.document(), run.bundle.policies, figures, run.explain, run.may]) for run in runs]
        if self.runner is not None:
            return confined_many(tasks, self.runner, limits, lambda *_: self.progress())
        answers = []
        for task in tasks:
            answers.append(confined(task.call, task.arguments, limits))
            self.progress()
        return answers

    def _record(self, answer: Any) -> Record | None:
        try:
            record = msgspec.convert(answer, Record)
        except msgspec.ValidationError:
            return None
        return record if record.has(self.figures, False) else None


def policies_key(bundle: Bundle) -> str:
    """Return the cache key of a bundle's policies: the bundle's id or, if its policies refer to files, a digest that
    includes the content of the files."""
    policies: Json = bundle.policies
    digested = references.replace_by_digests(policies)
    if digested == policies:
        return bundle.id
    return blake2b(msgspec.json.encode(digested, order="sorted"), digest_size=8).hexdigest()

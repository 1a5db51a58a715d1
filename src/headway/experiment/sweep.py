"""Runs one scenario over a grid of its keys, on all cores. A sweep reuses the runs that its folder already contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config.arguments import checked
from headway.display.displayed import Displayed, Types, columns_of
from headway.display.progress import SweepProgress, watch
from headway.errors import HeadwayError
from headway.experiment.grid import Axis, Point, Vary, axes, flat, points
from headway.experiment.jobs import Job, strange
from headway.experiment.paired import HEADLINE, check_seeds, with_seed
from headway.experiment.run import check_trace, simulate
from headway.experiment.runner import Runner, runner_of
from headway.experiment.swept import Swept, verdict
from headway.experiment.verdict import has_slo
from headway.results import study
from headway.results.ranking import figure, value
from headway.scenario.scenario import DEFAULT, Scenario, Source, load_data, validate
from headway.types import Json

Progress = Callable[[int, int, int], None]  # arguments: numbers of finished, of all, and of reused runs
WHERE: Final = "sweep"


class Sweep(Displayed, Struct, frozen=True):
    """The points of a sweep in the order of the grid. `reused` is the number of runs that were read from the folder."""

    _view: ClassVar[str] = "headway.report.notebook:sweep_view"
    _types: ClassVar[Types] = {"slo_holds": bool}

    scenario: Json
    axes: list[Axis]
    seeds: int
    points: list[Swept]
    verdict: str
    reused: int = 0
    show: tuple[str, ...] = HEADLINE  # the figures in `rows`

    @property
    def runs(self) -> int:
        return len(self.points) * self.seeds

    @property
    def vary(self) -> dict[str, list[Any]]:
        return {axis.path: axis.values for axis in self.axes}

    @property
    def rows(self) -> list[Json]:
        """Return a flat row for each point: the varied values, whether the SLO holds, and the means of the figures.
        Quantities are numbers: rates per second, durations in seconds, sizes in bytes."""
        numbers = {axis.path: axis.numbers() for axis in self.axes}
        return [
            {
                **{path: of[flat(point.vary[path])] for path, of in numbers.items()},
                "policy": point.policy,
                "slo_holds": point.holds(),
                **{path: value(point.summary, path) for path in self.show},
            }
            for point in self.points
        ]

    def summary(self) -> Json:
        """Return the document that `headway sweep --json` prints."""
        return {
            "scenario": self.scenario["name"],
            "vary": self.vary,
            "seeds": self.seeds,
            "runs": self.runs,
            "points": [
                {
                    "vary": point.vary,
                    "label": point.label,
                    "policy": point.policy,
                    "key": point.key,
                    "slo_holds": point.holds(),
                    "figures": point.figures(self.show),
                }
                for point in self.points
            ],
            "verdict": self.verdict,
        }

    def columns(self) -> dict[str, list[Any]]:
        return columns_of(self.rows)


@checked
def sweep(
    scenario: Source = DEFAULT,
    vary: Vary = (),
    *,
    seeds: int = 1,
    show: str | Iterable[str] = (),
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    trace: str = "minimal",
    progress: Progress | bool = True,
) -> Sweep:
    """Run a scenario at every point of a grid over its keys.

    `vary` has strings such as "workload.rate=20..80:10" (a range, both ends included), "cluster.instances=2,4,8" and
    "policies.routing=round-robin,{name: weighted, scorers: {queue-depth: 2}}", or is a mapping of dotted keys to lists
    of values. A number without a unit takes the unit of the scenario's value. Headway validates every scenario before
    it runs the first one.

    With several `seeds`, all points run with the same seeds: run n, counted from 0, adds n to each seed of the
    scenario. Figures are then means over the seeds.
    `show` names figures of the summary for the rows, such as "balance.cv,latency.itl.p99", instead of the usual ones.

    With `output`, Headway writes each run as soon as it is done, with the detail of `trace` (`minimal`, `decisions` or
    `full`). A sweep that is repeated or continued reads the existing runs. Runs use `workers` processes, by
    default one per core, or the Ray cluster at the address `ray`.
    """
    check_seeds(seeds)
    figures = show.split(",") if isinstance(show, str) else show
    shown_figures = tuple(dict.fromkeys(figure(path, "show", ranked=False) for path in figures)) or HEADLINE
    check_trace(trace)
    data = load_data(scenario, overrides)
    base = validate(data)
    varied = axes(vary, base)
    grid = points(data, varied)
    folder = None if output is None else Path(output)
    if folder is not None:
        study.check(folder, "sweep")
        study.clear_parts(folder)
    with watch(progress, lambda: SweepProgress(output=folder)) as report, runner_of(workers, ray) as runner:
        swept = _Sweeping(base, varied, grid, seeds, folder, trace).run(runner, report)
    return replace(swept, show=shown_figures)


class _Sweeping:
    """The runs of one sweep. A task is a pair of a point and a seed."""

    def __init__(
        self, base: Scenario, varied: list[Axis], grid: list[Point], seeds: int, folder: Path | None, trace: str
    ) -> None:
        self.base = base.resolved()
        self.axes = varied
        self.grid = grid
        self.seeds = seeds
        self.folder = folder
        self.trace = trace
        self.keys = [point.scenario.key() for point in grid]
        self.folders = self._choose_folders()
        self.summaries: dict[tuple[int, int], Json] = {}

    def _choose_folders(self) -> list[str]:
        """Return the name of a folder for each point. If a folder already has a run with the point's run key, use that
        folder. Otherwise make a name from the point's values and its run key."""
        there = {} if self.folder is None else study.by_key(self.folder)
        labels = study.folders([point.label for point in self.grid])
        own = [f"{label}-{key}" for label, key in zip(labels, self.keys, strict=True)]
        used = set(own)  # two points may have the same key
        for place, (name, key) in enumerate(zip(own, self.keys, strict=True)):
            known = there.get(key, [])
            if name not in known:
                own[place] = next((folder for folder in known if folder not in used), name)
                used.add(own[place])
        return own

    def run(self, runner: Runner, progress: Progress | None) -> Sweep:
        tasks = [(place, seed) for place in range(len(self.grid)) for seed in range(self.seeds)]
        self._read(tasks)
        reused = len(self.summaries)
        todo = [task for task in tasks if task not in self.summaries]
        self._write(study.UNFINISHED)

        def finish(place: int, summary: Json) -> None:
            self.summaries[todo[place]] = summary
            if progress is not None:
                progress(len(self.summaries), len(tasks), reused)

        if progress is not None:
            progress(reused, len(tasks), reused)
        try:
            runner.run([self._job(*task) for task in todo], finish, WHERE)
        except BaseException:
            if self.folder is not None:
                study.clear_parts(self.folder)
                self._write(study.UNFINISHED)
            raise
        swept = self._swept()
        sentence = verdict(swept, self.axes, self.base)
        self._write(sentence)
        return Sweep(self.base, self.axes, self.seeds, swept, sentence, reused)

    def _job(self, place: int, seed: int) -> Job:
        resolved = self.grid[place].scenario.resolved()
        target = None if self.folder is None else self.folder / self.folders[place]
        label = self.grid[place].label
        arguments = (with_seed(resolved, seed), seed, target, label, self.trace)
        return Job(label, _run, arguments, home=strange(resolved["policies"]), folder=2)

    def _read(self, tasks: Sequence[tuple[int, int]]) -> None:
        """Read the summaries of the runs that the folder already contains. Do not reuse a run with a policy that the
        caller's program defines, because the code of this policy may have changed."""
        if self.folder is None:
            return
        for place, seed in tasks:
            if strange(self.grid[place].scenario.resolved()["policies"]):
                continue
            if not seed:
                summary = study.read_summary(self.folder / self.folders[place], self.keys[place], self.trace)
            else:
                resolved = with_seed(self.grid[place].scenario.resolved(), seed)
                summary = study.read_seed(self.folder, validate(resolved).key())
            if summary is not None:
                self.summaries[(place, seed)] = summary

    def _swept(self) -> list[Swept]:
        return [
            Swept(
                vary=point.vary,
                label=point.label,
                policy=point.policy,
                key=self.keys[place],
                folder=self.folders[place],
                slo=has_slo(point.scenario.resolved()),
                summaries=[self.summaries[(place, seed)] for seed in range(self.seeds)],
            )
            for place, point in enumerate(self.grid)
        ]

    def _write(self, sentence: str) -> None:
        """Write the finished runs and the verdict to `study.json`."""
        if self.folder is None:
            return
        stages = [axis.stage for axis in self.axes if axis.stage is not None]
        runs = [
            study.run_entry(self.folders[place], point.policy, vary=point.vary, seeds=self.seeds)
            for place, point in enumerate(self.grid)
            if (place, 0) in self.summaries
        ]
        stage = stages[0] if stages else "routing"
        vary = {axis.path: axis.values for axis in self.axes}
        study.write(self.folder, "sweep", self.base, runs, stage=stage, verdict=sentence, vary=vary)


def _run(resolved: Json, seed: int, folder: Path | None, label: str, trace: str) -> Json:
    """Run a point in a worker. Write the run folder for the first seed, and only the summary for other seeds."""
    try:
        result = simulate(resolved, trace="minimal" if seed or folder is None else trace, progress=False)
    except HeadwayError as error:
        raise HeadwayError(f"{WHERE} {label}: {error}") from error
    summary = result.summary()
    if folder is not None and not seed:
        study.save(result, folder)
    elif folder is not None:
        study.write_seed(folder.parent, validate(resolved).key(), summary)
    return summary

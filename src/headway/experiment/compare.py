"""Compares policies of a stage on one scenario, on all cores."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headway.config.arguments import checked
from headway.config.wording import shown, suggest
from headway.display.displayed import Displayed, columns_of
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError
from headway.experiment.contenders import WHERE, Contender, contenders, copy_for_seed, place_of
from headway.experiment.jobs import Job, strange
from headway.experiment.notes import COPIES, moves_prefixes, pairs_by_prefix
from headway.experiment.other_signals import Age, OtherRanking, is_cheap, other_age, reads_reports, with_signals
from headway.experiment.paired import HEADLINE, Noise, check_seeds, mean_summary, paired_rows, with_seed
from headway.experiment.run import check_trace, simulate
from headway.experiment.runner import Progress, Runner, run_jobs, runner_of
from headway.experiment.verdict import saving, verdict
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.results import study
from headway.results.ranking import figure, rank, value
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import Json

PLAIN: Final = {**DEFAULT_POLICIES, "routing": "round-robin"}  # default baseline of each stage
COUNTS: Final = ("requests.completed", "requests.rejected", "requests.timed_out", "requests.failed")
SIGNAL_KEYS: Final = ("defaults", "signals")  # keys of a scenario that set the age of signals
PER: Final = {"tenant": "tenants", "class": "classes"}  # type of group -> section of a summary


class Comparison(Displayed, Struct, frozen=True):
    """The summary of each policy, best first. With several seeds, summaries are means, `runs` has the summaries of each
    seed, and `paired` has the difference of each figure from the baseline."""

    _view: ClassVar[str] = "headway.report.notebook:comparison_view"

    scenario: Json
    ranked: list[tuple[str, Json]]
    verdict: str
    oracles: tuple[str, ...] = ()  # policies that read the true state; `best` is one of them only if all policies do so
    by: str | None = None  # the figure to rank by, if the caller named one
    stage: str = "routing"
    seeds: int = 1
    baseline: str | None = None
    paired: list[Json] | None = None
    runs: dict[str, list[Json]] = {}
    # Label of a template or control -> its kind. These policies rank last and are never the best.
    # The mapping is empty unless all policies run.
    aside: dict[str, str] = {}
    other: OtherRanking | None = None  # the ranking with fresh instead of polled signals, or the reverse

    @property
    def best(self) -> str:
        return next((name for name, _ in self.ranked if name not in self.oracles), self.ranked[0][0])

    @checked
    def per(self, group: str) -> list[Json]:
        """Return the figures of each policy for each tenant or class, best policy first. If there is only one tenant or
        class, return an empty list."""
        section = PER.get(group)
        if section is None:
            raise HeadwayError(f"per: there are no figures per {shown(group)}.{suggest(group, PER)}")
        return [{"policy": name, **row} for name, summary in self.ranked for row in summary.get(section, [])]

    def summary(self, per: str | None = None) -> Json:
        """Return the document that `headway compare --json` prints."""
        rows = {} if per is None else {f"per_{per}": self.per(per)}
        return {
            "scenario": self.scenario["name"],
            "stage": self.stage,
            "by": self.by,
            "policies": [
                {
                    "name": name,
                    "kind": self.aside.get(name, "policy"),
                    "oracle": name in self.oracles,
                    "summary": summary,
                }
                for name, summary in self.ranked
            ],
            "best": self.best,
            "verdict": self.verdict,
            **rows,
            **({} if self.other is None else {"other_signals": to_builtins(self.other)}),
            **({} if self.paired is None else {"seeds": self.seeds, "baseline": self.baseline, "paired": self.paired}),
        }

    @property
    def figures(self) -> tuple[str, ...]:
        """The paths of the figures in `rows`."""
        return tuple(dict.fromkeys((*([] if self.by is None else [self.by]), *HEADLINE, "balance.jain", *COUNTS)))

    @property
    def rows(self) -> list[Json]:
        """A flat row for each policy, best first: its kind, and its figures, as means over the seeds."""
        return [
            {
                "policy": name,
                "kind": self.aside.get(name, "policy"),
                "oracle": name in self.oracles,
                "best": name == self.best,
                **{path: value(summary, path) for path in self.figures},
            }
            for name, summary in self.ranked
        ]

    def columns(self) -> dict[str, list[Any]]:
        return columns_of(self.rows)

    def __getitem__(self, name: str) -> Json:
        """Return the summary of a policy by its label, or by its name if only one policy has that name."""
        label = _find_label(name, [known for known, _ in self.ranked])
        if label is None:
            raise KeyError(name)
        return dict(self.ranked)[label]


def _find_label(name: str, labels: Sequence[str]) -> str | None:
    """Return the label that is equal to a name. If no label is equal, and exactly one policy has this name, return the
    label of that policy."""
    canonical = registry.canonical(name)
    for label in labels:
        if label in (name, canonical):
            return label
    alike = [label for label in labels if label.partition("(")[0] == canonical]
    return alike[0] if len(alike) == 1 else None


@checked
def compare(
    scenario: Source = DEFAULT,
    policies: Any = None,
    *,
    stage: str = "routing",
    by: str | None = None,
    seeds: int = 1,
    baseline: str | None = None,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    trace: str = "minimal",
    progress: Progress | bool = True,
    signals: Age | None = None,
) -> Comparison:
    """Run a scenario with several policies of a stage and rank the results. Stages are admission, priority, flow,
    estimator, routing, decider, scheduler and scaling; the other stages keep the scenario's policies.

    A policy is a name, `path/to/file.py:Class`, a mapping with `name` and parameters, a bundle or its file
    (`best.yaml`), or your own class or object. A bundle sets the policies of all its stages. Your own class or object
    runs in this process. A string may name several policies, separated by commas. Without `policies`, Headway runs the
    stage's recommended policies and the scenario's own policy. `policies="all"` adds variants, templates and controls.
    Templates and controls rank last and are never the best.

    If the scenario has an SLO, the best policy has the largest fraction of requests within the SLO, then the lowest
    TTFT p99.
    Without an SLO, the best policy loses the fewest requests, then has the lowest mean E2E. `by` names a figure of the
    summary to rank by instead, such as `latency.tpot.p99`.

    With several `seeds`, all policies run with the same seeds: run n, counted from 0, adds n to each seed of the
    scenario. Figures are then means over the seeds. Each mean has its paired difference from the `baseline`, and the
    95 % confidence interval of that difference. The default `baseline` is the stage's plain policy if it runs, else the
    first policy. A difference within noise does not make a policy the best.

    `output` is a folder for the study. Headway writes `study.json` there, and the run of each policy with the first
    seed. `trace` sets the detail of these runs: `minimal`, `decisions` or `full`. Runs use `workers` processes, by
    default one per core, or the Ray cluster at the address `ray`. Workers print to standard error.

    `signals="fresh"` or `"polled"` sets how old the reported signals are; without it, they are as the scenario says.
    If you set `signals`, the comparison also ranks the policies under the other kind of signals. If you do not, it does
    so only if these second runs have at most 10,000 requests together, and none of them uses your own policy class or
    object. `other` has the second ranking. Policies that read no reported signal run only once.

    If prefill instances keep no copy of a prefix, a pair policy that seeks prefixes runs twice: without a change, and
    with `transfer.keep_prefill_copy` on.
    """
    by = None if by is None else figure(by)
    check_seeds(seeds)
    check_trace(trace)
    if trace != "minimal" and output is None:
        raise HeadwayError("trace: needs an output folder. Set output.")
    if signals not in (None, *get_args(Age)):
        raise HeadwayError(f"signals: {shown(signals)} is unknown.{suggest(str(signals), get_args(Age))}")
    loaded = with_signals(Scenario.load(scenario, overrides), signals)
    if output is not None:
        study.check(output, "comparison")
    resolved = loaded.resolved()
    chosen = contenders(loaded, policies, stage)
    tasks = [(resolved, contender) for contender in chosen]
    if stage == "routing" and moves_prefixes(loaded.cluster):
        copies = [replace(each, name=f"{each.name}(copies)") for each in chosen if pairs_by_prefix(each.spec)]
        tasks += [(with_copies(resolved), contender) for contender in copies]
        chosen += copies
    base = _baseline(baseline, [contender.name for contender in chosen], stage)
    entries = [] if output is None else _begin(Path(output), resolved, chosen, stage, seeds, base)
    folders = [Path(output or ".") / entry["folder"] for entry in entries]
    try:
        unit = "policies" if seeds == 1 else "runs"
        with watch(progress, lambda: Bar(None, unit)) as report, runner_of(workers, ray) as runner:
            second = Second.of(loaded, tasks, signals is not None)
            summaries = run_all(tasks, runner, report, seeds, folders, trace)
            again = second.run(summaries, runner, report)
    finally:
        if output is not None:
            study.clear_parts(Path(output))
    runs = dict(zip([contender.name for contender in chosen], summaries, strict=True))
    comparison = _judge(resolved, runs, chosen, by, stage, base, measured=baseline is not None)
    if again is not None:
        names = [name for name, _ in _rank(dict(zip(runs, again, strict=True)), comparison.aside, by)]
        ranking = OtherRanking.of(second.scenario, names, loaded, [name for name, _ in comparison.ranked])
        comparison = replace(comparison, other=ranking)
    if output is not None:
        sentence, rows = comparison.verdict, comparison.paired
        study.write(output, "comparison", resolved, entries, stage=stage, verdict=sentence, baseline=base, paired=rows)
    return comparison


def _begin(output: Path, resolved: Json, chosen: list[Contender], stage: str, seeds: int, baseline: str) -> list[Json]:
    """Remove the runs of an earlier comparison from the folder. Write a `study.json` that says that the comparison is
    unfinished, and return its list of runs."""
    study.remove_runs(output)
    study.clear_parts(output)
    folders = study.folders([contender.name for contender in chosen])
    entries = [
        study.run_entry(folder, contender.name, contender.oracle, seeds=seeds, aside=contender.aside)
        for folder, contender in zip(folders, chosen, strict=True)
    ]
    study.write(output, "comparison", resolved, entries, stage=stage, verdict=study.UNFINISHED, baseline=baseline)
    return entries


def _baseline(name: str | None, labels: list[str], stage: str) -> str:
    """Return the label of the policy to compare the others with."""
    if name is None:
        return PLAIN[stage] if PLAIN[stage] in labels else labels[0]
    label = _find_label(name, labels)
    if label is None:
        raise HeadwayError(f"baseline: this comparison has no policy {shown(name)}.{suggest(name, labels)}")
    return label


def _judge(
    resolved: Json,
    runs: dict[str, list[Json]],
    chosen: list[Contender],
    by: str | None,
    stage: str,
    baseline: str,
    measured: bool,
) -> Comparison:
    several = len(runs[baseline]) > 1
    aside = {contender.name: contender.aside for contender in chosen if contender.aside is not None}
    ranked = _rank(runs, aside, by)
    choices = [pair for pair in ranked if pair[0] not in aside]
    oracles = tuple(contender.name for contender in chosen if contender.oracle)
    noise = Noise(runs) if several else None
    plain = baseline if measured else PLAIN[stage]
    sentence = verdict(choices, resolved, oracles, by, plain, noise)
    if stage == "scaling" and by is None:
        sentence += saving(choices, resolved, plain, noise)
    rows = paired_rows(runs, baseline, by) if several else None
    return Comparison(resolved, ranked, sentence, oracles, by, stage, len(runs[baseline]), baseline, rows, runs, aside)


def _rank(runs: dict[str, list[Json]], aside: dict[str, str], by: str | None) -> list[tuple[str, Json]]:
    """Return the policies with their mean summaries, best first."""
    ranked = rank([(name, mean_summary(its)) for name, its in runs.items()], by)
    ranked.sort(key=lambda pair: place_of(aside.get(pair[0])))
    return ranked


class Second(Struct, frozen=True):
    """The second runs of a comparison: with polled signals if the first runs had fresh signals, or the reverse.
    Policies that read no reported signal do not run again, because their runs would be the same."""

    scenario: Scenario
    tasks: dict[int, tuple[Json, Contender]] | None  # index in the comparison -> run; None: do not run
    asked: bool  # whether to do the second runs even if they take long

    @classmethod
    def of(cls, loaded: Scenario, tasks: Sequence[tuple[Json, Contender]], asked: bool) -> "Second":
        """Prepare the second runs. If one of their policies is defined in the caller's program, there are no second
        runs unless `asked` is set. Policy objects of the caller are copied before their first run."""
        other = with_signals(loaded, other_age(loaded))
        changed = {key: value for key, value in other.resolved().items() if key in SIGNAL_KEYS}
        chosen = {}
        for place, (resolved, contender) in enumerate(tasks if len(tasks) > 1 else ()):
            if reads_reports(loaded, contender):
                kept = {key: value for key, value in resolved.items() if key not in SIGNAL_KEYS}
                if strange(contender.policies) and not asked:
                    return cls(other, None, asked)
                chosen[place] = ({**kept, **changed}, copy_for_seed(contender))
        return cls(other, chosen if len(tasks) > 1 else None, asked)

    def run(self, summaries: list[list[Json]], runner: Runner, progress: Progress | None) -> list[list[Json]] | None:
        """Return the summaries of all policies. If there are no second runs, or if they would take long and `asked` is
        not set, return None."""
        if self.tasks is None or not (self.asked or is_cheap([summaries[place] for place in self.tasks])):
            return None
        again = run_all([*self.tasks.values()], runner, progress, len(summaries[0]))
        changed = dict(zip(self.tasks, again, strict=True))
        return [changed.get(place, summary) for place, summary in enumerate(summaries)]


def with_copies(resolved: Json) -> Json:
    """Return the scenario with `transfer.keep_prefill_copy` on, so that prefill instances keep a copy of each
    prefix."""
    changed = deepcopy(resolved)
    for deployment in changed["cluster"].get("deployments", {"": changed["cluster"]}).values():
        if "transfer" in deployment:
            deployment["transfer"][COPIES] = True
    return changed


def _summary(resolved: Json, policies: Json, folder: Path | None, trace: str) -> Json:
    """Run a scenario in a worker and return its summary. If `folder` is set, write the run to this folder."""
    result = simulate(resolved, trace="minimal" if folder is None else trace, progress=False, **policies)
    if folder is not None:
        study.save(result, folder)
    return result.summary()


def run_all(
    tasks: Sequence[tuple[Json, Contender]],
    runner: Runner,
    progress: Progress | None = None,
    seeds: int = 1,
    folders: Sequence[Path] = (),
    trace: str = "minimal",
) -> list[list[Json]]:
    """Run each task, which is a scenario and its contender, with every seed. Return a list for each task, with one
    summary per seed. Write the task's run with the first seed to the task's folder in `folders`. If a policy is defined
    only in the caller's program, run it in this process, because no other process can find it."""
    jobs = []
    for place, (resolved, contender) in enumerate(tasks):
        home = strange(resolved["policies"]) or strange(contender.policies)
        for number in range(seeds):
            policies = (contender if seeds == 1 else copy_for_seed(contender)).policies
            folder = folders[place] if folders and not number else None
            arguments = (with_seed(resolved, number), policies, folder, trace)
            jobs.append(Job(contender.name, _summary, arguments, home, folder=2))
    summaries = run_jobs(runner, jobs, WHERE, progress)
    return [summaries[first : first + seeds] for first in range(0, len(summaries), seeds)]

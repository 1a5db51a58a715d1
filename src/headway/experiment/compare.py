"""One scenario under many policies of a stage, on all cores."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.experiment.contenders import WHERE, Contender, contenders, copy_for_seed, place_of
from headway.experiment.jobs import Job, strange
from headway.experiment.notes import COPIES, moves_prefixes, pairs_by_prefix
from headway.experiment.paired import Noise, check_seeds, mean_summary, paired_rows, with_seed
from headway.experiment.run import check_trace, simulate
from headway.experiment.runner import Progress, Runner, run_jobs, runner_of
from headway.experiment.verdict import saving, verdict
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES
from headway.results import study
from headway.results.ranking import figure, rank
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import Json

PLAIN: Final = {**DEFAULT_POLICIES, "routing": "round-robin"}  # by stage: the policy that the best is measured against
PER: Final = {"tenant": "tenants", "class": "classes"}  # groups that have figures of their own: a summary's section


class Comparison(Struct, frozen=True):
    """Summaries under each policy, best first. Under several seeds they are means over these: `runs` has the summaries
    seed by seed, and `paired` how far each figure is from the baseline's."""

    scenario: Json
    ranked: list[tuple[str, Json]]
    verdict: str
    oracles: tuple[str, ...] = ()  # those that read the truth: a bound, never the best unless all are
    by: str | None = None  # the figure they are ranked by, where one was asked for
    stage: str = "routing"
    seeds: int = 1
    baseline: str | None = None
    paired: list[Json] | None = None
    runs: dict[str, list[Json]] = {}
    aside: dict[str, str] = {}  # templates and controls of a comparison of all policies: ranked last, never the best

    @property
    def best(self) -> str:
        return next((name for name, _ in self.ranked if name not in self.oracles), self.ranked[0][0])

    def per(self, group: str) -> list[Json]:
        """A row for each policy and tenant, or class, best policy first: their own figures. Empty where there is only
        one of them."""
        section = PER.get(group)
        if section is None:
            raise HeadwayError(f"per: there are no figures per {shown(group)}.{suggest(group, PER)}")
        return [{"policy": name, **row} for name, summary in self.ranked for row in summary.get(section, [])]

    def summary(self, per: str | None = None) -> Json:
        """The document that `headway compare --json` prints."""
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
            **({} if self.paired is None else {"seeds": self.seeds, "baseline": self.baseline, "paired": self.paired}),
        }

    def __getitem__(self, name: str) -> Json:
        """The summary of a policy by its label, or by its bare name where that says which."""
        label = _find_label(name, [known for known, _ in self.ranked])
        if label is None:
            raise KeyError(name)
        return dict(self.ranked)[label]


def _find_label(name: str, labels: Sequence[str]) -> str | None:
    """The label that is meant: in full, or by its bare name where that says which."""
    canonical = registry.canonical(name)
    for label in labels:
        if label in (name, canonical):
            return label
    alike = [label for label in labels if label.partition("(")[0] == canonical]
    return alike[0] if len(alike) == 1 else None


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
    progress: Progress | None = None,
) -> Comparison:
    """Run a scenario under several policies of a stage and rank the results. Stages are admission, priority, flow,
    routing, scheduler and scaling; the scenario's policies hold for the others.

    Without `policies` these are the stage's policies that are worth choosing and the scenario's own. `policies="all"`
    adds variants of these, and behind them templates and controls, which are never called the best.

    Best is, where the scenario has an SLO, the largest share of requests within it, then the lowest p99 of TTFT;
    without one the fewest requests lost, then the lowest mean of E2E. `by` names a figure of the summary to rank by
    instead, such as `latency.tpot.p99`.

    With several `seeds` each policy runs under the same ones, the n-th of which adds n to the scenario's. What is told
    are means, and for each figure the paired difference from the `baseline` (the stage's plain policy if it runs, else
    the first) with its 95 % interval; nobody is called the best by a difference that is within noise.

    `output` is a folder to write the study into: the run of each policy under the first seed, with as much of it as
    `trace` says (`minimal`, `decisions` or `full`), and `study.json`.

    Where prompts are computed apart and their prefixes do not stay there, a pair policy that seeks prefixes runs twice:
    as it is, and with `transfer.keep_prefill_copy` on.

    A policy is a name, `path/to/file.py:Class`, a mapping with `name` and parameters, a bundle or the file of one
    (`best.yaml`), whose policies of all stages then hold, or a class or an object of the caller's own, which runs in
    this process; text may name several, separated by commas. The others run on `workers` processes, all cores unless
    told otherwise, or on the Ray cluster at the address `ray`, and what they print goes to standard error.
    """
    by = None if by is None else figure(by)
    check_seeds(seeds)
    check_trace(trace)
    if trace != "minimal" and output is None:
        raise HeadwayError("trace: needs an output folder.")
    loaded = Scenario.load(scenario, overrides)
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
        with runner_of(workers, ray) as runner:
            runs = _run_seeds(tasks, seeds, runner, progress, folders, trace)
    finally:
        if output is not None:
            study.clear_parts(Path(output))
    comparison = _judge(resolved, runs, chosen, by, stage, base, measured=baseline is not None)
    if output is not None:
        sentence, rows = comparison.verdict, comparison.paired
        study.write(output, "comparison", resolved, entries, stage=stage, verdict=sentence, baseline=base, paired=rows)
    return comparison


def _begin(output: Path, resolved: Json, chosen: list[Contender], stage: str, seeds: int, baseline: str) -> list[Json]:
    """The runs of a study that is about to be written; those of the comparison that was there before are gone."""
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
    """The label of the policy that the others are measured against."""
    if name is None:
        return PLAIN[stage] if PLAIN[stage] in labels else labels[0]
    label = _find_label(name, labels)
    if label is None:
        raise HeadwayError(f"baseline: no policy of this comparison is called {shown(name)}.{suggest(name, labels)}")
    return label


def _run_seeds(
    tasks: list[tuple[Json, Contender]],
    seeds: int,
    runner: Runner,
    progress: Progress | None,
    folders: Sequence[Path],
    trace: str,
) -> dict[str, list[Json]]:
    """The summaries of each contender, seed by seed; the run of the first seed goes to its folder."""
    cells = [
        (with_seed(resolved, number), contender if seeds == 1 else copy_for_seed(contender))
        for resolved, contender in tasks
        for number in range(seeds)
    ]
    first_seeds = {place * seeds: folder for place, folder in enumerate(folders)}
    summaries = run_all(cells, runner, progress, first_seeds, trace)
    return {task[1].name: summaries[place * seeds : (place + 1) * seeds] for place, task in enumerate(tasks)}


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
    ranked = rank([(name, mean_summary(its)) for name, its in runs.items()], by)
    ranked.sort(key=lambda pair: place_of(aside.get(pair[0])))
    choices = [pair for pair in ranked if pair[0] not in aside]
    oracles = tuple(contender.name for contender in chosen if contender.oracle)
    noise = Noise(runs) if several else None
    plain = baseline if measured else PLAIN[stage]
    sentence = verdict(choices, resolved, oracles, by, plain, noise)
    if stage == "scaling" and by is None:
        sentence += saving(choices, resolved, plain, noise)
    rows = paired_rows(runs, baseline, by) if several else None
    return Comparison(resolved, ranked, sentence, oracles, by, stage, len(runs[baseline]), baseline, rows, runs, aside)


def with_copies(resolved: Json) -> Json:
    """The scenario, but that prefixes stay where they are computed."""
    changed = deepcopy(resolved)
    for deployment in changed["cluster"].get("deployments", {"": changed["cluster"]}).values():
        if "transfer" in deployment:
            deployment["transfer"][COPIES] = True
    return changed


def _summary(resolved: Json, policies: Json, folder: Path | None, trace: str) -> Json:
    """One run. The process that simulates it writes its folder: columns do not travel."""
    result = simulate(resolved, trace="minimal" if folder is None else trace, **policies)
    if folder is not None:
        study.save(result, folder)
    return result.summary()


def run_all(
    tasks: Sequence[tuple[Json, Contender]],
    runner: Runner,
    progress: Progress | None = None,
    folders: Mapping[int, Path] | None = None,
    trace: str = "minimal",
) -> list[Json]:
    """The summary of each scenario under its contender, in order; the runs at the places of `folders` are written
    there. A policy that lives in the caller's own program, which no other process could find, runs here."""
    jobs = [
        Job(
            contender.name,
            _summary,
            (resolved, contender.policies, (folders or {}).get(place), trace),
            home=strange(resolved["policies"]) or strange(contender.policies),
            folder=2,
        )
        for place, (resolved, contender) in enumerate(tasks)
    ]
    return run_jobs(runner, jobs, WHERE, progress)

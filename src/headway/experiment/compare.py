"""One scenario under many policies of a stage, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from multiprocessing.process import BaseProcess
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway import registry
from headway.experiment.contenders import WHERE, Contender, contenders
from headway.experiment.notes import COPIES, moves_prefixes, pairs_by_prefix
from headway.experiment.run import simulate
from headway.experiment.verdict import saving, verdict
from headway.experiment.workers import available, crew, end, interrupted, pool_of, uninterrupted
from headway.overrides import DEFAULT_POLICIES
from headway.results.ranking import figure, rank
from headway.scenario import DEFAULT, Scenario, Source
from headway.types import HeadwayError, Json
from headway.wording import listed, shown, suggest

Progress = Callable[[int, int], None]  # policies done so far, policies in all
PLAIN: Final = {**DEFAULT_POLICIES, "routing": "round-robin"}  # who the best is measured against, by stage
PER: Final = {"tenant": "tenants", "class": "classes"}  # whom a comparison can tell apart: a summary's section


class Comparison(Struct, frozen=True):
    """Summaries under each policy, best first."""

    scenario: Json
    ranked: list[tuple[str, Json]]
    verdict: str
    oracles: tuple[str, ...] = ()  # those that read the truth: a bound, never the best unless all are
    by: str | None = None  # the figure they are ranked by, where one was asked for
    stage: str = "routing"

    @property
    def best(self) -> str:
        return next((name for name, _ in self.ranked if name not in self.oracles), self.ranked[0][0])

    def per(self, whom: str) -> list[Json]:
        """A row for each policy and tenant, or class, best policy first: their own figures. Empty where there is only
        one of them."""
        section = PER.get(whom)
        if section is None:
            raise HeadwayError(f"per: there are no figures per {shown(whom)}.{suggest(whom, PER)}")
        return [{"policy": name, **group} for name, summary in self.ranked for group in summary.get(section, [])]

    def summary(self, per: str | None = None) -> Json:
        """The document that `headway compare --json` prints."""
        rows = {} if per is None else {f"per_{per}": self.per(per)}
        return {
            "scenario": self.scenario["name"],
            "stage": self.stage,
            "by": self.by,
            "policies": [
                {"name": name, "oracle": name in self.oracles, "summary": summary} for name, summary in self.ranked
            ],
            "best": self.best,
            "verdict": self.verdict,
            **rows,
        }

    def __getitem__(self, name: str) -> Json:
        """The summary of a policy by its label, or by its bare name where that says which."""
        wanted = registry.canonical(name)
        for known, summary in self.ranked:
            if known in (name, wanted):
                return summary
        alike = [summary for known, summary in self.ranked if known.partition("(")[0] == wanted]
        if len(alike) == 1:
            return alike[0]
        raise KeyError(name)


def compare(
    scenario: Source = DEFAULT,
    policies: Any = None,
    *,
    stage: str = "routing",
    by: str | None = None,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a scenario under each policy of a stage (all of them unless `policies` says which) and rank what came out.
    Stages are admission, priority, flow, routing, scheduler and scaling; the scenario's policies hold for the others.

    Best is, where the scenario has an SLO, the largest share of requests within it, then the lowest p99 of TTFT;
    without one the fewest requests lost, then the lowest mean of E2E. `by` names a figure of the summary to rank by
    instead, such as `latency.tpot.p99`.

    Where prompts are computed apart and their prefixes do not stay there, a pair policy that seeks prefixes runs twice:
    as it is, and with `transfer.keep_prefill_copy` on.

    A policy is a name, `path/to/file.py:Class`, a mapping with `name` and parameters, or a class or an object of the
    caller's own, which runs in this process; text may name several, separated by commas. The others run on `workers`
    processes, all cores unless told otherwise, and what they print goes to standard error.
    """
    chosen = None if by is None else figure(by)
    loaded = Scenario.load(scenario, overrides)
    resolved = loaded.resolved()
    found = contenders(loaded, policies, stage)
    tasks = [(resolved, one) for one in found]
    if stage == "routing" and moves_prefixes(loaded.cluster):
        for one in [one for one in found if pairs_by_prefix(one.spec)]:
            found.append(replace(one, name=f"{one.name}(copies)"))
            tasks.append((with_copies(resolved), found[-1]))
    summaries = run_all(tasks, workers, progress)
    ranked = rank(zip((one.name for one in found), summaries, strict=True), chosen)
    oracles = tuple(one.name for one in found if one.oracle)
    said = verdict(ranked, resolved, oracles, chosen, PLAIN[stage])
    if stage == "scaling" and by is None:
        said += saving(ranked, resolved, PLAIN[stage])
    return Comparison(resolved, ranked, said, oracles, chosen, stage)


def with_copies(resolved: Json) -> Json:
    """The scenario, but that prefixes stay where they are computed."""
    found = deepcopy(resolved)
    for one in found["cluster"].get("deployments", {"": found["cluster"]}).values():
        if "transfer" in one:
            one["transfer"][COPIES] = True
    return found


def _summary(resolved: Json, stage: str, spec: Any) -> Json:
    return simulate(resolved, **{stage: spec}).summary()


def run_all(
    tasks: list[tuple[Json, Contender]], workers: int | None = None, progress: Progress | None = None
) -> list[Json]:
    """The summary of each scenario under its contender, in order. Only plain values travel between processes; a policy
    that lives in the caller's own program, which no other process could find, runs here."""
    done: dict[int, Json] = {}
    workers = available(workers)
    away = [
        position
        for position, (resolved, one) in enumerate(tasks)
        if workers > 1 and not strange(resolved["policies"]) and not strange(one.spec)
    ]
    here = [position for position in range(len(tasks)) if len(away) < 2 or position not in away]

    def finish(position: int, summary: Json) -> None:
        done[position] = summary
        if progress is not None:
            progress(len(done), len(tasks))

    if len(away) >= 2:
        with pool_of(min(workers, len(away))) as pool:
            started: list[BaseProcess] = []
            try:
                sent = [(position, *tasks[position]) for position in away]
                with uninterrupted():
                    futures = {pool.submit(_summary, base, one.stage, one.spec): place for place, base, one in sent}
                    started = crew(pool)
                for future in as_completed(futures):
                    finish(futures[future], future.result())
            except BrokenProcessPool:
                if interrupted(started):
                    raise KeyboardInterrupt from None
                left = listed([tasks[position][1].name for position in away if position not in done])
                why = "as os._exit, a crash or a want of memory does"
                raise HeadwayError(f"{WHERE}: a process was ended from within, {why}; unfinished: {left}.") from None
            except BaseException:
                end(pool)
                raise
    for position in here:
        resolved, one = tasks[position]
        finish(position, _summary(resolved, one.stage, one.spec))
    return [done[position] for position in range(len(tasks))]


def strange(spec: Any) -> bool:
    """Whether a policy, or a part of it, lives in the caller's program alone."""
    if isinstance(spec, dict):
        return any(strange(part) for pair in spec.items() for part in pair)
    if isinstance(spec, list | tuple):
        return any(map(strange, spec))
    if isinstance(spec, str):
        name = registry.canonical(spec)
        return any(entry.name == name and registry.outside(entry.make) for entry in registry.entries())
    return not isinstance(spec, int | float | None)

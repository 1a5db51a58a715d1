"""One scenario under many routing policies, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from headway import registry
from headway.experiment.run import simulate
from headway.results.compare import Named, rank
from headway.scenario import DEFAULT, Scenario, Source
from headway.types import HeadwayError, Json

Progress = Callable[[int, int], None]  # policies done so far, policies in all


class Contender(Struct, frozen=True):
    """A policy in a comparison: what it is called there, and how it is built."""

    name: str
    spec: Any


class Comparison(Struct, frozen=True):
    """Summaries under each policy, best first."""

    scenario: Json
    ranked: list[tuple[str, Json]]
    verdict: str

    @property
    def best(self) -> str:
        return self.ranked[0][0]

    def summary(self) -> Json:
        """The document that `headway compare --json` prints."""
        return {
            "scenario": self.scenario["name"],
            "policies": [{"name": name, "summary": summary} for name, summary in self.ranked],
            "best": self.best,
            "verdict": self.verdict,
        }

    def __getitem__(self, name: str) -> Json:
        for known, summary in self.ranked:
            if known == name or known == registry.canonical(name):
                return summary
        raise KeyError(name)


def compare(
    scenario: Source = DEFAULT,
    policies: Sequence[Any] | None = None,
    *,
    overrides: Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a scenario under each routing policy (all of them unless `policies` says which) and rank what came out.

    Best is, where the scenario has an SLO, the largest share of requests within it, then the lowest p99 of TTFT;
    without one the fewest requests lost, then the lowest mean of E2E.

    A policy is a name, `path/to/file.py:Class`, or a mapping with `name` and parameters.
    """
    loaded = Scenario.load(scenario, overrides)
    resolved = loaded.resolved()
    found = contenders(loaded, policies)
    summaries = _run_all(resolved, found, workers or cores(), progress)
    ranked = rank(zip((one.name for one in found), summaries, strict=True))
    return Comparison(resolved, ranked, verdict(ranked))


def verdict(ranked: list[Named]) -> str:
    """Who won, by what, and against whom, in a sentence."""
    (best, summary), *others = ranked
    if not others:
        return f"{best} ran alone: {_reason(summary)}."
    # The plainest policy of the field is the one to measure against; failing that, the runner-up.
    other, its = next((pair for pair in others if pair[0] == "round-robin"), others[0])
    return f"{best} serves this best: {_reason(summary)} ({other}: {_reason(its)})."


def _reason(summary: Json) -> str:
    slo, latency = summary["slo"], summary["latency"]
    if slo["ttft_attainment"] is None and slo["tpot_attainment"] is None:
        return (
            "nothing completed"
            if latency["e2e"]["mean"] is None
            else f"E2E {latency['e2e']['mean']:,.0f} ms on average"
        )
    if latency["ttft"]["p99"] is None:
        return "nothing completed"
    return f"{100 * (slo['goodput_ratio'] or 0):.1f} % within the SLO, TTFT p99 {latency['ttft']['p99']:,.1f} ms"


def contenders(scenario: Scenario, policies: Sequence[Any] | None) -> list[Contender]:
    """The policies of a comparison under names that tell them apart. Where one is named without parameters, those that
    the scenario gives for it hold."""
    own = scenario.policies.routing
    own_name, _ = registry.split(own, "policies.routing")
    if policies is None:
        names: list[Any] = list(registry.names("routing"))
        policies = names if registry.canonical(own_name) in names else [own, *names]
    if not policies:
        raise HeadwayError(
            f"--policies: name at least one routing policy. Known: {', '.join(registry.names('routing'))}."
        )
    found: list[Contender] = []
    for spec in policies:
        name, parameters = registry.split(spec, "--policies")
        registry.build("routing", spec, "--policies")
        chosen = own if not parameters and registry.canonical(name) == registry.canonical(own_name) else spec
        found.append(Contender(_distinct(label(name, parameters), [other.name for other in found]), chosen))
    return found


def label(name: str, parameters: Json) -> str:
    """A short name of a policy with its parameters, as in weighted(queue-depth:2)."""
    if ".py:" in name:
        file, _, attribute = name.rpartition(":")
        name = f"{PurePath(file).name}:{attribute}"
    else:
        name = registry.canonical(name)
    return f"{name}({', '.join(_brief(key, value) for key, value in parameters.items())})" if parameters else name


def _brief(key: str, value: Any) -> str:
    if key == "scorers" and isinstance(value, dict):
        return ", ".join(f"{name}:{weight}" for name, weight in value.items())
    if key == "scorers" and isinstance(value, list):
        return ", ".join(f"{item.get('name')}:{item.get('weight')}" for item in value if isinstance(item, dict))
    return f"{key}={value}"


def _distinct(name: str, taken: list[str]) -> str:
    count = 2
    candidate = name
    while candidate in taken:
        candidate = f"{name}#{count}"
        count += 1
    return candidate


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _summary(resolved: Json, spec: Any) -> Json:
    return simulate({**resolved, "policies": {**resolved["policies"], "routing": spec}}).summary()


def _run_all(resolved: Json, found: list[Contender], workers: int, progress: Progress | None) -> list[Json]:
    """Every contender's summary, in order. Only plain values travel between processes; a policy class that lives in
    the caller's own program, which no other process could find, runs here."""
    done: dict[int, Json] = {}
    away = [position for position, one in enumerate(found) if workers > 1 and _portable(one.spec)]
    here = [position for position in range(len(found)) if len(away) < 2 or position not in away]

    def finish(position: int, summary: Json) -> None:
        done[position] = summary
        if progress is not None:
            progress(len(done), len(found))

    if len(away) >= 2:
        with ProcessPoolExecutor(min(workers, len(away)), mp_context=_context(), initializer=_die_quietly) as pool:
            tasks = {pool.submit(_summary, resolved, found[position].spec): position for position in away}
            try:
                for task in as_completed(tasks):
                    finish(tasks[task], task.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    for position in here:
        finish(position, _summary(resolved, found[position].spec))
    return [done[position] for position in range(len(found))]


def _portable(spec: Any) -> bool:
    name, _ = registry.split(spec, "--policies")
    return ".py:" in name or registry.find("routing", name, "--policies").make.__module__.startswith("headway.")


def _die_quietly() -> None:
    # Ctrl-C reaches every process of the terminal: workers end at once and without a word, the caller answers it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _context() -> Any:
    # Forked workers do not import the caller's script again, so that one without a __main__ guard works as well.
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")

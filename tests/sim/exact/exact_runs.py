"""One drawn scenario, run in all leap modes and put to every check that a run can be put to."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import headway
import life_draws
import session_plans
import watch
from drawn_policies import Shedder, Witness
from headway.experiment.run import Prepared, prepare, run_prepared
from headway.results import store
from headway.sim.simulation import Simulation
from headway.workload.traffic import Traffic

Json = dict[str, Any]
Look = Callable[[Simulation], None]
MODES: tuple[bool | str, ...] = (True, False, "random-cuts")
OURS = ("sessions", "shedder")  # keys of a drawn scenario that no scenario of the product has


class Observed:
    """A prepared run with the traffic of the test, where it has one, and a look at the simulation before it starts."""

    def __init__(self, prepared: Prepared, sessions: list[Json] | None, look: Look | None) -> None:
        self.prepared = prepared
        self.sessions = sessions
        self.look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self.prepared, name)

    def traffic(self) -> Traffic:
        return self.prepared.traffic() if self.sessions is None else session_plans.traffic(self.sessions)

    def simulation(self, *given: Any) -> Simulation:
        simulation = self.prepared.simulation(*given)
        if self.look is not None:
            self.look(simulation)
        return simulation


def load(scenario: Json) -> headway.Scenario:
    """Read what the product can read of a drawn scenario; `make_policies` makes the rest."""
    stages = {stage: spec for stage, spec in scenario["policies"].items() if not is_ours(stage, spec)}
    return headway.Scenario.load(
        {key: value for key, value in scenario.items() if key not in OURS} | {"policies": stages}
    )


def is_ours(stage: str, spec: Any) -> bool:
    return (stage, spec) == ("routing", "witness") or (stage == "scaling" and spec in life_draws.OURS)


def make_policies(scenario: Json) -> Json:
    """Make the policies of the test that a drawn scenario names, afresh for a run."""
    policies = scenario["policies"]
    own: Json = {}
    if policies["routing"] == "witness":
        own["routing"] = Witness()
    if policies.get("scaling") in life_draws.OURS:
        own["scaling"] = life_draws.OURS[policies["scaling"]]()
    if "shedder" in scenario:
        own["admission"] = Shedder(*scenario["shedder"])
    return own


def run(scenario: Json, leap: bool | str = True, look: Look | None = None) -> headway.Result:
    return run_loaded(scenario, load(scenario), leap, look)


def run_loaded(scenario: Json, loaded: headway.Scenario, leap: bool | str, look: Look | None = None) -> headway.Result:
    prepared = prepare(replace(loaded, leap=leap), **make_policies(scenario))
    return run_prepared(Observed(prepared, scenario.get("sessions"), look), "full")  # type: ignore[arg-type]


# --- what is compared --------------------------------------------------------------------------------------------


def contents(result: headway.Result) -> Json:
    """Encode what a run folder would hold, list by list as its writer does. The scenario stays as it is: to write it
    as YAML takes longer than most runs. Findings and the key are left out: they follow from the rest."""
    parts: Json = {name: getattr(result, name) for name in store.LISTS if name != "findings"}
    if result.decisions is not None:
        parts |= {"decisions": list(result.decisions), "admission": result.decisions.verdicts}
    encoded: Json = {name: msgspec.json.encode(lines) for name, lines in parts.items()}
    scenario = {key: value for key, value in result.scenario.items() if key != "leap"}
    columns = {f"column {name}": column for name, column in result.requests.items()}
    return {**columns, **encoded, "scenario": scenario, "summary": result.to_json()}


def files(result: headway.Result, folder: Path) -> dict[str, str]:
    """Save a run, and return the text of its files without the line that says how it was computed."""
    result.save(folder)
    texts = {file.name: file.read_text() for file in sorted(folder.iterdir())}
    lines = [line for line in texts["scenario.yaml"].splitlines() if not line.startswith("leap:")]
    return {**texts, "scenario.yaml": "\n".join(lines)}


def check(scenario: Json, folder: Path | None = None, watching: bool = True) -> headway.Result:
    """Run a scenario in all modes, and check all that can be checked of it:

    * all modes give the same bytes, in memory and, with a folder, on disk;
    * everything adds up after every event, in one of the modes: the seed says in which;
    * the run leaves no garbage that only the collector of circles finds, in another mode;
    * what the summary says of gaps and of users agrees with the requests.

    Without `watching`, neither the events nor the garbage are looked at, which take half of the time.
    """
    loaded, seed = load(scenario), scenario.get("seed", 0)
    results: list[headway.Result] = []
    right: Json = {}
    for number, mode in enumerate(MODES):
        with (CHECKS[(number + seed) % len(MODES)] if watching else unwatched)() as look:
            results.append(run_loaded(scenario, loaded, mode, look))
        found = contents(results[-1])
        right = right or found
        for name, value in found.items():
            assert value == right[name], f"{name} differs with leap: {mode}"
    if folder is not None:
        first, *others = (
            files(result, folder / str(mode).lower()) for result, mode in zip(results, MODES, strict=True)
        )
        assert all(other == first for other in others)
    check_sums(scenario, results[0])
    return results[0]


# --- what is watched ---------------------------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[Look]:
    """Watch a simulation after each of its events."""
    watchers: list[watch.Watcher] = []
    yield lambda simulation: watchers.append(watch.attach(simulation))
    for watcher in watchers:
        watcher.over()
        assert watcher.events >= watcher.simulation.recorder.rows


@contextmanager
def swept() -> Iterator[Look]:
    """Demand that a run leaves no garbage behind that only the collector of circles would find."""

    def look(simulation: Simulation) -> None:
        plain = simulation.run

        def run_and_sweep(*given: Any) -> Any:
            with no_garbage():
                return plain(*given)

        simulation.run = run_and_sweep  # type: ignore[method-assign]

    yield look


@contextmanager
def no_garbage() -> Iterator[None]:
    """Demand that no objects of the product hold each other that nothing else holds: a run lets the collector look
    seldom, and each look costs more the more requests are in flight."""
    gc.freeze()  # what was there before is not looked through
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(thing).__name__ for thing in gc.garbage if is_of_product(thing))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()  # what is frozen stays so: no later look needs to see it
    assert not left, f"only the collector of circles would find {dict(left)}"


def is_of_product(thing: object) -> bool:
    """Other threads of the process, such as servers of other tests, may leave garbage too."""
    return str(getattr(thing, "__module__", "")).startswith("headway")


@contextmanager
def unwatched() -> Iterator[None]:
    yield None


CHECKS = (watched, swept, unwatched)


# --- what must hold of requests and summary ----------------------------------------------------------------------


def check_sums(scenario: Json, result: headway.Result) -> None:
    columns = result.requests
    if "speculation" not in result.summary():  # otherwise several tokens may come at once
        assert result.summary()["latency"]["itl"]["mean"] == mean_gap(columns, scenario["warmup"])
    for source in scenario.get("sessions", ()):
        chains = all(session["after"] is None for session in source["sessions"])
        if source["users"] is not None and chains:
            assert most_in_flight(columns, source["tenant"]) <= source["users"]


def most_in_flight(columns: Any, tenant: str) -> int:
    """The most requests of a tenant at once. Who goes on at the instant at which the one before has ended is one."""
    changes = []
    names = ("tenant", "arrival_ps", "finished_ps")
    for whose, came, ended in zip(*(columns[name] for name in names), strict=True):
        if whose == tenant and came != ended:
            changes.append((came, 1))
            if ended >= 0:
                changes.append((ended, -1))
    return max(accumulate((change for _, change in sorted(changes)), initial=0))


def mean_gap(columns: Any, warmup: int) -> float | None:
    """The mean inter-token gap in ms, told from first and last tokens alone: the gaps of a request that was completed
    add up to the time between them, and nobody else's count."""
    names = ("outcome", "output_tokens", "first_token_ps", "finished_ps")
    gaps = total_ps = 0
    for outcome, tokens, first, last in zip(*(columns[name][warmup:] for name in names), strict=True):
        if outcome == "completed":
            gaps += tokens - 1
            total_ps += last - first
    return total_ps / (gaps * 10**9) if gaps else None

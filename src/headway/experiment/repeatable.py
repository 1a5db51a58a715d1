"""Checks that a policy from a Python file repeats its decisions.

A run must be a function of its scenario and seeds. A policy breaks this rule if it uses `random`, a clock, the order of
a set, or state that survives a run. Therefore two processes simulate the beginning of the run, each twice. They differ
in the hash seed, the state of `random` and the time that their clocks show. All four lists of decisions must be equal.

The beginning of a run is its first `DECISIONS` decisions: routes, rejections and delays, with their times and reasons.
If a scaling policy comes from a file, the beginning is ten times as long and includes the changes of replicas. The
start times of the requests are compared as well, because schedulers determine them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final

from headway.errors import HeadwayError, InvariantError
from headway.experiment.policy_guard import policy_guard
from headway.experiment.run import prepare
from headway.policies import registry
from headway.policies.context import Context
from headway.scenario.scenario import Scenario
from headway.sim.simulation import Simulation
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView

DECISIONS: Final = 200
CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time")
# Seconds by which the clocks of the second process are ahead. The number is odd, because policies may use the time
# modulo an even number.
SHIFT_S: Final = 86_413
LIMIT_S: Final = 60.0  # timeout of both processes, in seconds; after it, the check is skipped
CHILD: Final = "from headway.experiment.repeatable import simulate_beginning; simulate_beginning()"
REMEDY: Final = (
    "Draw random numbers from context.rng(name), read the time from cluster.now, "
    "sort a set before you iterate over it, and create all state in bind."
)
Line = list[Any]  # a decision: its subject, its text, and further values that both processes must agree on


class Repetition:
    """Two processes that simulate the beginning of a run. If no policy comes from a Python file, no process starts."""

    def __init__(self, scenario: Json, policies: Mapping[str, Any] | None = None) -> None:
        """Start the processes. `policies` replace those of the scenario, by stage."""
        used = {**scenario["policies"], **(policies or {})}
        self.names = sorted({*python_files(used), *python_files(scenario.get("cluster"))})
        count = DECISIONS * (10 if any(python_files(used.get("scaling"))) else 1)
        document = {"scenario": scenario, "policies": dict(policies or {}), "count": count}
        self._children = [_start(document, number) for number in range(2)] if self.names else []
        self._answers: list[Json] | None = None

    def _wait(self) -> list[Json]:
        if self._answers is None:
            self._answers = [_answer(child) for child in self._children]
        return self._answers

    def problem(self) -> str | None:
        """Return a sentence that says what differed. If nothing differed, or if the processes failed, return None."""
        runs = [run for answer in self._wait() for run in answer.get("runs", ())]
        for other in runs[1:]:
            if other != runs[0]:
                wrong = f"{', '.join(self.names)}: the decisions differ when the run is repeated"
                return f"{wrong}. {_difference(runs[0], other)} {REMEDY}"
        return None

    def error(self) -> str | None:
        """Return the error with which the simulation ended, or None."""
        return next((answer["error"] for answer in self._wait() if "error" in answer), None)


def python_files(spec: Any) -> Iterator[str]:
    """Yield the references `path/to/file.py:Class` in the policies of a scenario."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            yield from python_files(key)
            if key != "source":  # `source` is a policy's program, not a reference
                yield from python_files(value)
    elif isinstance(spec, list | tuple):
        for value in spec:
            yield from python_files(value)
    elif isinstance(spec, str) and registry.is_file(spec):
        yield spec


def _start(document: Json, number: int) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": str(number + 1)},
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps({**document, "number": number}))
        child.stdin.close()
    child.stdin = None
    return child


def _answer(child: subprocess.Popen[str]) -> Json:
    """Return what a process has printed. If it has failed or does not end in time, return an empty document."""
    try:
        printed, _ = child.communicate(timeout=LIMIT_S)
        answer: Json = json.loads(printed)
    except (subprocess.TimeoutExpired, ValueError):
        child.kill()
        child.communicate()
        return {}
    return answer


def _difference(run: list[Line], other: list[Line]) -> str:
    """Return a sentence on the first decision that differs."""
    for line, second in zip_longest(run, other, fillvalue=["", "nothing"]):
        if line != second:
            subject = (line[0] or second[0]).capitalize()
            if line[:2] == second[:2]:
                return f"{subject}: {line[1]} both times, but the time, the priority or the reason differs."
            return f"{subject}: {line[1]} the first time, {second[1]} the second time."
    return ""


# --- in the processes ------------------------------------------------------------------------------------------------


class Enough(BaseException):
    """Ends a simulation after its beginning."""


class Tape:
    """Records the decisions of all routers, and ends the simulation after `count` of them."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.lines: list[Line] = []

    def journal(self, router: int) -> Tape:
        return self

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_stopped(self, instance: int) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        delay = verdict.duration_ps if isinstance(verdict, Delay) else 0
        words = f"rejected ({verdict.reason})" if isinstance(verdict, Reject) else f"delayed by {delay} ps"
        self._record(request, words, now_ps, delay)

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        target = route.target if route.prefill is None else f"{route.prefill} and {route.target}"
        own = [route.reason, route.cached_tokens, route.priority, priority.score, dict(priority.hints)]
        self._record(request, f"sent to {target}", now_ps, own)

    def _record(self, request: Request, words: str, *values: Any) -> None:
        self.lines.append([f"request {request.id}", words, *values])
        self.left -= 1
        if not self.left:
            raise Enough

    def record_effects(self, simulation: Simulation) -> None:
        """Record the decisions of schedulers and autoscalers, which journals do not receive."""
        recorder = simulation.recorder
        for row in range(min(recorder.rows, DECISIONS)):
            self.lines.append([f"request {row}", "started", recorder.started_ps[row], recorder.first_token_ps[row]])
        for change in recorder.scaled:
            self.lines.append([f"pool {change.pool}", f"scaled to {change.after}", change.at_ps, change.reason])


def simulate_beginning() -> None:
    """Simulate the beginning of the run that standard input describes, twice, and print the decisions as JSON."""
    document = json.load(sys.stdin)
    printed = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what policies print
    random.seed(document["number"])
    if document["number"]:
        for name in CLOCKS:
            _advance(name)
    try:
        runs = [beginning(document["scenario"], document["policies"], document["count"]) for _ in range(2)]
        answer: Json = {"runs": runs}
    except (HeadwayError, InvariantError) as error:
        answer = {"error": str(error)}
    with printed:
        json.dump(answer, printed)


def _advance(name: str) -> None:
    for suffix, shift in (("", SHIFT_S), ("_ns", SHIFT_S * 10**9)):
        read: Callable[[], Any] = getattr(time, name + suffix)
        setattr(time, name + suffix, lambda read=read, shift=shift: read() + shift)


def beginning(scenario: Json, policies: Json, count: int) -> list[Line]:
    """Return the first `count` decisions of a run, and their effects."""
    tape: Any = Tape(count)
    prepared = prepare(Scenario.load(scenario), **policies)
    with policy_guard([*prepared.policies.values()]):
        simulation = prepared.simulation(tape)
        with contextlib.suppress(Enough):
            simulation.run(prepared.traffic())
    tape.record_effects(simulation)
    lines: list[Line] = json.loads(json.dumps(tape.lines))
    return lines

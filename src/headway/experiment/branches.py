"""Runs that equal another run up to one routing decision, and from there on follow another choice.

A plain way is to run each from the start. If the system can fork, one process walks through the common run instead. At
each decision to vary, it forks: the child takes the other choice and completes the run, and the parent waits and goes
on. Both ways give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from headway.control.journal import Forced, Target
from headway.errors import HeadwayError
from headway.experiment.jobs import end_with_parent, threads
from headway.experiment.run import prepare, run_prepared
from headway.results.ranking import value
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.types import Json

WHERE: Final = "counterfactuals"
Choice = tuple[int, Target]  # (request, target to force at its first decision)


class Outcome(Struct, frozen=True):
    """The latencies of a request, and the objective of its run."""

    ttft_ps: int
    e2e_ps: int
    cached_tokens: int
    value: float | None


def forced_run(scenario: Json, request: int, to: Target, by: str) -> Outcome:
    """Run a scenario with one request forced to a target. Return the latencies of this request, and the figure `by` of
    the whole run."""
    try:
        result = run_prepared(prepare(Scenario.load(scenario)), forced={request: to})
    except HeadwayError as error:
        raise HeadwayError(f"{WHERE}: with request {request} sent to {to[0]}: {error}") from error
    return _outcome(result, request, by)


def forced_runs(scenario: Json, choices: Sequence[Choice], by: str) -> list[Outcome | str]:
    """Return what `forced_run` returns for each choice. If the run fails, return the error as a string in its place."""
    known = _fork_at(scenario, choices, by) if len(choices) > 1 and can_fork() else [None] * len(choices)
    outcomes: list[Outcome | str] = []
    for (request, to), outcome in zip(choices, known, strict=True):
        try:
            outcomes.append(forced_run(scenario, request, to, by) if outcome is None else outcome)
        except HeadwayError as error:
            outcomes.append(str(error))
    return outcomes


def can_fork() -> bool:
    """Return whether this process can fork safely: a forked process may hang on a lock that another thread holds."""
    return hasattr(os, "fork") and threads() == 1


def _outcome(result: Result, request: int, by: str) -> Outcome:
    columns = result.requests.column
    came, first, ended = (columns(name)[request] for name in ("arrival_ps", "first_token_ps", "finished_ps"))
    moved = columns("retries")[request] + columns("redirects")[request]
    return Outcome(
        ttft_ps=first - came if first >= 0 else -1,
        e2e_ps=ended - came if columns("outcome")[request] == "completed" else -1,
        cached_tokens=-1 if moved else columns("cached_tokens")[request],
        value=value(result.summary(), by),
    )


class _Over(BaseException):
    """The common run has no further decision to vary."""


def _fork_at(scenario: Json, choices: Sequence[Choice], by: str) -> list[Outcome | None]:
    """Return the outcome of each choice by forks of one run. A branch that fails has no outcome."""
    branches = Branches(choices)
    try:
        with suppress(_Over, HeadwayError):
            result = run_prepared(prepare(Scenario.load(scenario)), forced=branches.forced())
            if branches.choice is not None:
                branches.answer(_outcome(result, branches.choice[0], by))
    finally:
        if branches.choice is not None:
            os._exit(1)
    return branches.outcomes


class Branches:
    """The forks of a run. In a branch, `choice` is set."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self.outcomes: list[Outcome | None] = [None] * len(choices)
        self.choice: Choice | None = None
        self._pipe = -1
        self._waiting: dict[int, list[int]] = {}  # request -> positions of its choices
        for place, (request, _) in enumerate(choices):
            self._waiting.setdefault(request, []).append(place)

    def forced(self) -> Forced:
        return {request: partial(self.vary, request) for request in self._waiting}

    def vary(self, request: int) -> Target | None:
        """Return the target of a request at its first decision. None leaves the decision to the policy."""
        if self.choice is not None:
            return self.choice[1] if request == self.choice[0] else None
        for place in self._waiting.pop(request, ()):
            if not can_fork():  # a user's policy is watched by a thread
                raise _Over
            if self._branch(place):
                return self.choices[place][1]
        if not self._waiting:
            raise _Over
        return None

    def answer(self, outcome: Outcome) -> NoReturn:
        with os.fdopen(self._pipe, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(outcome))
        os._exit(0)

    def _branch(self, place: int) -> bool:
        """Fork. Return True in the branch. In the common run, wait for the outcome of the branch and return False."""
        reading, writing = os.pipe()
        parent, child = os.getpid(), os.fork()
        if not child:
            end_with_parent(parent)
            os.close(reading)
            self.choice, self._pipe = self.choices[place], writing
            return True
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        with suppress(msgspec.DecodeError):  # the branch failed
            self.outcomes[place] = msgspec.msgpack.decode(text, type=Outcome)
        return False

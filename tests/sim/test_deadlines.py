"""Clients that give up, and requests that admission puts off: the leap equals the walk, and both equal the rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.experiment.run import prepare
from headway.hashing import GROUP, OUTPUT, PROMPT, key
from headway.latency.step_models.fixed import Fixed
from headway.results.recorder import COLUMNS, Recorder
from headway.scenario.scenario import Scenario
from headway.sim.simulation import Simulation
from headway.types import ADMIT, Delay, Path, Reject, Request
from headway.workload.traffic import OpenLoop, Planned
from searching import search, sized

PREFILL, DECODE = 7, 100  # picoseconds a token and a step
LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")


class Patient:
    """Puts every request off to a multiple of `step`, at most `times` times, then turns some away."""

    def __init__(self, step: int = 0, times: int = 0, refuse: int = 0) -> None:
        self.step, self.times, self.refuse = step, times, refuse
        self.asked: dict[int, int] = {}

    def admit(self, request: Request, cluster: Any) -> Any:
        asked = self.asked[request.id] = self.asked.get(request.id, 0) + 1
        if asked <= self.times:
            return Delay(self.step - cluster.now_ps % self.step)
        return Reject("no") if self.refuse and request.id % self.refuse == 1 else ADMIT


def simulation(leap: bool | str, blocks: int = 64, batch: int = 4, patient: Patient | None = None) -> Simulation:
    scenario = {
        "workload": {"requests": 1, "rate": "1/s"},
        "cluster": {
            "instances": 1,
            "max_batch_tokens": 64,
            "max_batch_size": batch,
            "kv": {"block_tokens": 4, "gpu_blocks": blocks},
            "latency": {"model": "fixed"},
        },
        "policies": {"routing": "round-robin"},
        "leap": leap,
        "seed": 3,
    }
    prepared = prepare(Scenario.load(scenario), admission=patient)
    engines = [replace(engine, latency=Fixed(PREFILL, DECODE)) for engine in prepared.setup.engines]
    return replace(prepared, setup=replace(prepared.setup, engines=engines)).simulation()


def run(requests: list[Planned], leap: bool | str, *given_: Any, **named: Any) -> Recorder:
    return simulation(leap, *given_, **named).run(OpenLoop(requests))


def planned(row: int, at: int, prompt: int, output: int, wait: int | None, group: int = 0) -> Planned:
    shared = min(8, prompt)
    path = (
        Path((key(GROUP, group), key(PROMPT, row)), (shared, prompt))
        if prompt > 8
        else Path((key(GROUP, group),), (prompt,))
    )
    deadline = None if wait is None else at + wait
    return Planned(Request(row, at, prompt, path, deadline_ps=deadline), output, key(OUTPUT, row))


def columns(recorder: Recorder) -> dict[str, list[int]]:
    return {name: list(getattr(recorder, name)) for name in COLUMNS} | {"gaps": sorted_gaps(recorder)}


def sorted_gaps(recorder: Recorder) -> list[int]:
    """Every gap as often as it weighs."""
    found: list[int] = []
    for at in range(0, len(recorder.gaps), 4):
        first, increment, steps, weight = recorder.gaps[at : at + 4]
        for step in range(steps):
            found.extend([first + step * increment] * weight)
    return sorted(found)


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[list[Planned], int, int, tuple[int, int, int]]:
    at = 0
    made = []
    for row in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0, 0, 7, 50, 100, 107, 300, 1000]))
        wait = draw(st.none() | st.sampled_from([0, 1, 7, 100, 107, 200, 214, 300, 500, 907, 2000]))
        made.append(
            planned(row, at, draw(st.integers(1, 100)), draw(st.integers(1, 30)), wait, draw(st.integers(0, 2)))
        )
    patience = draw(st.tuples(st.sampled_from([1, 100, 107, 250]), st.integers(0, 3), st.sampled_from([0, 2, 3])))
    return made, draw(st.integers(33, 80)), draw(st.integers(1, 5)), patience


@sized(quick=40, full=400)
def test_the_leap_equals_the_walk_when_clients_give_up_and_requests_are_put_off(examples: int) -> None:
    def check(drawn: tuple[list[Planned], int, int, tuple[int, int, int]]) -> None:
        requests, blocks, batch, patience = drawn
        found = [columns(run(requests, leap, blocks, batch, Patient(*patience))) for leap in LEAPS]
        assert found[0] == found[1] == found[2]

    search(examples, check, scenarios())


@pytest.mark.parametrize("leap", LEAPS)
def test_a_waiting_request_is_cancelled_at_its_deadline(leap) -> None:
    recorder = run([planned(0, 0, 10, 10, None), planned(1, 5, 10, 10, 300)], leap, batch=1)
    assert recorder.outcome[1] == 2 and recorder.finished_ps[1] == 305
    assert recorder.started_ps[1] == -1 and recorder.output_tokens[1] == 0


@pytest.mark.parametrize("leap", LEAPS)
def test_a_running_request_ends_at_the_first_boundary_and_the_steps_token_is_wasted(leap) -> None:
    # prefill ends at 70 with the first token; then one token every 100: 170, 270, 370
    recorder = run([planned(0, 0, 10, 10, 280)], leap)
    assert (recorder.outcome[0], recorder.finished_ps[0], recorder.output_tokens[0]) == (2, 370, 3)


@pytest.mark.parametrize("leap", LEAPS)
def test_a_token_that_comes_at_the_deadline_counts(leap) -> None:
    recorder = run([planned(0, 0, 10, 10, 270), planned(1, 0, 10, 3, None, 1)], leap)
    # both prompts share the first step, 140; tokens at 140, 240, 340
    assert (recorder.outcome[0], recorder.finished_ps[0], recorder.output_tokens[0]) == (2, 340, 2)
    recorder = run([planned(0, 0, 10, 3, 270)], leap)  # its last token comes at 270
    assert (recorder.outcome[0], recorder.finished_ps[0], recorder.output_tokens[0]) == (0, 270, 3)
    recorder = run([planned(0, 0, 10, 4, 270)], leap)  # a token at 270 and one to go: cancelled there and then
    assert (recorder.outcome[0], recorder.finished_ps[0], recorder.output_tokens[0]) == (2, 270, 3)


@pytest.mark.parametrize("leap", LEAPS)
def test_the_blocks_of_a_request_that_gave_up_are_free_for_the_next(leap) -> None:
    recorder = run([planned(0, 0, 60, 20, 700), planned(1, 1, 60, 5, None, 1)], leap, blocks=20)
    # the prefill takes 420; tokens at 420, 520, 620 and, wasted, 720, when the other enters
    assert recorder.finished_ps[0] == 720 and recorder.output_tokens[0] == 3
    assert recorder.started_ps[1] == 720


@pytest.mark.parametrize("leap", LEAPS)
def test_a_request_put_off_is_asked_again_and_its_times_say_so(leap) -> None:
    recorder = run([planned(0, 30, 10, 2, None), planned(1, 40, 10, 2, 150)], leap, patient=Patient(100, 2))
    assert (recorder.admitted_ps[0], recorder.enqueued_ps[0], recorder.started_ps[0]) == (200, 200, 200)
    assert (recorder.outcome[1], recorder.finished_ps[1], recorder.admitted_ps[1]) == (2, 190, -1)


@pytest.mark.parametrize("leap", LEAPS)
def test_a_deadline_that_is_met_does_not_keep_the_clock_running(leap) -> None:
    requests = [planned(0, 0, 10, 3, 10**9), planned(1, 5, 10, 3, 10**6)]
    simulations = []
    for given_ in (requests, [planned(0, 0, 10, 3, None), planned(1, 5, 10, 3, None)]):
        simulations.append(simulation(leap))
        simulations[-1].run(OpenLoop(given_))
    assert simulations[0].ended_ps == simulations[1].ended_ps

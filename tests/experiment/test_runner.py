"""Runners: independent jobs in the processes of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import runner_jobs
from headway.errors import HeadwayError
from headway.experiment.jobs import AHEAD, Job
from headway.experiment.runner import Processes, runner_of
from ray_cluster import when


def jobs(call: Any, count: int, *before: object) -> list[Job]:
    return [Job(f"job {number}", call, (*before, number)) for number in range(count)]


def results(runner: Any, given: list[Job], **options: Any) -> dict[int, Any]:
    result: dict[int, Any] = {}

    def finish(place: int, value: Any) -> None:
        assert place not in result
        result[place] = value

    runner.run(given, finish, "test", **options)
    return result


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_job_is_told_once_with_its_result(workers: int) -> None:
    with runner_of(workers) as runner:
        assert results(runner, jobs(runner_jobs.square, 9)) == {number: number**2 for number in range(9)}
        assert results(runner, []) == {}


def test_processes_are_kept_from_batch_to_batch() -> None:
    with runner_of(2) as runner:
        batches = [set(results(runner, jobs(runner_jobs.process, 8)).values()) for _ in range(3)]
    # One process may do all the work of a batch while the other one starts.
    processes = set().union(*batches)
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_what_is_at_home_runs_at_home() -> None:
    jobs_to_run = [*jobs(runner_jobs.process, 4), Job("mine", runner_jobs.process, (0,), home=True)]
    with runner_of(2) as runner:
        result = results(runner, jobs_to_run)
    assert [place for place, pid in result.items() if pid == os.getpid()] == [4]


def test_few_jobs_are_under_way_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[str] = []
    submit = Processes.submit

    def counted(self: Processes, job: Job, wanted: int) -> Any:
        submitted.append(job.name)
        return submit(self, job, wanted)

    monkeypatch.setattr(Processes, "submit", counted)
    held: list[int] = []

    def go() -> None:
        held.append(len(submitted))
        (tmp_path / "go").touch()

    with runner_of(2) as runner:
        thread = when(lambda: len(list(tmp_path.glob("begun-*"))) == 2, go)
        result = results(runner, jobs(runner_jobs.counted, 30, str(tmp_path)))
        thread.join()
    assert len(result) == 30
    assert held[0] <= AHEAD * 2


@pytest.mark.full
def test_an_error_is_raised_as_it_is_and_of_several_the_first() -> None:
    with runner_of(2) as runner:
        for _ in range(5):
            with pytest.raises(HeadwayError, match=r"^job 0: not like that\.$"):
                results(runner, jobs(runner_jobs.wrong, 4))
        assert len(results(runner, jobs(runner_jobs.square, 4))) == 4


def test_a_job_whose_process_was_lost_is_run_again(tmp_path: Path) -> None:
    jobs_to_run = jobs(runner_jobs.square, 12)
    jobs_to_run[3] = Job("job 3", runner_jobs.ends_once, (str(tmp_path / "mark"), 9))
    with runner_of(2) as runner:
        assert results(runner, jobs_to_run) == {number: number**2 for number in range(12)}


@pytest.mark.full
def test_a_job_that_brings_its_process_down_every_time_is_told_by_name() -> None:
    jobs_to_run = jobs(runner_jobs.square, 12)
    jobs_to_run[3] = Job("the guilty one", runner_jobs.ends, (3,))
    with runner_of(2) as runner:
        with pytest.raises(HeadwayError) as caught:
            results(runner, jobs_to_run)
        assert str(caught.value) == (
            "test: the process of the guilty one died (a crash, os._exit, or out of memory) in each of 4 attempts."
        )
        lost: dict[int, str] = {}
        result = results(runner, jobs_to_run, lost=lost.__setitem__)
    assert sorted(result) == [place for place in range(12) if place != 3]
    assert list(lost) == [3]
    assert "the guilty one" in lost[3]


def test_ray_that_is_not_installed_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HeadwayError, match=r"^ray: ray is not installed\. Run: pip install 'headway\[ray\]'"):
        runner_of(None, "auto")


@pytest.mark.parametrize("address", ["", "nowhere", "host:", "host:0", "host:70000", ":6379", "ray://host"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with pytest.raises(HeadwayError, match=r'^ray: expected "auto", "local", "host:port" or "ray://host:port", got'):
        runner_of(None, address)

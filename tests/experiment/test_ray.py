"""Jobs on a real Ray cluster of two machines on this machine's loopback; one machine is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headway as package
import runner_jobs
from conftest import Run
from headway.errors import HeadwayError, InvariantError
from headway.evolve.limits import Limits
from headway.evolve.worker import Failure, Task, confined_many
from headway.experiment.jobs import Job
from headway.experiment.ray_runner import _Sending
from headway.experiment.runner import runner_of
from installed import need
from ray_cluster import OTHER, lose, two_machines, when
from test_runner import jobs, results

need("ray", "ray")
SCENARIO: dict[str, Any] = {
    "workload": {"requests": 60, "rate": "40/s", "prompt_tokens": 200, "output_tokens": 20},
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
}
CHOSEN = ["round-robin", "random", "lmetric"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_machines() as built:
        yield built


@pytest.fixture(scope="module")
def runner(cluster: Any) -> Iterator[Any]:
    with runner_of(None, cluster.address) as built:
        yield built


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_every_job_is_told_once_with_its_result(runner: Any) -> None:
    assert runner.slots == 2
    assert results(runner, jobs(runner_jobs.square, 20)) == {number: number**2 for number in range(20)}
    result = results(runner, [*jobs(runner_jobs.process, 2), Job("mine", runner_jobs.square, (3,), home=True)])
    assert result[2] == 9


@pytest.mark.full
def test_jobs_are_where_the_caller_is(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert results(runner, jobs(runner_jobs.where_it_is, 1)) == {0: [0, str(tmp_path)]}


@pytest.mark.full
def test_jobs_have_the_policy_timeout_of_the_caller(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "7s")
    assert results(runner, jobs(runner_jobs.policy_timeout, 1)) == {0: "7s"}
    monkeypatch.delenv("HEADWAY_POLICY_TIMEOUT")
    assert results(runner, jobs(runner_jobs.policy_timeout, 1)) == {0: "30s"}


@pytest.mark.full
def test_errors_are_raised_as_they_are_and_nothing_is_printed(runner: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeadwayError, match=r"^job 0: not like that\.$"):
        results(runner, jobs(runner_jobs.wrong, 2))
    with pytest.raises(InvariantError, match="blocks were lost"):
        results(runner, [Job("broken", runner_jobs.broken, ())])
    assert len(results(runner, jobs(runner_jobs.spoken, 4))) == 4
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_a_machine_with_another_version_is_told(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.experiment.ray_runner.__version__", "0.0.1")
    with pytest.raises(HeadwayError, match=r"^ray: .* of the Ray cluster has headway .*, this machine 0\.0\.1\. "):
        results(runner, jobs(runner_jobs.square, 1))


@pytest.mark.full
def test_a_job_whose_process_was_lost_is_run_again(runner: Any, tmp_path: Path) -> None:
    jobs_to_run = jobs(runner_jobs.square, 6)
    jobs_to_run[3] = Job("job 3", runner_jobs.ends_once, (str(tmp_path / "mark"), 9))
    assert results(runner, jobs_to_run) == {number: number**2 for number in range(6)}


@pytest.mark.full
def test_a_job_that_brings_its_process_down_every_time_is_told_by_name(runner: Any) -> None:
    jobs_to_run = [*jobs(runner_jobs.square, 3), Job("the guilty one", runner_jobs.ends, (3,))]
    lost: dict[int, str] = {}
    assert sorted(results(runner, jobs_to_run, lost=lost.__setitem__)) == [0, 1, 2]
    assert lost[3].startswith("the guilty one lost its process on the Ray cluster in each of 4 attempts: ")
    with pytest.raises(HeadwayError, match=r"^test: the guilty one lost its process on the Ray cluster"):
        results(runner, jobs_to_run[3:])


@pytest.mark.full
def test_evaluations_are_confined_there_as_well(runner: Any) -> None:
    tasks = [Task("runner_jobs:square", [number]) for number in range(5)]
    tasks[2] = Task("os:_exit", [1])
    result = confined_many(tasks, runner, Limits(deadline_s=30))
    assert isinstance(result[2], Failure) and result[2].kind == "crash"
    assert [value for value in result if not isinstance(value, Failure)] == [0, 1, 9, 16]


@pytest.mark.full
def test_a_comparison_gives_the_same_bytes(runner: Any, cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 2, "trace": "decisions"}
    there = package.compare(SCENARIO, CHOSEN, ray=cluster.address, output=tmp_path / "there", **settings)
    here = package.compare(SCENARIO, CHOSEN, workers=2, output=tmp_path / "here", **settings)
    assert json.dumps(there.summary()) == json.dumps(here.summary())
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert len(files(tmp_path / "here")) > 10


@pytest.mark.full
def test_a_sweep_gives_the_same_bytes_and_goes_on_where_it_was(runner: Any, cluster: Any, tmp_path: Path) -> None:
    vary = ["workload.rate=20,40", "policies.routing=random,lmetric"]
    there = package.sweep(SCENARIO, vary, seeds=2, ray=cluster.address, output=tmp_path / "there")
    here = package.sweep(SCENARIO, vary, seeds=2, workers=2, output=tmp_path / "here")
    assert json.dumps(there.summary()) == json.dumps(here.summary())
    assert files(tmp_path / "there") == files(tmp_path / "here")
    again = package.sweep(SCENARIO, vary, seeds=2, ray=cluster.address, output=tmp_path / "there")
    assert again.reused == again.runs == 8


@pytest.mark.full
def test_the_command_line_prints_what_it_prints_without(cluster: Any, headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(SCENARIO))
    command = ("compare", str(file), "--policies", "random,lmetric", "--json")
    here, there = headway(*command), headway(*command, "--ray", cluster.address)
    assert (there.returncode, there.stdout, there.stderr) == (0, here.stdout, here.stderr)


@pytest.mark.full
def test_an_address_where_nobody_is_is_told(headway_process: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = headway_process("sweep", "--vary", "workload.rate=20,40", "--ray", f"ray://127.0.0.1:{port}")
    assert (process.returncode, process.stdout) == (2, "")
    assert "no Ray cluster answers at" in process.stderr and "Traceback" not in process.stderr


@pytest.mark.full
def test_all_results_arrive_though_a_machine_is_lost(
    runner: Any, cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    lose_job = _Sending._lose

    def counted(self: _Sending, place: int, error: Exception) -> None:
        lost.append(place)
        lose_job(self, place, error)

    def plug() -> None:
        lose(cluster)
        for mark in there():
            os.kill(int(mark.name.rpartition("-")[2]), signal.SIGKILL)  # it may outlive its machine for a moment
        (tmp_path / "go").touch()

    def there() -> list[Path]:
        return list(tmp_path.glob(f"at-{OTHER}-*"))

    monkeypatch.setattr(_Sending, "_lose", counted)
    thread = when(lambda: there() and len(list(tmp_path.glob("begun-*"))) == 2, plug)
    result = results(runner, jobs(runner_jobs.at_machine, 12, str(tmp_path)))
    thread.join()
    assert result == {number: number for number in range(12)}
    assert lost
    assert capfd.readouterr().out == ""

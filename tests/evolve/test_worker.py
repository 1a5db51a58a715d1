"""Disposable processes: hostile calls end as a Failure that says why, and the next call works."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import confined_calls
import pytest

import headway
from command_line import interruptible
from conftest import ROOT
from headway.errors import HeadwayError
from headway.evolve import worker, zygote
from headway.evolve.limits import Limits, sieve
from headway.evolve.worker import Failure, Task, confined, confined_many
from headway.evolve.zygote import frame_of
from headway.experiment.runner import runner_of
from waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="disposable processes want fork")
SMALL = Limits(memory_mb=200, cpu_s=20, deadline_s=20, result_mb=2)
SHORT = Limits(memory_mb=200, cpu_s=20, deadline_s=0.5)
CALLS = "confined_calls:"
needs_seccomp = pytest.mark.skipif(sieve() is None, reason="seccomp is not to be had here")


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without seccomp."""
    (tmp_path / "pyseccomp.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    worker.close()
    yield
    worker.close()


@pytest.fixture(params=["with seccomp", "without"])
def either(request: pytest.FixtureRequest) -> None:
    if request.param == "without":
        request.getfixturevalue("unsealed")
    elif sieve() is None:
        pytest.skip("seccomp is not to be had here")


def fails(name: str, *arguments: object, limits: Limits = SMALL) -> tuple[str, str]:
    """Return how a call fails, and check that the next call works."""
    result = confined(CALLS + name, arguments, limits)
    assert isinstance(result, Failure), result
    assert confined(CALLS + "add", [1, 2], SMALL) == 3
    assert result.why.endswith(".") and "\n" not in result.why
    return result.kind, result.why


def idle() -> worker.Zygote:
    return worker._IDLE[-1]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(*pids: int) -> None:
    until(lambda: not any(map(alive, pids)), "a process goes on")


# --- ordinary calls ---------------------------------------------------------------------------------------------------


def test_a_call_gives_its_value() -> None:
    assert confined(CALLS + "add", [0.1, 0.2]) == 0.1 + 0.2
    assert confined(CALLS + "add", {"left": 1, "right": 2}) == 3
    assert confined("builtins:len", [[1, 2, 3]]) == 3


def test_every_call_has_a_process_of_its_own_and_all_have_one_zygote() -> None:
    (first, parent), (second, same) = (confined(CALLS + "where") for _ in range(2))
    assert first != second
    assert parent == same == idle().process.pid


def test_a_call_is_where_the_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confined(CALLS + "add", [1, 2])
    monkeypatch.chdir(tmp_path)
    assert confined(CALLS + "here") == str(tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("name", ["01_first_run.yaml", "05_trace.yaml"])
def test_a_simulation_gives_the_same_as_anywhere(name: str) -> None:
    path = str(ROOT / "examples" / name)
    assert confined(CALLS + "simulated", [path]) == headway.simulate(path).summary()


def test_a_call_has_nothing_open_but_its_pipe() -> None:
    assert confined(CALLS + "open_files") in (["/dev/null"] * 3 + ["pipe"], ["/dev/null"] * 3 + ["/proc/", "pipe"])


def test_many_calls_are_told_as_they_come_and_given_in_order() -> None:
    told = []
    tasks = [Task(CALLS + "add", [number, 1]) for number in range(20)]
    with runner_of(2) as runner:
        result = confined_many(tasks, runner, finished=lambda place, value: told.append((place, value)))
    assert result == list(range(1, 21))
    assert sorted(told) == list(enumerate(result))
    assert confined_many([]) == []


def test_one_bad_task_among_many_is_one_failure() -> None:
    tasks = [Task(CALLS + "ends") if number == 3 else Task(CALLS + "add", [number, 1]) for number in range(8)]
    with runner_of(2) as runner:
        result = confined_many(tasks, runner)
    assert [place for place, value in enumerate(result) if isinstance(value, Failure)] == [3]


@pytest.mark.full
def test_threads_may_call_at_the_same_time() -> None:
    result: dict[int, object] = {}

    def call(number: int) -> None:
        result[number] = confined(CALLS + "add", [number, 1])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == {number: number + 1 for number in range(4)}
    assert len(worker._IDLE) <= max(2, os.cpu_count() or 1)


@pytest.mark.full
def test_a_thread_that_ends_does_not_take_its_zygote_with_it() -> None:
    worker.close()
    thread = threading.Thread(target=confined, args=(CALLS + "add", [1, 2]))
    thread.start()
    thread.join()
    pid = idle().process.pid
    assert confined(CALLS + "where")[1] == pid


@pytest.mark.full
def test_a_forked_copy_of_the_program_starts_zygotes_of_its_own() -> None:
    mine = confined(CALLS + "where")[1]
    with runner_of(2) as runner:
        result: list[list[int]] = []
        jobs = [worker.Job("where", confined, (CALLS + "where",)) for _ in range(4)]
        runner.run(jobs, lambda _, value: result.append(value), "test")
        assert mine not in {parent for _, parent in result}
    assert confined(CALLS + "where")[1] == mine


def test_arguments_that_are_no_json_are_told() -> None:
    with pytest.raises(HeadwayError, match=r"^evaluations: JSON cannot hold the arguments of confined_calls:add: "):
        confined(CALLS + "add", [object(), 1])
    with pytest.raises(HeadwayError, match=r"^limits.memory_mb: must be a number above 0, got 0"):
        Limits(memory_mb=0)


# --- hostile calls ----------------------------------------------------------------------------------------------------


def test_an_error_is_told_in_a_sentence() -> None:
    assert fails("wrong") == ("error", "policy: line 3: no such thing.")
    assert fails("no_such") == ("error", "confined_calls has no function 'no_such'.")
    assert fails("exits") == ("error", "SystemExit: 5.")
    assert confined("no_such_module:call") == Failure("ModuleNotFoundError: No module named 'no_such_module'.", "error")


@pytest.mark.usefixtures("either")
def test_a_call_that_never_ends_is_ended_at_its_deadline() -> None:
    assert fails("loops", limits=SHORT) == ("time", "exceeded the time limit of 0.5 s.")
    assert fails("sleeps", limits=SHORT)[0] == "time"


def test_a_call_that_only_computes_is_ended_by_its_cpu_time() -> None:
    assert fails("loops", limits=Limits(cpu_s=1)) == ("cpu", "exceeded the limit of 1 s of CPU time.")


@pytest.mark.usefixtures("either")
def test_a_call_that_wants_all_memory_gets_none() -> None:
    assert fails("eats") == ("memory", "exceeded the limit of 200 MB of memory.")
    assert fails("eats_and_wraps")[0] == "memory"


@needs_seccomp
def test_a_fork_bomb_has_no_effect() -> None:
    assert fails("bombs") == ("error", "PermissionError: [Errno 1] Operation not permitted.")


@pytest.mark.full
def test_children_left_behind_are_ended(unsealed: None) -> None:
    if os.geteuid():
        assert fails("leaves_others", 3)[0] == "error"  # only root is exempt from the limit on processes
        return
    left = confined(CALLS + "leaves_others", [3], SMALL)
    assert len(left) == 3
    wait_until_gone(*left)
    assert fails("leaves_others_and_ends")[0] == "crash"


def test_what_a_child_wrote_just_before_it_ended_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    bell, ring = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, frame_of({"value": 3}))
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    os.write(ring, b"x")

    class Early:
        """Polls before the child writes, and then reports the end of the child."""

        def register(self, *given: object) -> None: ...

        def poll(self, *given: object) -> list[tuple[int, int]]:
            return [(bell, select.POLLIN)]

    monkeypatch.setattr(zygote.select, "poll", Early)
    one = object.__new__(zygote.Zygote)
    one.parent, one.bell, one.tasks = os.getppid(), bell, -1
    try:
        # This process has the pipe open, so there is no end of file.
        assert one._watch(child, reading, SMALL) == (frame_of({"value": 3}), False)
    finally:
        os.waitpid(child, 0)
        for end in (reading, writing, bell, ring):
            os.close(end)


def test_nothing_is_written(either: None, tmp_path: Path) -> None:
    file = tmp_path / "written"
    assert fails("writes", str(file))[0] == "error"
    assert not file.exists() or not file.read_bytes()


@needs_seccomp
def test_files_are_neither_made_nor_removed(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    fails("writes", str(file))
    assert not file.exists()
    file.write_text("mine")
    assert fails("removes", str(file))[0] == "error"
    assert file.read_text() == "mine"


@needs_seccomp
def test_there_are_no_sockets_no_other_programs_and_no_way_back() -> None:
    for name, arguments in (("calls_out", [9]), ("executes", []), ("frees_itself", [])):
        kind, why = fails(name, *arguments)
        assert kind == "error" and ("not permitted" in why or "not allowed" in why)


def test_a_call_that_ends_its_process_is_a_crash() -> None:
    assert fails("ends") == ("crash", "the process exited with status 5 and returned no result.")
    assert fails("crashes") == ("crash", "the process was killed by signal 11 (Segmentation fault).")


def test_a_result_that_is_too_large_or_no_json_is_an_error() -> None:
    assert fails("returns_much", 3 << 20) == ("error", "the result is larger than the limit of 2 MB.")
    assert fails("returns_nan")[0] == "error"
    assert fails("returns_an_object")[0] == "error"
    assert fails("returns_depth")[0] == "error"
    assert len(confined(CALLS + "returns_much", [1 << 20], SMALL)) == 1 << 20


def test_a_forged_answer_breaks_nothing() -> None:
    assert fails("forges", "nonsense")[0] in ("crash", "error")
    assert fails("forges", (4).to_bytes(8, "big").decode() + "[[[[")[0] == "crash"


def test_what_a_call_prints_is_heard_by_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    assert confined(CALLS + "prints") == "done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_a_call_that_stops_itself_is_ended(unsealed: None) -> None:
    assert fails("stops", limits=SHORT)[0] == "time"


@needs_seccomp
def test_a_call_sends_no_signals() -> None:
    assert fails("stops")[0] == fails("ends_its_parent")[0] == "error"


@pytest.mark.full
def test_a_zygote_that_is_lost_is_replaced_and_its_task_tried_once_more(unsealed: None, tmp_path: Path) -> None:
    assert fails("ends_its_parent") == ("crash", "the supervising process ended.")
    told = tmp_path / "first"
    told.touch()
    assert confined(CALLS + "ends_its_parent_once", [str(told)]) == "done"
    os.kill(idle().process.pid, signal.SIGKILL)
    assert confined(CALLS + "add", [1, 2]) == 3


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not tell what is open")
def test_hundreds_of_tasks_leave_nothing_behind() -> None:
    tasks = [Task(CALLS + "ends") if number % 30 == 7 else Task(CALLS + "add", [number, 1]) for number in range(300)]
    with runner_of(2) as runner:
        confined_many(tasks[:20], runner)
        places = [Path("/proc/self/fd"), *(Path(f"/proc/{one.process.pid}/fd") for one in worker._IDLE)]
        before = [len(list(place.iterdir())) for place in places]
        result = confined_many(tasks, runner)
    assert sum(isinstance(value, Failure) for value in result) == 10
    assert [len(list(place.iterdir())) for place in places] == before
    for one in worker._IDLE:
        assert not Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()


SCRIPT = """
import sys, threading
from headway.evolve import worker, zygote
worker.confined("confined_calls:add", [1, 2])
print(worker._IDLE[0].process.pid, flush=True)
worker.confined("confined_calls:sleeps")
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell who is alive")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_zygotes_and_their_children_end_with_the_program(number: signal.Signals) -> None:
    path = os.pathsep.join((str(ROOT / "src"), str(Path(confined_calls.__file__).parent)))
    with interruptible():
        program = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    assert program.stdout is not None
    zygote = int(program.stdout.readline())
    children = Path(f"/proc/{zygote}/task/{zygote}/children")
    started = until(lambda: children.read_text().split())
    os.killpg(program.pid, number)
    _, said = program.communicate(timeout=300)
    assert program.returncode != 0
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    wait_until_gone(zygote, *map(int, started))

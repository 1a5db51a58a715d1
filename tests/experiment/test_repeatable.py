"""A Python policy that uses `random`, a clock, the order of a set or state of a former run is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import check_policy
from headway.experiment import repeatable
from headway.experiment.repeatable import Repetition, beginning, python_files

Run = Callable[..., Any]
POLICIES = """
import random
import time

from headway import Delay, Reject, Route, Scale

class Good:
    def route(self, request, cluster):
        return Route(min(cluster.instances, key=lambda view: view.inflight).id)

class Dice:
    def route(self, request, cluster):
        return Route(random.choice(cluster.instances).id)

class Clock:
    def route(self, request, cluster):
        return Route(cluster.instances[time.time_ns() % len(cluster.instances)].id)

class Sets:
    def route(self, request, cluster):
        return Route(next(iter({view.id for view in cluster.instances})))

class Leaks:
    seen = []

    def route(self, request, cluster):
        self.seen.append(request)
        return Route(cluster.instances[len(self.seen) // 7 % len(cluster.instances)].id)

class Moody:
    def admit(self, request, cluster):
        return Reject("mood") if random.random() < 0.5 else Delay(random.randint(1, 10))

class Noise:
    def score(self, request, candidates, cluster):
        return [random.random() for _ in candidates]

class Grows:
    def scale(self, pool):
        return Scale(pool.replicas + random.randint(0, 3))

class Apart:
    def apart(self, request, view, cluster):
        return request.id % 2 == 0

class Writes:
    def route(self, request, cluster):
        cluster.instances[0].queued = 0
        return Route(cluster.instances[0].id)
"""


@pytest.fixture(autouse=True)
def repeating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs repeat runs here, unlike in other tests."""
    monkeypatch.setattr(repeatable, "Repetition", Repetition)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(POLICIES)
    return path


def test_a_policy_that_repeats_its_decisions_passes(file: Path, headway: Run) -> None:
    done = headway("policy", "check", f"{file}:Good")
    assert done.returncode == 0 and "routing: Good" in done.stdout


def test_the_check_names_the_policy_the_difference_and_the_remedy(file: Path, headway: Run) -> None:
    done = headway("policy", "check", f"{file}:Sets")
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{file}:Sets: the decisions differ when the run is repeated. Request 0: sent to instance-")
    assert "the second time. Draw random numbers from context.rng(name)" in line


def test_a_run_warns_in_one_line(file: Path, headway: Run) -> None:
    small = ("--set", "workload.requests=30", "--set", "cluster.instances=3")
    done = headway("run", *small, "--routing-policy", f"{file}:Dice")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "mine.py:Dice" in line]
    assert line.startswith("headway: ") and "the decisions differ when the run is repeated" in line


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("Clock", "sent to instance-"),
        ("Leaks", "Request 0: sent to instance-0 the first time, sent to instance-4 the second time."),
        ("Moody", "Request 0: "),
        ("Noise", "sent to instance-"),
        ("Grows", "Request"),
    ],
)
def test_every_source_of_chance_is_noticed(file: Path, name: str, difference: str) -> None:
    (rejection,) = check_policy(f"{file}:{name}")["rejections"]
    assert f"mine.py:{name}: the decisions differ" in rejection["text"] and difference in rejection["text"]


@pytest.mark.full
def test_a_comparison_and_a_sweep_warn_too(file: Path, headway: Run) -> None:
    small = ("--set", "workload.requests=30", "--set", "cluster.instances=3")
    done = headway("compare", *small, "--policies", f"round-robin,{file}:Dice,{file}:Good")
    assert done.stderr.count("the decisions differ") == 1
    own = ("--set", f"policies.routing={file}:Dice", "--vary", "workload.rate=5,6")
    assert headway("sweep", *small, *own).stderr.count("the decisions differ") == 1


def test_a_policy_that_writes_to_a_view_fails_the_check(file: Path) -> None:
    (rejection,) = check_policy(f"{file}:Writes")["rejections"]
    assert rejection["text"].startswith("policies: Writes writes to InstanceView.queued of instance-0 in mine.py line")
    assert ", at request 0." in rejection["text"]


@pytest.mark.full
def test_a_part_for_split_requests_is_checked_on_a_disaggregated_cluster(file: Path) -> None:
    assert check_policy(f"{file}:Apart")["ok"]


def test_runs_without_python_policies_start_no_process() -> None:
    own = {"routing": {"name": "weighted", "scorers": {"queue-depth": 1}}}
    assert Repetition({"policies": own})._children == []
    nested = {"routing": {"name": "weighted", "scorers": {"a/b.py:Mine": 1}}, "admission": "c.py:Other"}
    assert sorted(python_files(nested)) == ["a/b.py:Mine", "c.py:Other"]
    assert list(python_files({"name": "code", "source": "x.py:Y"})) == []


def test_the_beginning_of_a_run_ends_after_the_given_number_of_decisions(file: Path) -> None:
    scenario = {"workload": {"requests": 500, "rate": "40/s"}, "policies": {"routing": f"{file}:Good"}}
    lines = beginning(scenario, {}, 20)
    assert [line[1].startswith("sent to") for line in lines].count(True) == 20
    assert [line[1] for line in lines].count("started") == 20
    assert beginning(scenario, {}, 20) == lines

"""Policies of a user's own, with the mistakes people make in them: each is told in one sentence, and none hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from command_line import interruptible
from headway.cli import status
from headway.errors import HeadwayError
from headway.evolve.worker import confined
from headway.experiment.compare import compare
from headway.experiment.run import simulate
from headway.policies import registry
from headway.results.store import pretty
from waiting import until

SMALL = ["workload.requests=8", "cluster.instances=2"]
SOURCE = str(Path(__file__).resolve().parents[2] / "src")
HEAD = "import os\nfrom headway.policies.registry import policy\nfrom headway.types import Reject, Route\n\n"
ROUTE = "    def route(self, request, cluster):\n        "
GOOD = ROUTE + "return Route(cluster.instances[0].id)\n"


@pytest.fixture(autouse=True)
def tidy():
    entries = dict(registry._ENTRIES)
    yield
    registry._ENTRIES.clear()
    registry._ENTRIES.update(entries)


def own(folder: Path, body: str, before: str = "") -> str:
    file = folder / "own.py"
    file.write_text(f"{HEAD}{before}class Own:\n{body}")
    return f"{file}:Own"


def told(routing) -> str:
    with pytest.raises(HeadwayError) as error:
        simulate(overrides=SMALL, routing=routing)
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    return text


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    def route(self, request):\n        pass\n", "Own.route must accept 2 arguments after self: too many"),
        ("    def route(self, request, cluster, more):\n        pass\n", "Own.route must accept 2 arguments"),
        (GOOD + "    bind = 3\n", "Own.bind must be a method, got 3."),
        (GOOD + "    def bind(self):\n        pass\n", "Own.bind must accept 1 argument after self"),
        (GOOD + "    observe = None\n", "Own.observe must be a method, got None."),
        (ROUTE + "return Route([])\n", "Own routed request 0 to [], which is not an instance"),
        (ROUTE + "return Route({})\n", "Own routed request 0 to {}, which is not an instance"),
        (
            ROUTE + "return Route('instance-0', '', -1)\n",
            "cached_tokens as a whole number that is not negative, got -1",
        ),
        (ROUTE + "return Route('instance-0', '', 'many')\n", "that is not negative, got 'many', at request 0."),
        (ROUTE + "return Route('instance-0', '', 1.5)\n", "that is not negative, got 1.5"),
        (ROUTE + "return Reject(5)\n", "Own.route must return a Route"),
        (GOOD + "    def metrics(self):\n        return 3\n", "Own.metrics must return a mapping of names to finite"),
        (GOOD + "    def metrics(self):\n        return {'a': 'b'}\n", "finite numbers, got 'a': 'b'."),
        (GOOD + "    def metrics(self):\n        return {'a': float('nan')}\n", "finite numbers, got 'a': nan."),
        (GOOD + "    def metrics(self):\n        return {'a': 10**400}\n", "finite numbers, got 'a': 1000"),
        (GOOD + "    def metrics(self):\n        return {1: 2}\n", "finite numbers, got 1: 2."),
        (ROUTE + "raise ValueError('one\\ntwo')\n", "ValueError: one two, at request 0."),
        (ROUTE + "raise GeneratorExit\n", "GeneratorExit, at request 0."),
        (ROUTE + "raise SystemExit(3)\n", "SystemExit: 3, at request 0."),
        (GOOD + "    def __init__(self):\n        raise GeneratorExit\n", "'Own' could not be created: GeneratorExit."),
        (
            GOOD + "    def __init__(self):\n        raise ValueError('a\\nb')\n",
            "be created: ValueError: a b.",
        ),
        (
            "    __slots__ = ()\n" + GOOD,
            "'Own' does not let Headway set attributes. Remove __slots__",
        ),
        ("    needed: int\n" + GOOD, "Own: the parameter 'needed' has no default; give it one."),
        ("    odd: 'NoSuchType' = 1\n" + GOOD, "Own: an annotation cannot be read: NameError"),
        ("    many: list = []\n" + GOOD, "the fields of 'Own' are not valid: ValueError: mutable default"),
    ],
)
def test_a_mistake_in_a_routing_policy_is_one_sentence(tmp_path, body, what):
    assert what in told(own(tmp_path, body))


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_a_mistake_in_a_half_of_a_pair_is_one_sentence_too(tmp_path, half):
    apart = ["cluster.architecture=disaggregated", "cluster.prefill.instances=1", "cluster.decode.instances=1"]
    routing = {"name": "pair", half: own(tmp_path, ROUTE + "return 1 / 0\n")}
    with pytest.raises(HeadwayError, match=r"own\.py line \d+, in Own\.route: ZeroDivisionError.*, at request 0\.$"):
        simulate(overrides=[*SMALL, *apart], routing=routing)


def test_a_declared_class_without_its_stages_method(tmp_path):
    text = told(own(tmp_path, "    pass\n", '@policy("routing", "own-empty")\n'))
    assert text.endswith("Own has no method 'route', which every routing policy needs.")


def test_a_file_that_ends_the_program_is_told(tmp_path):
    assert "could not be loaded: GeneratorExit." in told(own(tmp_path, GOOD, "raise GeneratorExit\n"))


def test_an_object_of_the_callers_own_is_checked_as_well():
    class Short:
        def route(self, request):
            raise NotImplementedError

    assert "Short.route must accept 2 arguments" in told(Short())
    assert "Short.route must accept 2 arguments" in told(Short)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("5", "one per candidate, got 5, at request 0."),
        ("'abc'", "got 'abc', at request 0."),
        ("{1: 2}", "got {1: 2}, at request 0."),
        ("['x']", "got 'x', at request 0."),
        ("[float('nan')]", "got nan, at request 0."),
    ],
)
def test_scores_that_are_no_list_of_numbers(tmp_path, value, what):
    scorer = own(tmp_path, f"    def score(self, request, candidates, cluster):\n        return {value}\n")
    assert what in told({"name": "weighted", "scorers": {scorer: 1}})


@pytest.mark.parametrize("value", ["[10**400, 0]", "None"])
def test_odd_scores_that_still_say_something(tmp_path, value):
    scorer = own(tmp_path, f"    def score(self, request, candidates, cluster):\n        return {value}\n")
    result = simulate(overrides=SMALL, routing={"name": "weighted", "scorers": {scorer: 1}})
    assert set(result.requests["instance"]) == {0}


@pytest.mark.parametrize("value", ["None", "5", "['instance-0']", "{}"])
def test_a_filter_that_returns_no_candidates_of_its_own(tmp_path, value):
    kept = own(tmp_path, f"    def keep(self, request, candidates, cluster):\n        return {value}\n")
    assert "keep must return a list of candidates, got" in told({"name": "weighted", "filters": [kept]})


def test_a_scorer_cannot_spoil_the_candidates_of_others(tmp_path):
    scorer = own(tmp_path, "    def score(self, request, candidates, cluster):\n        candidates.clear()\n")
    routing = {"name": "weighted", "scorers": {scorer: 1}}
    assert "'tuple' object has no attribute 'clear', at request 0." in told(routing)
    assert "'tuple' object" in told(own(tmp_path, ROUTE + "cluster.instances.pop()\n"))


@pytest.mark.parametrize("signal", ["kv_used", "kv_utilization", "busy", "watts"])
@pytest.mark.parametrize("leap", ["true", "false"])
def test_a_varying_signal_that_was_not_declared_is_told_and_not_served(tmp_path, signal, leap):
    body = ROUTE + f"return Route(min(cluster.instances, key=lambda view: view.{signal}).id)\n"
    shy = own(tmp_path, body, '@policy("routing", "shy", exact=["inflight"], reported=["queued"])\n')
    name = "kv_used" if signal == "kv_utilization" else signal
    with pytest.raises(HeadwayError) as error:
        simulate(overrides=[*SMALL, f"leap={leap}"], routing=shy)
    assert str(error.value) == (
        f"policies: the signal '{name}' was read, but no policy of this run declares it. Add reported=(\"{name}\",) "
        'to the @policy line of the policy that reads it, or omit "reported" there.'
    )
    open_minded = own(tmp_path, body, '@policy("routing", "open-minded", exact=["inflight"])\n')
    assert simulate(overrides=[*SMALL, f"leap={leap}"], routing=open_minded).requests


def test_a_file_runs_once_in_a_run_and_is_listed_once_in_a_comparison(tmp_path, capsys):
    mine = own(tmp_path, GOOD, 'print("executed")\n\n\n@policy("routing", "own", reported=())\n')
    found = compare(overrides=[*SMALL, f"policies.routing={mine}"], workers=1)
    assert capsys.readouterr().out.count("executed") == 1
    assert [name for name, _ in found.ranked if "own" in name.lower()] == ["own.py:Own"]


def test_what_a_policy_prints_goes_to_standard_error(tmp_path, capsys):
    noisy = own(tmp_path, ROUTE + "print('routed')\n        return Route('instance-0')\n", "print('loaded')\n")
    changes = [word for change in SMALL for word in ("--set", change)]
    assert status(["run", "--json", "--routing-policy", noisy, *changes]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["requests"]["completed"] == 8
    assert said.err.count("routed") == 8 and said.err.count("loaded") == 1


def test_a_policy_that_calls_os_exit_is_named_with_its_request(tmp_path):
    gone = own(tmp_path, ROUTE + "if request.id == 3:\n            os._exit(7)\n        return Route('instance-0')\n")
    expected = "own.py line 8, in Own.route: calls os._exit(7), which would end Headway, at request 3."
    assert told(gone).endswith(expected)
    for workers in (1, 2):
        with pytest.raises(HeadwayError) as error:
            compare(policies=[gone, gone], overrides=SMALL, workers=workers)
        assert str(error.value).endswith(expected)


def test_a_child_that_a_policy_forks_may_call_os_exit(tmp_path):
    forks = "if request.id == 1 and not os.fork():\n            os._exit(0)\n        return Route('instance-0')\n"
    assert simulate(overrides=SMALL, routing=own(tmp_path, ROUTE + forks)).summary()["requests"]["completed"] == 8


def test_a_policy_that_crashes_its_process_is_named_in_a_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.experiment.runner.RETRIES", 0)
    gone = own(tmp_path, ROUTE + "os.kill(os.getpid(), 9)\n")
    with pytest.raises(HeadwayError, match=r"^policies: the process of own\.py:Own died \(a crash, "):
        compare(policies=[gone, gone], overrides=SMALL, workers=2)


HANGS = {
    "computes": "while True:\n                pass\n",
    "sleeps": "import time; time.sleep(1e6)\n",
    "catches": "while True:\n                try:\n                    pass\n                except Exception:\n"
    "                    pass\n",
}


@pytest.mark.parametrize("how", HANGS)
def test_a_policy_that_does_not_return_is_named_with_its_request(tmp_path, monkeypatch, how):
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "200ms")
    stuck = own(tmp_path, ROUTE + f"if request.id == 3:\n            {HANGS[how]}        return Route('instance-0')\n")
    expected = r"own\.py line \d+, in Own\.route: has not returned for 0\.2 s, at request 3\. Allow more with"
    assert re.search(expected, told(stuck))


def test_every_verb_takes_the_time_that_a_policy_may_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "30s")  # what the option sets is put back after the test
    stuck = own(
        tmp_path, ROUTE + f"if request.id == 3:\n            {HANGS['computes']}        return Route('instance-0')\n"
    )
    changes = [word for change in SMALL for word in ("--set", change)]
    routing = ["--set", f"policies.routing={stuck}", *changes, "--policy-timeout", "100ms"]
    for verb in (["run"], ["compare", "--policies", f"{stuck},random"], ["sweep", "--vary", "seed=1,2"]):
        assert status([*verb, *routing]) == 2
        assert "in Own.route: has not returned for 0.1 s, at request 3." in capsys.readouterr().err
    assert status(["run", "--policy-timeout", "soon"]) == 2
    assert "--policy-timeout: 'soon' is not a duration" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("how", ["computes", "sleeps"])
def test_a_search_names_a_policy_that_hangs(tmp_path, monkeypatch, capsys, how):
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "30s")
    body = ROUTE + f"if request.id == 3:\n            {HANGS[how]}        return Route('instance-0')\n"
    before = 'from typing import Annotated\nfrom headway import Bounds\n@policy("routing", "stuck")\n'
    stuck = own(tmp_path, f"    patience: Annotated[int, Bounds(0, 9)] = 4\n{body}", before)
    assert confined("operator:add", (1, 2)) == 3  # a worker that starts before the limit changes
    assert status(["evolve", "--template", stuck, "--evaluations", "1", "--policy-timeout", "200ms"]) == 2
    assert "in Own.route: has not returned for 0.2 s, at request 3." in capsys.readouterr().err


def test_a_policy_that_hangs_in_another_thread_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "200ms")
    stuck = own(tmp_path, ROUTE + HANGS["computes"].replace("                pass", "            pass"))
    with ThreadPoolExecutor(1) as pool:
        assert "has not returned for 0.2 s, at request 0" in pool.submit(told, stuck).result()


def test_a_slow_policy_is_left_alone_as_long_as_each_call_returns(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_POLICY_TIMEOUT", "1s")
    slow = own(tmp_path, ROUTE + "__import__('time').sleep(0.2)\n        return Route('instance-0')\n")
    assert simulate(overrides=SMALL, routing=slow).summary()["requests"]["completed"] == 8


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the workers")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL]
)
def test_no_worker_outlives_a_comparison_that_is_stopped(tmp_path, number):
    busy = own(
        tmp_path,
        ROUTE + f"open(f'{tmp_path}/pid-{{os.getpid()}}', 'w').close()\n        while True:\n            pass\n",
    )
    code = f"from headway.experiment.compare import compare\ncompare(policies=[{busy!r}] * 2, workers=2)\n"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with interruptible():
        parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    try:
        workers = until(lambda: len(found := list(tmp_path.glob("pid-*"))) == 2 and found)
        parent.send_signal(number)
        assert parent.wait(60) != 0
        until(lambda: not any(alive(int(file.name[4:])) for file in workers))
    finally:
        parent.kill()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_run_with_text_that_is_not_unicode_is_written(tmp_path):
    class Refuses:
        def route(self, request, cluster):
            from headway.types import Reject

            return Reject("caf\udce9")

    simulate(overrides=SMALL, routing=Refuses()).save(tmp_path / "run")
    assert "caf?" in (tmp_path / "run" / "requests.jsonl").read_text(encoding="utf-8")
    assert json.loads(pretty({"a\udce9": ["b\udce9"]})) == {"a?": ["b?"]}


def test_a_run_folder_runs_again_from_anywhere(tmp_path, monkeypatch):
    own(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    first = simulate(overrides=SMALL, routing="own.py:Own")
    first.save("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert simulate(str(tmp_path / "run" / "scenario.yaml")).requests == first.requests

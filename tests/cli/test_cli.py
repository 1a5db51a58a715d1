"""The command line: one thing on stdout, sentences on stderr, exit codes that mean something."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import capture_output, interruptible, text_of
from conftest import COMMAND, ROOT, SOURCE, Run
from headway import __version__, cli
from headway.cli.verbs import app
from headway.errors import InvariantError
from headway.policies import registry
from headway.scenario.scenario import Scenario
from headway.types import OUTCOMES
from waiting import until

SCENARIO = """
seed: 3
workload:
  requests: 60
  rate: 20/s
  prompt_tokens: {dist: normal, mean: 200, std: 50, min: 16, max: 400}
  output_tokens: 20
  prefix: {groups: 3, tokens: 96}
cluster:
  instances: 3
  kv: {gpu_blocks: 400}
  latency: {model: fixed, prefill_tokens_per_s: 10000, decode_tokens_per_s: 100}
slo: {ttft: 500ms, tpot: 50ms}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return str(file)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {path for key, inner in value.items() for path in paths(inner, f"{prefix}.{key}" if prefix else key)}
    return {prefix}


def test_run_prints_a_table_and_nothing_on_stderr(headway: Run, scenario: str) -> None:
    done = headway("run", scenario)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for word in ("TTFT", "TPOT", "ITL", "E2E", "queue wait", "p99", "throughput", "cache hits", "3 GPUs", "fixed"):
        assert word in done.stdout
    *table, hint = done.stdout.splitlines()
    assert max(len(line) for line in table) <= 80
    assert hint == f"headway compare {scenario}"


SPLIT = "cluster={gpu: h200, architecture: disaggregated, prefill: {instances: 1}, decode: {instances: 2}}"
KEPT = "cluster.transfer.keep_prefill_copy=true"


def test_a_run_in_two_halves_fits_80_columns_and_tells_of_prefixes_that_are_lost(headway: Run, scenario: str) -> None:
    done = headway("run", scenario, "--set", SPLIT)
    assert max(len(line) for line in done.stdout.splitlines()[:-1]) <= 80
    assert "KV transfers  60, " in done.stdout
    assert "pair_split=60 pair_whole=0 prefill.prefix_index_blocks=" in done.stdout
    told = (
        "'transfer.keep_prefill_copy' is off, so these instances drop a prefix once it is transferred. Set it to true"
    )
    assert done.stderr.startswith("headway: weighted routes by prefixes cached on prefill") and told in done.stderr
    for words in (("--routing-policy", "least-loaded"), ("--set", KEPT)):
        assert not headway("run", scenario, "--set", SPLIT, *words).stderr


def test_compare_names_the_policies_whose_prefixes_are_lost(headway: Run, scenario: str) -> None:
    words = ("compare", scenario, "--set", SPLIT, "--policies", "round-robin,lmetric,least-loaded-pair,prefix-pair")
    assert headway(*words).stderr.startswith("headway: lmetric, prefix-pair route by prefixes cached on prefill")
    assert not headway(*words, "--set", KEPT).stderr


def test_the_hint_repeats_the_options_and_can_be_copied(headway: Run, scenario: str) -> None:
    options = ["--set", "workload.prompt_tokens={dist: exponential, mean: 90}", "--routing-scorers", "load-balance:1"]
    hint = shlex.split(headway("run", scenario, *options).stdout.splitlines()[-1])
    assert hint == ["headway", "compare", scenario, *options]
    assert document(headway(*hint[1:], "--json", "--set", "workload.requests=5"))["best"]


def test_run_json_has_the_documented_shape(headway: Run, scenario: str) -> None:
    found = document(headway("run", scenario, "--json"))
    wanted = {f"requests.{outcome}" for outcome in ("arrived", *OUTCOMES)}
    for latency in ("ttft", "tpot", "itl", "e2e", "queue_wait"):
        wanted |= {f"latency.{latency}.{name}" for name in ["mean", "p50", "p75", "p90", "p95", "p99", "min", "max"]}
    wanted |= {f"throughput.{name}" for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")}
    wanted |= {f"cache.{name}" for name in ("token_hit_ratio", "block_hit_ratio", "request_hit_ratio")}
    wanted |= {"balance.cv", "balance.jain", "instances"}
    wanted |= {f"slo.{name}" for name in ("ttft_attainment", "tpot_attainment", "goodput_requests_per_s")}
    wanted |= {f"cost.{name}" for name in ("gpu_seconds_per_request", "gpu_held_seconds", "usd_per_1k_tokens")}
    assert not wanted - paths(found)
    assert "policy_metrics" in found
    assert found["requests"]["arrived"] == 60


def test_run_json_says_first_what_was_run(headway: Run, scenario: str) -> None:
    found = document(headway("run", scenario, "--json"))
    assert next(iter(found)) == "run"
    assert found["run"] == {
        "name": "small",
        "version": __version__,
        "key": Scenario.load(scenario).key(),
        "seed": {"workload": 3, "simulation": 3, "jitter": 3},
        "policies": {"admission": "always", "priority": "none", "routing": "weighted", "scheduler": "fcfs"},
    }
    assert document(headway("run", scenario, "--json", "--set", "leap=false")) == found


def test_the_same_run_gives_the_same_bytes_in_another_process_whatever_the_hash_seed(
    headway: Run, headway_process: Run, scenario: str
) -> None:
    first = headway("run", scenario, "--json")
    second = headway_process("run", scenario, "--json", PYTHONHASHSEED="1")
    assert document(first)
    assert first.stdout == second.stdout


def test_set_and_the_routing_options_reach_the_run(headway: Run, scenario: str) -> None:
    assert document(headway("run", scenario, "--json", "--set", "workload.requests=7"))["requests"]["arrived"] == 7
    busiest = document(headway("run", scenario, "--json", "--routing-policy", "always_busiest"))
    assert [instance["requests"] for instance in busiest["instances"]] == [60, 0, 0]
    both = headway("run", scenario, "--json", "--routing-scorers", "load-balance:1", "--set", "workload.requests=9")
    assert document(both)["requests"]["arrived"] == 9


def test_a_run_says_who_decided_at_every_stage_that_does_something(headway: Run, scenario: str) -> None:
    first = "{name: all-of, policies: [{name: max-concurrency, max_queue: 9}, always]}"
    options = ("policies.priority=by-class", "policies.flow.name=bands", "policies.flow.ttl=2s", "routers=3")
    sets = [word for option in (f"policies.admission={first}", *options) for word in ("--set", option)]
    said = " ".join(headway("run", scenario, *sets, "--set", "signals.poll_interval=50ms").stdout.split())
    assert "; admission: all-of(max-concurrency max_queue=9, always); priority: by-class; flow: bands(ttl=2s);" in said
    assert "; 3 routers; polled every 50ms" in said and "scheduler:" not in said
    compared = headway("compare", scenario, "--stage", "flow", "--set", "policies.scheduler=priority").stdout
    assert "scheduler: priority" in compared and "flow:" not in compared and "admission:" not in compared


def test_a_users_own_file_is_a_policy(headway: Run, scenario: str, tmp_path: Path) -> None:
    policy = tmp_path / "my_policy.py"
    policy.write_text(
        "from headway import Route\n"
        "class MyPolicy:\n"
        "    def route(self, request, cluster):\n"
        "        return Route(cluster.instances[-1].id)\n"
        "    def metrics(self):\n"
        "        return {'mine': 1.0}\n"
    )
    found = document(headway("run", scenario, "--json", "--routing-policy", f"{policy}:MyPolicy"))
    assert [instance["requests"] for instance in found["instances"]] == [0, 0, 60]
    assert found["policy_metrics"] == {"mine": 1.0}
    compared = document(headway("compare", scenario, "--json", "--policies", f"round-robin,{policy}:MyPolicy"))
    assert {entry["name"] for entry in compared["policies"]} == {"round-robin", "my_policy.py:MyPolicy"}


def test_run_writes_its_files(headway: Run, scenario: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = headway("run", scenario, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["requests"]["arrived"] == 60
    written = "manifest.json, requests.jsonl, scenario.yaml, summary.json"
    assert done.stderr == f"headway: wrote {written} to {folder}\n"


def test_compare_ranks_every_routing_policy(headway: Run, scenario: str) -> None:
    done = headway("compare", scenario, "--all")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for entry in registry.entries("routing"):
        left_out = entry.blank or getattr(entry.make, "pairs", False)  # there are no pairs to choose
        assert (f" {entry.name} " in done.stdout) != left_out
    assert "▸" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_compare_json_names_the_best_first(headway: Run, scenario: str) -> None:
    found = document(headway("compare", scenario, "--json", "--policies", "always-busiest,least_loaded,round-robin"))
    assert found["best"] == found["policies"][0]["name"]
    assert {entry["name"] for entry in found["policies"]} == {"always-busiest", "least-loaded", "round-robin"}
    assert found["policies"][0]["summary"]["requests"]["completed"] == 60


def test_compare_ranks_by_the_figure_asked_for(headway: Run, scenario: str) -> None:
    words = ("compare", scenario, "--policies", "always-busiest,round-robin,random", "--by")
    found = document(headway(*words, "balance.cv", "--json"))
    values = [entry["summary"]["balance"]["cv"] for entry in found["policies"]]
    assert values == sorted(values)
    assert (found["by"], found["best"]) == ("balance.cv", "round-robin")
    table = headway(*words, "latency.queue-wait.p90").stdout
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "latency.queue_wait" in table.splitlines()[3]
    assert "latency.queue_wait.p90" in table.splitlines()[-1] or "latency.queue_wait.p90" in table.splitlines()[-2]


def test_compare_tells_two_profiles_of_one_policy_apart(headway: Run, scenario: str) -> None:
    chosen = "{name: weighted, scorers: {load-balance: 1}}, {name: weighted, scorers: {prefix-affinity: 1}}"
    found = document(headway("compare", scenario, "--json", "--policies", chosen))
    names = {entry["name"] for entry in found["policies"]}
    assert names == {"weighted(load-balance:1)", "weighted(prefix-affinity:1)"}


def test_comparing_gives_what_running_alone_gives(headway: Run, scenario: str) -> None:
    compared = document(headway("compare", scenario, "--json", "--policies", "random,power-of-two"))
    for entry in compared["policies"]:
        alone = document(headway("run", scenario, "--json", "--routing-policy", entry["name"]))
        assert {"run": alone["run"], **entry["summary"]} == alone


def test_policies_lists_the_catalogue(headway: Run) -> None:
    found = document(headway("policies", "--json"))["policies"]
    entries = {(entry["stage"], entry["name"]): entry for entry in found}
    assert ("routing", "weighted") in entries
    assert entries["routing", "least-loaded"]["signals"]["exact"]
    assert entries["scorer", "queue-depth"]["signals"]["reported"]
    assert all(entry["summary"] for entry in found)
    stages = list(dict.fromkeys(entry["stage"] for entry in found))
    parts = ["scorer", "filter", "picker", "decider"]
    assert stages == ["routing", *parts, "admission", "priority", "flow", "estimator", "scheduler", "scaling"]


def test_the_listing_has_a_line_for_each_policy_in_80_columns(headway: Run) -> None:
    done = headway("policies")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line.startswith("   ")]
    assert names == [entry["name"] for entry in document(headway("policies", "--json"))["policies"]]
    assert any(line.split()[:2] == ["weighted", "(default)"] for line in lines)
    assert any(line.split()[:2] == ["oracle-prefix", "(oracle)"] for line in lines)
    gateways = [line.split()[0] for line in lines if "(default of gateways" in line]
    assert gateways == ["kv-aware-spill", "max-concurrency"]
    assert "kv-aware-spill (routing, default of gateways)" in headway("policies", "kv-aware-spill").stdout


def test_policies_shows_one_with_its_parameters(headway: Run) -> None:
    done = headway("policies", "unified")
    assert done.returncode == 0
    for word in ("overload_factor", "2.0", "min_hit_ratio", "reads as exact", "1 to 10,000,000"):
        assert word in done.stdout


def test_trace_inspect_prints_shape_and_reuse(headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * n, "input_length": 1024, "output_length": 8, "hash_ids": [0, n + 1]} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = headway("trace", "inspect", str(file))
    assert table.returncode == 0, table.stderr
    assert "unlimited" in table.stdout
    for words in ("blocks of the trace, of 512 tokens", "512,000", "– over 10s", "the format has no session ids"):
        assert words in " ".join(table.stdout.split())
    replay = yaml.safe_load(table.stdout.splitlines()[-1])
    assert Scenario.load({**replay, "cluster": {"instances": 1}}).workload.trace["path"] == str(file)
    found = document(headway("trace", "inspect", str(file), "--capacity", "3,inf", "--instances", "1,4", "--json"))
    reuse = {(row["instances"], row["capacity"]): row["block_hit_ratio"] for row in found["reuse"]}
    assert reuse[1, None] == 19 / 40
    assert reuse[4, None] == 16 / 40
    assert set(reuse) == {(1, 3), (1, None), (4, 3), (4, None)}


def test_the_version_and_the_help_are_told(headway: Run) -> None:
    assert headway("--version").stdout.strip() == "0.1.0"
    for arguments in ((), ("--help",)):
        done = headway(*arguments)
        assert done.returncode == 0
        assert "compare" in done.stdout


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("run", "nowhere.yaml"), "nowhere.yaml: there is no scenario file or preset"),
    (("run", "SCENARIO", "--set", "workload.rat=3"), "workload.rat: there is no such key. Did you mean 'rate'?"),
    (("run", "SCENARIO", "--set", "workload.rate=3 parsecs"), "workload.rate: '3 parsecs' is not a rate"),
    (("run", "SCENARIO", "--routing-policy", "leest-loaded"), "Did you mean 'least-loaded'?"),
    (("run", "SCENARIO", "--routing-policy", "random", "--routing-scorers", "queue-depth:1"), "takes no scorers"),
    (("run", "SCENARIO", "--routing-scorers", "queue-depth:0"), "queue-depth"),
    (("run", "SCENARIO", "--routing-scorers", "queue-depth:-2"), "queue-depth"),
    (("run", "SCENARIO", "--policy-config", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
    (("run", "SCENARIO", "--set", "cluster={instances: 1, model: llama-3.1-70b}"), "needs"),
    (("run", "SCENARIO", "--frobnicate"), "--frobnicate"),
    (("compare", "SCENARIO", "--policies", "rnadom"), "Did you mean 'random'?"),
    (("compare", "SCENARIO", "--policies", ""), "name at least one"),
    (
        ("compare", "SCENARIO", "--policies", "random", "--routing-policy", "unified"),
        "--policies: cannot be combined with --routing-policy; both name policies.",
    ),
    (("compare", "SCENARIO", "--policies", "random", "--routing-scorers", "queue-depth:1"), "--routing-scorers"),
    (("compare", "SCENARIO", "--policies", "random", "--policy-config", "x.yaml"), "cannot be combined with --policy;"),
    (("compare", "SCENARIO", "--by", "latency.ttft.p98"), "by: runs cannot be ranked by 'latency.ttft.p98'. Did"),
    (("policies", "wieghted"), "Did you mean 'weighted'?"),
    (("trace", "inspect", "nowhere.jsonl"), "nowhere.jsonl"),
    (("trace", "inspect", "README.md", "--capacity", "lots"), "--capacity: 'lots' is not a whole number"),
    (("frobnicate",), "frobnicate"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_input_is_one_sentence_and_status_2(
    arguments: tuple[str, ...], message: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status([scenario if word == "SCENARIO" else word for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("headway: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_warm_up_that_leaves_nothing_is_told(headway: Run, scenario: str) -> None:
    said = "No request is left to count: warmup is 60 and 60 arrived."
    done = headway("run", scenario, "--set", "warmup=60")
    assert done.returncode == 0
    assert (done.stdout.count(said), done.stderr) == (1, "")
    assert headway("run", scenario, "--json", "--set", "warmup=60").stderr == f"headway: {said}\n"
    compared = headway("compare", scenario, "--policies", "random", "--set", "warmup=60")
    assert (compared.stdout.count(said), compared.stderr) == (1, "")


def test_a_run_that_completes_nothing_is_told(headway: Run, scenario: str) -> None:
    done = headway("run", scenario, "--set", "cluster.kv.gpu_blocks=1", "--set", "workload.prompt_tokens=100")
    assert done.returncode == 0
    assert "No request was completed: of 60, 60 rejected." in done.stdout


def test_without_targets_there_is_no_word_of_an_slo(headway: Run, scenario: str) -> None:
    done = headway("run", scenario, "--set", "slo={}")
    assert "SLO" not in done.stdout and "goodput" not in done.stdout
    one = headway("run", scenario, "--set", "slo={ttft: 1s}").stdout
    assert "TTFT ≤ 1s" in one and "TPOT ≤" not in one
    compared = headway("compare", scenario, "--set", "slo={}", "--policies", "random").stdout
    assert "SLO" not in compared and "goodput" not in compared


@pytest.mark.parametrize("words", [("run",), ("compare", "--policies", "random"), ("run", "--json"), ("policies",)])
def test_a_terminal_without_unicode_is_served_too(headway: Run, scenario: str, words: tuple[str, ...]) -> None:
    verb, *options = words
    where = [] if verb == "policies" else [scenario]
    done = headway(verb, *where, *options, PYTHONIOENCODING="ascii", LANG="C", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


POLICIES = """
import sys
from headway import Route

class Fails:
    def route(self, request, cluster):
        if request.id == 3:
            raise KeyError("lost")
        return Route(cluster.instances[0].id)

class Nothing:
    def route(self, request, cluster):
        pass

class View:
    def route(self, request, cluster):
        return cluster.instances[0]

class Leaves:
    def route(self, request, cluster):
        sys.exit(7)

class Unbound(Fails):
    def bind(self, context):
        raise ValueError("not today")

class Listens(Nothing):
    def route(self, request, cluster):
        return Route(cluster.instances[0].id)
    def observe(self, event):
        return event.nonsense

class Misuses:
    def bind(self, context):
        self.index = context.prefix_index(16, 100)
    def route(self, request, cluster):
        return self.index.matches(None)

class Unmade:
    def __init__(self):
        raise RuntimeError("no parts")
    def route(self, request, cluster):
        pass
"""
MISTAKES = {
    "Fails": "my_policy.py line 8, in Fails.route: KeyError: 'lost', at request 3.",
    "Nothing": "Nothing.route must return a Route",
    "View": "View.route must return a Route",
    "Leaves": "my_policy.py line 21, in Leaves.route: SystemExit: 7, at request 0.",
    "Unbound": "my_policy.py line 25, in Unbound.bind: ValueError: not today.",
    "Listens": "my_policy.py line 31, in Listens.observe: AttributeError: 'Routed' object has no attribute 'nonsense'",
    "Misuses": "my_policy.py line 37, in Misuses.route: ",
    "Unmade": "could not be created: RuntimeError: no parts.",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_users_policy_is_a_sentence_with_its_line(
    name: str, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(POLICIES)
    assert cli.status(["run", scenario, "--routing-policy", f"{file}:{name}"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert MISTAKES[name] in err
    assert len(err.splitlines()) == 1


def test_a_mistake_in_a_users_policy_is_told_from_a_comparison_too(headway: Run, scenario: str, tmp_path: Path) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(POLICIES)
    done = headway("compare", scenario, "--policies", f"random,{file}:Fails")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"headway: {file} line 8, in Fails.route: KeyError: 'lost', at request 3.\n"


NOISY = """
from headway import Route
print("loaded")

class Noisy:
    def __init__(self):
        print("made")
    def bind(self, context):
        print("bound")
    def route(self, request, cluster):
        print("routed")
        return Route(cluster.instances[0].id)
    def metrics(self):
        print("asked")
        return {}
"""


@pytest.mark.parametrize("options", [("--json",), ()])
def test_what_a_policy_prints_is_kept_out_of_the_result(
    options: tuple[str, ...], headway: Run, scenario: str, tmp_path: Path
) -> None:
    file = tmp_path / "noisy.py"
    file.write_text(NOISY)
    words = ("loaded", "made", "bound", "routed", "asked")
    chosen = f"{file}:Noisy"
    for arguments in (("run", scenario, "--routing-policy", chosen), ("compare", scenario, "--policies", chosen)):
        done = headway(*arguments, *options)
        assert done.returncode == 0, done.stderr
        assert not any(word in done.stdout for word in words)
        assert all(word in done.stderr for word in words)
    done = headway("compare", scenario, "--policies", f"{chosen},{chosen},random", *options)
    assert "routed" in done.stderr and "routed" not in done.stdout
    done = headway("policies", chosen, *options)
    assert done.stderr == "loaded\n" and done.stdout


def test_a_mistake_of_ours_is_status_3(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headway.sim.dispatcher.Dispatcher.arrive", None)
    assert cli.status(["run", scenario]) == 3
    assert "please report it: TypeError" in capsys.readouterr().err


def test_a_broken_invariant_is_status_3(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise InvariantError("blocks were lost")

    monkeypatch.setattr("headway.experiment.run.simulate", broken)
    assert cli.status(["run", scenario]) == 3


def test_ctrl_c_says_how_far_it_came_and_what_is_kept(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.experiment.run.simulate", interrupted)
    assert cli.status(["run", scenario]) == 130
    assert capsys.readouterr() == ("", "headway: interrupted; 0/60 requests. Nothing was written.\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not list the children of a process")
def test_ctrl_c_ends_a_comparison_at_once(scenario: str) -> None:
    with interruptible():
        child = subprocess.Popen(
            [*COMMAND, "compare", scenario, "--set", "workload.requests=500000", "--workers", "2"],
            env={**os.environ, "PYTHONPATH": SOURCE},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    try:
        until(lambda: child.poll() is not None or workers.read_text().split())
        os.killpg(child.pid, signal.SIGINT)  # what a terminal does: the child and its workers, a session of their own
        out, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert (child.returncode, out) == (130, "")
    assert re.fullmatch(r"headway: interrupted; .*policies\. Nothing was written\.\n", err)


def test_a_reader_who_leaves_is_no_error(headway_process: Run) -> None:
    done = headway_process("policies", "--json", shell="| head -n 1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("redirection", "sentence"), [(">/dev/full", "stdout: cannot be written (No space"), (">&-", "stdout is closed")]
)
def test_a_stdout_that_takes_nothing_is_a_sentence(headway_process: Run, redirection: str, sentence: str) -> None:
    done = headway_process("--version", shell=redirection)
    assert done.returncode == 2
    assert done.stderr.startswith(f"headway: {sentence}")
    assert done.stderr.count("\n") == 1


def test_wrong_input_is_status_2_of_the_process(headway_process: Run) -> None:
    done = headway_process("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('headway: Unknown command "frobnicate".')


def test_a_closed_stderr_is_no_error(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # what the interpreter makes of a closed one
    assert cli.status(["run", scenario]) == 0
    assert cli.status(["run", scenario, "--set", "workload.rat=3"]) == 2


def test_a_folder_that_cannot_be_written_is_told_before_the_simulation(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headway.experiment.run.simulate", lambda *_, **__: pytest.fail("simulated"))
    assert cli.status(["run", scenario, "-o", scenario]) == 2
    assert "is a file" in capsys.readouterr().err
    assert cli.status(["run", scenario, "-o", f"{scenario}/inside"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert cli.status(["run", scenario, "-o", str(tmp_path)]) == 2
    assert "contains other files" in capsys.readouterr().err


def test_only_the_files_of_the_run_are_said_to_be_written(headway: Run, scenario: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    headway("run", scenario, "-o", str(folder))
    (folder / "notes.txt").touch()
    done = headway("run", scenario, "-o", str(folder), "--again")
    assert "manifest.json, requests.jsonl, scenario.yaml, summary.json to" in done.stderr
    assert "notes.txt" not in done.stderr


def test_a_run_that_its_folder_has_is_read_and_not_repeated(headway: Run, scenario: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = headway("run", scenario, "-o", str(folder), "--json")
    again = headway("run", scenario, "-o", str(folder), "--json")
    assert "already has this run" in again.stderr
    assert first.stdout == again.stdout
    for change in (("--set", "seed=5"), ("--trace", "decisions")):
        assert "wrote " in headway("run", scenario, "-o", str(folder), *change).stderr
    (folder / "requests.jsonl").unlink()
    assert "wrote " in headway("run", scenario, "-o", str(folder), "--trace", "decisions").stderr


def test_a_trace_wants_a_folder(headway: Run, scenario: str) -> None:
    for option in (("--trace", "full"), ("--counterfactuals", "3")):
        done = headway("run", scenario, *option)
        assert done.returncode == 2
        assert f"{option[0]}: needs an output folder. Add -o FOLDER." in done.stderr


def test_explain_tells_of_a_request(headway: Run, scenario: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    headway("run", scenario, "-o", str(folder), "--routing-policy", "round-robin")
    done = headway("explain", str(folder), "5")
    assert done.returncode == 0, done.stderr
    assert "request 5" in done.stdout
    assert "simulated again" in " ".join(done.stdout.split())
    wrong = headway("explain", str(folder), "100000000")
    assert wrong.returncode == 2
    assert "request: there are requests 0 to" in wrong.stderr


@pytest.mark.parametrize("columns", ["40", "0"])
def test_a_narrow_comparison_keeps_the_policies(headway: Run, scenario: str, columns: str) -> None:
    done = headway("compare", scenario, "--policies", "round-robin,random", COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    rows = [row for row in done.stdout.splitlines() if row.lstrip(" ▸").startswith(("round-robin ", "random "))]
    assert len(rows) >= 2
    assert ("Jain" in done.stdout) == (columns == "0")


@pytest.mark.parametrize("words", [("--capacity", "²"), ("--capacity", "9" * 5000), ("--instances", "100001")])
def test_a_count_that_is_none_is_told(
    scenario: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status(["trace", "inspect", scenario, *words]) == 2
    assert "is not a whole number from 1 to" in capsys.readouterr().err


def test_a_routing_policy_without_a_name_is_told(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["run", scenario, "--routing-policy", ""]) == 2
    assert "a policy's name is missing" in capsys.readouterr().err


def test_progress_is_a_line_now_and_then_where_stderr_is_no_terminal(
    headway: Run, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.display.progress.LINE_S", 0.0)
    monkeypatch.setenv("HEADWAY_PROGRESS", "on")
    lines = headway("run", scenario).stderr.splitlines()
    assert lines and all(re.fullmatch(r"headway: [\d,]+/60 requests, 0:00:0\d so far", line) for line in lines)


def test_the_overview_groups_every_verb_in_a_line_of_80_columns(headway: Run) -> None:
    lines = headway("--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    titles = [line.split()[1] for line in lines if line.startswith("╭")]
    assert titles == ["Start", "Simulate", "Look", "Evolve", "Serve", "Operate", "Data", "Options"]
    verbs = [line[2:].split()[0] for line in lines if line.startswith("│ ") and line[2] != "-"]
    assert sorted(verbs) == sorted(name for name in app.resolved_commands() if not name.startswith("-"))
    assert all(len(line[2:].split()) > 2 and line.rstrip("│ ").endswith(".") for line in lines if line.startswith("│ "))


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.full), "fish"])
def test_a_completion_script_knows_verbs_and_options(headway: Run, shell: str, tmp_path: Path) -> None:
    done = headway("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("compare", "from-records", "policy-timeout", "scheduler"):
        assert word in done.stdout
    if shutil.which(shell) is None:
        return
    (tmp_path / "script").write_text(done.stdout)
    assert subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=False).returncode == 0
    if shell == "bash":  # it completes a verb
        ask = 'source ./script; COMP_WORDS=(headway swe); COMP_CWORD=1; _headway; echo "${COMPREPLY[@]}"'
        answer = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert answer.stdout.split() == ["sweep"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("words", [("run", "--json"), ("compare", "--policies", "random,round-robin", "--json")])
def test_a_progress_bar_is_for_a_terminal_and_never_in_the_result(
    headway: Run, scenario: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.display.progress.PATIENCE_S", 0.0)
    verb, *options = words
    quiet = headway(verb, scenario, *options)
    assert not quiet.stderr
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    with os.fdopen(ours, "rb") as terminal, capture_output(ROOT, {"TERM": "xterm"}) as (out, _):
        sys.stderr = os.fdopen(theirs, "w")
        assert cli.status([verb, scenario, *options]) == 0
        assert (b"requests" if verb == "run" else b"policies") in terminal.read(1 << 16)
        sys.stderr.close()
    assert text_of(out) == quiet.stdout

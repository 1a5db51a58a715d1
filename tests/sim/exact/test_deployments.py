"""Several models on one cluster: a request goes only to instances that serve its model, and nothing else joins them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import headway
from drawing import grid
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.sessions import Sessions
from headway.scenario.scenario import Scenario
from headway.types import ADMIT, Admit, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView
from headway.workload.traces import own
from headway.workload.traces.record import Info, Record

Json = dict[str, Any]
SHAPE = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "params": 50_000}
FIXED = {"model": "fixed", "prefill_tokens_per_s": 5000, "decode_tokens_per_s": 200}
LINEAR = {"model": "linear", "step": "3ms", "prefill_token": "20us", "sequence": "100us", "context_token": "1us"}


def shape(name: str) -> Json:
    return {**SHAPE, "name": name}


# The instances of x and y lie between each other's: x has the indexes 0, 1 and 4, y has 2, 3, 5 and 6, z has 7.
DEPLOYMENTS: Json = {
    "x-small": {"instances": 2, "model": shape("x"), "latency": FIXED},
    "y-one": {"instances": 2, "model": shape("y"), "serves": ["why"]},
    "x-large": {"instances": 1, "model": shape("x"), "latency": FIXED, "max_batch_size": 16, "kv": {"gpu_blocks": 900}},
    "y-two": {"instances": 2, "model": shape("y"), "serves": ["why"], "max_batch_tokens": 32},
    "idle": {"instances": 1, "model": shape("z")},
}
SERVING = {"x": {0, 1, 4}, "y": {2, 3, 5, 6}, "why": {2, 3, 5, 6}}


def cluster(*names: str) -> Json:
    common = {
        "max_batch_size": 4,
        "max_batch_tokens": 64,
        "kv": {"gpu_blocks": 300, "block_tokens": 4},
        "latency": LINEAR,
    }
    return {**common, "deployments": {name: DEPLOYMENTS[name] for name in names or DEPLOYMENTS}}


def records(count: int, seed: int = 3) -> list[Record]:
    """Requests of sessions and of models in turn, with prompts that begin alike; a session may go to both models."""
    random, at_ps, found = Random(seed), 0, []
    for number in range(count):
        at_ps += random.choice([0, 1, 2, 5, 12]) * 10**9
        model = random.choice(["x", "y", "y", "why"])
        group, length = random.randrange(5), random.randrange(2, 12)
        blocks = [(100 * group, length), (10_000 + 100 * number, 1)]
        found.append(
            Record(
                4 * length + random.randrange(1, 4),
                random.randrange(1, 25),
                at_ps,
                blocks,
                f"s{random.randrange(12)}",
                model=model,
                tenant=random.choice(["a", "b"]),
            )
        )
    return found


def scenario(folder: Path, rows: list[Record], *names: str, **more: Any) -> Json:
    """The trace of these rows on these deployments, or on all."""
    file = folder / f"{len(rows)}-{'-'.join(names) or 'all'}.jsonl"
    if not file.exists():
        own.write(file, Info("mooncake", 4, False, sessions=True), iter(rows))
    workload = {"trace": {"path": str(file), "replay": "timestamps"}}
    return {"workload": workload, "cluster": cluster(*names), **more}


def table(result: headway.Result, models: set[str]) -> list[tuple[Any, ...]]:
    """When each request of these models came, where it went and what came of it, and when."""
    ids = [*(instance["id"] for instance in result.summary()["instances"]), "nowhere"]
    return [
        (row["arrival_ps"], ids[row["instance"]], row["first_token_ps"], row["finished_ps"], row["cached_tokens"])
        for row in result.requests.rows()
        if row["model"] in models
    ]


ROUTING = registry.names("routing")
SCORERS = [entry.name for entry in registry.entries("scorer")]
PROFILES = [{"name": "weighted", "scorers": {name: 1}} for name in SCORERS]
PICKED = {"name": "weighted", "filters": ["kv-below", "load-below", "load-spread"], "picker": "weighted-random"}


@pytest.mark.parametrize("routing", [*ROUTING, *PROFILES, PICKED], ids=str)
def test_every_routing_policy_keeps_to_the_instances_of_the_model(tmp_path: Path, routing: Any) -> None:
    given = scenario(tmp_path, records(60), policies={"routing": routing})
    leapt = headway.simulate(given)
    for row in leapt.requests.rows():
        assert row["outcome"] == "completed"
        assert row["instance"] in SERVING[row["model"]]
    idle = leapt.summary()["instances"][7]
    assert (idle["id"], idle["pool"], idle["model"], idle["requests"]) == ("idle-0", "idle", "z", 0)
    for leap in (False, "random-cuts"):
        other = headway.simulate({**given, "leap": leap})
        assert other.to_json() == leapt.to_json()
        assert other.requests == leapt.requests


# Those that draw share one stream among the models, charges fade in whole billionths at every decision, and the keys
# that kv-aware and kv-aware-spill hash are not the same in a part of a trace.
SHARING = ("random", "power-of-two", "cost-escalation", "kv-aware", "kv-aware-spill")
ALONE = [name for name in ROUTING if name not in SHARING]
QUEUE = {"name": "bands", "saturation": "concurrency", "max_inflight": 2, "fairness": "round-robin"}


FLOWS: dict[str, Any] = {"none": "none", "queue": QUEUE, "full": {**QUEUE, "ttl": "30ms", "capacity": 3}}


@pytest.mark.parametrize(("routing", "flow"), grid([*ALONE, *PROFILES], list(FLOWS)), ids=str)
def test_a_model_fares_as_if_it_were_alone(tmp_path: Path, routing: Any, flow: str) -> None:
    rows = records(60)
    policies = {"routing": routing, "flow": FLOWS[flow], "admission": {"name": "saturation", "sheddable": None}}
    joint = headway.simulate(scenario(tmp_path, rows, policies=policies))
    for models, pools in (({"x"}, ("x-small", "x-large")), ({"y", "why"}, ("y-one", "y-two"))):
        own_rows = [row for row in rows if row.model in models]
        alone = headway.simulate(scenario(tmp_path, own_rows, *pools, policies=policies))
        assert table(joint, models) == table(alone, models)


def test_one_deployment_decides_as_equal_instances_do() -> None:
    workload = {"requests": 200, "rate": "60/s", "prefix": {"groups": 5, "tokens": 300}, "prompt_tokens": 400}
    plain = headway.simulate({"workload": workload, "cluster": {"instances": 3}})
    named = headway.simulate({"workload": workload, "cluster": {"deployments": {"instance": {"instances": 3}}}})
    assert named.requests == plain.requests
    summary = named.summary()
    (model,) = summary.pop("models")
    assert (model["id"], model["requests"]) == ("llama-3.1-8b", {"arrived": 200} | plain_outcomes(plain))
    assert [(one.pop("pool"), one.pop("model")) for one in summary["instances"]] == 3 * [("instance", "llama-3.1-8b")]
    assert summary == plain.summary()


def plain_outcomes(result: headway.Result) -> Json:
    counts = result.summary()["requests"]
    return {name: counts[name] for name in ("completed", "rejected", "timed_out", "failed", "in_flight")}


def test_equal_instances_serve_whatever_is_asked_for() -> None:
    workload = {"requests": 20, "rate": "60/s", "models": {"anything": 1, "else": 1}}
    result = headway.simulate({"workload": workload, "cluster": {"instances": 2}})
    assert result.summary()["requests"]["completed"] == 20
    assert "models" not in result.summary()
    assert "pool" not in result.summary()["instances"][0]


# --- what the router does ---------------------------------------------------------------------------------------------


class Asked:
    """Admits, and remembers which models it was asked about and what they could go to."""

    def bind(self, context: Any) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject:
        self.asked.append((request.model, [view.index for view in cluster.instances]))
        return ADMIT


def test_a_model_that_nobody_serves_is_refused_before_admission_is_asked(tmp_path: Path) -> None:
    rows = [
        Record(8, 4, number * 10**9, [(number, 2)], model=model) for number, model in enumerate(("x", "q", "why", ""))
    ]
    admission = Asked()
    result = headway.simulate(scenario(tmp_path, rows), admission=admission)
    assert admission.asked == [("x", [0, 1, 4]), ("why", [2, 3, 5, 6])]
    assert result.requests["outcome"] == ["completed", "rejected", "completed", "rejected"]
    assert result.requests["reason"][1] == "404: model 'q' is not served"
    assert result.requests["reason"][3] == "404: model '' is not served"
    assert [(one["id"], one["requests"]["rejected"]) for one in result.summary()["models"]] == [
        ("", 1),
        ("q", 1),
        ("why", 0),
        ("x", 0),
    ]


class Wrong:
    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route("y-one-0")


def test_a_policy_that_sends_a_request_to_another_model_fails_the_run(tmp_path: Path) -> None:
    wrong = "policies.routing: Wrong routed request 0 to 'y-one-0', which does not serve model 'x'."
    with pytest.raises(HeadwayError) as told:
        headway.simulate(scenario(tmp_path, [Record(8, 4, 0, [(1, 2)], model="x")]), routing=Wrong())
    assert str(told.value) == wrong


def test_turns_are_counted_for_each_model(tmp_path: Path) -> None:
    rows = [Record(8, 1, number * 10**12, [(number, 2)], model="xy"[number % 2]) for number in range(8)]
    result = headway.simulate(scenario(tmp_path, rows, policies={"routing": "round-robin"}))
    assert result.requests["instance"] == [0, 2, 1, 3, 4, 5, 0, 6]


def test_a_session_has_an_instance_of_each_model() -> None:
    x, other, y = (InstanceView(index, f"i{index}", model=model) for index, model in enumerate("xxy"))
    sessions = Sessions(2)
    sessions.bind("s", x)
    sessions.bind("s", y)
    assert sessions.find("s", (x, other)) is x
    assert sessions.find("s", (y,)) is y
    sessions.bind("s", other)
    assert sessions.find("s", (x, other)) is other
    assert sessions.find("s", (x,)) is None
    assert sessions.find("s", (y,)) is y


def test_a_model_that_is_full_holds_up_no_other(tmp_path: Path) -> None:
    rows = [Record(8, 20, 0, [(number, 2)], model="x") for number in range(9)]
    rows.append(Record(8, 20, 10**9, [(99, 2)], model="y"))
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    result = headway.simulate(scenario(tmp_path, rows, policies={"flow": flow}))
    waited = [row["routed_ps"] - row["arrival_ps"] for row in result.requests.rows()]
    assert waited[:3] == [0, 0, 0]
    assert min(waited[3:9]) > 0
    assert waited[9] == 0
    assert result.summary()["policy_metrics"]["flow_queued_peak:x"] == 6
    assert result.summary()["policy_metrics"]["flow_queued_peak:y"] == 0


def test_a_model_has_one_limit_under_all_its_names(tmp_path: Path) -> None:
    rows = [
        Record(8, 20, number, [(number, 2)], model=model) for number, model in enumerate(("y", "why", "y", "x", "x"))
    ]
    admission = {"name": "max-concurrency", "max_queue": 2}
    result = headway.simulate(scenario(tmp_path, rows, policies={"admission": admission}))
    assert result.requests["outcome"] == ["completed", "completed", "rejected", "completed", "completed"]


# --- the section ------------------------------------------------------------------------------------------------------

WORKLOAD: Json = {"requests": 10, "rate": "10/s", "models": {"x": 1, "why": 1}}


def test_a_deployment_inherits_what_it_does_not_give() -> None:
    loaded = Scenario.load({"workload": WORKLOAD, "cluster": cluster()}, "cluster.deployments.y-one.instances=5")
    found = loaded.resolved()["cluster"]
    assert list(found) == ["kv", "deployments"]
    assert found["kv"] == {"block_tokens": 4, "prefix_caching": True}
    y, large = found["deployments"]["y-one"], found["deployments"]["x-large"]
    assert (y["instances"], y["max_batch_size"], y["kv"]["gpu_blocks"], y["serves"]) == (5, 4, 300, ["why"])
    assert (large["max_batch_size"], large["max_batch_tokens"], large["kv"]["gpu_blocks"]) == (16, 64, 900)
    assert (large["latency"]["model"], y["latency"]["model"]) == ("fixed", "linear")
    again = Scenario.load(loaded.resolved())
    assert again.key() == loaded.key()
    assert again.resolved() == loaded.resolved()
    assert again.key() != Scenario.load({"workload": WORKLOAD, "cluster": cluster()}).key()


def test_instances_are_of_their_own_hardware() -> None:
    given = {"workload": WORKLOAD | {"models": {"llama-3.1-8b": 1}}}
    deployments = {"old": {"gpu": "a100-80gb"}, "new": {"gpu": "h200", "tp": 2, "instances": 1}}
    result = headway.simulate({**given, "cluster": {"instances": 2, "deployments": deployments}})
    ids = [(one["id"], one["kv_blocks"]) for one in result.summary()["instances"]]
    assert [name for name, _ in ids] == ["old-0", "old-1", "new-0"]
    assert ids[0][1] == ids[1][1] < ids[2][1]


MISTAKES = {
    "cluster.deployments.y-one.instnces=3": "y-one.instnces: there is no such key. Did you mean 'instances'?",
    "cluster.deployments.y-one.kv={block_tokens: 8}": "y-one.kv.block_tokens: must be equal in the whole cluster; set",
    "cluster.deployments.y-one.kv={prefix_caching: false}": "y-one.kv.prefix_caching: must be equal in the whole",
    "cluster.deployments.y-one.latency={model: fixd}": "deployments.y-one.latency.model: no latency model is called",
    "cluster.deployments.y-one.model={name: x, layers: 1, hidden: 8, heads: 1, params: 9}": "a different shape; give",
    "cluster.deployments.y-one.serves=['']": "deployments.y-one.serves: a name must not be empty",
    "cluster.deployments.y-one=3": "cluster.deployments.y-one: expected a mapping, got 3.",
    "cluster.deployments={}": "cluster.deployments: expected a mapping of names to deployments, got {}.",
    "cluster.deployments={3: {}}": "cluster.deployments: 3 is not a deployment's name",
    "cluster.deployments.idle.instances=100000": "cluster.deployments: the deployments may have at most 100,000",
    "cluster.model=nosuch": "cluster.model: no model in the table is called 'nosuch'",
    "cluster.serves=[a]": "cluster.serves: there is no such key.",
    "workload.models=null": "workload.models: is missing, but the cluster serves several models. Give each",
    "workload.models={wy: 1}": "workload.models: no deployment serves 'wy'. Did you mean 'why'?",
    "workload.tenants={a: {models: {q: 1}}}": "tenants.a.models: no deployment serves 'q'. Known: why, x, y, z.",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_a_mistake_is_told_at_its_place(change: str) -> None:
    with pytest.raises(HeadwayError) as told:
        Scenario.load({"workload": WORKLOAD, "cluster": cluster()}, change)
    assert MISTAKES[change] in str(told.value)


def test_deployments_of_one_model_need_no_names_in_the_workload() -> None:
    workload = {"requests": 10, "rate": "10/s"}
    result = headway.simulate({"workload": workload, "cluster": cluster("x-small", "x-large")})
    assert set(result.requests["model"]) == {"x"}
    assert result.summary()["requests"]["completed"] == 10

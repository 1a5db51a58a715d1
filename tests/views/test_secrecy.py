"""What a policy must never see: how many tokens a request will really generate, and whatever leads there."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

import headway
import headway.policies  # (declares the policies)
from headway import ADMIT, Admit, ClusterView, FirstToken, HeadwayError, InstanceView, Request, Route, Routed
from headway.policies import registry
from headway.policies.code import language as lang
from headway.policies.code.kinds import of_value
from headway.policies.estimators import Learned, NoisyOracle
from headway.policies.flow import Bands
from headway.policies.queues import Fifo
from headway.policies.user_policies import METHODS
from headway.views.cluster import Totals
from headway.views.window import Recent

Json = dict[str, Any]
SECRETS = ("Job", "Planned", "Recorder", "Instance", "Simulation", "Result", "Trace", "WorkloadSpec")
TRUE_LENGTH = 54_321  # of every output: a number that nothing else of these scenarios comes to
LIMIT = 200_000  # objects of one walk; a policy's world is far smaller


def within(thing: object) -> Iterator[object]:
    """Everything that an object refers to. Code that is the same for all (classes, modules, a function's globals) holds
    nobody's data and is left out; what a function closes over is not."""
    if isinstance(thing, (type, ModuleType, CodeType, str, bytes, int, float)):
        return
    if isinstance(thing, Totals | Recent):  # how much the requests that have ended had generated is no secret
        return
    if isinstance(thing, InstanceView):
        yield from (getattr(thing, name, None) for name in InstanceView.__slots__ if name != "output_tokens")
        return
    if isinstance(thing, FunctionType):
        yield from (thing.__defaults__ or (), thing.__kwdefaults__, thing.__closure__ or (), thing.__dict__)
        return
    if isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__)
        return
    if isinstance(thing, BuiltinFunctionType):
        yield thing.__self__
        return
    yield from gc.get_referents(thing)
    # What the collector is told to pass over still has fields.
    for kind in type(thing).__mro__:
        for fields in (vars(kind).get("__slots__"), vars(kind).get("__struct_fields__")):
            if isinstance(fields, (tuple, list)):
                for name in fields:
                    yield getattr(thing, name, None)
    yield getattr(thing, "__dict__", None)


def reach(*roots: object) -> list[object]:
    """All objects that can be reached, each once."""
    seen: dict[int, object] = {}
    todo = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        assert len(seen) < LIMIT, "a policy's world should be small"
        todo.extend(within(thing))
    return list(seen.values())


class Probe:
    """A policy that turns over every stone, as admission and as routing, whenever it is called."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.visited = 0
        self.found: list[str] = []
        self.requests: list[Request] = []

    def bind(self, context: Any) -> None:
        self.context = context
        self.search("bind", context)

    def admit(self, request: Request, cluster: ClusterView) -> Admit:
        self.search("admit", request, cluster, self.context)
        return ADMIT

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.requests.append(request)
        self.search("route", request, cluster, self.context)
        return Route(cluster.instances[request.id % len(cluster.instances)].id)

    def observe(self, event: Any) -> None:
        if isinstance(event, (Routed, FirstToken)):
            self.search(type(event).__name__, event, self.context)

    def search(self, place: str, *roots: object) -> None:
        self.calls[place] = self.calls.get(place, 0) + 1
        things = reach(*roots)
        self.visited = max(self.visited, len(things))
        for thing in things:
            kind = type(thing)
            if kind.__module__.startswith("headway.") and kind.__name__ in SECRETS:
                self.found.append(f"{place}: a {kind.__name__}")
            if kind is int and thing == TRUE_LENGTH:
                self.found.append(f"{place}: the true length")


def scenario(**changes: Any) -> Json:
    """Requests that all generate the same number of tokens, arriving while others prefill, decode and wait."""
    return {
        "seed": 1,
        "workload": {
            "requests": 12,
            "rate": "0.05/s",
            "prompt_tokens": {"dist": "normal", "mean": 400, "std": 100, "min": 1},
            "output_tokens": TRUE_LENGTH,
            "prefix": {"groups": 2, "tokens": 100},
        },
        "cluster": {
            "instances": 2,
            "max_batch_size": 3,
            "max_batch_tokens": 256,
            "kv": {"gpu_blocks": 9000},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 100, "decode_tokens_per_s": 1000},
        },
        **changes,
    }


def test_the_walk_finds_what_is_there() -> None:
    """The searcher itself: through slots, structs, closures, bound methods, lists and dicts."""

    class Slotted:
        __slots__ = ("inner",)

        def __init__(self, inner: object) -> None:
            self.inner = inner

        def method(self) -> None: ...

    secret = object()
    for hidden in (
        Slotted([secret]),
        {"a": (secret,)},
        Slotted({1: secret}).method,
        (lambda: secret),
        (lambda value=secret: value),
        [secret].append,
        Route("x", "", secret),  # type: ignore[arg-type]
        iter([secret]),
    ):
        assert any(thing is secret for thing in reach(hidden)), hidden
    assert not any(thing is secret for thing in reach(Slotted(None), len, Slotted))


def test_nothing_that_a_policy_is_handed_leads_to_the_true_length() -> None:
    admission, routing = Probe(), Probe()
    result = headway.simulate(scenario(), admission=admission, routing=routing)
    assert result.requests["output_tokens"] == [TRUE_LENGTH] * 12
    assert admission.calls == {"bind": 1, "admit": 12, "Routed": 12, "FirstToken": 12}
    assert routing.calls == {"bind": 1, "route": 12, "Routed": 12, "FirstToken": 12}
    assert routing.visited > 50
    assert not admission.found
    assert not routing.found


def test_nor_does_it_with_the_indexes_and_estimates_that_policies_ask_for() -> None:
    class Curious(Probe):
        def bind(self, context: Any) -> None:
            self.index = context.prefix_index(16, 1000)
            self.draw = context.rng("routing")
            super().bind(context)

        def route(self, request: Request, cluster: ClusterView) -> Route:
            self.index.matches(request.path)
            for view in cluster.instances:
                asked = (view.recent_ttft, view.recent_tpot, view.tokens_per_second, view.hit_rate, view.free_blocks)
                shadow = (self.index.utilization(view.index), list(self.index.eviction_order(view.index)))
                self.search("view", view, view.estimated_wait, view.estimated_ttft(100), asked, shadow)
            self.context.estimator.step_seconds(self.context.instances[0], 100, 3, 1000)
            return super().route(request, cluster)

    routing = Curious()
    for model in ("roofline", "linear", "piecewise"):
        cluster = {**scenario()["cluster"], "latency": {"model": model}}
        headway.simulate(scenario(cluster=cluster), routing=routing)
    assert routing.calls["route"] == 36 and routing.calls["view"] == 72
    assert not routing.found


def test_a_policy_from_a_file_sees_no_more(tmp_path: Path) -> None:
    file = tmp_path / "probing.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_secrecy import Probe\n\n\n"
        "class FromFile(Probe):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n\n"
        "    def metrics(self):\n"
        "        return {'found': float(len(self.found)), 'routed': float(self.calls['route'])}\n"
    )
    result = headway.simulate(scenario(policies={"routing": f"{file}:FromFile"}))
    assert result.summary()["policy_metrics"] == {"found": 0.0, "routed": 12.0}


def test_the_true_cache_state_is_refused_to_who_is_no_oracle() -> None:
    class Greedy(Probe):
        def route(self, request: Request, cluster: ClusterView) -> Route:
            self.context.truth(request)
            return super().route(request, cluster)

    with pytest.raises(HeadwayError, match="true cache state"):
        headway.simulate(scenario(), routing=Greedy())


@pytest.mark.parametrize("estimator", ["by-class", {"name": "noisy-oracle", "error": 0.5}], ids=str)
def test_an_estimate_does_not_lead_to_the_true_length(estimator: Any) -> None:
    """Not even if an oracle makes it, nor to the oracle, which may ask for the truth."""

    class Reading(Probe):
        def search(self, place: str, *roots: object) -> None:
            super().search(place, *roots)
            self.found += [
                f"{place}: an estimator" for thing in reach(*roots) if isinstance(thing, Learned | NoisyOracle)
            ]

        def route(self, request: Request, cluster: ClusterView) -> Route:
            self.search("estimate", cluster.estimate)
            with pytest.raises(HeadwayError, match="tells it only to an oracle"):
                self.context.true_length(request)
            return super().route(request, cluster)

    routing, admission, scheduler = Reading(), Probe(), Peeping()
    given = scenario(policies={"estimator": estimator})
    given["cluster"]["instances"] = 1  # the scheduler has one queue
    headway.simulate(given, routing=routing, admission=admission, scheduler=scheduler)
    assert routing.calls["estimate"] == 12 and admission.calls["admit"] == 12
    assert not routing.found and not admission.found and not scheduler.probe.found


@pytest.mark.parametrize(
    "name", [entry.name for entry in registry.entries("estimator") if not entry.oracle and not entry.blank]
)
def test_no_estimate_depends_on_lengths_that_nothing_has_shown_yet(name: str, tmp_path: Path) -> None:
    policies = {"estimator": name, "scheduler": {"name": "shortest-expected", "aging": 0}}
    assert len(lined_up(tmp_path, policies)) == 1


class Peeping:
    """A scheduler in order of arrival whose queue turns over every stone whenever it is called."""

    def __init__(self) -> None:
        self.probe = Probe()
        self.inner = Fifo()

    def queue(self) -> Peeping:
        return self

    def chunk(self, ticket: Any) -> int:
        self.probe.search("chunk", ticket)
        return 100

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def called(*arguments: Any) -> Any:
            answer = method(*arguments)
            self.probe.search(name, *arguments, answer, self.inner)
            return answer

        return called


def test_nothing_that_a_scheduler_is_handed_leads_to_the_true_length() -> None:
    """One instance whose blocks do not suffice for two, and clients that do not wait for long."""
    tight = scenario()
    tight["workload"] |= {"rate": "0.2/s", "timeout": "80s"}
    tight["cluster"] |= {"instances": 1, "max_batch_size": 2, "kv": {"gpu_blocks": 5000}}
    scheduler = Peeping()
    result = headway.simulate(tight, scheduler=scheduler)
    assert sum(result.requests["preemptions"]) > 0
    assert {"completed", "timed_out"} <= set(result.requests["outcome"])
    assert set(scheduler.probe.calls) == {"add", "put_back", "first", "take", "remove", "order", "chunk"}
    assert scheduler.probe.visited > 10
    assert not scheduler.probe.found


def test_nothing_that_flow_control_is_handed_leads_to_the_true_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests at a time; of the others some are sent, some wait too long, some give up, some find no place."""
    probe = Probe()

    def watched(name: str, method: Any) -> Any:
        def called(self: Any, *arguments: Any) -> Any:
            answer = method(self, *arguments)
            probe.search(name if answer is None else f"{name} some", self, *arguments, answer)
            return answer

        return called

    for name in ("bind", "put", "take", "pop_expired", "excess", "remove"):
        monkeypatch.setattr(Bands, name, watched(name, getattr(Bands, name)))
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1, "order": "priority"}
    for limits in ({"ttl": "30s"}, {"capacity": 1}, {}):
        given = scenario(policies={"priority": "shortest-prompt", "flow": {**flow, **limits}})
        given["workload"] |= {"rate": "0.2/s", "timeout": "80s"}
        headway.simulate(given)
    assert set(probe.calls) >= {
        "bind",
        "put",
        *(f"{name} some" for name in ("take", "pop_expired", "excess", "remove")),
    }
    assert probe.visited > 50
    assert not probe.found


@pytest.mark.parametrize("name", registry.names("scheduler"))
def test_no_scheduler_s_order_depends_on_lengths_that_nothing_has_shown_yet(name: str, tmp_path: Path) -> None:
    """Thirty prompts, of which one at a time is computed, chunk by chunk and token by token: while the first request
    is at it, whatever the others will generate, they line up alike."""
    assert len(lined_up(tmp_path, {"scheduler": name})) == 1


@pytest.mark.parametrize("name", registry.names("priority"))
def test_no_priority_depends_on_lengths_that_nothing_has_shown_yet(name: str, tmp_path: Path) -> None:
    assert len(lined_up(tmp_path, {"priority": name, "scheduler": {"name": "priority", "aging": 0}})) == 1
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1, "order": "priority"}
    assert len(lined_up(tmp_path, {"priority": name, "flow": flow})) == 1


STRICT: dict[str, Json] = {  # where the defaults would let all of them in
    "max-concurrency": {"max_queue": 10},
    "tier-shed": {"keep": "realtime", "max_load": 9},
    "saturation": {"sheddable": None},
    "probabilistic": {"sheddable": None},
    "tenant-fair": {"total": 10},
    "deadline": {"targets": {"standard": "50ms"}},
    "load-shedding": {"hard_load": 9},
}


@pytest.mark.parametrize("name", registry.names("admission"))
def test_nobody_is_turned_away_by_lengths_that_nothing_has_shown_yet(name: str, tmp_path: Path) -> None:
    spec: Json = {"name": name, **STRICT.get(name, {})}
    if name == "all-of":
        spec["policies"] = [{"name": one, **given} for one, given in STRICT.items()]
    found = lined_up(tmp_path, {"admission": spec})
    assert len(found) == 1
    assert (len(next(iter(found))) < 30) == (name != "always")


def lined_up(folder: Path, policies: Json) -> set[tuple[int, ...]]:
    """The orders in which thirty requests start that come while the first is at it, for short and long outputs; those
    that were turned away are not among them."""
    orders = set()
    for output in (1, 7, 3000):
        rows = [
            {"timestamp": number, "input_length": 20 + number * 17 % 400, "output_length": output + number}
            for number in range(30)
        ]
        rows[0]["output_length"] = 50
        file = folder / f"{output}.jsonl"
        file.write_text("".join(json.dumps({**row, "hash_ids": [number]}) + "\n" for number, row in enumerate(rows)))
        run = {
            "defaults": "2026-11",
            "seed": 3,
            "workload": {"trace": {"format": "mooncake", "path": str(file)}},
            "cluster": {"instances": 1, "max_batch_size": 1, "latency": {"model": "fixed", "decode_tokens_per_s": 100}},
            "policies": policies,
        }
        started = headway.simulate(run).requests["started_ps"]
        orders.add(tuple(sorted([row for row in range(30) if started[row] >= 0], key=started.__getitem__)))
    return orders


@pytest.mark.parametrize("name", ["workload.output_tokens", "workload.prompt_tokens", "workload.arrivals"])
def test_a_policy_s_random_streams_are_not_the_workload_s(name: str) -> None:
    """Else it could draw ahead what the requests will be: here, the lengths of a uniform law."""

    class Clairvoyant(Probe):
        def bind(self, context: Any) -> None:
            uniform = context.rng(name).random
            self.guesses = [int(uniform() * 1000) for _ in range(200)]

        def admit(self, request: Request, cluster: ClusterView) -> Admit:
            return ADMIT

        def route(self, request: Request, cluster: ClusterView) -> Route:
            return Route(cluster.instances[0].id)

        def observe(self, event: Any) -> None: ...

    values = {"dist": "empirical", "values": list(range(1, 1001))}
    workload = {"requests": 200, "rate": "10/s", "prompt_tokens": values, "output_tokens": values}
    routing = Clairvoyant()
    result = headway.simulate({"seed": 5, "workload": workload}, routing=routing)
    for column in ("prompt_tokens", "output_tokens"):
        guessed = sum(guess + 1 == drawn for guess, drawn in zip(routing.guesses, result.requests[column], strict=True))
        assert guessed < 10, f"{guessed} of 200 {column} were foretold"


# --- the policy language -----------------------------------------------------------------------------------------


def every(
    record: int, name: str, past: tuple[str, ...] = ("output_tokens", "throughput", "tokens_per_second")
) -> list[str]:
    """Expressions that read each number of a record; how much has been generated by those that ended is no secret."""
    fields = lang.FIELDS[record]
    numeric = [one for one, field in fields.items() if field.kind & lang.NUMBER and one not in past]
    return [f"({name}.{one} or 0)" for one in numeric]


def reading(stage: str) -> str:
    """A program that reads all that its stage is handed."""
    request, cluster = every(lang.REQUEST, "request"), every(lang.CLUSTER, "cluster")
    seen = [*request, *cluster, *every(lang.TOTALS, "cluster.totals"), *every(lang.TENANT, "tenant(request)")]
    parts = {
        "routing": (
            "score(request, instance, cluster)",
            [*seen, *every(lang.INSTANCE, "instance"), "cached_tokens(instance)"],
        ),
        "admission": ("admit(request, cluster)", seen),
        "priority": ("prioritise(request, cluster)", seen),
        "scheduler": ("key(ticket)", [*every(lang.REQUEST, "ticket.request"), *every(lang.TICKET, "ticket")]),
    }
    head, read = parts[stage]
    lines = "".join(f"    n = (n * 7.3 + {one}) % 1009.0\n" for one in read)
    given = "n < 800 or cluster.now == 0" if stage == "admission" else "n"
    return f"def {head}:\n    n = 0.5\n{lines}    return {given}\n"


def test_no_field_of_the_language_is_an_id_or_leads_to_one() -> None:
    """By which a policy could know a request again, or the simulator's state."""
    names = {name for fields in lang.FIELDS.values() for name in fields}
    assert not names & {
        "id",
        "path",
        "keys",
        "ends",
        "deadline_ps",
        "arrival_ps",
        "now_ps",
        "rank",
        "views",
        "estimate",
    }
    # A field is plain, a tuple of names, a read-only mapping to numbers or tenants, or leads to another record.
    known = lang.NUMBER | lang.STR | lang.NONE | lang.TUPLE | lang.ROW_TUPLES | sum(lang.MAPPINGS) | lang.RECORD
    for fields in lang.FIELDS.values():
        for name, field in fields.items():
            assert field.kind and not field.kind & ~known, name


def test_what_the_language_can_read_of_a_record_is_what_its_kind_says() -> None:
    """Of every record that a run hands to routing, at every decision, and never the true length."""
    found: list[str] = []

    class Reader(Probe):
        def route(self, request: Request, cluster: ClusterView) -> Route:
            tenant = cluster.tenants[request.tenant]
            records = {lang.REQUEST: request, lang.CLUSTER: cluster, lang.TOTALS: cluster.totals, lang.TENANT: tenant}
            for record, thing in (*records.items(), *((lang.INSTANCE, view) for view in cluster.instances)):
                for name, field in lang.FIELDS[record].items():
                    value = getattr(thing, name)
                    kind = (
                        lang.INSTANCES
                        if value is cluster.instances
                        else sum(lang.MAPPINGS)
                        if isinstance(value, Mapping)
                        else next(
                            (record for view, record in lang.KINDS_OF_VIEWS.items() if isinstance(value, view)),
                            of_value(value),
                        )
                    )
                    if not field.kind & kind:
                        found.append(f"{name} is {value!r}")
                    if value == TRUE_LENGTH and name != "output_tokens":
                        found.append(name)
            self.requests.append(request)
            return Route(cluster.instances[request.id % len(cluster.instances)].id)

        def observe(self, event: Any) -> None: ...

    Reader.entry = replace(registry.default_entry("routing", Reader), exact=("all", "expected_tokens"))  # type: ignore[attr-defined]
    routing = Reader()
    headway.simulate(scenario(), routing=routing)
    assert len(routing.requests) == 12
    assert not found


@pytest.mark.parametrize("stage", ["admission", "priority", "routing"])
def test_nothing_that_a_program_closes_over_leads_to_the_true_length(stage: str) -> None:
    probe = Probe()
    policy = registry.build(stage, {"name": "code", "source": reading(stage)}, f"policies.{stage}")
    start = policy.restart

    def restart() -> None:
        start()
        decide = getattr(policy, METHODS[stage])

        def watched(*arguments: object) -> object:
            probe.search(stage, policy.running, decide, *arguments)
            return decide(*arguments)

        setattr(policy, METHODS[stage], watched)

    policy.restart = restart
    headway.simulate(scenario(), **{stage: policy})
    assert probe.calls[stage] >= 12 and probe.visited > 50
    assert not probe.found


def test_no_program_s_decision_depends_on_lengths_that_nothing_has_shown_yet(tmp_path: Path) -> None:
    """Programs that read everything line thirty requests up alike, whatever these will generate."""
    code = {stage: {"name": "code", "source": reading(stage)} for stage in ("admission", "priority", "scheduler")}
    assert len(lined_up(tmp_path, {"scheduler": code["scheduler"]})) == 1
    assert len(lined_up(tmp_path, {"priority": code["priority"], "scheduler": {"name": "priority", "aging": 0}})) == 1
    turned = lined_up(tmp_path, {"admission": code["admission"]})
    assert len(turned) == 1 and 0 < len(next(iter(turned))) < 30
    assert len(routed_alike(tmp_path, {"name": "code", "source": reading("routing")})) == 1


# --- max_tokens --------------------------------------------------------------------------------------------------


def test_max_tokens_is_none_unless_it_was_declared() -> None:
    routing = Probe()
    headway.simulate(scenario(), routing=routing)
    assert [request.max_tokens for request in routing.requests] == [None] * 12


def test_max_tokens_is_none_on_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 100, "output_length": TRUE_LENGTH, "hash_ids": [1]}
    file.write_text((json.dumps(row) + "\n") * 5)
    routing = Probe()
    result = headway.simulate(scenario(workload={"trace": {"path": str(file)}}), routing=routing)
    assert result.requests["output_tokens"] == [TRUE_LENGTH] * 5
    assert [request.max_tokens for request in routing.requests] == [None] * 5
    assert not routing.found


def test_declared_max_tokens_are_the_client_s_and_no_one_else_s() -> None:
    workload = {**scenario()["workload"], "requests": 200, "output_tokens": {"dist": "exponential", "mean": 40}}
    columns = []
    for declared in (500, {"dist": "empirical", "values": [300, 500, 700]}):
        routing = Probe()
        routing.search = lambda place, *roots: None  # type: ignore[method-assign]
        result = headway.simulate(scenario(workload={**workload, "max_tokens": declared}), routing=routing)
        columns.append(result.requests["output_tokens"])
        known = {request.max_tokens for request in routing.requests}
        assert known == ({500} if declared == 500 else {300, 500, 700})
    assert columns[0] == columns[1]  # what is declared has no bearing on what is generated, as long as it allows it


# --- black box ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names("routing"))
def test_no_decision_depends_on_lengths_that_nothing_has_shown_yet(name: str, tmp_path: Path) -> None:
    """Thirty requests come while the first prompts are still being computed: whatever their outputs will be, they are
    routed alike. This holds of oracles too, which know the caches and not the future."""
    oracle = {"name": "weighted", "scorers": {"oracle-prefix": 1, "predicted-latency": 1, "kv-utilization": 1}}
    for routing in (name, oracle) if name == "weighted" else (name,):
        assert len(routed_alike(tmp_path, routing)) == 1


def routed_alike(folder: Path, routing: object) -> set[tuple[str, ...]]:
    """The ways in which thirty requests are routed that come before any first token, for short and long outputs."""
    decisions = set()
    for output in (1, 7, 3000):
        rows = [
            {
                "timestamp": number,
                "input_length": 600,
                "output_length": output + number * (output > 1),
                "hash_ids": [number % 4, 100 + number],
            }
            for number in range(30)
        ]
        file = folder / f"{output}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        cluster = {"instances": 4, "latency": {"model": "fixed", "prefill_tokens_per_s": 1000}}
        workload = {"trace": {"format": "mooncake", "path": str(file)}}
        run = {"seed": 3, "workload": workload, "cluster": cluster, "policies": {"routing": routing}}
        columns = headway.simulate(run).requests
        assert min(columns["first_token_ps"]) > max(columns["arrival_ps"])
        decisions.add(tuple(columns["instance"]))
    return decisions

"""Deciders: what each answers, by hand; the stage in scenarios and comparisons; and the leap."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import headway
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.experiment.notes import note_former_decider
from headway.policies import registry
from headway.policies.context import Context
from headway.types import PS_PER_SECOND, Path, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Finished, FirstToken
from headway.views.instance import InstanceView

Json = dict[str, Any]
SECOND = PS_PER_SECOND


class Steps:
    """An estimator: 10 ms for a step, and 1 ms for each prompt token and each decode."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.01 + 0.001 * (prefill_tokens + decodes) if prefill_tokens or decodes else 0.0


def cluster(prefill: int = 1, decode: int = 3) -> list[InstanceView]:
    roles = ["prefill"] * prefill + ["decode"] * decode
    return [
        InstanceView(index, f"i{index}", role=role, kv_blocks=1000, max_batch_tokens=1000)
        for index, role in enumerate(roles)
    ]


def ask(number: int, tokens: int = 100, **fields: Any) -> Request:
    return Request(number, 0, tokens, Path((4 * number + 1,), (tokens,)), **fields)


class Bench:
    def __init__(self, spec: Any, views: list[InstanceView] | None = None) -> None:
        self.views = views or cluster()
        self.cluster = ClusterView(self.views)
        self.policy = registry.build("decider", spec, "policies.decider")
        self.context = Context(self.views, lambda name: Random(name), Steps(), 16)
        if hasattr(self.policy, "bind"):
            self.policy.bind(self.context)

    def ask(self, request: Request, at: int = 1) -> Any:
        return self.policy.apart(request, self.views[at], self.cluster)


# --- what each answers -----------------------------------------------------------------------------------------------


def test_the_estimated_ttft_of_a_split_includes_the_transfer() -> None:
    """By hand: 100 tokens take 110 ms anywhere, and each pending token 1 ms more. The transfer takes 50 ms + 100 tokens
    at 1000 tokens/s."""
    spec = {"name": "estimated-ttft", "latency": "50ms", "kv_tokens_per_s": 1000}
    bench = Bench(spec)
    assert bench.ask(ask(0)) is False  # 110 + 150 ms against 110 ms
    bench.views[1].pending_prefill_tokens = 140
    assert bench.ask(ask(0)) is False  # 260 ms against 250 ms
    bench.views[1].pending_prefill_tokens = 160
    assert bench.ask(ask(0)) is True  # 260 ms against 270 ms
    bench.views[0].pending_prefill_tokens = 20
    assert bench.ask(ask(0)) is False
    careful = Bench({**spec, "margin": 2}, bench.views)
    bench.views[0].pending_prefill_tokens = 0
    assert careful.ask(ask(0)) is False  # 520 ms


def test_what_is_cached_need_not_be_computed_on_either_side() -> None:
    bench = Bench({"name": "estimated-ttft", "latency": "1ps", "kv_tokens_per_s": 1e12})
    bench.views[1].pending_prefill_tokens = 50
    request = ask(0, 160)
    assert bench.ask(request) is True
    (index,) = bench.context.indexes
    index.touch(1, request.path)  # the decode instance computes 1 + 50 tokens, the prefill instance 160
    assert bench.ask(request) is False


def test_lent_are_the_last_decode_instances_while_prefill_is_short() -> None:
    bench = Bench({"name": "lend", "wait": "200ms", "share": 0.34})
    assert bench.ask(ask(0)) is True
    bench.views[0].pending_prefill_tokens = 190
    assert bench.ask(ask(0)) is True  # a wait of 200 ms
    bench.views[0].pending_prefill_tokens = 191
    answer = bench.ask(ask(0))
    assert isinstance(answer, Route) and answer.target == "i3" and answer.reason.startswith("lent")
    bench.views[3].pending_prefill_tokens = 191
    assert bench.ask(ask(0)) is True  # the lent instance would be no earlier
    assert Bench({"name": "lend", "share": 1, "wait": "1ps"}, bench.views).ask(ask(0)).target == "i1"


def drift(**parameters: Any) -> Json:
    fixed = {
        "targets": {"standard": "1s"},
        "itl": "100ms",
        "reference": "1s",
        "latency": "100ms",
        "kv_tokens_per_s": 1e12,
    }
    return {"name": "drift-plus-penalty", "nominal_prompt": 100, **fixed, **parameters}


def test_the_drift_plus_penalty_by_hand() -> None:
    """The work of 100 tokens is 110 - 11 = 99 ms. A decode adds 1 ms, a nominal prompt 99 ms. The free shares are
    1 - 11/100 = 0.89 and 1 - 11/110 = 0.9. The transfer costs v x 0.1 s / 1 s x 1 s / 1 s."""
    bench = Bench(drift(v=1))
    for inflight, split in ((800, False), (801, True), (1000, True)):  # 0.099 x Q / 0.89^2 > 0.1: Q > 0.80010 s
        bench.views[1].inflight = inflight
        assert bench.ask(ask(0)) is split
    bench.views[0].inflight = 3  # prefill has 0.297 s of work: 0.099 x 0.297 / 0.9^2 = 0.0363 less
    assert bench.ask(ask(0)) is False
    assert Bench(drift(v=0), bench.views).ask(ask(0)) is True


def test_missed_targets_turn_the_drift_plus_penalty() -> None:
    """A class that misses its time to first token is split if, and only if, that is expected to be sooner."""
    bench = Bench(drift(v=2))
    bench.views[1].inflight = 1500  # t_d = (1.5 + 0.099) / 0.89 = 1.80 s, t_p = 0.099 / 0.9 + 0.1 = 0.21 s
    assert bench.ask(ask(0)) is False  # 0.099 x 1.5 / 0.7921 = 0.187 against 0.2
    late = ask(7)
    bench.policy.observe(FirstToken(3 * SECOND, late, bench.views[1]))
    bench.policy.observe(Finished(3 * SECOND, late, bench.views[1], "completed", 1))
    assert bench.policy.debts["standard"].ttft == 2.0
    assert bench.ask(ask(0)) is True  # 2 x (0.21 - 1.80) less
    assert bench.ask(ask(0, slo_class="batch")) is False  # the other class is not late
    bench.views[0].inflight, bench.views[1].inflight = 30, 5000  # t_p = (2.97 + 0.099) / 0.9 + 0.1 = 3.51 s
    assert Bench(drift(v=0), bench.views).ask(ask(0)) is True  # 0.099 x (5 / 0.7921 - 2.97 / 0.81) = 0.262
    bench.views[1].inflight = 3000  # t_d = 3.48 s; 0.099 x (3 / 0.7921 - 2.97 / 0.81) = 0.0119
    bench.policy.v = 0.0
    assert Bench(drift(v=0), bench.views).ask(ask(0)) is True
    assert bench.ask(ask(0)) is False  # 2 x (3.51 - 3.48) = 0.06 more
    for number in range(2):  # two early ones pay the debt back
        early = ask(20 + number)
        bench.policy.observe(FirstToken(1, early, bench.views[1]))
        bench.policy.observe(Finished(2, early, bench.views[1], "completed", 1))
    assert bench.policy.debts["standard"].ttft < 1e-9
    assert bench.ask(ask(0)) is True


def test_late_tokens_keep_prompts_away_from_the_decode_instance() -> None:
    bench = Bench(drift(v=1))
    bench.views[1].inflight = 500
    assert bench.ask(ask(0)) is False
    slow = ask(7)
    bench.policy.observe(FirstToken(0, slow, bench.views[1]))
    bench.policy.observe(Finished(3 * SECOND, slow, bench.views[1], "completed", 11))  # 300 ms a token
    assert bench.policy.debts["standard"].itl == pytest.approx(0.2)
    assert bench.ask(ask(0)) is True  # 0.2 / 0.1 x 0.099 / 0.1 = 1.98 less


def test_a_prompt_that_is_cached_is_not_split() -> None:
    bench = Bench(drift(v=0))
    bench.views[1].inflight = 1000
    request = ask(0, 160)
    assert bench.ask(request) is True
    (index,) = bench.context.indexes
    index.touch(1, request.path)
    assert bench.ask(request) is False


# --- the stage -------------------------------------------------------------------------------------------------------


def scenario(**policies: Any) -> Json:
    return {
        "seed": 3,
        "workload": {
            "requests": 120,
            "rate": "40/s",
            "prompt_tokens": {"dist": "lognormal", "mean": 800, "std": 800, "min": 20, "max": 6000},
            "output_tokens": {"dist": "exponential", "mean": 40},
            "prefix": {"groups": 3, "tokens": 200},
        },
        "cluster": {
            "architecture": "disaggregated",
            "prefill": {"instances": 1},
            "decode": {"instances": 3},
            "gpu": "h100",
            "model": "llama-3.1-8b",
        },
        "policies": {"routing": "pair", **policies},
    }


def split(**policies: Any) -> tuple[float, float]:
    found = headway.simulate(scenario(**policies)).summary()["policy_metrics"]
    return found["pair_split"], found["pair_whole"]


def test_the_decider_is_a_stage_and_its_old_place_still_works() -> None:
    assert split() == (120, 0)
    assert split(decider="never") == (0, 120)
    assert split(routing="least-loaded", decider="never") == (0, 120)
    threshold = {"name": "prompt-threshold", "colocate_below_tokens": 800}
    assert split(decider=threshold) == split(routing={"name": "pair", "decider": threshold}) != (120, 0)
    with pytest.raises(HeadwayError, match=r"policies\.decider"):
        headway.simulate(scenario(routing={"name": "pair", "decider": "never"}, decider="never"))


def test_a_note_names_the_new_place() -> None:
    old = headway.Scenario.load(scenario(routing={"name": "pair", "decider": "never"}))
    assert "Write policies.decider" in (note_former_decider(old) or "")
    assert note_former_decider(headway.Scenario.load(scenario(decider="never"))) is None


def test_a_comparison_ranks_deciders() -> None:
    found = headway.compare(scenario(), ["always", "never", "drift-plus-penalty"], stage="decider", progress=False)
    assert {row["policy"] for row in found.rows} == {"always", "never", "drift-plus-penalty"}


def test_the_stage_is_in_the_resolved_scenario_only_if_it_differs() -> None:
    assert "decider" not in headway.Scenario.load(scenario()).resolved()["policies"]
    resolved = headway.Scenario.load(scenario(decider="lend")).resolved()
    assert resolved["policies"]["decider"]["name"] == "lend"
    assert headway.Scenario.load(resolved).resolved() == resolved


def plane(decider: Any) -> ControlPlane:
    views = cluster()
    context = Context(views, lambda name: Random(name), Steps(), 16)
    built = [registry.build(*spec, "") for spec in (("admission", "always"), ("priority", "none"), ("routing", "pair"))]
    return ControlPlane(context, *built, decider=decider)


@pytest.mark.parametrize("answer", ["i9", 1, None, Route("i0"), Route("i9"), Route("i1", prefill="i0"), Reject("no")])
def test_a_wrong_answer_is_told(answer: Any) -> None:
    class Wrong:
        def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> Any:
            return answer

    with pytest.raises(HeadwayError, match=r"policies\.decider: Wrong.apart must return True, False, or a Route"):
        plane(Wrong()).arrive(0, ask(0))


def test_a_decider_sees_both_sides_and_may_choose_where_a_request_stays_whole() -> None:
    class Mine:
        def apart(self, request: Request, view: InstanceView, cluster: ClusterView) -> Any:
            assert [each.role for each in cluster.instances] == ["prefill", "decode", "decode", "decode"]
            return Route("i3", "mine", 7)

    flight = plane(Mine()).arrive(0, ask(0))
    assert isinstance(flight, Flight)
    assert (flight.view.id, flight.prefill, flight.cached, flight.reason) == ("i3", None, 7, "mine")


# --- the leap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names("decider"))
def test_the_leap_equals_the_walk_and_random_cuts(name: str) -> None:
    found = []
    for leap in (True, False, "random-cuts"):
        run = {**scenario(decider={"name": name, **({"wait": "5ms"} if name == "lend" else {})}), "leap": leap}
        run["routers"] = {"count": 2, "sync_interval": "50ms"}
        result = headway.simulate(run)
        found.append(({name: result.requests[name] for name in result.requests}, result.summary()))
    assert found[0] == found[1] == found[2]

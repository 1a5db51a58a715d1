"""A scenario simulated and live, side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from conftest import ROOT
from headway.errors import HeadwayError
from headway.gateway.live_policies import read_policies
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.twin.check import HITS, SPREAD, TTFT, Pair, Twin, twin
from headway.twin.live_cluster import check, gateway_file, meanwhile, pace, tick_s, wait_until_applied
from headway.types import PS_PER_SECOND

WORKLOAD = {
    "requests": 60,
    "rate": "60/s",
    "prompt_tokens": {"dist": "uniform", "min": 2100, "max": 3000},
    "output_tokens": 4,
    "prefix": {"groups": 6, "tokens": 2048},
}
SCENARIO: dict[str, Any] = {
    "name": "small",
    "seed": 2,
    "workload": WORKLOAD,
    "cluster": {"instances": 4, "model": "llama-3.1-8b", "gpu": "h200"},
    "signals": {"poll_interval": "100ms", "poll_delay": "5ms"},
}


@pytest.mark.full
def test_round_robin_is_the_same_in_both_worlds(tmp_path: Path) -> None:
    """A policy without signals: targets and cache hits are equal to the last token."""
    result = twin(SCENARIO, "round-robin", output=tmp_path)
    (pair,) = result.pairs
    assert pair.live["requests"]["completed"] == 60
    assert abs(pair.errors[HITS]) < 0.01 and pair.errors[SPREAD] == 0.0
    assert [one["requests"] for one in pair.live["instances"]] == [15] * 4
    kept = [Result.load(tmp_path / "round-robin" / side) for side in ("simulated", "live")]
    assert kept[0].requests.column("arrival_ps") == kept[1].requests.column("arrival_ps")
    assert kept[0].requests.column("prompt_tokens") == kept[1].requests.column("prompt_tokens")
    assert kept[0].requests.column("output_tokens") == kept[1].requests.column("output_tokens")


@pytest.mark.full
def test_ranks_are_the_same_in_both_worlds(tmp_path: Path) -> None:
    """The gateway addresses the ranks of two engines, which step in lockstep."""
    ranks = {"instances": 2, "model": "qwen3-30b-a3b", "gpu": "h200", "dp": 2, "ep": True, "dp_balance": "direct"}
    (pair,) = twin({**SCENARIO, "cluster": ranks}, "round-robin", output=tmp_path).pairs
    assert pair.live["requests"]["completed"] == 60
    assert abs(pair.errors[HITS]) < 0.01 and pair.errors[SPREAD] == 0.0
    assert {one["id"]: one["requests"] for one in pair.live["instances"]} == {
        f"instance-{engine}-rank-{rank}": 15 for engine in (0, 1) for rank in (0, 1)
    }


@pytest.mark.full
def test_the_plain_set_up_agrees_also_where_a_policy_goes_by_what_replicas_report(tmp_path: Path) -> None:
    """Run the beginning of the example: eight equal replicas and default policies. On a busy machine the live run is
    late, so the test repeats it more slowly: the same delay is then a smaller share."""
    loaded = Scenario.load(ROOT / "examples" / "20_twin.yaml", "workload.requests=130")
    seen = []
    for step_ms in (30, 60, 120):
        output = tmp_path / str(step_ms)
        result = twin(loaded, "round-robin,weighted", step_ms=step_ms, output=output)
        seen.append([pair.errors for pair in result.pairs])
        if result.agrees:
            break
    assert result.agrees and result.order("live") == ["weighted", "round-robin"], seen
    kept = [Result.load(output / "weighted" / side).requests for side in ("simulated", "live")]
    # Until the first report the router uses its own counts: only the order of requests is left to chance.
    due_ps = loaded.signals.poll_interval_ps + loaded.signals.poll_delay_ps
    before = len([one for one in kept[0].column("arrival_ps") if one < due_ps])
    went = [one.column("instance")[:before] for one in kept]
    assert before > 40 and sum(map(int.__ne__, *went)) <= before / 10


def test_a_step_lasts_so_long_by_the_wall_at_least() -> None:
    loaded = Scenario.load(SCENARIO)
    from headway.experiment.engines import engines

    shortest_ps = engines(loaded.cluster)[0].latency.run(1, 1, ())[0]
    speed = pace(loaded)
    assert shortest_ps / 1e9 / speed >= 20.0 > 0.9 * shortest_ps / 1e9 / speed
    assert pace(loaded, 0.001) == 1.0


def test_the_gateway_polls_as_the_scenarios_router_does_in_simulated_time() -> None:
    loaded = Scenario.load(SCENARIO)
    urls = {f"instance-{number}": f"http://127.0.0.1:{9000 + number}" for number in range(4)}
    file = gateway_file(loaded, {"routing": "lmetric"}, 0.25, urls)
    assert file["signals"]["interval"] == "0.4s" and file["policies"]["routing"] == "lmetric"
    assert file["signals"]["ticks"] == "0.02s" and tick_s(loaded, 0.25) == 0.4
    assert tick_s(loaded, 0.26) * 0.26 * PS_PER_SECOND == pytest.approx(loaded.signals.poll_interval_ps, rel=1e-5)
    assert list(file["backends"]) == list(urls) and file["tokens"]["block_tokens"] == 16


def test_policies_that_the_gateway_refuses_are_told(tmp_path: Path) -> None:
    class Router:
        def wait_for(self, pattern: str) -> str:
            said = "headway: f.yaml: the new content is refused, and the old settings stay: policies: are odd.\n"
            assert re.search(pattern, said)
            return said

    with pytest.raises(HeadwayError, match=r"^policies: are odd\.$"):
        wait_until_applied(Router())  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin", {"name": "least-loaded"}, {"name": "weighted"}])
def test_other_policies_decide_while_a_twin_gets_warm_so_that_its_own_begin_anew(routing: Any) -> None:
    own = {"routing": routing}
    assert read_policies(meanwhile(own)) != read_policies(own)


def summary(ttft: float, hits: float, shares: list[float]) -> dict[str, Any]:
    return {
        "latency": {"ttft": {"mean": ttft}},
        "cache": {"token_hit_ratio": hits},
        "instances": [{"id": f"i{number}", "share": share} for number, share in enumerate(shares)],
    }


def test_what_is_off_by_too_much_is_told() -> None:
    base = summary(100.0, 0.5, [0.5, 0.5])
    good = Pair("a", base, summary(109.0, 0.515, [0.54, 0.46]))
    assert good.errors == pytest.approx({TTFT: 0.09, HITS: 0.015, SPREAD: 0.04}) and not good.missed
    assert Pair("b", base, summary(111.0, 0.5, [0.5, 0.5])).missed == [TTFT]
    assert Pair("c", base, summary(100.0, 0.47, [0.5, 0.5])).missed == [HITS]
    assert Pair("d", base, summary(100.0, 0.5, [0.6, 0.4])).missed == [SPREAD]


def test_another_order_of_the_policies_is_told() -> None:
    a = Pair("a", summary(100.0, 0.5, [1.0]), summary(105.0, 0.5, [1.0]))
    b = Pair("b", summary(104.0, 0.5, [1.0]), summary(103.0, 0.5, [1.0]))
    result = Twin("x", 1.0, 1, [a, b])
    assert not result.same_order and not result.agrees and result.order("live") == ["b", "a"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"cluster": {"model": "qwen3-30b-a3b", "dp": 2}}, "cluster.dp_balance: a twin addresses ranks itself"),
        ({"routers": 2}, "routers: a twin supports only one router"),
        ({"faults": [{"instance": "instance-0", "at": "1s", "kind": "crash"}]}, "faults: a twin"),
        (
            {"signals": {"poll_interval": "50ms", "poll_delay": "50ms"}},
            "signals.poll_delay: must be shorter than poll_interval",
        ),
        (
            {"cluster": {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}}},
            "cluster: a twin does not support prefill/decode disaggregation",
        ),
    ],
)
def test_what_has_no_twin_is_told(more: dict[str, Any], why: str) -> None:
    with pytest.raises(HeadwayError, match=why):
        check(Scenario.load({**SCENARIO, **more}))


def test_a_policy_has_one_twin() -> None:
    with pytest.raises(HeadwayError, match="policies: round-robin is listed twice"):
        twin(SCENARIO, "round-robin,round-robin")


def test_the_command_tells_what_is_wrong_in_a_sentence(headway: Any, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SCENARIO))
    for options, why in (
        (["--policies", "oracle-prefix"], "policies"),
        (["--speed", "0"], "--speed: must be above 0"),
        (["--step", "0"], "--step: must be above 0"),
    ):
        completed = headway("twin", str(file), *options)
        assert completed.returncode == 2 and why in completed.stderr and "Traceback" not in completed.stderr

"""Dated sets of defaults: what a file omits, and what a resolved copy says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import headway
from headway import HeadwayError, Scenario
from headway.config.dated_defaults import CURRENT, FIRST, SETS, Dated
from headway.experiment.run import prepare
from headway.latency.hardware_times import Hardware
from headway.report.terminal import describe_scenario
from headway.scenario.scenario import DEFAULT, SignalSpec
from headway.types import PS_PER_SECOND

HALF_A_SECOND = PS_PER_SECOND // 2


def scenario(**more: Any) -> dict[str, Any]:
    small = {"requests": 40, "rate": "40/s", "prompt_tokens": 64, "output_tokens": 32}
    return {"workload": small, "cluster": {"instances": 3}, **more}


def beliefs(loaded: Scenario) -> list[Any]:
    """The sizes that the scorers of the routing policy have in a resolved copy."""
    scorers = loaded.resolved()["policies"]["routing"]["scorers"]
    return [scorer["lru_blocks"] for scorer in scorers if "lru_blocks" in scorer]


def test_every_date_names_a_set_and_presets_have_the_first() -> None:
    assert get_args(Dated) == tuple(SETS)
    assert CURRENT in SETS and next(iter(SETS)) == FIRST
    assert SignalSpec.dated(SETS[FIRST]) == {"poll_interval": "0s", "effective_load": "snapshot"}


@pytest.mark.parametrize(
    ("date", "signals", "belief"),
    [
        ("2026-11", SignalSpec(), 31250),
        ("2026-12", SignalSpec(HALF_A_SECOND, effective_load="outstanding"), "auto"),
    ],
)
def test_a_set_supplies_what_the_file_omits(date: str, signals: SignalSpec, belief: Any) -> None:
    for given in ({}, {"signals": None}, {"signals": {}}, {"signals": {"poll_interval": None}}):
        loaded = Scenario.load(scenario(defaults=date, **given))
        assert loaded.signals == signals
        assert beliefs(loaded) == [belief]
        assert prepare(loaded).setup.auto == (belief == "auto")


@pytest.mark.parametrize("date", SETS)
def test_a_value_in_the_file_always_wins(date: str) -> None:
    routing = {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1, "lru_blocks": 77}]}
    given = {"poll_interval": "50ms", "poll_delay": "5ms", "effective_load": "snapshot"}
    loaded = Scenario.load(scenario(defaults=date, signals=given, policies={"routing": routing}))
    assert loaded.signals == SignalSpec(50 * 10**9, 5 * 10**9)
    assert beliefs(loaded) == [77]
    fresh = Scenario.load(scenario(defaults=date), ["signals.poll_interval=0s", "signals.effective_load=snapshot"])
    assert fresh.signals == SignalSpec()


@pytest.mark.parametrize("date", SETS)
@pytest.mark.parametrize("signals", [{}, {"poll_interval": "0s", "effective_load": "snapshot"}, {"poll_delay": "5ms"}])
def test_a_resolved_copy_can_be_run_again(date: str, signals: dict[str, Any]) -> None:
    if date == FIRST and "poll_delay" in signals:
        signals = {**signals, "poll_interval": "50ms"}
    loaded = Scenario.load(scenario(defaults=date, signals=signals))
    again = Scenario.load(yaml.safe_load(yaml.safe_dump(loaded.resolved())))
    assert again.signals == loaded.signals
    assert (again.resolved(), again.key(), again.defaults) == (loaded.resolved(), loaded.key(), date)
    assert ("defaults" in loaded.resolved()) is (date != CURRENT)


def test_a_run_writes_a_copy_that_gives_the_same_run(tmp_path: Path) -> None:
    done = headway.simulate(scenario(defaults="2026-12"))
    done.save(tmp_path / "run")
    again = headway.simulate(yaml.safe_load((tmp_path / "run" / "scenario.yaml").read_text()))
    assert again.summary() == done.summary()
    assert done.summary() != headway.simulate(scenario(defaults="2026-11")).summary()


def test_sets_are_told_apart_by_the_keys_of_their_runs() -> None:
    keys = {Scenario.load(scenario(defaults=date)).key() for date in SETS}
    assert len(keys) == len(SETS)


def test_presets_have_the_first_set_and_a_trace_of_your_own_the_current_one(tmp_path: Path) -> None:
    assert Scenario.load(DEFAULT).defaults == FIRST
    assert Scenario.load(DEFAULT).signals == SignalSpec()
    assert Scenario.load(DEFAULT, ["defaults=2026-12"]).signals.poll_interval_ps == HALF_A_SECOND
    trace = tmp_path / "mine.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1600000,374,44\n")
    assert Scenario.load(trace).defaults == CURRENT


@pytest.mark.parametrize("date", [2026, "2026-13", "", ["2026-11"], True])
def test_an_unknown_date_is_an_error_that_names_the_known_ones(date: Any) -> None:
    with pytest.raises(HeadwayError, match="defaults: expected '2026-11' or '2026-12', got"):
        Scenario.load(scenario(defaults=date))


PAGE = (Path(__file__).parents[2] / "docs" / "defaults.md").read_text(encoding="utf-8")
SETTINGS, EFFECT = PAGE.split("## Effect on the demo")


def table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.full
def test_the_page_shows_the_effect_on_the_demo() -> None:
    host = "cluster.latency.host=500us"  # that of the first set
    old = headway.compare(overrides=[f"defaults={FIRST}"], progress=False)
    new = headway.compare(overrides=[f"defaults={CURRENT}", host], progress=False)
    assert table(EFFECT)[2:] == [
        [
            f"`{name}`",
            *(f"{100 * each[name]['slo']['goodput_ratio']:.1f} %" for each in (old, new)),
            *(f"{each[name]['latency']['ttft']['p99']:,.0f}" for each in (old, new)),
        ]
        for name, _ in new.ranked
    ]
    assert headway.compare(progress=False).ranked == old.ranked


def test_the_page_shows_the_sets() -> None:
    rows = table(SETTINGS)
    assert rows[0][1:] == [f"`{date}`" for date in SETS]
    for place, defaults in enumerate(SETS.values(), 1):
        poll, load, size, belief = (row[place] for row in rows[2:6])
        assert poll.startswith(f"`{SignalSpec.dated(defaults)['poll_interval']}`")
        assert load == defaults.effective_load
        assert size.startswith("`auto`") is defaults.auto
        assert belief.startswith(f"{defaults.belief}:")
    assert f"Without the key `defaults`, a scenario or a gateway's file has the set {CURRENT}." in PAGE


def test_with_kv_events_the_set_says_which_events_the_router_hears() -> None:
    for date, belief in (("2026-11", "routed"), ("2026-12", "both")):
        assert Scenario.load(scenario(defaults=date)).signals.belief == "routed"
        heard = Scenario.load(scenario(defaults=date, signals={"kv_event_delay": "50ms"}))
        assert heard.signals.belief == belief
        assert Scenario.load(heard.resolved()).signals == heard.signals
        chosen = Scenario.load(scenario(defaults=date, signals={"kv_event_delay": "50ms", "belief": "routed"}))
        assert Scenario.load(chosen.resolved()).signals.belief == "routed"


def test_labels_do_not_show_a_belief_of_the_default_size() -> None:
    for date in SETS:
        for size, shown in ((None, False), (31250, False), ("auto", date == "2026-11"), (500, True)):
            part = {"name": "prefix-affinity", "weight": 1} | ({} if size is None else {"lru_blocks": size})
            routing = {"name": "weighted", "scorers": [part]}
            resolved = Scenario.load(scenario(defaults=date, policies={"routing": routing})).resolved()
            assert ("lru_blocks" in describe_scenario({"defaults": date, **resolved})[1]) == shown


# --- the engine of step times -----------------------------------------------------------------------------------------


def engine_of(date: str, pool: str = "default", **cluster: Any) -> str:
    loaded = Scenario.load(scenario(defaults=date, cluster=cluster))
    model = loaded.cluster.scaling_pools()[pool].latency_model()
    assert Scenario.load(loaded.resolved()).key() == loaded.key()
    return model.profile.engine if isinstance(model, Hardware) else type(model).__name__


def test_a_card_whose_host_time_was_not_measured_has_the_default_engine() -> None:
    for gpu in ("h100", "h200", "l40s"):
        assert engine_of("2026-11", gpu=gpu) == ""
        assert engine_of("2026-12", gpu=gpu) == SETS["2026-12"].engine == "vllm-0.18"
    for gpu in ("rtx-4090", "rtx-pro-6000"):
        assert engine_of("2026-11", gpu=gpu) == engine_of("2026-12", gpu=gpu) == "vllm 0.19.0"


def test_whoever_sets_the_host_time_or_the_engine_gets_that() -> None:
    for latency in ({"host": "1ms"}, {"host_sequence": "1us"}, {"default_engine": "auto"}):
        assert engine_of("2026-12", latency=latency) == ""
    assert engine_of("2026-12", latency={"engine": "vllm-0.19"}) == "vllm-0.19"
    assert engine_of("2026-11", latency={"default_engine": "vllm-0.19"}) == "vllm-0.19"
    assert engine_of("2026-12", latency={"model": "roofline"}) == "Roofline"
    with pytest.raises(HeadwayError, match=r"latency\.default_engine: no engine in the table is called 'vllm-9'"):
        engine_of("2026-12", gpu="rtx-4090", latency={"default_engine": "vllm-9"})


def test_each_pool_has_the_default_engine() -> None:
    half = {"instances": 1, "latency": {"model": "hardware"}}
    assert engine_of("2026-12", "decode", architecture="disaggregated", prefill=half, decode=half) == "vllm-0.18"
    pools = {"a": {"instances": 1}, "b": {"instances": 1, "latency": None}, "c": {"instances": 1, "gpu": "rtx-4090"}}
    pools["d"] = {"instances": 1, "latency": {"model": "roofline"}}
    assert [engine_of("2026-12", name, deployments=pools) for name in pools] == [
        "vllm-0.18", "vllm-0.18", "vllm 0.19.0", "Roofline"
    ]  # fmt: skip
    assert engine_of("2026-11", "a", deployments=pools) == ""


def test_the_first_set_writes_no_default_engine() -> None:
    for date, keys in (("2026-11", set()), ("2026-12", {"default_engine"})):
        resolved = Scenario.load(scenario(defaults=date, cluster={"instances": 1})).resolved()
        assert set(resolved["cluster"]["latency"]) == {"model", "profile", "host"} | keys

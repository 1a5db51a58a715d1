"""Weighted profiles as llm-d's EndpointPickerConfig, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Run
from headway.errors import HeadwayError
from headway.interop.llmd import export_profile, import_config
from headway.scenario.scenario import Policies

PREFIX = {"block_tokens": 64, "lru_blocks": 5000}
PROFILES: list[dict[str, Any]] = [
    {"name": "weighted"},
    {"name": "weighted", "scorers": "kv-utilization:1,active-requests:2.5"},
    {
        "name": "weighted",
        "scorers": {"prefix-affinity": {"weight": 3, **PREFIX}, "no-hit-lru": {"weight": 1, **PREFIX}},
    },
    {
        "name": "weighted",
        "scorers": [{"name": "prefix-affinity", "weight": 1, **PREFIX}, {"name": "no-hit-lru", "weight": 0.25}],
        "filters": [{"name": "load-below", "max_load": 12}],
        "picker": "weighted-random",
    },
    {"name": "weighted", "scorers": {"prefix-affinity": {"weight": 1, "block_tokens": 64, "lru_blocks": "auto"}}},
    {"name": "weighted", "scorers": {"session-affinity": 1, "queue-depth": 1, "adapter-affinity": 2}},
]


def meant(routing: Any) -> Any:
    return Policies(routing=routing).explicit("routing")


def config(text: str) -> Any:
    return {"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"} | yaml.safe_load(
        text
    )


def profile(*types: str, **weights: float) -> Any:
    plugins = [{"type": one} for one in types]
    refs = [{"pluginRef": one} | ({"weight": weights[one]} if one in weights else {}) for one in types]
    return config(yaml.safe_dump({"plugins": plugins, "schedulingProfiles": [{"name": "default", "plugins": refs}]}))


@pytest.mark.parametrize("routing", PROFILES)
def test_a_profile_that_goes_out_and_comes_back_is_the_same(routing: dict[str, Any]) -> None:
    out = export_profile(routing)
    back = import_config(yaml.safe_load(out.text), "x")
    assert meant(back.document["policies"]["routing"]) == meant(routing)
    assert export_profile(back.document["policies"]["routing"]).text == out.text


def test_the_default_profile_is_llm_ds_own() -> None:
    result = export_profile({"name": "weighted"}).document
    assert result["apiVersion"] == "inference.networking.x-k8s.io/v1alpha1"
    assert result["schedulingProfiles"] == [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "prefix-cache-scorer", "weight": 3},
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
                {"pluginRef": "max-score-picker"},
            ],
        }
    ]
    producer = {"autoTune": False, "blockSizeTokens": 16, "lruCapacityPerServer": 31250, "maxPrefixTokensToMatch": 0}
    assert result["plugins"][0] == {"type": "approx-prefix-cache-producer", "parameters": producer}
    assert result["plugins"][-1] == {"type": "single-profile-handler"}


def test_two_prefix_indexes_are_two_producers_that_are_named() -> None:
    result = export_profile(PROFILES[3]).document
    names = [one["name"] for one in result["plugins"] if one["type"] == "approx-prefix-cache-producer"]
    assert names == ["prefix-64-5000", "prefix-16-31250"]
    scorers = {one["type"]: one["parameters"] for one in result["plugins"] if one["type"].endswith("scorer")}
    assert [one["prefixMatchInfoProducerName"] for one in scorers.values()] == names


@pytest.mark.parametrize(
    ("routing", "word"),
    [
        ("round-robin", "llm-d supports only weighted profiles"),
        ({"name": "weighted", "scorers": {"load-balance": 1}}, "no equivalent of 'load-balance'"),
        ({"name": "weighted", "scorers": {"oracle-prefix": 1}}, "has no equivalent of"),
        ({"name": "weighted", "scorers": {"predicted-latency": 1}}, "has no equivalent of"),
        ({"name": "weighted", "filters": ["kv-below"]}, "no equivalent of 'kv-below'"),
        ({"name": "weighted", "filters": [{"name": "load-below", "max_load": 0}]}, "a limit of at least 1"),
    ],
)
def test_what_llm_d_does_not_have_is_refused(routing: Any, word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        export_profile(routing)


def test_what_means_something_else_there_is_told() -> None:
    routing = {
        "name": "weighted",
        "scorers": {"prefix-affinity": 1, "queue-depth": 1, "session-affinity": 1},
        "picker": {"name": "weighted-random", "seed": 3},
    }
    notes = " ".join(export_profile(routing).notes)
    for word in ("blocks of 64", "queue-scorer counts waiting requests", "100,000 sessions", "the seed is ignored"):
        assert word in notes
    assert export_profile({"name": "weighted", "scorers": "kv-utilization:1", "picker": "weighted-random"}).notes == []


def test_a_configuration_of_llm_ds_guides_is_read() -> None:
    document = config(
        """
        plugins:
        - type: single-profile-handler
        - type: queue-scorer
        - type: active-request-scorer
        - type: prefix-cache-scorer
        - {name: fewer, type: active-request-filter, parameters: {maxRequests: 10, fallbackOnEmpty: true}}
        - type: decode-filter
        - {type: token-producer, parameters: {modelName: m}}
        schedulingProfiles:
        - name: default
          plugins:
          - pluginRef: decode-filter
          - pluginRef: fewer
          - {pluginRef: queue-scorer, weight: 2}
          - pluginRef: active-request-scorer
          - {pluginRef: prefix-cache-scorer, weight: 3.0}
        """
    )
    result = import_config(document, "epp.yaml")
    assert result.document["policies"]["routing"] == {
        "name": "weighted",
        "scorers": {
            "queue-depth": 2,
            "active-requests": 1,
            "prefix-affinity": {"weight": 3, "block_tokens": 16, "lru_blocks": "auto"},
        },
        "filters": [{"name": "load-below", "max_load": 10}],
        "picker": "max-score",
    }
    notes = " ".join(result.notes)
    for word in (
        "autoTune",
        "131,072 tokens",
        "decode-filter is ignored",
        "does not use them: token-producer",
        "max-score-picker chooses at random",
    ):
        assert word in notes


def test_without_profiles_all_plugins_are_one() -> None:
    document = profile("queue-scorer", "kv-cache-utilization-scorer", "weighted-random-picker")
    del document["schedulingProfiles"]
    result = import_config(document, "x")
    assert result.document["policies"]["routing"]["scorers"] == {"queue-depth": 1, "kv-utilization": 1}
    assert result.document["policies"]["routing"]["picker"] == "weighted-random"
    nothing = import_config(config("featureGates: [flowControl]"), "x")
    assert meant(nothing.document["policies"]["routing"]) == meant({"name": "weighted"})
    assert "featureGates" in nothing.notes[0]


def test_one_of_several_profiles_is_chosen_by_name() -> None:
    document = profile("queue-scorer")
    document["schedulingProfiles"].append({"name": "prefill", "plugins": [{"pluginRef": "queue-scorer", "weight": 4}]})
    with pytest.raises(HeadwayError, match=r"Choose one with profile: default, prefill"):
        import_config(document, "x")
    result = import_config(document, "x", "prefill")
    assert result.document["policies"]["routing"]["scorers"] == {"queue-depth": 4}
    assert "only the profile prefill" in result.notes[0]
    with pytest.raises(HeadwayError, match="there is no profile 'decode'"):
        import_config(document, "x", "decode")


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"kind": "EndpointPickerConfig"}, "'apiVersion' is missing"),
        (profile("queue-scorer") | {"kind": "Pod"}, "expected EndpointPickerConfig"),
        (profile("queue-scorer") | {"apiVersion": "v1"}, "apiVersion: expected one of"),
        (profile("queue-scorer") | {"schedulingProfile": []}, "there is no such key"),
        (profile("token-load-scorer"), "no equivalent of 'token-load-scorer'"),
        (profile("random-picker", "queue-scorer"), "no equivalent of 'random-picker'"),
        (profile("max-score-picker"), "has no scorer"),
        (profile("queue-scorer", "queue-scorer"), "two plugins have the name 'queue-scorer'"),
    ],
)
def test_what_cannot_be_read_is_told_at_its_place(document: Any, word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        import_config(document, "x")


@pytest.mark.parametrize(
    ("plugin", "word"),
    [
        ("{type: prefix-cache-scorer, parameters: {prefixLengthWeight: 0.5}}", "prefixLengthWeight: is not supported"),
        (
            "{type: active-request-scorer, parameters: {maxBusyScore: 0.5}}",
            "idleThreshold and maxBusyScore are not supported",
        ),
        (
            "{type: queue-scorer, parameters: {threshold: 5}}",
            r"plugins\[0\].parameters.threshold: Headway does not support 5",
        ),
        ("{type: active-request-filter}", "maxRequests: expected a whole number"),
        ("{type: active-request-scorer, parameters: {idleThreshold: x}}", "idleThreshold: expected a whole number"),
        (
            "{type: prefix-cache-scorer}, {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: [1]}}",
            r"plugins\[1\].parameters.blockSizeTokens: expected a whole number",
        ),
        (
            "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: [a]}}",
            "prefixMatchInfoProducerName: expected a name",
        ),
    ],
)
def test_parameters_that_change_decisions_or_are_none_are_refused(plugin: str, word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        import_config(config(f"plugins: [{plugin}]"), "x")


def test_a_scorer_twice_or_without_weight_is_told() -> None:
    two = config("plugins: [{type: queue-scorer}, {name: other, type: queue-scorer}]")
    with pytest.raises(HeadwayError, match="queue-depth is listed twice"):
        import_config(two, "x")
    none = profile("queue-scorer", "kv-cache-utilization-scorer", **{"queue-scorer": 0})
    result = import_config(none, "x")
    assert result.document["policies"]["routing"]["scorers"] == {"kv-utilization": 1}
    assert "queue-scorer has the weight 0 and is ignored." in result.notes


def test_the_command_line_writes_and_reads_profiles(headway: Run, tmp_path: Path) -> None:
    file, back = tmp_path / "epp.yaml", tmp_path / "policies.yaml"
    completed = headway("export", "llm-d", "kv-utilization:1,active-requests:2", "-o", str(file))
    assert (completed.returncode, completed.stdout) == (0, "")
    completed = headway("import", "llm-d", str(file), "-o", str(back))
    assert completed.returncode == 0
    printed = headway("export", "llm-d", str(back))
    assert printed.stdout == file.read_text()
    assert "max-score-picker chooses at random" in printed.stderr
    wrong = headway("export", "llm-d", "nowhere.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "there is no such file" in wrong.stderr

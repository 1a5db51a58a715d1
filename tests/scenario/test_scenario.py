"""A scenario is read strictly, can be changed from outside, and resolves to something that reads the same."""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from conftest import ROOT
from headway.config.documents import parse_yaml
from headway.config.keys import keys_of, write
from headway.config.tables import default_text, find_section
from headway.errors import HeadwayError
from headway.experiment.notes import note_unmeasured
from headway.latency import MODELS
from headway.latency.gpus import Gpu, gpus
from headway.latency.shapes import ModelFigures, models
from headway.scenario import cluster_spec, overrides
from headway.scenario.scenario import DEFAULT, Scenario, load_data, presets, validate
from headway.workload import arrivals, prefixes, shapes
from headway.workload.spec import WorkloadSpec
from headway.workload.trace_spec import TraceSpec
from headway.workload.traces import FORMATS

EXAMPLE = """
seed: 7
workload:
  requests: 10000
  rate: 40/s
  arrival: poisson
  prompt_tokens: {dist: normal, mean: 512, std: 128, min: 16, max: 2048}
  output_tokens: {dist: normal, mean: 256, std: 64, min: 8, max: 1024}
  prefix: {groups: 20, tokens: 256}   # part of prompt_tokens
cluster:
  instances: 8
  model: llama-3.1-8b
  gpu: h100
  max_batch_tokens: 2048
  max_batch_size: 256
  kv: {block_tokens: 16, gpu_blocks: auto}
  latency: {model: roofline}       # or {model: fixed, prefill_tokens_per_s: 10000, decode_tokens_per_s: 100}
policies:
  admission: always
  routing: {name: weighted, scorers: {prefix-affinity: 3, queue-depth: 2, kv-utilization: 2}}
  scheduler: fcfs
slo: {ttft: 500ms, tpot: 50ms}
leap: true
"""

SMALL: dict[str, Any] = {
    "workload": {"requests": 10, "rate": "5/s", "prompt_tokens": 100, "output_tokens": 10},
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
}


def example() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(EXAMPLE)
    return data


def small(**changes: Any) -> dict[str, Any]:
    return {**SMALL, **changes}


def weights(scenario: Scenario) -> dict[str, float]:
    found = overrides.scorer_list(scenario.policies.explicit("routing")["scorers"], "")
    return {item["name"]: item["weight"] for item in found}


def test_the_documented_scenario_is_accepted_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"
    file.write_text(EXAMPLE)
    scenario = Scenario.load(file)
    assert scenario.name == "first"
    assert scenario.seed.workload == scenario.seed.simulation == scenario.seed.jitter == 7
    assert scenario.cluster.instances == 8
    assert scenario.slo.ttft_ps == 500 * 10**9
    assert scenario.horizon_ps is None
    assert scenario.warmup == 0


def test_a_fixed_latency_needs_neither_model_nor_gpu_to_be_named() -> None:
    assert Scenario.load(SMALL).cluster.latency_model() is not None


def test_seeds_may_differ() -> None:
    seeds = Scenario.load(small(seed={"workload": 42, "simulation": 99, "jitter": 7})).seed
    assert (seeds.workload, seeds.simulation, seeds.jitter) == (42, 99, 7)


@pytest.mark.parametrize("data", [example(), SMALL, small(horizon="2s", warmup=3, leap="random-cuts")])
def test_the_resolved_copy_reads_back_to_itself(data: dict[str, Any]) -> None:
    resolved = Scenario.load(data).resolved()
    assert Scenario.load(resolved).resolved() == resolved


def test_the_resolved_copy_leaves_nothing_implicit() -> None:
    resolved = Scenario.load(SMALL).resolved()
    assert isinstance(resolved["cluster"]["kv"]["gpu_blocks"], int)
    assert resolved["cluster"]["latency"]["prefill_tokens_per_s"] == 10_000
    assert resolved["policies"]["routing"]["name"] == "weighted"
    assert resolved["policies"]["routing"]["scorers"]


def test_the_resolved_copy_has_the_defaults_of_the_parts() -> None:
    workload = {**SMALL["workload"], "arrival": "gamma", "prefix": {"groups": 3, "tokens": 8}}
    routing = {"name": "weighted", "scorers": "prefix_affinity:2", "filters": ["kv-below"]}
    resolved = Scenario.load(small(workload=workload, policies={"routing": routing})).resolved()
    assert resolved["workload"]["arrival"] == {"process": "gamma", "cv": 2.0}
    assert resolved["workload"]["prefix"] == {"groups": 3, "tokens": 8, "share": 1.0, "popularity": "uniform"}
    (scorer,) = resolved["policies"]["routing"]["scorers"]
    assert scorer == {"name": "prefix-affinity", "weight": 2, "block_tokens": 16, "lru_blocks": "auto"}
    assert resolved["policies"]["routing"]["filters"] == [{"name": "kv-below", "threshold": 0.9}]
    assert resolved["policies"]["routing"]["picker"] == {"name": "max-score"}
    assert Scenario.load(resolved).resolved() == resolved


MEASURED = [
    *({"decodes": decodes, "context": context, "time": "5ms"} for decodes, context in ((1, 9), (2, 9), (2, 99))),
    *({"prefill": tokens, "past": past, "time": "9ms"} for tokens, past in ((8, 0), (16, 0), (16, 99))),
]


@pytest.mark.full
def test_every_latency_model_resolves_to_its_own_defaults() -> None:
    for name, kind in MODELS.items():
        if name == "aiconfigurator" and find_spec("aiconfigurator_core") is None:
            continue
        needed = {"rows": MEASURED} if name == "table" else {}
        # The first set of defaults adds no engine.
        given = small(defaults="2026-11", cluster={"latency": {"model": name.upper(), **needed}})
        section = Scenario.load(given).resolved()["cluster"]["latency"]
        assert section == {"model": name, **write(kind.keys()), **needed}


def test_the_key_depends_on_what_is_run_and_not_on_how() -> None:
    plain = Scenario.load(SMALL).key()
    assert Scenario.load(small(leap=False, name="other")).key() == plain
    assert Scenario.load(small(seed=1)).key() != plain


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid(name: str) -> None:
    assert Scenario.load(name).name == name


def test_the_default_is_one_of_the_presets() -> None:
    assert DEFAULT in presets()


def test_presets_stay_as_they_were_published() -> None:
    keys = {name: Scenario.load(name).key() for name in presets()}
    assert keys == {
        "conversations-2026-11-17": "12cb415c9d1c3864",
        "shared-prefix-2026-11": "04a6c42ea4a34dd4",
        "shared-prefix-2026-11-15": "bf531fa377dd8a1d",
    }


def test_the_default_preset_is_served_by_a_card_that_was_measured() -> None:
    assert Scenario.load().name == DEFAULT
    assert Scenario.load().cluster.latency_section() == {"model": "hardware"}
    assert note_unmeasured(Scenario.load()) is None


def test_all_shared_prompts_of_the_default_are_about_twice_what_an_instance_can_cache() -> None:
    resolved = Scenario.load().resolved()
    prefix, kv = resolved["workload"]["prefix"], resolved["cluster"]["kv"]
    assert 1.8 < prefix["groups"] * prefix["tokens"] / (kv["gpu_blocks"] * kv["block_tokens"]) < 2.2


def test_a_scenario_that_names_no_latency_model_is_served_by_hardware() -> None:
    whole = Scenario.load({"workload": SMALL["workload"]}).resolved()["cluster"]
    assert whole["latency"] == {"model": "hardware", "profile": "auto", "default_engine": "vllm-0.18", "host": "auto"}
    pool = {"workload": SMALL["workload"], "cluster": {"deployments": {"a": {"instances": 1}}}}
    assert Scenario.load(pool).resolved()["cluster"]["deployments"]["a"]["latency"]["model"] == "hardware"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"workload": SMALL["workload"], "clutser": {}}, "clutser: there is no such key. Did you mean 'cluster'?"),
    ({"cluster": {}}, "'workload' is missing"),
    (
        small(cluster={"instances": 0}),
        "cluster.instances: expected a whole number of at least 1 and of at most 100,000, got 0.",
    ),
    (
        small(cluster={"instances": 6.5}),
        "cluster.instances: expected a whole number of at least 1 and of at most 100,000, got 6.5.",
    ),
    (small(cluster={"instances": 10**400}), "cluster.instances: expected a whole number of at least 1 and of at most"),
    (small(cluster={"tp": 1025}), "cluster.tp: expected a whole number of at least 1 and of at most 1,024, got 1025."),
    (small(cluster={"kv": {"block_tokens": 65_537}}), "cluster.kv.block_tokens: expected a whole number of at least 1"),
    (small(cluster={"tp": "x" * 5000}), f"got '{'x' * 99}...."),
    (small(seed=2**63), "seed: must fit into 64 bits, got 9223372036854775808."),
    (small(cluster=0), "cluster: expected a mapping, got 0."),
    (small(cluster=[]), "cluster: expected a mapping, got []."),
    (small(cluster={"kv": 0}), "cluster.kv: expected a mapping, got 0."),
    (small(slo=False), "slo: expected a mapping, got False."),
    (small(policies=[]), "policies: expected a mapping, got []."),
    (small(horizon="200d"), "horizon: must be at most 100d"),
    (small(cluster={"kv": {"prefix_caching": 3}}), "cluster.kv.prefix_caching: expected true or false, got 3."),
    (small(cluster={"instanses": 4}), "cluster.instanses: there is no such key. Did you mean 'instances'?"),
    (small(cluster={"kv": {"block_token": 16}}), "cluster.kv.block_token: there is no such key"),
    (small(cluster={"kv": {"gpu_blocks": 0}}), "cluster.kv.gpu_blocks"),
    (
        small(cluster={"kv": {"gpu_blocks": "many"}}),
        "cluster.kv.gpu_blocks: expected a whole number of at least 1 and of at most 1,000,000,000 or 'auto', got",
    ),
    (
        small(cluster={"kv": {"utilization": 1.5}}),
        "cluster.kv.utilization: expected a number above 0 and of at most 1, got 1.5.",
    ),
    (small(cluster={"gpu": "h1000"}), "cluster.gpu: no GPU"),
    (small(cluster={"model": "lama-3.1-8b"}), "Did you mean 'llama-3.1-8b'? Known: deepseek-v2-lite,"),
    (
        small(cluster={"gpu": {"memory": "80GB"}}),
        "cluster.gpu: 'bandwidth', 'tflops' and 'usd_per_hour' are missing.",
    ),
    (
        small(cluster={"model": {"layers": 3}}),
        "cluster.model: 'hidden', 'heads' and 'params' are missing.",
    ),
    (small(cluster={"model": "llama-3.1-70b", "gpu": "l40s"}), "cluster.kv"),
    (small(cluster={"latency": {"model": "rofline"}}), "Did you mean 'roofline'?"),
    (small(cluster=[1]), "cluster: expected a mapping"),
    (small(slo={"ttft": 500}), "slo.ttft: 500 is not a duration"),
    (small(slo={"ttft": "0ms"}), "slo.ttft: must be greater than zero"),
    (small(slo={"tftt": "1s"}), "slo.tftt: there is no such key. Did you mean 'ttft'?"),
    (small(horizon="soon"), "horizon: 'soon' is not a duration"),
    (small(leap="sometimes"), "leap:"),
    (small(warmup=-1), "warmup: expected a whole number of at least 0 and of at most 1,000,000,000,000, got -1."),
    (small(seed="x"), "seed: expected an integer"),
    (small(seed={"worklod": 1}), "seed.worklod: there is no such key. Did you mean 'workload'?"),
    (
        small(policies={"routing": "rond-robin"}),
        "no routing policy is called 'rond-robin'. Did you mean 'round-robin'?",
    ),
    (small(policies={"routeing": "random"}), "policies.routeing: there is no such key. Did you mean 'routing'?"),
    (small(policies={"routing": {"weight": 1}}), "policies.routing: the mapping has no name. Give the policy's"),
    (small(policies={"routing": {"name": "unified", "overload": 2}}), "policies.routing.overload"),
    (small(policies={"routing": "nowhere.py:Mine"}), "there is no file 'nowhere.py'"),
    (small(workload={"requests": 5, "rate": "40"}), "workload.rate"),
]


@pytest.mark.parametrize(("data", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_told_in_one_sentence_with_its_place(data: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        Scenario.load(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {requests: 1\ncluster: {}", "line"),
        ("seed: 1\nseed: 2\n", "line 2: 'seed' is written twice (first on line 1)"),
        ("1: a\n'1': b\n", "line 2: '1' is written twice (first on line 1)"),
        ("- a\n- b\n", "expected a mapping with 'workload' and 'cluster'"),
        ("", "expected a mapping with 'workload' and 'cluster'"),
    ],
)
def test_a_file_that_is_no_scenario_is_told_by_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(HeadwayError, match=r"bad\.yaml") as caught:
        Scenario.load(file)
    assert message in str(caught.value)


def test_a_missing_file_suggests_the_nearest_preset() -> None:
    with pytest.raises(HeadwayError, match=r"there is no scenario file or preset of this name\. Did you mean"):
        Scenario.load(DEFAULT[:-1])


@pytest.mark.parametrize("name", ["nope.csv", "traces/nope.headway.jsonl.gz"])
def test_a_missing_trace_is_not_taken_for_a_preset(name: str) -> None:
    with pytest.raises(
        HeadwayError, match=f"{re.escape(name)}: there is no file of this name; expected a trace"
    ) as caught:
        Scenario.load(name)
    assert DEFAULT not in str(caught.value)


def test_a_preset_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT).mkdir()
    assert Scenario.load().workload.trace is None


def test_a_toml_file_is_not_taken_for_a_trace(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[cluster]\n")
    with pytest.raises(HeadwayError, match="headway import routesim"):
        Scenario.load(tmp_path / "r.toml")


def test_a_trace_is_found_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    file = tmp_path / "s.yaml"
    file.write_text("workload: {trace: {format: azure, path: t.csv}}\ncluster: {instances: 1}\n")
    scenario = Scenario.load(file)
    assert [planned.output_tokens for planned in scenario.workload.plan(0)] == [44]


# --- changes from outside ---------------------------------------------------------------------------------------------


def test_set_changes_a_value_and_reads_it_as_yaml() -> None:
    scenario = Scenario.load(
        SMALL, ["workload.rate=60/s", "cluster.kv.gpu_blocks=99", "cluster.kv.prefix_caching=false"]
    )
    assert scenario.workload.rate == "60/s"
    assert scenario.cluster.kv_blocks() == 99
    assert scenario.cluster.kv.prefix_caching is False


def test_set_leaves_the_callers_mapping_alone() -> None:
    data = small()
    Scenario.load(data, ["cluster.instances=5"])
    assert data["cluster"]["instances"] == 2


def test_set_splits_a_single_seed() -> None:
    seeds = Scenario.load(small(seed=7), ["seed.workload=1"]).seed
    assert (seeds.workload, seeds.simulation, seeds.jitter) == (1, 7, 7)


@pytest.mark.parametrize(
    "routing",
    [
        None,
        "weighted",
        {"name": "weighted"},
        {"name": "weighted", "scorers": {"prefix-affinity": 3, "queue-depth": 2, "kv-utilization": 2}},
        {
            "name": "weighted",
            "scorers": [
                {"name": "prefix_affinity", "weight": 3},
                {"name": "queue_depth", "weight": 2},
                {"name": "kv-utilization", "weight": 2},
            ],
        },
    ],
)
def test_set_reaches_one_scorer_in_whichever_form_they_are_written(routing: Any) -> None:
    data = small() if routing is None else small(policies={"routing": routing})
    found = weights(Scenario.load(data, ["policies.routing.scorers.queue-depth=5"]))
    assert {name.replace("_", "-"): weight for name, weight in found.items()} == {
        "prefix-affinity": 3,
        "queue-depth": 5,
        "kv-utilization": 2,
    }


def test_set_adds_a_scorer_and_reaches_its_parameters() -> None:
    changes = ["policies.routing.scorers.load-balance=1", "policies.routing.scorers.prefix-affinity.lru_blocks=10"]
    data = load_data(SMALL, changes)
    found = {item["name"]: item for item in overrides.scorer_list(data["policies"]["routing"]["scorers"], "")}
    assert found["load-balance"]["weight"] == 1
    assert found["prefix-affinity"]["lru_blocks"] == 10
    validate(data)


def test_set_gives_a_named_policy_a_parameter() -> None:
    data = small(policies={"routing": "unified"})
    assert Scenario.load(data, ["policies.routing.overload-factor=3"]).policies.build("routing").overload_factor == 3


def test_set_of_another_name_starts_afresh() -> None:
    assert Scenario.load(example(), ["policies.routing.name=random"]).policies.routing == {"name": "random"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workload.rate", "write it as key.path=value"),
        ("=3", "write it as key.path=value"),
        ("cluster.instanses=3", "cluster.instanses: there is no such key"),
        ("wrkload.rate=3/s", "wrkload: there is no such key. Did you mean 'workload'?"),
        ("workload.prompt_tokens.mean=5", "prompt_tokens is 100, which has no keys"),
        ("policies.routing.scorers.queue-deth=5", "queue-deth"),
        ("policies.routing.scorers.queue-depth=-1", "queue-depth"),
        ("policies.rooting.scorers.queue-depth=0", "rooting"),
        ("workload.rate={", "not YAML"),
    ],
)
def test_a_wrong_change_is_an_error(change: str, message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        Scenario.load(SMALL, [change])
    assert message in str(caught.value)
    assert "--set" not in str(caught.value)


def test_a_wrong_change_is_told_where_it_was_given() -> None:
    written = "workload.trace.path=--set x=--set y: {"
    for where in ("--set ", "overrides: "):
        with pytest.raises(HeadwayError) as caught:
            overrides.apply(SMALL, [written], where)
        assert str(caught.value).startswith(f"{where}{written}: ")
    with pytest.raises(HeadwayError) as caught:
        Scenario.load(SMALL, ["--set workload.rate"])
    right = "write it as key.path=value, as in workload.rate=60/s."
    assert str(caught.value) == f"overrides: --set workload.rate: {right}"


def test_one_change_needs_no_list() -> None:
    assert Scenario.load(SMALL, "cluster.instances=5").cluster.instances == 5


def routed(**options: Any) -> Scenario:
    return validate(overrides.choose_policies(example(), **options))


def test_the_options_name_a_routing_policy() -> None:
    assert routed(policy="round_robin").policies.explicit("routing")["name"] == "round-robin"


def test_scorers_alone_imply_weighted() -> None:
    scenario = validate(overrides.choose_policies(small(policies={"routing": "random"}), scorers="queue_depth:0.3"))
    assert scenario.policies.explicit("routing")["name"] == "weighted"
    assert list(weights(scenario).values()) == [0.3]


def test_weighted_without_scorers_has_the_default_profile() -> None:
    assert weights(routed(policy="weighted")) == {"prefix-affinity": 3, "queue-depth": 2, "kv-utilization": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "random", "scorers": "queue-depth:2"}, "'random' takes no scorers"),
        ({"scorers": "queue-depth"}, "'queue-depth' is not of the form name:weight"),
        ({"scorers": "queue-depth:lots"}, "'queue-depth:lots' is not of the form name:weight"),
        ({"scorers": ":2"}, "':2' is not of the form name:weight"),
        ({"scorers": "queue-depth:-1"}, "queue-depth"),
        ({"scorers": "queue-dept:1"}, "queue-dept"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, str], message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        routed(**options)
    assert message in str(caught.value)


def test_a_policy_file_names_policy_and_scorers(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("routing-policy: weighted\nrouting-scorers:\n  - name: queue-depth\n    weight: 2.0\n")
    assert weights(routed(config=file)) == {"queue-depth": 2}
    assert weights(routed(config=file, scorers="load-balance:1")) == {"load-balance": 1}
    assert routed(config=file, policy="random").policies.explicit("routing") == {"name": "random"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("routing-polcy: weighted\n", "routing-polcy: there is no such key. Did you mean 'routing-policy'?"),
        ("routing-policy: weighted\nrouting-cache-weight: 1\n", "routing-cache-weight: there is no such key"),
        ("- weighted\n", "expected a bundle, or a mapping"),
        ("routing-policy: [a]\n", "expected a policy's name"),
    ],
)
def test_a_policy_file_is_strict(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(HeadwayError) as caught:
        routed(config=file)
    assert message in str(caught.value)


# --- its reference page -----------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
SECTIONS: dict[str, list[type[msgspec.Struct]]] = {
    "`workload`": [WorkloadSpec],
    "Lengths": list(shapes.KINDS.values()),
    "Arrivals": [arrivals.Arrival],
    "Shared prefixes": [prefixes.Prefix, prefixes.Popularity],
    "Traces": [TraceSpec],
    "`deployments`": [cluster_spec.Deployment],
    "GPUs": [Gpu],
    "Models": [ModelFigures],
}


def part(heading: str) -> str:
    """A section of the page, up to the next heading."""
    found = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_page_has_every_key_of_a_section(heading: str) -> None:
    text = part(heading)
    for kind in SECTIONS[heading]:
        for name in keys_of(kind):
            assert f"`{name}`" in text, f"{heading}: {name}"


def defaults(heading: str) -> dict[str, str]:
    """The default of every key in a section's tables."""
    found, column = {}, 0
    for line in part(heading).splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")][1:-1]
        if "Default" in cells:
            column = cells.index("Default")
        elif not cells:  # the end of a table
            column = 0
        elif column:
            found[cells[0]] = cells[column]
    return found


@pytest.mark.parametrize("heading", ["Traces", "GPUs", "Models"])
def test_the_page_has_the_defaults(heading: str) -> None:
    shown = defaults(heading)
    for kind in SECTIONS[heading]:
        for name, key in keys_of(kind).items():
            if isinstance(key.default, int | float | str | Fraction):
                assert shown[name] == default_text(key), name


def test_the_page_has_a_table_for_each_latency_model() -> None:
    listed = re.findall(r"^<!-- keys: latency\.(\S+) -->$", PAGE, re.MULTILINE)
    assert {find_section(f"latency.{name}") for name in listed} == {kind.keys for kind in MODELS.values()}


@pytest.mark.parametrize(("heading", "known"), [("GPUs", gpus()), ("Models", models())], ids=["GPUs", "Models"])
def test_the_page_lists_the_tables(heading: str, known: Any) -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\w.,\- ]+) \|", part(heading).partition("is a mapping:")[0], re.MULTILINE)
    assert [name for name, _ in rows] == list(known.entries)
    for name, others in rows:
        assert others.split(", ") == [alias for alias, of in known.aliases.items() if of == name]


def test_the_page_names_every_kind() -> None:
    for name in (*shapes.KINDS, *arrivals.PROCESSES, *FORMATS, *MODELS, "uniform", "zipf"):
        assert re.search(rf"\b{name}\b", PAGE), name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 2024-13-45", "f: this YAML cannot be read (month must be in 1..12)."),
        ("seed: !!int abc", "f: this YAML cannot be read (invalid literal"),
        ("seed: !!bool abc", "f: this YAML cannot be read ("),
        ("seed: !!timestamp abc", "f: this YAML cannot be read ("),
        (f"seed: {'9' * 5000}", "f: this YAML cannot be read (Exceeds the limit"),
        ("[" * 2000 + "]" * 2000, "f: this YAML cannot be read (it is nested too deeply)."),
        ("[" * 150 + "]" * 150, "f: this is nested deeper than 100 levels."),
        ("&a [*a]", "f: this is nested deeper than 100 levels."),
        ('"\\ud800"', "f: '\\ud800' contains an unpaired surrogate, which is not a valid character."),
    ],
)
def test_yaml_that_no_person_writes_is_told(text: str, sentence: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).startswith(sentence)


def test_a_few_aliases_that_stand_for_billions_are_told() -> None:
    lines = ["- &a0 [x, x]", *(f"- &a{at + 1} [{', '.join([f'*a{at}'] * 10)}]" for at in range(9))]
    with pytest.raises(HeadwayError, match="this contains more than 1,000,000 values"):
        parse_yaml("\n".join(lines), "f")


def test_merge_keys_are_no_duplicates() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc:\n  <<: *a\n  x: 5\nd:\n  <<: [*a, *b]\n"
    found = parse_yaml(text, "f")
    assert found["c"] == {"x": 5, "y": 2}
    assert found["d"] == {"x": 1, "y": 2, "z": 3}


def test_an_option_does_not_hide_a_mistake_in_the_file() -> None:
    with pytest.raises(HeadwayError, match="policies: expected a mapping, got 5"):
        validate(overrides.choose_policies(small(policies=5), "round-robin"))


@pytest.mark.parametrize("name", ["~nosuchuser/x.yaml", "x" * 300])
def test_a_path_that_cannot_be_looked_at_is_told(name: str) -> None:
    with pytest.raises(HeadwayError, match=r"cannot be read|there is no scenario file"):
        Scenario.load(name)


def test_a_file_name_that_is_not_unicode_gives_a_name_that_is(tmp_path: Path) -> None:
    file = tmp_path / "\udcff.yaml"
    try:
        file.write_text(EXAMPLE)
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system takes no such names")
    assert Scenario.load(file).name == "?"

"""Import and export of BLIS's workload specifications and traces."""

from __future__ import annotations

from copy import deepcopy
from math import exp
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conftest import Run
from headway.errors import HeadwayError
from headway.interop.blis_export import export_workload
from headway.interop.blis_import import import_workload
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import open_trace

GAUSS = {"type": "gaussian", "params": {"mean": 256, "std_dev": 128, "min": 2, "max": 4096}}
CHAT = {
    "reason_ratio_distribution": {"type": "constant", "params": {"value": 0}},
    "multi_turn": {"max_rounds": 5, "think_time_us": 500_000, "context_growth": "accumulate"},
}


def client(**more: Any) -> dict[str, Any]:
    """Return a client with all keys that an export writes."""
    name = more.pop("name", "a")
    result = {
        "id": name,
        "tenant_id": name,
        "slo_class": "standard",
        "rate_fraction": 1,
        "arrival": {"process": "poisson"},
        "input_distribution": GAUSS,
        "output_distribution": {"type": "exponential", "params": {"mean": 128}},
        "streaming": True,
        "timeout": 0,
    }
    return {**result, **more}


def spec(*clients: dict[str, Any], **more: Any) -> dict[str, Any]:
    result = {"version": "2", "seed": 42, "category": "language", "aggregate_rate": 10, "num_requests": 100}
    return deepcopy({**result, **more, "clients": list(clients)})


def there_and_back(document: dict[str, Any]) -> Any:
    result = import_workload(document, "x")
    workload = WorkloadSpec(**result.document["workload"])
    return export_workload(workload, result.document.get("seed", {}).get("workload", 0)).document


SPECS = [
    spec(client()),
    spec(client(name="default")),
    spec(client(prefix_group="chat", prefix_length=512)),
    spec(client(rate_fraction=0.75), client(name="b", rate_fraction=0.25, arrival={"process": "gamma", "cv": 2})),
    spec(client(arrival={"process": "weibull", "cv": 0.5}, slo_class="batch", model="m", adapter="legal")),
    spec(client(reasoning=CHAT, timeout=300_000_000)),
    spec(client(reasoning=CHAT, prefix_group="g", prefix_length=100)),
    spec(client(input_distribution={"type": "constant", "params": {"value": 7}}, slo_target_us=250_000), horizon=10**6),
    spec(
        client(
            input_distribution={"type": "empirical", "params": {"5": 1, "9": 0.5}}, prefix_group="g", prefix_length=3
        )
    ),
    spec(
        *[
            client(id=f"a-{at}", rate_fraction=0.25, prefix_group=f"g{at}", prefix_length=64, tenant_id="a")
            for at in range(4)
        ]
    ),
]


@pytest.mark.parametrize("document", SPECS)
def test_a_specification_that_comes_in_and_goes_out_is_the_same(document: dict[str, Any]) -> None:
    result = there_and_back(document)
    assert sorted(result) == sorted(document)
    ours, wanted = result.pop("clients"), document["clients"]
    assert result == {name: value for name, value in document.items() if name != "clients"}
    assert ours == wanted


@given(
    mean=st.integers(1, 100_000),
    std=st.floats(0, 1e5, allow_nan=False),
    low=st.integers(1, 1000),
    more=st.integers(1, 10**6),
    prefix=st.integers(0, 5000),
)
def test_lengths_stay_the_same_and_the_prefix_is_added(mean: int, std: float, low: int, more: int, prefix: int) -> None:
    params = {"mean": mean, "std_dev": std, "min": low, "max": low + more}
    lengths = {"type": "gaussian", "params": params}
    document = spec(client(input_distribution=lengths, prefix_group="g" if prefix else "", prefix_length=prefix))
    result = import_workload(document, "x").document["workload"]["tenants"]["a"]
    assert result["prompt_tokens"]["mean"] == mean
    assert result.get("prefix", {"added": prefix > 0})["added"] is (prefix > 0)
    assert there_and_back(document)["clients"][0]["input_distribution"] == lengths


@given(mean=st.integers(1, 100_000), prefix=st.integers(1, 5000), more=st.integers(1, 10**6))
def test_an_export_subtracts_the_prefix_that_prompts_include(mean: int, prefix: int, more: int) -> None:
    lengths = {"dist": "normal", "mean": mean + prefix, "std": 3, "min": prefix + 1, "max": prefix + 1 + more}
    shared = {"groups": 1, "tokens": prefix}
    out = export_workload(WorkloadSpec(requests=1, rate="1/s", prompt_tokens=lengths, prefix=shared)).document
    params = {"mean": mean, "std_dev": 3, "min": 1, "max": 1 + more}
    assert out["clients"][0]["input_distribution"] == {"type": "gaussian", "params": params}


MIX = {"alpha": 1.5, "xm": 50, "mu": 5.5, "sigma": 1.2, "mix_weight": 0.3}


def test_a_heavy_tailed_mixture_with_a_prefix_comes_in_and_goes_out() -> None:
    document = spec(
        client(input_distribution={"type": "pareto_lognormal", "params": MIX}, prefix_group="g", prefix_length=64)
    )
    prompt = import_workload(document, "x").document["workload"]["tenants"]["a"]["prompt_tokens"]
    pareto, lognormal = prompt["parts"]
    assert pareto == {"weight": 0.3, "dist": "pareto", "alpha": 1.5, "scale": 50}
    assert (lognormal["weight"], lognormal["dist"]) == (0.7, "lognormal")
    assert lognormal["mean"] == pytest.approx(exp(5.5 + 1.2**2 / 2))
    back = there_and_back(document)["clients"][0]["input_distribution"]
    assert back["type"] == "pareto_lognormal"
    assert back["params"] == pytest.approx(MIX)


@pytest.mark.parametrize(("weight", "kind"), [(0, "lognormal"), (1, "pareto")])
def test_a_mixture_of_one_part_is_that_part(weight: int, kind: str) -> None:
    lengths = {"type": "pareto_lognormal", "params": MIX | {"mix_weight": weight}}
    document = spec(client(output_distribution=lengths))
    assert import_workload(document, "x").document["workload"]["tenants"]["a"]["output_tokens"]["dist"] == kind
    assert there_and_back(document)["clients"][0]["output_distribution"]["params"]["mix_weight"] == weight


def test_bounds_of_exponential_lengths_are_read() -> None:
    lengths = {"type": "exponential", "params": {"mean": 90, "min": 0, "max": 400}}
    result = import_workload(spec(client(output_distribution=lengths)), "x").document["workload"]["tenants"]["a"]
    assert result["output_tokens"] == {"dist": "exponential", "mean": 90, "max": 400}


def test_logarithms_come_back_to_ten_digits() -> None:
    lengths = {"dist": "lognormal", "mean": 4096, "std": 3000.5}
    workload = WorkloadSpec(requests=10, rate="1/s", prompt_tokens=lengths)
    document = export_workload(workload).document
    assert document["clients"][0]["input_distribution"]["type"] == "pareto_lognormal"
    assert import_workload(document, "x").document["workload"]["prompt_tokens"] == lengths


def test_prefix_groups_become_clients_and_one_tenant_again() -> None:
    prefix = {"groups": 4, "tokens": 256, "popularity": {"dist": "zipf", "s": 1.0}}
    lengths = {"dist": "normal", "mean": 512, "std": 100, "min": 300, "max": 900}
    workload = WorkloadSpec(requests=10, rate="8/s", prompt_tokens=lengths, prefix=prefix)
    out = export_workload(workload)
    assert out.notes == ["default: its 4 prefix groups become 4 clients."]
    shares = [one["rate_fraction"] for one in out.document["clients"]]
    assert shares == pytest.approx([0.48, 0.24, 0.16, 0.12])
    back = WorkloadSpec(**import_workload(out.document, "x").document["workload"])
    (tenant,) = back.senders()
    assert tenant.name == "default"
    assert tenant.prompt_tokens == {"dist": "normal", "mean": 256, "std": 100, "min": 44, "max": 644}
    assert tenant.prefix.added
    assert [one.popularity for one in tenant.prefix.groups] == shares
    assert export_workload(back).document["clients"][0]["input_distribution"]["params"]["mean"] == 256


def test_some_sessions_without_the_prefix_are_a_client_of_their_own() -> None:
    prefix = {"groups": [{"name": "tutor", "tokens": 100, "reuse": 0.75}]}
    out = export_workload(WorkloadSpec(requests=10, rate="8/s", prompt_tokens=512, prefix=prefix)).document
    told = [(one["rate_fraction"], one.get("prefix_group"), one["input_distribution"]) for one in out["clients"]]
    assert told == [
        (0.75, "tutor", {"type": "constant", "params": {"value": 412}}),
        (0.25, None, {"type": "constant", "params": {"value": 512}}),
    ]


def test_a_closed_loop_has_users_and_not_a_rate() -> None:
    loop = client(name="default", concurrency=8, think_time_us=2_000_000, timeout=300_000_000)
    del loop["rate_fraction"], loop["timeout"]
    result = import_workload(spec(loop, aggregate_rate=0), "x").document["workload"]
    assert result["closed_loop"] == {"concurrency": 8, "think_time": "2s"}
    assert result["timeout"] == "300s"  # BLIS's default for clients that wait for answers
    assert "rate" not in result
    out = export_workload(WorkloadSpec(**result)).document
    assert (out["aggregate_rate"], out["clients"][0]["concurrency"]) == (0, 8)
    assert "rate_fraction" not in out["clients"][0]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"lifecycle": {"windows": []}}, "Headway has no clients that come and go"),
        ({"multimodal": {}}, "supports only text tokens"),
        ({"arrival": {"process": "gamma", "shape": 0.5, "scale": 2}}, "shape and scale are not supported"),
        ({"arrival": {"process": "bursty"}}, "'bursty' is unknown"),
        ({"slo_class": "gold"}, "'gold' is unknown"),
        ({"rate_fraction": 0}, "rate_fraction: must be above 0"),
        ({"concurrency": 3}, "exclude each other"),
        ({"prefix_length": 5}, "prefix_group: is missing"),
        ({"input_distribution": {"type": "gaussian", "params": {"mean": 3}}}, "'std_dev' is missing"),
        ({"input_distribution": {"type": "zipf"}}, "type: 'zipf' is unknown"),
        ({"input_distribution": {"type": "constant", "params": {"value": float("inf")}}}, "value: expected a number"),
        ({"output_distribution": {"type": "constant", "params": {"value": 3}, "file": "x"}}, "file: is not supported"),
        ({"reasoning": {"multi_turn": {"max_rounds": 2}}}, "context_growth: only accumulate is supported"),
        ({"reasoning": CHAT, "closed_loop": False}, "a turn waits for the previous answer"),
        ({"prefix": "x"}, "there is no such key"),
        (
            {
                "output_distribution": {
                    "type": "pareto_lognormal",
                    "params": {"alpha": 1, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 1.5},
                }
            },
            "mix_weight: must lie between 0 and 1",
        ),
    ],
)
def test_what_a_workload_cannot_say_is_refused_at_its_place(more: dict[str, Any], word: str) -> None:
    with pytest.raises(HeadwayError, match=word) as refused:
        import_workload(spec(client(**more)), "x")
    assert str(refused.value).startswith("x.clients[0]")


@pytest.mark.parametrize("name", ["cohorts", "servegen_data"])
def test_other_sources_of_requests_are_refused(name: str) -> None:
    with pytest.raises(HeadwayError, match=f"x.{name}: is not supported"):
        import_workload(spec(client(), **{name: {}}), "x")


def test_what_changes_no_request_is_told() -> None:
    ratio = {"type": "constant", "params": {"value": 50}}
    odd = client(id="b", network={"rtt_ms": 5}, streaming=False, reasoning={"reason_ratio_distribution": ratio})
    result = import_workload(spec(odd, goodput_slo_targets={"standard": {"ttft": 3}}), "x")
    notes = " ".join(result.notes)
    for word in ("network", "streaming", "reason_ratio", "goodput_slo_targets", "the client's id b is ignored"):
        assert word in notes


def test_a_specification_without_a_limit_asks_for_one(headway: Run, tmp_path: Path) -> None:
    document = spec(client())
    del document["num_requests"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    done = headway("run", "spec.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert "set workload.requests or workload.duration" in done.stderr
    assert headway("run", "spec.yaml", "--json", "--set", "workload.requests=5", cwd=tmp_path).returncode == 0


def test_an_old_specification_has_its_classes_renamed() -> None:
    result = import_workload(spec(client(slo_class="realtime"), version="1"), "x")
    assert result.document["workload"]["tenants"]["a"]["priority"] == "critical"
    with pytest.raises(HeadwayError, match="expected version 1 or 2"):
        import_workload(spec(client(), version="3"), "x")


@pytest.mark.parametrize(
    ("workload", "word"),
    [
        ({"profile": {"type": "spike", "at": "1m", "multiplier": 5, "duration": "30s"}}, "workload.profile"),
        ({"arrival": "bursty"}, "workload.arrival"),
        ({"kind": "agentic"}, "does not support 'agentic' requests"),
        ({"kind": "chat"}, "a fixed number of turns"),
        ({"priority": "gold"}, "workload.priority"),
        ({"prompt_tokens": {"dist": "geometric", "mean": 9}}, "BLIS does not support geometric lengths"),
        ({"prefix": {"groups": 3, "tokens": 600}}, "the shortest prompt is not longer than the prefix"),
        ({"arrival": "constant", "prompt_tokens": 700, "prefix": {"groups": 3, "tokens": 600}}, "Poisson"),
        ({"correlations": {"prefix": 0.5}}, "workload.correlations"),
        (
            {"prompt_tokens": {"dist": "mixture", "parts": [{"dist": "normal", "mean": 9, "std": 1}]}},
            "only mixtures of one pareto and one lognormal part",
        ),
    ],
)
def test_what_a_client_of_blis_cannot_do_is_refused(workload: dict[str, Any], word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        export_workload(WorkloadSpec(requests=10, rate="1/s", **workload))


def test_exponents_are_numbers_where_a_number_is_expected() -> None:
    text = """
        version: "2"
        aggregate_rate: 1e2
        num_requests: 1E3
        clients:
        - id: "1e2"
          rate_fraction: 1e0
          arrival: {process: gamma, cv: 25e-1}
          input_distribution: {type: gaussian, params: {mean: 2e2, std_dev: 5.5e1, min: 1, max: 1e+4}}
          output_distribution: {type: constant, params: {value: 8}}
    """
    workload = import_workload(yaml.safe_load(text), "x").document["workload"]
    assert (workload["rate"], workload["requests"]) == ("100/s", 1000)
    tenant = workload["tenants"]["1e2"]
    assert tenant["arrival"] == {"process": "gamma", "cv": 2.5}
    assert tenant["prompt_tokens"] == {"dist": "normal", "mean": 200, "std": 55, "max": 10_000}
    with pytest.raises(HeadwayError, match="num_requests: expected a whole number, got '15e-1'"):
        import_workload(yaml.safe_load(text.replace("1E3", "15e-1")), "x")


@pytest.mark.parametrize("words", [("import", "blis"), ("export", "blis")])
def test_a_missing_file_is_named_before_a_missing_option(headway: Run, words: tuple[str, ...]) -> None:
    done = headway(*words, "nofile.yaml")
    assert (done.returncode, done.stderr) == (2, "headway: nofile.yaml: there is no file of this name.\n")


def test_the_command_line_takes_workloads_and_traces(headway: Run, tmp_path: Path, root: Path) -> None:
    file, scenario = tmp_path / "spec.yaml", tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(spec(client(name="default", prefix_group="g", prefix_length=64))))
    completed = headway("import", "blis", str(file), "-o", str(scenario))
    assert completed.returncode == 0, completed.stderr
    assert yaml.safe_load(headway("export", "blis", str(scenario)).stdout) == yaml.safe_load(file.read_text())
    assert headway("run", str(scenario), "--json").returncode == 0
    trace = tmp_path / "trace"
    completed = headway("export", "blis", str(root / "examples/05_trace.jsonl"), "-o", str(trace))
    assert "cannot express the blocks of prompts" in completed.stderr
    assert "wrote 120 requests" in completed.stdout
    back = tmp_path / "back.jsonl"
    assert headway("import", "blis", str(trace.with_suffix(".yaml")), "-o", str(back)).returncode == 0
    assert len(back.read_text().splitlines()) >= 120
    assert headway("export", "blis", str(root / "examples/05_trace.jsonl")).returncode == 2


def test_a_recorded_trace_goes_out_as_tracev2_and_comes_back_with_its_times(
    headway: Run, tmp_path: Path, traces: Path
) -> None:
    source = traces / "mooncake" / "arxiv_mooncake_trace_first1000.jsonl"
    if not source.is_file():
        pytest.skip("the trace is not there")
    assert headway("export", "blis", str(source), "-o", str(tmp_path / "t")).returncode == 0
    assert headway("import", "blis", str(tmp_path / "t.csv"), "-o", str(tmp_path / "t.jsonl")).returncode == 0
    told = [
        [(one.at_ps, one.prompt_tokens, one.output_tokens) for one in open_trace(file).records]
        for file in (source, tmp_path / "t.jsonl")
    ]
    assert len(told[0]) == 1000
    assert told[0] == told[1]

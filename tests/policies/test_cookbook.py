"""The cookbook: built-in routing policies written in the policy language, which decide as the built-in ones do."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import headway
from conftest import ROOT
from drawing import grid
from headway.config.documents import presets
from headway.policies import registry
from headway.policies.code import Program
from headway.policies.templates import TEMPLATES
from headway.results.result import Result

COOKBOOK = presets("cookbook", ".py")
CHANCE = "draws at random, and the language has no random numbers"
HASH = "breaks near-ties by a hash of the prompt's content, which a program does not see"
PAIRS = "consists of two other policies; a program that names a pair"
UNWRITTEN = {
    "random": CHANCE,
    "power-of-two": CHANCE,
    "kv-aware": HASH,
    "kv-aware-spill": HASH,
    "pair": PAIRS,
    "least-loaded-pair": PAIRS,
    "prefix-pair": PAIRS,
}
# The B3 family believes in blocks of 512 tokens.
BELIEF = {
    name: {"block_tokens": 512, "lru_blocks": 976}
    for name in ("lmetric", "lmetric-plus-one", "least-prefill-work", "unified")
}
LENGTHS = {"dist": "normal", "mean": 700, "std": 400, "min": 4, "max": 2500}
OUTPUTS = {"dist": "normal", "mean": 120, "std": 60, "min": 2, "max": 400}
WORKLOADS: dict[str, dict[str, Any]] = {
    "shared prefixes, short of memory": {
        "workload": {
            "requests": 400,
            "rate": "80/s",
            "prompt_tokens": LENGTHS,
            "output_tokens": OUTPUTS,
            "prefix": {"groups": 12, "tokens": 600},
        },
        "cluster": {"instances": 4, "kv": {"gpu_blocks": 900}, "max_batch_size": 16},
    },
    "chats, signals polled": {
        "workload": {
            "requests": 400,
            "rate": "12/s",
            "kind": "chat",
            "prompt_tokens": LENGTHS,
            "output_tokens": OUTPUTS,
        },
        "cluster": {"instances": 5, "kv": {"gpu_blocks": 2500}},
        "signals": {"poll_interval": "300ms", "poll_delay": "50ms"},
    },
    "two models, sessions of both": {
        "workload": {
            "requests": 300,
            "rate": "8/s",
            "kind": "chat",
            "prompt_tokens": LENGTHS,
            "output_tokens": OUTPUTS,
            "models": {"llama-3.1-8b": 2, "llama-3.1-70b": 1},
        },
        "cluster": {
            "deployments": {
                "small": {"instances": 3},
                "large": {"instances": 2, "model": "llama-3.1-70b", "tp": 4},
            }
        },
    },
    "instances that come and go": {
        "workload": {
            "requests": 300,
            "rate": "20/s",
            "kind": "agentic",
            "prompt_tokens": LENGTHS,
            "output_tokens": OUTPUTS,
        },
        "cluster": {"instances": 4},
        "faults": [{"at": "3s", "instance": "instance-1", "kind": "crash", "duration": "5s"}],
        "retries": 3,
    },
    "a trace": {
        "workload": {"trace": {"path": str(ROOT / "examples" / "05_trace.jsonl"), "speed": 20}},
        "cluster": {"instances": 3},
        "routers": {"count": 2, "sync_interval": "1s"},
    },
}


def run(workload: str, routing: Any) -> Result:
    """The belief of `BELIEF` is that of these defaults."""
    return headway.simulate({"defaults": "2026-11", **WORKLOADS[workload]}, routing=routing, trace="decisions")


@cache
def built_in(workload: str, name: str) -> Result:
    return run(workload, name)


@pytest.mark.parametrize(("name", "workload"), grid(list(COOKBOOK), list(WORKLOADS)))
def test_it_decides_as_the_built_in_policy_does(name: str, workload: str) -> None:
    plain = built_in(workload, name)
    spec = {"name": "code", "source": COOKBOOK[name], **BELIEF.get(name, {})}
    written = run(workload, spec)
    assert written.requests == plain.requests
    assert written.decisions is not None and plain.decisions is not None
    assert [one.target for one in written.decisions] == [one.target for one in plain.decisions]


@pytest.mark.full
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_workloads_tell_policies_apart(workload: str) -> None:
    """Else that they decide alike would say little."""
    chosen = {tuple(built_in(workload, name).requests["instance"]) for name in COOKBOOK}
    assert len(chosen) >= 9
    for name in COOKBOOK:
        assert len(built_in(workload, name).requests) > 0


def test_every_routing_policy_is_written_or_it_is_said_why_not() -> None:
    known = [name for name in registry.names("routing") if ("routing", name) not in TEMPLATES]
    assert sorted([*COOKBOOK, *UNWRITTEN]) == sorted(known)
    page = " ".join((ROOT / "docs" / "policy-language.md").read_text(encoding="utf-8").split())
    for name, reason in UNWRITTEN.items():
        assert f"`{name}`" in page and reason in page


@pytest.mark.parametrize("name", COOKBOOK)
def test_a_recipe_says_whose_it_is_and_reads_what_the_built_in_does(name: str) -> None:
    assert COOKBOOK[name].startswith(f'"""{name}')
    program, entry = Program(COOKBOOK[name], "routing", name), registry.find("routing", name, "x")
    assert set(program.reported) == set(entry.reported)
    defaults = {one.name: one.default for one in entry.parameters}
    assert {one.name: one.default for one in program.parameters}.items() <= defaults.items()

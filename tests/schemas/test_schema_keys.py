"""The schemas know the keys that the loaders accept, and no others, at every depth.

The test walks through a schema. At every mapping it loads the smallest document that leads there, with a key that does
not exist. The loader then names the keys that it knows, and they must be those of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft7Validator

from headway.errors import HeadwayError
from headway.evolve.suite import Suite
from headway.gateway.config import Config
from headway.policies.bundle import Bundle
from headway.scenario.scenario import Scenario
from headway.schemas import schema
from headway.types import Json

WRONG = "zzzzz"
KNOWN = re.compile(r"Known(?: stages)?: (.*?)\.$")
UNUSED = re.compile(
    r"policies\.(scheduler|scaling)|canary\.policies\.policies\.estimator"
)  # stages of a bundle that the gateway does not build
Wrap = Callable[[Any], Any]
TAGS = {
    "dist",
    "type",
    "kind",
    "model",
    "process",
    "name",
    "weight",
    "like",
    "template",
    "canary",
}  # read before the other keys


class Place(NamedTuple):
    """A mapping in a schema, and how a document leads there."""

    path: str
    keys: Json
    required: list[str]
    wrap: Wrap


class Walk:
    """Yields the mappings of a schema. Behind a reference, it goes deeper only the first time."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self.entered: set[str] = set()

    def resolve(self, node: Json) -> Json:
        return self.root["definitions"][node["$ref"].removeprefix("#/definitions/")] if "$ref" in node else node

    def places(self, node: Json, path: str = "", wrap: Wrap = lambda value: value) -> Iterator[Place]:
        reference = node.get("$ref")
        again = reference in self.entered
        if reference is not None:
            self.entered.add(reference)
            node = self.resolve(node)
        if "properties" not in node:
            for each in node.get("anyOf", ()):
                yield from self.places(each, path, wrap) if not again else self.shallow(each, path, wrap)
        yield from self.here(node, path, wrap)
        if not again:
            yield from self.below(node, path, wrap)

    def shallow(self, node: Json, path: str, wrap: Wrap) -> Iterator[Place]:
        yield from self.here(self.resolve(node), path, wrap)

    def here(self, node: Json, path: str, wrap: Wrap) -> Iterator[Place]:
        if node.get("additionalProperties") is False:
            yield Place(path, node["properties"], node.get("required", []), wrap)

    def below(self, node: Json, path: str, wrap: Wrap) -> Iterator[Place]:
        needed = self.sample(node) if node.get("type") == "object" else {}
        for name, each in node.get("properties", {}).items():
            if name == "tree":  # tested apart: the loader names all keys of all forms at once
                continue
            yield from self.places(each, f"{path}.{name}", lambda value, name=name: wrap(needed | {name: value}))
        if isinstance(node.get("additionalProperties"), dict):
            yield from self.places(node["additionalProperties"], f"{path}.*", lambda value: wrap({"a": value}))
        if isinstance(node.get("items"), dict):
            yield from self.places(node["items"], f"{path}[]", lambda value: wrap([value]))

    def sample(self, node: Json) -> Any:
        """Return a small value that matches a schema."""
        node = self.resolve(node)
        for key in ("const", "default"):
            if key in node:
                return node[key]
        for key in ("enum", "examples"):
            if key in node:
                return node[key][0]
        if node.get("type") == "object" or "properties" in node:
            return {name: self.sample(node["properties"][name]) for name in node.get("required", [])}
        if "anyOf" in node:
            return self.sample(node["anyOf"][0])
        kind = node.get("type", "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "array":
            return [self.sample(node["items"])] if isinstance(node.get("items"), dict) else [1]
        least = node.get("minimum", 1)
        return {"integer": least, "number": least, "boolean": True, "string": "1", "null": None}[kind]


def complete_scenario(document: Json) -> Json:
    """Return the document with the keys that the loader needs in addition."""
    workload = document["workload"] = dict(document.get("workload") or {})
    if "trace" not in workload and "preset" not in workload:
        workload |= {"requests": 1} if "requests" not in workload else {}
        workload |= {"rate": "1/s"} if not {"rate", "closed_loop", "tenants"} & set(workload) else {}
    for tenant in (workload.get("tenants") or {}).values():
        if "closed_loop" not in tenant:
            tenant.setdefault("rate", "1/s")
    if (prefix := workload.get("prefix")) and "popularity" in prefix:
        prefix.setdefault("tokens", 1)
    if (starts := (workload.get("trace") or {}).get("starts")) and "arrival" in starts:
        starts["rate"] = "1/s"
    cluster = document.get("cluster") or {}
    for pool in (cluster, *(cluster.get("deployments") or {}).values()):
        if {"prefill", "decode"} & set(pool):
            halves = {"prefill": {"instances": 1}, "decode": {"instances": 1}}
            pool |= {"architecture": "disaggregated", **halves, **pool}
    return document


def load_scenario(document: Json) -> None:
    Scenario.load(complete_scenario(document))


def load_suite(document: Json) -> None:
    shared = complete_scenario({**(document.get("scenario") or {}), "workload": {}})
    workload = shared.pop("workload")
    shared |= {key: 1 for key in document.get("scenario") or {} if key == "workload"}
    cases = {"objectives": ["latency.e2e.mean"], "train": [{"workload": "w", "seeds": [1]}]}
    document = {**cases, **document, "scenario": shared}
    document["workloads"] = {"w": workload, "1": workload, **(document.get("workloads") or {})}
    if "a" in document["workloads"]:
        workload = complete_scenario({"workload": document["workloads"]["a"]})["workload"]
        document["workloads"]["a"] = workload
        document["train"] = [{"workload": "a", "seeds": [1]}]
    for part in ("train", "validation", "held_out"):
        for entry in document.get(part, []):
            if isinstance(entry["workload"], dict):
                entry["workload"] = complete_scenario({"workload": entry["workload"]})["workload"]
                entry.setdefault("name", "n")
            for changes in (entry, entry.get("scenario")):
                if isinstance(changes, dict) and changes.get("cluster"):
                    changes["cluster"] = complete_scenario({"cluster": changes["cluster"]})["cluster"]
    Suite.load(document)


def load_gateway(document: Json) -> None:
    for canary in (document.get("canary"), (document.get("policies") or {}).get("canary")):
        if isinstance(canary, dict) and canary.get("policies") == "1":
            canary["policies"] = {"routing": "lmetric"}
    Config.load({"backends": {"b": "http://127.0.0.1:1"}, **document})


def load_bundle(document: Json) -> None:
    Bundle.read({"format": 1, "policies": {}, **document}).check()


LOADERS = {"scenario": load_scenario, "suite": load_suite, "gateway": load_gateway, "bundle": load_bundle}


def complaint(load: Callable[[Json], None], document: Json) -> str | None:
    """Return the error of the loader, if there is one."""
    try:
        load(document)
    except HeadwayError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [pytest.param("suite", marks=pytest.mark.full), "scenario", "gateway", "bundle"])
def test_a_schema_knows_the_keys_that_the_loader_knows(name: str) -> None:
    root = schema(name)
    walk = Walk(root)
    seen = 0
    problems = []
    for place in walk.places(root):
        if name == "gateway" and UNUSED.search(place.path):
            continue
        needed = {key: walk.sample(place.keys[key]) for key in place.required}
        message = complaint(LOADERS[name], place.wrap(needed | {WRONG: 1})) or "loads"
        match = KNOWN.search(message)
        if WRONG not in message:
            problems.append((place.path, message))
            continue
        known = set(match[1].split(", ")) if match else set()
        seen += 1
        if match and place.keys.keys() - known - TAGS:
            problems.append((place.path, "not in the loader", place.keys.keys() - known, message))
        for key in known - place.keys.keys():  # keys that the loader knows, but rejects here
            refusal = complaint(LOADERS[name], place.wrap(needed | {key: 1}))
            if refusal is None or key not in refusal:
                problems.append((place.path, "not in the schema", key, refusal))
    assert not problems, "\n".join(map(str, problems))
    assert seen > 100


@pytest.mark.parametrize(
    "tree",
    [
        1,
        "reject",
        {"value": "admit"},
        {"if": "cluster.totals.queued > 50", "then": "reject", "else": "admit"},
        {"if": {"all": ["cluster.totals.queued > 50", {"not": False}]}, "then": "reject", "else": {"value": 1}},
        {"rules": [{"if": {"any": [True]}, "then": "reject"}, "admit"]},
        {"parameters": {"A": [1, 0, 2], "B": {"default": 1, "low": 0, "high": 2}}, "let": {"q": "A"}, "value": "q > 1"},
        {"if": True, "then": 1},
        {"if": True, "then": 1, "else": 1, "rules": []},
        {"if": True, "then": 1, "otherwise": 1},
        {"if": {"all": 1}, "then": 1, "else": 1},
        {"parameters": {"A": {"default": 1, "low": 0}}, "value": 1},
        {"rules": [{"if": {"none": [True]}, "then": "reject"}, "admit"]},
    ],
)
def test_a_tree_is_valid_if_it_loads(tree: Any) -> None:
    document = {"format": 1, "policies": {"admission": {"type": "tree", "tree": tree}}}
    valid = Draft7Validator(schema("bundle")).is_valid(document)
    assert valid is (complaint(load_bundle, document) is None)

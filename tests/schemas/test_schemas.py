"""The schemas in the package are those of the declarations, and every file that the repository shows matches them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from conftest import ROOT, Run
from headway.config.keys import keys_of
from headway.gateway.config import Config
from headway.schemas import TITLES, schema, schema_file
from headway.schemas.__main__ import generate
from headway.types import Json

FENCE = re.compile(r"^```(yaml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRESETS = ROOT / "src" / "headway" / "presets"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the files are read whenever tests are collected
OTHER_KEYS = {"routing-policy", "routing-scorers"}  # of files of another kind


class Sample(NamedTuple):
    place: str
    kind: str
    document: Json


@cache
def validator(kind: str) -> Draft7Validator:
    return Draft7Validator(schema(kind))


def kind_of(document: Any) -> str | None:
    """The kind of a file, by its keys."""
    if not isinstance(document, dict):
        return None
    for key, kind in {"objectives": "suite", "workload": "scenario", "backends": "gateway", "format": "bundle"}.items():
        if key in document:
            return kind
    return None


def samples() -> Iterator[Sample]:
    for folder in (ROOT / "examples", ROOT / "benchmarks", PRESETS / "scenarios", PRESETS / "suites"):
        for file in sorted(folder.rglob("*.yaml")):
            document = yaml.load(file.read_text(encoding="utf-8"), LOADER)
            if kind := kind_of(document):
                yield Sample(str(file.relative_to(ROOT)), kind, document)
    for file in sorted((PRESETS / "workloads").glob("*.yaml")):
        yield Sample(file.name, "scenario", {"workload": yaml.load(file.read_text(encoding="utf-8"), LOADER)})
    for file in sorted((ROOT / "examples").rglob("*.headway.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            yield Sample(f"{file.name}:{number}", "trace", json.loads(line))


def shown() -> Iterator[Sample]:
    """The files, and the parts of scenarios and of gateways' files, that the pages show."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            place = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
            try:
                document = yaml.load(block[2], LOADER)
            except yaml.YAMLError:  # a text of another kind
                continue
            if not isinstance(document, dict) or OTHER_KEYS & set(document):
                continue
            kind = kind_of(document)
            if kind is not None:
                yield Sample(place, kind, document)
            elif block[1] == "yaml":
                yield Sample(place, "scenario", {"workload": {}, **document})
            elif document.keys() <= keys_of(Config).keys():
                yield Sample(place, "gateway", document)


ALL = [*samples(), *shown()]


def test_there_are_samples_of_every_kind() -> None:
    assert {sample.kind for sample in ALL} == set(TITLES)


@pytest.mark.parametrize("sample", ALL, ids=[sample.place for sample in ALL])
def test_every_example_matches_its_schema(sample: Sample) -> None:
    errors = list(validator(sample.kind).iter_errors(sample.document))
    assert not errors, best_match(errors).message


@pytest.mark.parametrize("name", TITLES)
def test_the_files_in_the_package_are_generated_from_the_declarations(name: str) -> None:
    assert schema_file(name).read_text(encoding="utf-8") == generate(name), "run python -m headway.schemas"
    Draft7Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", TITLES)
def test_every_key_of_a_section_is_described(name: str) -> None:
    document = schema(name)
    sections = [document, *(each for part, each in document["definitions"].items() if "." in part)]
    keys = {
        key: form
        for section in sections
        for each in (section, *section.get("anyOf", ()))
        for key, form in each.get("properties", {}).items()
    }
    assert len(keys) >= (6 if name == "bundle" else 15)
    policies = {"admission", "priority", "routing", "decider", "scheduler", "scaling"}  # each policy describes itself
    assert not [key for key, form in keys.items() if not form.get("description") and key not in policies]


@pytest.mark.parametrize("name", [name for name in TITLES if name != "trace"])
def test_an_editor_shows_the_name_and_meaning_of_each_kind_and_of_its_parameters(name: str) -> None:
    kinds = [kind for part in schema(name)["definitions"].values() for kind in part.get("anyOf", ())]
    named = [kind for kind in kinds if any("const" in form for form in kind.get("properties", {}).values())]
    titled = [kind for kind in named if "title" in kind]
    assert len(titled) > 30
    assert not [kind["title"] for kind in titled for form in kind["properties"].values() if "$ref" not in form
                and not form.get("description") and "anyOf" not in form]  # fmt: skip
    weighted = next(kind for kind in titled if kind["title"] == "weighted" and "picker" in kind["properties"])
    assert weighted["properties"]["picker"]["description"].startswith("parameter of weighted. Picks the instance")


@pytest.mark.parametrize(
    ("kind", "document", "place"),
    [
        ("scenario", {"workload": {"rate": 40}}, "workload.rate"),
        ("scenario", {"workload": {"rate": "40/s"}, "cluster": {"instances": 0}}, "cluster.instances"),
        ("scenario", {"workload": {}, "cluster": {"kv": {"tiers": {"cpu": {"blocks": 5, "latnecy": "1s"}}}}}, "cpu"),
        ("scenario", {"workload": {}, "policies": {"routing": "leest-loaded"}}, "policies.routing"),
        ("scenario", {"workload": {}, "policies": {"routing": {"name": "lmetric", "wieght": 1}}}, "policies.routing"),
        ("scenario", {"workload": {"prompt_tokens": {"dist": "normal", "mean": 5}}}, "workload.prompt_tokens"),
        ("scenario", {"workload": {"think_time": "5s"}}, "workload"),
        ("gateway", {"backends": {"a": {"url": "http://a", "role": "prefil"}}}, "backends.a"),
        ("gateway", {"timeouts": {"connect": 3}}, "timeouts.connect"),
        ("suite", {"objectives": ["latency.ttft.p99"], "train": [{"workload": "chat"}]}, "train"),
        ("bundle", {"format": 2, "policies": {}}, "format"),
        ("trace", {"prompt_tokens": -1, "output_tokens": 1, "at_ps": 0}, ""),
        ("trace", {"prompt_tokens": 1, "output_tokens": 1, "at": 0}, ""),
    ],
)
def test_a_mistake_does_not_match(kind: str, document: Json, place: str) -> None:
    error = best_match(validator(kind).iter_errors(document))
    assert error is not None
    assert place in ".".join(map(str, error.absolute_path)) or place.endswith(str(error.absolute_path[-1]))


def test_a_schema_is_printed(headway: Run) -> None:
    done = headway("schema", "gateway")
    assert done.returncode == 0 and json.loads(done.stdout) == schema("gateway")
    done = headway("schema", "--path", "trace")
    assert Path(done.stdout.strip()) == schema_file("trace")
    done = headway("schema", "gatway")
    assert done.returncode == 2
    listed = headway("schema")
    assert all(name in listed.stdout for name in TITLES)

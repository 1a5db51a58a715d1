"""`python -m headway.schemas` writes the schemas of this package, from the declarations of the keys."""

import json
from pathlib import Path
from typing import Any

from headway.config.schema import DRAFT, json_schema
from headway.evolve.suite import SuiteKeys
from headway.gateway.config import Config
from headway.policies.bundle import BundleKeys
from headway.scenario.scenario import Scenario
from headway.schemas import TITLES
from headway.workload.traces.own import LINE_FORM

KINDS = {"scenario": Scenario, "suite": SuiteKeys, "gateway": Config, "bundle": BundleKeys, "trace": LINE_FORM}


def generate(name: str) -> str:
    """Return the text of a schema."""
    document = json_schema(KINDS[name], **{"$schema": DRAFT, "title": TITLES[name]})
    return json.dumps(_whole(document), indent=1, ensure_ascii=False) + "\n"


def _whole(value: Any) -> Any:
    """Return a document in which whole numbers are integers: 1.0 becomes 1. Python caches types whose bounds are equal,
    such as 1 and 1.0. Without this conversion, the order of imports would decide whether 1 or 1.0 appears."""
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


if __name__ == "__main__":
    for kind in KINDS:
        (Path(__file__).parent / f"{kind}.json").write_text(generate(kind), encoding="utf-8")

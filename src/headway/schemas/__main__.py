"""`python -m headway.schemas` writes the schemas of this package, from the declarations of the keys."""

import json
from pathlib import Path

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
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for kind in KINDS:
        (Path(__file__).parent / f"{kind}.json").write_text(generate(kind), encoding="utf-8")

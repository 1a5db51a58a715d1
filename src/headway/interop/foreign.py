"""Files of other projects that commands accept in place of a scenario or of policies: configurations of RouteSim, and
workload specifications and policy bundles of BLIS."""

import re
from pathlib import Path
from typing import Final

from headway.config.documents import read_text, read_yaml
from headway.interop import Translation
from headway.types import Json

YAML: Final = (".yaml", ".yml")
OWN: Final = re.compile(r"^(workload|cluster|policies|format)\s*:", re.MULTILINE)
SPECIFICATION: Final = re.compile(r"^(clients|cohorts|inference_perf|servegen_data)\s*:", re.MULTILINE)
BUNDLE: Final = re.compile(
    r"^(admission|routing|scheduler|preemption|tenant_budgets|node_pools|autoscaler)\s*:", re.MULTILINE
)


def foreign_scenario(file: Path) -> Translation | None:
    """Translate the file of another project to a scenario, with paths relative to the working folder. If the file is
    neither RouteSim's nor BLIS's, return None."""
    if file.suffix == ".toml" and file.is_file():
        from headway.interop.routesim_import import import_config

        return import_config(file)
    if not _matches(file, SPECIFICATION):
        return None
    from headway.interop.blis_policies import import_file

    return import_file(file)


def with_foreign_policies(scenario: Json, file: Path) -> Translation | None:
    """Return the scenario with the policies of a BLIS bundle. If the bundle also describes a cluster or scaling, those
    keys override the scenario's keys. If the file is not such a bundle, return None."""
    if not _matches(file, BUNDLE):
        return None
    from headway.interop.blis_policies import import_policies

    policies = import_policies(read_yaml(file), file.name)
    changed = dict(scenario)
    for name, keys in policies.document.items():
        changed[name] = {**(changed.get(name) or {}), **keys}
    return Translation(changed, policies.notes)


def _matches(file: Path, keys: re.Pattern[str]) -> bool:
    """Return whether a YAML file has at least one of these keys, but none of the keys by which Headway's own scenarios
    and bundles are recognised."""
    if file.suffix not in YAML or not file.is_file():
        return False
    text = read_text(file)
    return keys.search(text) is not None and OWN.search(text) is None

"""Where a routing policy or a workload is read from that is to be written for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.config.documents import beside, read_yaml
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.bundle import Bundle
from headway.scenario.scenario import Scenario


def routing_of(source: str) -> Any:
    """The routing policy of a scenario, a bundle, a gateway's file, policies by stage or a policy alone; or scorers as
    text, such as `prefix-affinity:3,queue-depth:2`."""
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in (".yaml", ".yml") or ":" not in source:
            raise HeadwayError(f"{source}: there is no such file, and it is no text of scorers and weights either.")
        return {"name": "weighted", "scorers": source}
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise HeadwayError(f"{source}: expected a scenario, a bundle or policies, got {shown(data)}.")
    if "workload" in data or "preset" in data:
        return Scenario.load(path).policies.routing
    given = data.get("policies", data)
    if "format" in data:
        given = Bundle.read(str(path)).policies
    elif isinstance(given, str):
        given = Bundle.read(beside(given, path)).policies
    if not isinstance(given, dict):
        raise HeadwayError(f"{source}: policies: expected a mapping of stages, got {shown(given)}.")
    if "routing" in given:
        return given["routing"]
    if "name" in given or "scorers" in given:
        return {"name": "weighted", **given}
    raise HeadwayError(f"{source}: says nothing of policies.routing.")


def is_scenario(path: Path) -> bool:
    """Whether a file is a scenario, and no trace."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    data = read_yaml(path)
    return isinstance(data, dict) and "trace_version" not in data


def is_trace(path: Path) -> bool:
    """Whether a file of BLIS is a trace, and no workload specification."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return True
    data = read_yaml(path)
    return isinstance(data, dict) and "trace_version" in data

"""The command that gives the same runs again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headway.results import store
from headway.scenario.overrides import DEFAULT_POLICIES
from headway.types import Json

Run = tuple[str, Json, str]  # a label, a resolved scenario, and the folder that it lies in


def again(
    kind: str,
    runs: Sequence[Run],
    stage: str = "routing",
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
) -> str | None:
    """What to type; None where the runs lie in no folder, so that there is no scenario to name, and of live traffic."""
    folder = runs[0][2]
    if not folder or any(scenario.get("live") for _, scenario, _ in runs):
        return None
    file = f"{folder}/{store.SCENARIO}"
    more = ["--seeds", str(seeds)] if seeds > 1 else []
    if kind == "run":
        return shlex.join(["headway", "run", file])
    if kind == "sweep":
        ways = [word for path, values in (vary or {}).items() for word in ("--vary", f"{path}={_listed(values)}")]
        return shlex.join(["headway", "sweep", file, *ways, *more])
    policies = ",".join(dict.fromkeys(_policy(label, policy_of(one, stage)) for label, one, _ in runs))
    where = [] if stage == "routing" else ["--stage", stage]
    return shlex.join(["headway", "compare", file, *where, "--policies", policies, *more])


def policy_of(scenario: Json, stage: str) -> Any:
    """The policy of a stage; a resolved scenario leaves out some that are as usual."""
    return scenario["policies"].get(stage, DEFAULT_POLICIES[stage])


def _listed(values: Sequence[Any]) -> str:
    return ",".join(one if isinstance(one, str) else _flow(one) for one in values)


def _policy(label: str, spec: Any) -> str:
    """A policy by its name alone where that says all, else as a mapping."""
    name = spec if isinstance(spec, str) else str(spec["name"])
    return name if label == name or isinstance(spec, str) else _flow(spec)


def _flow(value: Any) -> str:
    """JSON, which YAML reads as well."""
    return msgspec.json.encode(value).decode()

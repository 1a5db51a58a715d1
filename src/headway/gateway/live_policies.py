"""Which policies a gateway may run, and how they are made: those of a scenario, or of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.shadow.canary import CANARY, read_canary
from headway.policies import registry
from headway.policies.bundle import Bundle
from headway.policies.registry import DEFAULT_POLICIES
from headway.types import Json

STAGES: Final = ("admission", "priority", "flow", "routing")  # what a gateway decides
# Nobody plans the load of a live gateway, so it has a hard cap where a scenario has none.
DEFAULTS: Final = {**DEFAULT_POLICIES, "admission": {"name": "max-concurrency", "max_queue": 1024}}


def read_policies(given: Any) -> Json:
    """The `policies:` block of a scenario, or the file of a bundle, and a `canary` beside them. Those of the engines'
    own scheduler and of the autoscaler are let be; one that asks for the truth is refused, since nobody has it here."""
    if isinstance(given, str):
        given = dict(Bundle.read(given).policies)
    if not isinstance(given, dict):
        raise HeadwayError(f"policies: expected a mapping of stages, got {shown(given)}.")
    canary = given.get(CANARY)
    _check_stages({stage: spec for stage, spec in given.items() if stage != CANARY}, "policies")
    found = {stage: given.get(stage, DEFAULTS[stage]) for stage in STAGES}
    _check_live(found, "policies")
    return found if canary is None else {**found, CANARY: read_canary(canary, read_candidate)}


def read_candidate(given: Any, where: str) -> Json:
    """Policies that are tried: a block, the file of a bundle, or the document that is in one. What it leaves open is as
    it is in force."""
    if isinstance(given, str) or (isinstance(given, dict) and "format" in given):
        given = named(Bundle.read(given))
    if not isinstance(given, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages or a bundle, got {shown(given)}.")
    _check_stages(given, where)
    if "flow" in given:
        raise HeadwayError(f"{where}.flow: the queue is one for all requests; leave it out.")
    found = {stage: given[stage] for stage in STAGES if stage in given}
    if not found:
        raise HeadwayError(f"{where}: name a policy at least, as in {{routing: lmetric}}.")
    _check_live(found, where)
    return found


def named(bundle: Bundle) -> Json:
    """What a bundle is about: its routing, and the other stages that are not as they are by default."""
    return {
        stage: spec for stage, spec in bundle.policies.items() if stage == "routing" or spec != DEFAULT_POLICIES[stage]
    }


def _check_stages(given: Mapping[str, Any], where: str) -> None:
    for stage in given:
        if stage not in DEFAULTS:
            raise HeadwayError(f"{where}.{stage}: there is no such stage. Known: {', '.join(DEFAULTS)}.")


def _check_live(specs: Json, where: str) -> None:
    for stage, made in build_policies(specs, where).items():
        parts = [made, *getattr(made, "_parts", ())]
        if any(registry.entry_of(part, stage).oracle for part in parts):
            raise HeadwayError(f"{where}.{stage}: {shown(specs[stage])} asks for the truth, which no live router has.")


def build_policies(specs: Json, where: str = "policies") -> dict[str, Any]:
    """Fresh policies of each stage: they keep state."""
    return {stage: registry.build(stage, spec, f"{where}.{stage}") for stage, spec in specs.items() if stage in STAGES}

"""Reads the policies of a gateway, as a scenario or a bundle has them, and refuses those that cannot run live."""

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
# The load of a live gateway is not planned, so it has a hard cap where a scenario has none.
DEFAULTS: Final = {**DEFAULT_POLICIES, "admission": {"name": "max-concurrency", "max_queue": 1024}}


def read_policies(block: Any) -> Json:
    """Read a `policies:` block as a scenario has it, or the file of a bundle, and a `canary` beside them. Stages that a
    gateway does not decide are ignored. Oracle policies are refused, since a gateway does not know the truth."""
    if isinstance(block, str):
        block = dict(Bundle.read(block).policies)
    if not isinstance(block, dict):
        raise HeadwayError(f"policies: expected a mapping of stages, got {shown(block)}.")
    canary = block.get(CANARY)
    _check_stages({stage: spec for stage, spec in block.items() if stage != CANARY}, "policies")
    specs = {stage: block.get(stage, DEFAULTS[stage]) for stage in STAGES}
    _check_live(specs, "policies")
    return specs if canary is None else {**specs, CANARY: read_canary(canary, CANARY, read_candidate)}


def read_candidate(block: Any, where: str) -> Json:
    """Read the policies of a candidate: a block, the file of a bundle, or its document. Stages that are left out stay
    those in force."""
    if isinstance(block, str) or (isinstance(block, dict) and "format" in block):
        block = changed_stages(Bundle.read(block))
    if not isinstance(block, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages or a bundle, got {shown(block)}.")
    _check_stages(block, where)
    if "flow" in block:
        raise HeadwayError(f"{where}.flow: the queue is one for all requests; leave it out.")
    specs = {stage: block[stage] for stage in STAGES if stage in block}
    if not specs:
        raise HeadwayError(f"{where}: name a policy at least, as in {{routing: lmetric}}.")
    _check_live(specs, where)
    return specs


def changed_stages(bundle: Bundle) -> Json:
    """Return a bundle's routing, and the other stages that differ from the defaults."""
    return {
        stage: spec for stage, spec in bundle.policies.items() if stage == "routing" or spec != DEFAULT_POLICIES[stage]
    }


def _check_stages(block: Mapping[str, Any], where: str) -> None:
    for stage in block:
        if stage not in DEFAULTS:
            raise HeadwayError(f"{where}.{stage}: there is no such stage. Known: {', '.join(DEFAULTS)}.")


def _check_live(specs: Json, where: str) -> None:
    for stage, policy in build_policies(specs, where).items():
        parts = [policy, *getattr(policy, "_parts", ())]
        if any(registry.entry_of(part, stage).oracle for part in parts):
            raise HeadwayError(f"{where}.{stage}: {shown(specs[stage])} asks for the truth, which no live router has.")


def build_policies(specs: Json, where: str = "policies") -> dict[str, Any]:
    """Make new policies of each stage: they keep state."""
    return {stage: registry.build(stage, spec, f"{where}.{stage}") for stage, spec in specs.items() if stage in STAGES}

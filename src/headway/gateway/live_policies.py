"""Reads a gateway's policies from a `policies:` block or a bundle. Oracle policies cannot run live."""

from collections.abc import Mapping
from typing import Any, Final

from headway.config.dated_defaults import CURRENT, Dated
from headway.config.keys import Form
from headway.config.schema import Mapped
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.shadow.canary import CANARY, UNUSED, CanaryKeys, read_canary
from headway.policies import registry
from headway.policies.bundle import Bundle
from headway.policies.policy_schema import policy_form
from headway.policies.registry import DEFAULT_POLICIES, gateway_policies
from headway.types import Json

STAGES: Final = (
    "admission",
    "priority",
    "flow",
    "estimator",
    "routing",
    "decider",
)  # the policy stages that a gateway runs
SHARED: Final = {"flow": "queue", "estimator": "estimator"}  # stages that the policies in force run for candidates too
FILE_KEYS: Final = ("path", "file", "policies")  # a string under one of these keys is the name of a file


# The policies of a gateway: a bundle's file, or policies by stage. Stages that only the simulator has are ignored.
POLICIES_FORM: Final = Form.of(
    str,
    Mapped(
        {stage: policy_form(stage, live=True) if stage in STAGES else UNUSED for stage in DEFAULT_POLICIES}
        | {CANARY: CanaryKeys}
    ),
    None,
)


def read_policies(block: Any, defaults: Dated = CURRENT) -> Json:
    """Read policies as `read_block` does. Add the default policies of the stages that they omit."""
    usual = gateway_policies(defaults)
    return {**{stage: usual[stage] for stage in STAGES}, **read_block(block)}


def read_block(block: Any) -> Json:
    """Read a `policies:` block with an optional `canary`, or a bundle's file. Ignore stages that no gateway runs."""
    if isinstance(block, str):
        block = dict(Bundle.read(block).policies)
    if not isinstance(block, dict):
        raise HeadwayError(f"policies: expected a mapping of stages, got {shown(block)}.")
    canary = block.get(CANARY)
    _check_stages(without_canary(block), "policies")
    specs = {stage: block[stage] for stage in STAGES if stage in block}
    _check_live(specs, "policies")
    return specs if canary is None else {**specs, CANARY: read_canary(canary, CANARY, read_candidate)}


def read_candidate(block: Any, where: str) -> Json:
    """Read a candidate's policies: a block, a bundle's file or a bundle's document. A candidate may omit stages."""
    if isinstance(block, str) or (isinstance(block, dict) and "format" in block):
        changed = changed_stages(Bundle.read(block))
        block = {stage: spec for stage, spec in changed.items() if stage not in SHARED}  # ignored, like `scheduler`
    if not isinstance(block, dict):
        raise HeadwayError(f"{where}: expected a mapping of stages or a bundle, got {shown(block)}.")
    _check_stages(block, where)
    for stage, shared in SHARED.items():
        if stage in block:
            wrong = f"a candidate shares the {shared} of the policies in force"
            raise HeadwayError(f"{where}.{stage}: {wrong}. Remove `{stage}`.")
    specs = {stage: block[stage] for stage in STAGES if stage in block}
    if not specs:
        raise HeadwayError(f"{where}: name at least one policy, as in {{routing: lmetric}}.")
    _check_live(specs, where)
    return specs


def without_canary(policies: Json) -> Json:
    return {stage: spec for stage, spec in policies.items() if stage != CANARY}


def changed_stages(bundle: Bundle) -> Json:
    """Return the bundle's routing policy, and each other policy that differs from the default."""
    return {
        stage: spec for stage, spec in bundle.policies.items() if stage == "routing" or spec != DEFAULT_POLICIES[stage]
    }


def _check_stages(block: Mapping[str, Any], where: str) -> None:
    for stage in block:
        if stage not in DEFAULT_POLICIES:
            raise HeadwayError(f"{where}.{stage}: unknown stage. Known stages: {', '.join(DEFAULT_POLICIES)}.")


def _check_live(specs: Json, where: str) -> None:
    for stage, policy in build_policies(specs, where).items():
        parts = [policy, *getattr(policy, "_parts", ())]
        if any(registry.entry_of(part, stage).oracle for part in parts):
            raise HeadwayError(f"{where}.{stage}: {shown(specs[stage])} is an oracle policy, for simulation only.")


def build_policies(specs: Json, where: str = "policies") -> dict[str, Any]:
    """Return a new policy object for each stage."""
    return {stage: registry.build(stage, spec, f"{where}.{stage}") for stage, spec in specs.items() if stage in STAGES}


def refuse_files(document: Any, where: str, reader: str) -> None:
    """Raise if policies from the network name a file, because write access to etcd or to the admin API must not grant
    code execution."""
    pending = [(document, "", where)]
    while pending:
        value, key, place = pending.pop()
        if isinstance(value, dict):
            pending += [(item, str(name), f"{place}.{name}") for name, item in value.items()]
            pending += [(name, "", place) for name in value]
        elif isinstance(value, list):
            pending += [(item, "", place) for item in value]
        # `is_file` looks for `.py:`. With the added colon, it also recognizes names that end in `.py`.
        elif isinstance(value, str) and key != "source" and (key in FILE_KEYS or registry.is_file(f"{value}:")):
            raise HeadwayError(
                f"{place}: names a file ({shown(value)}), but {reader} accepts no file names. Write the policy's text "
                "under `source`, or name a policy that the gateway has."
            )

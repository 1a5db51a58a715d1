"""Changes to a scenario from the command line: `--set key.path=value`, and the options that choose policies.

These functions change the plain mapping before validation, so that errors read as if the file contained the change.
"""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headway.config.documents import parse_yaml, read_yaml
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.policies.bundle import Bundle, is_bundle
from headway.policies.profile import scorer_list
from headway.policies.registry import DEFAULT_POLICIES, canonical, find
from headway.scenario.references import absolute
from headway.types import Json

SEEDS = ("workload", "simulation", "jitter")


def apply(data: Mapping[str, Any], assignments: Iterable[str], where: str = "--set ") -> Json:
    """Return a copy of the mapping with every `key.path=value` applied in order. Errors begin with `where`."""
    changed: Json = copy.deepcopy(dict(data))
    for text in assignments:
        path, equals, value = text.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise HeadwayError(f"{where}{cut(text)}: write it as key.path=value, as in workload.rate=60/s.")
        put(changed, keys, parse_yaml(value, f"{where}{cut(text)}"), f"{where}{cut(path.strip())}")
    return changed


def put(data: Json, keys: list[str], value: Any, where: str) -> None:
    """Set the value at one key path of a scenario's mapping, in place."""
    if keys[0] == "seed" and len(keys) > 1 and isinstance(data.get("seed", 0), int):
        data["seed"] = dict.fromkeys(SEEDS, data.get("seed", 0))
    if keys[0] == "policies" and len(keys) > 2:
        policies = {} if data.get("policies") is None else data["policies"]
        if isinstance(policies, dict):
            data["policies"] = policies
            stage = keys[1]
            policies[stage] = _policy(policies.get(stage) or DEFAULT_POLICIES.get(stage), keys[2:], value, where)
            return
    _put(data, keys, value, where)


def _put(holder: Any, keys: list[str], value: Any, where: str) -> None:
    """Set a value at a path of keys through mappings and lists. Missing mappings are created."""
    for depth, key in enumerate(keys[:-1]):
        if isinstance(holder, list):
            holder = holder[_position(holder, key, where)]
            continue
        if holder.get(key) is None:
            holder[key] = {}
        holder = holder[key]
        if not isinstance(holder, dict | list):
            place = ".".join(keys[: depth + 1])
            raise HeadwayError(
                f"{where}: {place} is {shown(holder)}, which has no keys; set all of it, as in {place}={{...}}."
            )
    if isinstance(holder, list):
        holder[_position(holder, keys[-1], where)] = value
    else:
        holder[keys[-1]] = value


def _position(items: list[Any], key: str, where: str) -> int:
    if key.isdecimal() and len(key) < 10 and int(key) < len(items):
        return int(key)
    raise HeadwayError(f"{where}: {shown(key)} is not a position in a list of {len(items)}; count from 0.")


def _policy(spec: Any, keys: list[str], value: Any, where: str) -> Json:
    """Return a policy's mapping with one key set. If this changes the name, drop the parameters of the old policy."""
    if spec is None or isinstance(spec, str):
        spec = {"name": spec} if spec else {}
    if not isinstance(spec, dict):
        raise HeadwayError(f"{where}: the policy is {shown(spec)}; expected a name or a mapping with 'name'.")
    if keys == ["name"]:
        return spec if absolute(spec.get("name")) == absolute(value) else {"name": value}
    known = {canonical(str(key)): key for key in spec}
    key = known.get(canonical(keys[0]), keys[0])
    if canonical(keys[0]) == "scorers" and len(keys) > 1:
        _put_scorer(spec, key, keys[1:], value, where)
    else:
        _put(spec, [key, *keys[1:]], value, where)
    return spec


def _put_scorer(spec: Json, key: str, keys: list[str], value: Any, where: str) -> None:
    """Apply `scorers.NAME=weight` or `scorers.NAME.parameter=value` to scorers in any of their three forms."""
    if key not in spec and "name" in spec:
        known = {parameter.name: parameter for parameter in find("routing", str(spec["name"]), where).parameters}
        if "scorers" not in known:
            raise HeadwayError(f"{where}: {shown(spec['name'])} has no such parameter.{suggest('scorers', known)}")
        spec[key] = copy.deepcopy(known["scorers"].default)
    items = spec[key] = scorer_list(spec.get(key) or [], where)
    parameter = keys[1] if len(keys) > 1 else "weight"
    item = next((item for item in items if canonical(str(item.get("name"))) == canonical(keys[0])), None)
    if item is None:
        item = {"name": keys[0], "weight": 1}
        items.append(item)
    _put(item, [parameter, *keys[2:]], value, where)


def policy_file(path: Path) -> tuple[Json, str | None, list[Json] | None]:
    """Return the content of a policy file as (policies by stage, `routing-policy`, `routing-scorers`). For a bundle,
    the last two are None. For any other policy file, the mapping of policies is empty. Relative paths in the file
    resolve against the folder of the file."""
    document = read_yaml(path)
    if is_bundle(document):
        bundle = Bundle.read(path)
        policies: Json = absolute(bundle.policies, path.parent)
        replace(bundle, policies=policies).check(f"{path}: policies")  # check here, so that errors name the file
        return policies, None, None
    return {}, *policy_config(path, document)


def policy_config(path: Path, document: Any) -> tuple[str | None, list[Json] | None]:
    """Return `routing-policy` and `routing-scorers` of a policy file."""
    if not isinstance(document, dict):
        raise HeadwayError(f"{path}: expected a bundle, or a mapping with 'routing-policy' and 'routing-scorers'.")
    known = ("routing-policy", "routing-scorers")
    for key in document:
        if canonical(str(key)) not in known:
            hint = suggest(str(key), (*known, "format", "policies"))
            raise HeadwayError(f"{path}: {cut(str(key))}: there is no such key.{hint}")
    values = {canonical(str(key)): value for key, value in document.items()}
    name, scorers = values.get("routing-policy"), values.get("routing-scorers")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise HeadwayError(f"{path}: routing-policy: expected a policy's name, got {shown(name)}.")
    weights = None if scorers is None else scorer_list(scorers, f"{path}: routing-scorers")
    return absolute(name, path.parent), absolute(weights, path.parent)


def with_policies(data: Mapping[str, Any], policies: Mapping[str, Any]) -> Json:
    """Return a copy of a scenario's mapping in which each stage in `policies` has the given policy. Other stages stay
    unchanged."""
    changed: Json = copy.deepcopy(dict(data))
    own = {} if changed.get("policies") is None else changed["policies"]
    if isinstance(own, dict) and policies:  # if `policies` is not a mapping, validation reports the error later
        changed["policies"] = {**own, **policies}
    return changed


def choose_policies(
    data: Mapping[str, Any], policy: str | None = None, scorers: str | None = None, config: Path | None = None
) -> Json:
    """Return a copy of the mapping with the policies that the options choose. Options override the policy file."""
    bundled, name, weights = policy_file(config) if config is not None else ({}, None, None)
    if policy is not None:
        if not policy.strip():
            raise HeadwayError("--routing-policy: a policy's name is missing, as in --routing-policy round-robin.")
        weights = weights if name is None or canonical(name) == canonical(policy) else None
        name = policy
    if scorers is not None:
        weights = scorer_list(scorers, "--routing-scorers")
    changed = with_policies(data, bundled)
    if name is None and weights is None:
        return changed
    if weights is not None and name is not None and canonical(name) != "weighted":
        raise HeadwayError(
            f"--routing-scorers: {shown(name)} takes no scorers; only the routing policy 'weighted' does."
        )
    policies = changed.get("policies")
    current = policies.get("routing") if isinstance(policies, dict) else None
    spec: Json = {"name": name or "weighted"}
    if name is None and isinstance(current, dict) and canonical(str(current.get("name"))) == "weighted":
        spec = dict(current)
    if weights is not None:
        spec["scorers"] = weights
    return with_policies(changed, {"routing": spec})

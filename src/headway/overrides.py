"""Changes to a scenario from outside its file: `--set key.path=value`, and the short forms that name a routing policy.

All of them edit the plain mapping before it is validated, so a mistake is told exactly as it would be in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from headway.policies.profile import scorer_list
from headway.registry import canonical, find
from headway.types import HeadwayError, Json
from headway.wording import suggest

DEFAULT_POLICIES = {"admission": "always", "routing": "weighted", "scheduler": "fcfs"}
SEEDS = ("workload", "simulation", "jitter")


class _StrictLoader(yaml.SafeLoader):
    """YAML as everywhere, but a key written twice is an error instead of a silent loss."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, str) and key in seen:
            line = key_node.start_mark.line + 1
            raise HeadwayError(f"line {line}: {key!r} is written twice (first on line {seen[key]}); keep one of them.")
        if isinstance(key, str):
            seen[key] = key_node.start_mark.line + 1
    loader.flatten_mapping(node)
    return loader.construct_mapping(node)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str, where: str) -> Any:
    """YAML text as plain values, with mistakes told by line."""
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise HeadwayError(f"{where}: {line}this is not YAML ({error.problem}).") from None
    except yaml.YAMLError as error:
        raise HeadwayError(f"{where}: this is not YAML ({str(error).splitlines()[0]}).") from None
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None


def read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise HeadwayError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise HeadwayError(f"{path}: is not a text file; a YAML file in UTF-8 is wanted.") from None
    return parse_yaml(text, str(path))


def apply(data: Mapping[str, Any], assignments: Iterable[str]) -> Json:
    """A copy of the mapping with every `key.path=value` carried out in order."""
    changed: Json = copy.deepcopy(dict(data))
    for text in assignments:
        path, equals, value = text.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise HeadwayError(f"--set {text}: write it as key.path=value, as in --set workload.rate=60/s.")
        _assign(changed, keys, parse_yaml(value, f"--set {text}"), f"--set {path.strip()}")
    return changed


def _assign(data: Json, keys: list[str], value: Any, where: str) -> None:
    if keys[0] == "seed" and len(keys) > 1 and isinstance(data.get("seed", 0), int):
        data["seed"] = dict.fromkeys(SEEDS, data.get("seed", 0))
    if keys[0] == "policies" and len(keys) > 2:
        policies = data.get("policies") or {}
        if isinstance(policies, dict):
            data["policies"] = policies
            stage = keys[1]
            policies[stage] = _policy(policies.get(stage) or DEFAULT_POLICIES.get(stage), keys[2:], value, where)
            return
    _put(data, keys, value, where)


def _put(holder: Any, keys: list[str], value: Any, where: str) -> None:
    """Set a value at a path of mappings and lists; mappings that are not there yet are made."""
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
                f"{where}: {place} is {holder!r} and has no keys; give the whole of it, as in {place}={{...}}."
            )
    if isinstance(holder, list):
        holder[_position(holder, keys[-1], where)] = value
    else:
        holder[keys[-1]] = value


def _position(items: list[Any], key: str, where: str) -> int:
    if key.isdigit() and int(key) < len(items):
        return int(key)
    raise HeadwayError(f"{where}: {key!r} is not a position in a list of {len(items)}; count from 0.")


def _policy(spec: Any, keys: list[str], value: Any, where: str) -> Json:
    """A policy's mapping with one parameter changed. A new name starts afresh: old parameters mean nothing to it."""
    if spec is None or isinstance(spec, str):
        spec = {"name": spec} if spec else {}
    if not isinstance(spec, dict):
        raise HeadwayError(f"{where}: the policy is given as {spec!r}; a name or a mapping with 'name' is wanted.")
    if keys == ["name"]:
        return spec if spec.get("name") == value else {"name": value}
    known = {canonical(str(key)): key for key in spec}
    key = known.get(canonical(keys[0]), keys[0])
    if canonical(keys[0]) == "scorers" and len(keys) > 1:
        _put_scorer(spec, key, keys[1:], value, where)
    else:
        _put(spec, [key, *keys[1:]], value, where)
    return spec


def _put_scorer(spec: Json, key: str, keys: list[str], value: Any, where: str) -> None:
    """`scorers.NAME=weight` or `scorers.NAME.parameter=value`, whichever form the scorers are written in."""
    if key not in spec and "name" in spec:
        found = {parameter.name: parameter for parameter in find("routing", str(spec["name"]), where).parameters}
        if "scorers" not in found:
            raise HeadwayError(f"{where}: {spec['name']!r} has no such parameter.{suggest('scorers', found)}")
        spec[key] = copy.deepcopy(found["scorers"].default)
    items = spec[key] = scorer_list(spec.get(key) or [], where)
    parameter = keys[1] if len(keys) > 1 else "weight"
    for item in items:
        if canonical(str(item.get("name"))) == canonical(keys[0]):
            _put(item, [parameter, *keys[2:]], value, where)
            return
    items.append({"name": keys[0], "weight": 1})
    _put(items[-1], [parameter, *keys[2:]], value, where)


def policy_config(path: Path) -> tuple[str | None, list[Json] | None]:
    """The `routing-policy` and `routing-scorers` of a policy file."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise HeadwayError(f"{path}: expected a mapping with 'routing-policy' and 'routing-scorers'.")
    known = ("routing-policy", "routing-scorers")
    for key in data:
        if canonical(str(key)) not in known:
            raise HeadwayError(f"{path}: {key}: there is no such key.{suggest(str(key), known)}")
    values = {canonical(str(key)): value for key, value in data.items()}
    name, scorers = values.get("routing-policy"), values.get("routing-scorers")
    if name is not None and not isinstance(name, str):
        raise HeadwayError(f"{path}: routing-policy: expected a policy's name, got {name!r}.")
    return name, None if scorers is None else scorer_list(scorers, f"{path}: routing-scorers")


def choose_routing(
    data: Mapping[str, Any],
    policy: str | None = None,
    scorers: str | None = None,
    config: Path | None = None,
) -> Json:
    """A copy of the mapping with the routing policy that the options name; options win over the policy file."""
    name, weights = policy_config(config) if config is not None else (None, None)
    if policy is not None:
        weights = weights if name is None or canonical(name) == canonical(policy) else None
        name = policy
    if scorers is not None:
        weights = scorer_list(scorers, "--routing-scorers")
    changed: Json = copy.deepcopy(dict(data))
    if name is None and weights is None:
        return changed
    if weights is not None and name is not None and canonical(name) != "weighted":
        raise HeadwayError(f"--routing-scorers: {name!r} takes no scorers; only the routing policy 'weighted' does.")
    policies = changed["policies"] = dict(changed.get("policies") or {})
    current = policies.get("routing")
    keep = name is None and isinstance(current, dict) and canonical(str(current.get("name"))) == "weighted"
    spec: Json = dict(current) if keep and isinstance(current, dict) else {"name": name or "weighted"}
    if weights is not None:
        spec["scorers"] = weights
    policies["routing"] = spec
    return changed

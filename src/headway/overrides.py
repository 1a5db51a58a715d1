"""Changes to a scenario from outside its file: `--set key.path=value`, and the short forms that name a routing policy.

All of them edit the plain mapping before it is validated, so a mistake is told exactly as it would be in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from headway.policies.profile import scorer_list
from headway.references import absolute
from headway.registry import canonical, find
from headway.types import HeadwayError, Json
from headway.wording import cut, shown, suggest

DEFAULT_POLICIES = {
    "admission": "always",
    "priority": "none",
    "flow": "none",
    "routing": "weighted",
    "scheduler": "fcfs",
    "scaling": "static",
}
DEEPEST: Final = 100  # levels of a document
MOST_VALUES: Final = 1_000_000  # in a document; aliases can stand for billions
MERGE: Final = "tag:yaml.org,2002:merge"
SEEDS = ("workload", "simulation", "jitter")


class _StrictLoader(yaml.SafeLoader):
    """YAML as everywhere, but a key written twice is an error instead of a silent loss."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == MERGE:  # what it brings in is meant to be overridden
            continue
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
        found = yaml.load(text, _StrictLoader)
        _check_size(found)
        return found
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise HeadwayError(f"{where}: {line}this is not YAML ({error.problem}).") from None
    except yaml.YAMLError as error:
        raise HeadwayError(f"{where}: this is not YAML ({str(error).splitlines()[0]}).") from None
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None
    except RecursionError:
        raise HeadwayError(f"{where}: this is not YAML that can be read (it is nested too deep).") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of PyYAML's constructors
        why = cut(" ".join(str(error).split()))
        raise HeadwayError(f"{where}: this is not YAML that can be read ({why}).") from None


def _check_size(document: Any) -> None:
    """Refuse what no person writes and the rest could not bear: a deep or endless document, broken Unicode."""
    waiting = [(document, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if depth > DEEPEST:
            raise HeadwayError(f"this is nested deeper than {DEEPEST} levels.")
        if values > MOST_VALUES:
            raise HeadwayError(f"this holds more than {MOST_VALUES:,} values.")
        if isinstance(value, dict):
            waiting.extend((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list | tuple | set):
            waiting.extend((item, depth + 1) for item in value)
        elif isinstance(value, str) and not _is_unicode(value):
            raise HeadwayError(f"{shown(value)} holds half a surrogate pair, which is no character.")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise HeadwayError(f"{cut(str(path))}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise HeadwayError(f"{path}: is not a text file; a YAML file in UTF-8 is wanted.") from None
    return parse_yaml(text, str(path))


def apply(data: Mapping[str, Any], assignments: Iterable[str], where: str = "--set ") -> Json:
    """A copy of the mapping with every `key.path=value` carried out in order; mistakes are told after `where`."""
    changed: Json = copy.deepcopy(dict(data))
    for text in assignments:
        path, equals, value = text.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise HeadwayError(f"{where}{cut(text)}: write it as key.path=value, as in workload.rate=60/s.")
        put(changed, keys, parse_yaml(value, f"{where}{cut(text)}"), f"{where}{cut(path.strip())}")
    return changed


def put(data: Json, keys: list[str], value: Any, where: str) -> None:
    """Set one key of a scenario's plain mapping, in place."""
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
                f"{where}: {place} is {shown(holder)} and has no keys; give the whole of it, as in {place}={{...}}."
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
    """A policy's mapping with one parameter changed. A new name starts afresh: old parameters mean nothing to it."""
    if spec is None or isinstance(spec, str):
        spec = {"name": spec} if spec else {}
    if not isinstance(spec, dict):
        raise HeadwayError(f"{where}: the policy is given as {shown(spec)}; a name or a mapping with 'name' is wanted.")
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
    """`scorers.NAME=weight` or `scorers.NAME.parameter=value`, whichever form the scorers are written in."""
    if key not in spec and "name" in spec:
        found = {parameter.name: parameter for parameter in find("routing", str(spec["name"]), where).parameters}
        if "scorers" not in found:
            raise HeadwayError(f"{where}: {shown(spec['name'])} has no such parameter.{suggest('scorers', found)}")
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
    """The `routing-policy` and `routing-scorers` of a policy file; files that it names are found beside it."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise HeadwayError(f"{path}: expected a mapping with 'routing-policy' and 'routing-scorers'.")
    known = ("routing-policy", "routing-scorers")
    for key in data:
        if canonical(str(key)) not in known:
            raise HeadwayError(f"{path}: {cut(str(key))}: there is no such key.{suggest(str(key), known)}")
    values = {canonical(str(key)): value for key, value in data.items()}
    name, scorers = values.get("routing-policy"), values.get("routing-scorers")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise HeadwayError(f"{path}: routing-policy: expected a policy's name, got {shown(name)}.")
    weights = None if scorers is None else scorer_list(scorers, f"{path}: routing-scorers")
    return absolute(name, path.parent), absolute(weights, path.parent)


def choose_routing(
    data: Mapping[str, Any],
    policy: str | None = None,
    scorers: str | None = None,
    config: Path | None = None,
) -> Json:
    """A copy of the mapping with the routing policy that the options name; options win over the policy file."""
    name, weights = policy_config(config) if config is not None else (None, None)
    if policy is not None:
        if not policy.strip():
            raise HeadwayError("--routing-policy: a policy's name is missing, as in --routing-policy round-robin.")
        weights = weights if name is None or canonical(name) == canonical(policy) else None
        name = policy
    if scorers is not None:
        weights = scorer_list(scorers, "--routing-scorers")
    changed: Json = copy.deepcopy(dict(data))
    if name is None and weights is None:
        return changed
    if weights is not None and name is not None and canonical(name) != "weighted":
        raise HeadwayError(
            f"--routing-scorers: {shown(name)} takes no scorers; only the routing policy 'weighted' does."
        )
    given = {} if changed.get("policies") is None else changed["policies"]
    if not isinstance(given, dict):
        return changed  # as wrong as without the option, and told in the same words
    policies = changed["policies"] = dict(given)
    current = policies.get("routing")
    keep = name is None and isinstance(current, dict) and canonical(str(current.get("name"))) == "weighted"
    spec: Json = dict(current) if keep and isinstance(current, dict) else {"name": name or "weighted"}
    if weights is not None:
        spec["scorers"] = weights
    policies["routing"] = spec
    return changed

"""The policies of a comparison, with labels that distinguish them."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct
from msgspec.json import encode as to_json
from msgspec.structs import replace

from headway.config.documents import parse_yaml
from headway.config.wording import one_line, shown, suggest
from headway.errors import HeadwayError
from headway.experiment.run import own_policy
from headway.policies import registry
from headway.policies.bundle import Bundle
from headway.policies.profile import scorer_list
from headway.scenario import references
from headway.scenario.pd_spec import ROLES
from headway.scenario.scenario import STAGES, Scenario
from headway.types import Json

WHERE = "policies"
ALL: Final = "all"  # value of `policies` that means every policy of the stage
ASIDE: Final = ("template", "control")  # kinds of policies that rank last when all policies run, in this order
BUNDLES = (".yaml", ".yml")
PARTS = {"filters": "filter", "policies": "admission"}  # parameter with a list of policies -> stage of these policies


class Contender(Struct, frozen=True):
    """A policy in a comparison."""

    name: str  # label of the policy
    spec: Any  # a name or a mapping, or a class or object of the caller's program
    oracle: bool
    stage: str = "routing"
    beside: Json = {}  # policies of other stages, if the contender is a bundle
    # `template` or `control` if the caller did not name the policy, but asked for all policies; otherwise None
    aside: str | None = None

    @property
    def policies(self) -> Json:
        """The policies of this contender by stage, as arguments for `simulate`."""
        return {**self.beside, self.stage: self.spec}


def contenders(scenario: Scenario, policies: Any = None, stage: str = "routing") -> list[Contender]:
    """Return the policies to compare. If `policies` is `ALL`, compare all policies of the stage. If `policies` is None,
    compare the recommended policies of the stage. In both cases, also compare the scenario's own policy. If a policy is
    given without parameters, and the scenario's own policy has the same name, use the parameters of the scenario."""
    if stage not in STAGES:
        raise HeadwayError(f"stage: there is no stage {shown(stage)}.{suggest(stage, STAGES)}")
    own = getattr(scenario.policies, stage)
    pairs = scenario.cluster.disaggregated()
    own_name, _ = registry.split(own, f"policies.{stage}")
    aside: dict[str, str] = {}
    whole = isinstance(policies, str) and policies.strip() == ALL
    if whole or policies is None:
        # Skip policies that cannot run by name alone: blank policies need a source, and policies that choose a prefill
        # and a decode instance need a disaggregated cluster.
        listed = [entry for entry in registry.entries(stage) if not entry.blank]
        entries = [entry for entry in listed if pairs or not getattr(entry.make, "pairs", False)]
        names: list[Any] = [entry.name for entry in entries if whole or entry.kind == "policy"]
        aside = {entry.name: entry.kind for entry in entries if entry.kind in ASIDE}
        chosen = names if registry.canonical(own_name) in names else [own, *names]
    else:
        chosen = references.absolute(list_items(policies, WHERE))
    if not chosen:
        known = ", ".join(registry.names(stage))
        raise HeadwayError(f"{WHERE}: name at least one {stage} policy. Known: {known}.")
    entrants: list[Contender] = []
    for spec in chosen:
        entrant = _contender(stage, spec, own)
        used = [other.name for other in entrants]
        numbered = (f"{entrant.name}#{count}" for count in range(2, len(used) + 3))
        name = next(name for name in (entrant.name, *numbered) if name not in used)
        kind = aside.get(spec) if isinstance(spec, str) and spec != registry.canonical(own_name) else None
        entrants.append(replace(entrant, name=name, stage=stage, aside=kind))
    return entrants


def _contender(stage: str, spec: Any, own: Any) -> Contender:
    if isinstance(spec, str) and spec.endswith(BUNDLES):
        spec = Bundle.read(spec)
    if isinstance(spec, Bundle):
        return _of_bundle(stage, spec)
    return _of_spec(stage, spec, own) if isinstance(spec, str | Mapping) else _of_object(stage, spec)


def _of_bundle(stage: str, bundle: Bundle) -> Contender:
    """Return the contender for a bundle. It sets the policies of all its stages, not only of the compared stage."""
    if stage not in bundle.policies:
        raise HeadwayError(f"{WHERE}: the bundle {shown(bundle.name)} has no policy of stage {stage}.")
    built = [registry.build(each, spec, f"{bundle.name}: policies.{each}") for each, spec in bundle.policies.items()]
    beside = {each: spec for each, spec in bundle.policies.items() if each != stage}
    oracle = any(registry.entry_of(policy).oracle for policy in built)
    return Contender(bundle.name, bundle.policies[stage], oracle, stage, beside)


def place_of(aside: str | None) -> int:
    """Return the position of a kind of policy in a ranking: 0 for normal policies (None), then 1, 2 and so on for the
    kinds of `ASIDE`, which rank below all normal policies."""
    return 0 if aside is None else 1 + ASIDE.index(aside)


def copy_for_seed(contender: Contender) -> Contender:
    """Return the contender for the run with another seed. If its policy is an object of the caller, copy the object,
    because it may keep state from an earlier run."""
    if isinstance(contender.spec, str | Mapping | type):
        return contender
    try:
        return replace(contender, spec=deepcopy(contender.spec))
    except Exception as error:
        text = f"cannot copy the object for each seed: {one_line(error)}. Give a class, or use one seed."
        raise HeadwayError(f"{WHERE}: {contender.name}: {text}") from error


def list_items(values: Any, where: str) -> list[Any]:
    """Return the items of a list, of a single value, or of a string such as "a,b,{name: c, parameter: 1}"."""
    if isinstance(values, str):
        return [item for item in parse_yaml(f"[{values}]", where) if item is not None]
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        return [values]
    return list(values)


def _of_spec(stage: str, spec: str | Mapping[str, Any], own: Any) -> Contender:
    name, parameters = registry.split(dict(spec) if isinstance(spec, Mapping) else spec, WHERE)
    chosen: Any = {"name": name, **parameters} if parameters else name
    own_name, own_parameters = registry.split(own, f"policies.{stage}")
    if not parameters and registry.canonical(name) == registry.canonical(own_name):
        chosen = own
        parameters = _diff_from_defaults(registry.find(stage, name, WHERE), own_parameters)
    # Build the policy before its label: if the policy is invalid, the error of `build` is clearer.
    policy = registry.build(stage, chosen, WHERE)
    return Contender(label(name, parameters), chosen, registry.entry_of(policy).oracle)


def _of_object(stage: str, spec: Any) -> Contender:
    policy = own_policy(stage, spec, WHERE)
    entry = registry.own_entry(policy)
    name = type(policy).__name__
    if entry is not None:
        parameters = {parameter.name: getattr(policy, parameter.name) for parameter in entry.parameters}
        name = label(entry.name, _diff_from_defaults(entry, parameters))
    return Contender(name, spec, registry.entry_of(policy).oracle)


def _diff_from_defaults(entry: registry.Entry, parameters: Json) -> Json:
    """Return the parameters that differ from the defaults."""
    defaults = {parameter.name: parameter.default for parameter in entry.parameters}
    changed = {}
    for key, value in parameters.items():
        default = defaults.get(key.replace("-", "_"))
        if value != default and sorted(_brief(key, value)) != sorted(_brief(key, default)):
            changed[key] = value
    return changed


def label(name: str, parameters: Json) -> str:
    """Return a short name of a policy with its parameters, as in weighted(queue-depth:2)."""
    words = [word for key, value in parameters.items() for word in _brief(key, value)]
    return f"{_short(name)}({', '.join(words)})" if words else _short(name)


def _short(name: str) -> str:
    """Return the name of a policy as in the catalogue. If it is a file, return the file's name without its folder."""
    if not registry.is_file(name):
        return registry.canonical(name)
    file, _, attribute = name.rpartition(":")
    return f"{PurePath(file).name}:{attribute}"


def stage_label(stage: str, spec: str | Json, auto: bool = False) -> str:
    """Return the label of a resolved policy: its name, its scorers, and parameters that differ from the defaults.
    `auto` says whether `auto` is the default of `lru_blocks`."""
    name, parameters = registry.split(_drop_auto(spec) if auto else spec, f"policies.{stage}")
    try:
        changed = _diff_from_defaults(registry.find(stage, name, WHERE), parameters)
    except HeadwayError:  # a policy of the caller's program
        return label(name, parameters)
    scorers = {"scorers": parameters["scorers"]} if "scorers" in parameters else {}
    return label(name, {**changed, **scorers})


def _drop_auto(value: Any) -> Any:
    """Return a copy of a policy in which no `lru_blocks: auto` is left, neither in the policy nor in its parts."""
    if isinstance(value, dict):
        return {key: _drop_auto(inner) for key, inner in value.items() if (key, inner) != ("lru_blocks", registry.AUTO)}
    return [_drop_auto(inner) for inner in value] if isinstance(value, list) else value


def _brief(key: str, value: Any) -> list[str]:
    if key in ("source", "tree"):  # too long to show
        return [blake2b(to_json(value), digest_size=4).hexdigest()] if value else []
    if key == "path" and isinstance(value, str):
        return [PurePath(value).name] if value else []
    if key == "scorers":
        return [_part("scorer", item) for item in scorer_list(value, f"{WHERE}.scorers")]
    if key in PARTS and isinstance(value, list | tuple):
        return [_part(PARTS[key], item) for item in value]
    if key in ("picker", "decider") and value is not None:
        return [f"{key}={_part(key, value)}"]
    if key in ROLES and isinstance(value, str | dict):
        return [f"{key}={stage_label('routing', value)}"]
    if isinstance(value, Mapping):
        value = " ".join(f"{name}:{inner}" for name, inner in value.items())
    return [f"{key}={value}"]


def _part(stage: str, spec: Any) -> str:
    """Return the name and weight of a scorer, filter or picker, and the parameters that differ from the defaults."""
    name, parameters = registry.split(spec, WHERE)
    weight = parameters.pop("weight", None)
    changed = _diff_from_defaults(registry.find(stage, name, WHERE), parameters)
    words = [_short(name)]
    if weight is not None:
        words[0] += f":{weight:g}" if isinstance(weight, float) else f":{weight}"
    return " ".join([*words, *(f"{key}={value}" for key, value in changed.items())])

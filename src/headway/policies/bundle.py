"""Bundles: the policies of all stages in one document, with their origin.

    format: 1
    name: warm first
    generation: 3
    parent: 5f0c1a9be2d34c77
    mutations: ["cache_affinity_weight 0.7 -> 0.9"]
    policies:
      routing: {type: parameters, template: weighted-affinity-routing, parameters: {cache_affinity_weight: 0.9}}
      admission: {type: tree, tree: {if: cluster.totals.queued > 50, then: reject, else: admit}}
      scheduler: {type: code, source: "def key(ticket): ..."}    # or path: rule.py

If a stage is missing, it has its default policy. Reading a bundle also reads its code files, so the bundle is
self-contained.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from headway.config.documents import beside, check_size, read_text, read_yaml, stem, write_text, yaml_text
from headway.config.keys import Doc, Form
from headway.config.schema import Definitions, Mapped, any_of, schema_of, strict
from headway.config.section import read
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import CodeError, Program, plain_program
from headway.policies.policy_schema import known_entries, other_names, parameters_schema, policy_form
from headway.policies.registry import DEFAULT_POLICIES
from headway.policies.tree import tree_source
from headway.types import Json

FORMAT: Final = 1
STAGES: Final = ("admission", "priority", "routing", "scheduler", "scaling")
FURTHER: Final = ("estimator", "decider")  # stages that a bundle has only if their policy is not the default
EVERY: Final = (*STAGES, *FURTHER)
# Type of a policy -> keys, of which the policy must have exactly one.
TYPES: Final = {"parameters": ("template",), "tree": ("tree",), "code": ("source", "path")}
PARAMETERS: Final = {"const": "parameters", "description": "a template of Headway with these parameters"}
WRITTEN: Final = ("code", "tree")  # types of policies whose source code is in the bundle


class _File(Protocol):
    def __fspath__(self) -> str: ...


class BundlePolicyForm(Struct, frozen=True, eq=False):
    """The form of a policy in a bundle: either the same as in a scenario, or a mapping with the key `type`."""

    stage: str

    def schema(self, definitions: Definitions) -> Json:
        return definitions.refer(f"bundle-{self.stage}-policy", lambda: self._alternatives(definitions))

    def _alternatives(self, definitions: Definitions) -> Json:
        typed: list[Json] = []
        for entry in known_entries(self.stage):
            if entry.name in WRITTEN:
                schema = parameters_schema(entry, definitions, type={"const": entry.name})
                typed.append(schema | {"anyOf": [{"required": [key]} for key in TYPES[entry.name]]})
            elif not entry.blank:
                template = {"const": entry.name, "description": entry.summary}
                keys = {"type": PARAMETERS, "template": template}
                parameters = {"parameters": any_of(parameters_schema(entry, definitions), {"type": "null"})}
                typed.append(
                    {"title": entry.name, "description": entry.summary, **strict(keys | parameters, list(keys))}
                )
        other = strict({"type": PARAMETERS, "template": other_names(self.stage), "parameters": {}})
        return any_of(
            schema_of(policy_form(self.stage), definitions), *typed, other | {"required": ["type", "template"]}
        )


POLICIES_FORM: Final = Form.of(Mapped({stage: BundlePolicyForm(stage) for stage in (*STAGES, *FURTHER)}))


class BundleKeys(Struct):
    """The top level of a bundle's file."""

    format: Annotated[int, Form.of(Literal[FORMAT]), "version of the format"]
    policies: Annotated[Any, POLICIES_FORM, "policies by stage; a missing stage has its default policy"]
    name: Annotated[str | None, Doc("name of the bundle", default="the name of the file")] = None
    generation: Annotated[int, "number of changes since the first bundle"] = 0
    parent: Annotated[str | None, "id of the bundle that this one was derived from"] = None
    mutations: Annotated[list[str], "descriptions of the changes from the parent"] = []


class Bundle(Struct, frozen=True):
    """One policy for each stage, in the form that scenarios use: a name, or a mapping with `name` and parameters."""

    name: str
    policies: dict[str, Any]
    generation: int = 0
    parent: str | None = None  # `id` of the bundle that this one was derived from
    mutations: tuple[str, ...] = ()  # descriptions of the changes from the parent

    def __post_init__(self) -> None:
        for stage in self.policies:
            if stage not in (*STAGES, *FURTHER):
                nearest = suggest(str(stage), (*STAGES, *FURTHER))
                raise HeadwayError(f"policies.{cut(str(stage))}: there is no such stage.{nearest}")
        every = {stage: _normalise(self.policies.get(stage), stage) for stage in STAGES}
        for stage in FURTHER:
            if (spec := _normalise(self.policies.get(stage), stage)) != DEFAULT_POLICIES[stage]:
                every[stage] = spec
        msgspec.structs.force_setattr(self, "policies", every)

    @classmethod
    def of(cls, name: str = "bundle", **policies: Any) -> Bundle:
        """Make a bundle of these policies. The other stages have their default policies."""
        return cls(name, policies)

    @classmethod
    def read(cls, source: str | _File | Mapping[str, Any]) -> Bundle:
        """Read a bundle from a file or a document. This checks the form only; `check` checks the policies."""
        if isinstance(source, Mapping):
            return _read(dict(source), "bundle", None)
        if not isinstance(source, str) and not hasattr(source, "__fspath__"):
            raise HeadwayError(f"bundle: expected a bundle, its file or its document, got {shown(source)}.")
        file = source if isinstance(source, str) else source.__fspath__()
        return _read(read_yaml(file), file, file)

    def policy(self, stage: str) -> Any:
        """Return the policy of a stage; if the bundle has none, the default policy."""
        return self.policies.get(stage, DEFAULT_POLICIES[stage])

    def write(self, file: str | _File) -> None:
        write_text(file if isinstance(file, str) else file.__fspath__(), yaml_text(self.document()))

    def document(self) -> Json:
        """Return the bundle as the document that `write` writes. In this document, every policy has the key `type`."""
        return {
            "format": FORMAT,
            "name": self.name,
            "generation": self.generation,
            "parent": self.parent,
            "mutations": list(self.mutations),
            "policies": {stage: _write_policy(spec) for stage, spec in self.policies.items()},
        }

    def check(self, where: str = "policies") -> None:
        """Raise an error if a policy cannot be built."""
        for stage, spec in self.policies.items():
            registry.build(stage, spec, f"{where}.{stage}")

    @property
    def id(self) -> str:
        """A hash of the policies, as 16 hexadecimal digits. The name, generation, parent and mutations do not change
        it."""
        text = msgspec.json.encode(self.policies, order="sorted")
        return blake2b(text, digest_size=8).hexdigest()

    @property
    def complexity(self) -> int:
        """The sum of the `complexity` of all policies."""
        return sum([complexity(stage, spec) for stage, spec in self.policies.items()])


def is_bundle(document: object) -> bool:
    """Return whether a document looks like a bundle."""
    return isinstance(document, Mapping) and ("format" in document or "policies" in document)


def complexity(stage: str, spec: Any) -> int:
    """Return the complexity of a policy. For code and trees, this is the number of syntax nodes of the source. If the
    source is rejected, the number of its words is used instead. For other policies, it is the number of parameters."""
    name, parameters = registry.split(spec, f"policies.{stage}")
    if registry.is_file(name):  # do not execute the file
        return len(parameters)
    if name not in WRITTEN:
        return len(registry.find(stage, name, f"policies.{stage}").parameters)
    source = source_of(stage, spec)
    try:
        values = parameters.get("parameters")
        return (Program(source, stage, values=values) if values else plain_program(source, stage)).nodes
    except CodeError:
        return len(source.split())


def source_of(stage: str, spec: Any) -> str:
    """Return the source of a policy of type code or tree."""
    name, parameters = registry.split(spec, f"policies.{stage}")
    if name == "tree":
        return tree_source(parameters.get("tree"), stage).text
    return read_text(parameters["path"]) if parameters.get("path") else str(parameters.get("source", ""))


def _read(data: Any, where: str, file: str | None) -> Bundle:
    if not isinstance(data, Mapping):
        raise HeadwayError(f"{where}: a bundle is a mapping with 'format' and 'policies', got {shown(data)}.")
    try:
        check_size(data)
        for key in ("policies",) if file is None else ("format", "policies"):
            if key not in data:
                raise HeadwayError(f"{key!r} is missing; a bundle has 'format: {FORMAT}' and 'policies'.")
        keys = read(BundleKeys, {"format": FORMAT, **data} if file is None else dict(data), "")
        if keys.format != FORMAT:
            raise HeadwayError(f"format: {keys.format} is not supported. Use format {FORMAT}.")
        if not isinstance(keys.policies, Mapping):
            raise HeadwayError(f"policies: expected a mapping of stages to policies, got {shown(keys.policies)}.")
        policies = {stage: _plain(stage, spec, file) for stage, spec in keys.policies.items()}
        name = keys.name or ("bundle" if file is None else stem(file))
        return Bundle(name, policies, keys.generation, keys.parent, tuple(keys.mutations))
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None


def _plain(stage: str, spec: Any, file: str | None) -> Any:
    """Convert a policy that has the key `type` to the form that scenarios use. Return any other policy unchanged."""
    place = f"policies.{cut(str(stage))}"
    if not isinstance(spec, Mapping) or "type" not in spec:
        code = isinstance(spec, Mapping) and spec.get("name") == "code" and spec.get("path")
        return {**{key: spec[key] for key in spec if key != "path"}, **_code(spec, place, file)} if code else spec
    kind = spec["type"]
    if kind not in TYPES:
        raise HeadwayError(f"{place}.type: there is no type {shown(kind)}.{suggest(str(kind), TYPES)}")
    must = TYPES[kind]
    known = [*must, "parameters"]
    # The parameters of a coded policy, such as `lru_blocks`, are valid keys too.
    if kind != "parameters" and stage in EVERY:
        known += [parameter.name for parameter in registry.find(stage, kind, place).parameters]
    for key in spec:
        if key not in (*known, "type"):
            raise HeadwayError(f"{place}.{cut(str(key))}: there is no such key.{suggest(str(key), known)}")
    if len([key for key in must if spec.get(key) is not None]) != 1:
        raise HeadwayError(f"{place}: a policy of type {kind} needs {' or '.join(must)}.")
    parameters = spec.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise HeadwayError(f"{place}.parameters: expected a mapping of names to values, got {shown(parameters)}.")
    if kind == "parameters":
        return {"name": spec["template"], **parameters}
    values = {key: value for key, value in spec.items() if key not in ("type", "path") and value not in (None, {})}
    return {"name": kind, **values, **(_code(spec, place, file) if kind == "code" else {})}


def _code(spec: Mapping[str, Any], place: str, file: str | None) -> Json:
    key = "path" if spec.get("path") is not None else "source"
    if not isinstance(spec[key], str):
        raise HeadwayError(f"{place}.{key}: expected text, got {shown(spec[key])}.")
    if key == "source":
        return {"source": spec["source"]}
    path = spec["path"] if file is None else beside(spec["path"], file)
    try:
        return {"source": read_text(path)}
    except HeadwayError as error:
        raise HeadwayError(f"{place}.path: {error}") from None


def _normalise(spec: Any, stage: str) -> Any:
    """Return the normal form of a policy, so that equal policies have equal forms. A policy without parameters becomes
    its name."""
    spec = DEFAULT_POLICIES[stage] if spec is None else dict(spec) if isinstance(spec, Mapping) else spec
    name, parameters = registry.split(spec, f"policies.{stage}")
    name = name if registry.is_file(name) else registry.canonical(name)
    return {"name": name, **parameters} if parameters else name


def _write_policy(spec: Any) -> Json:
    name, parameters = registry.split(spec, "policies")
    if name in WRITTEN:
        return {"type": name, **parameters}
    return {"type": "parameters", "template": name, "parameters": parameters}

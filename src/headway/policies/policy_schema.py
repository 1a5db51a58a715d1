"""The forms of policies in files, for JSON Schemas: a name, or a mapping with the name and the parameters.

A policy's name may be written with `_` in place of `-`, and its parameters with `-` in place of `_`. Both spellings are
valid, but the schema describes the parameters only for the spelling in the catalogue. It cannot describe the parameters
of a policy in a user's file.
"""

from typing import Any, Final

from msgspec import Struct

from headway.config.keys import Form
from headway.config.schema import Definitions, any_of, schema_of, strict
from headway.policies import registry
from headway.policies.registry import Entry, Parameter
from headway.policies.user_policies import METHODS, outside
from headway.types import Json

OTHER_SPELLING: Final = "_"
FILE: Final = r"\.py(:|$)"
NUMBERS: Final = ("integer", "number")
WEIGHT: Final[Json] = {"type": ["number", "string"], "minimum": 0, "description": "only the ratios of weights matter"}


class PolicyForm(Struct, frozen=True, eq=False):
    """The form of a policy of one stage. If `live` is set, the form excludes oracle policies."""

    stage: str
    live: bool = False

    def schema(self, definitions: Definitions) -> Json:
        name = f"{'live-' if self.live else ''}{self.stage}-policy"
        return definitions.refer(name, lambda: self._alternatives(definitions))

    def _alternatives(self, definitions: Definitions) -> Json:
        entries = [entry for entry in known_entries(self.stage) if not (self.live and entry.oracle)]
        names = [{"const": entry.name, "description": entry.summary} for entry in entries if not entry.blank]
        return any_of(
            *names,
            other_names(self.stage),
            *(described(entry, definitions) for entry in entries),
            unknown_parameters(self.stage),
        )


def policy_form(stage: str, live: bool = False) -> Form:
    """Return the form of a key that holds a policy of this stage, from which its JSON Schema is generated. If `live` is
    set, the form excludes oracle policies."""
    return Form.of(PolicyForm(stage, live))


def known_entries(stage: str) -> list[Entry]:
    """Return the entries of the policies that are part of Headway."""
    return [entry for entry in registry.entries(stage) if not outside(entry.make)]


def other_names(stage: str) -> Json:
    """Return the schema of the policy names that the catalogue does not list: names spelled with `_`, and classes in
    users' files."""
    return {"type": "string", "pattern": f"{OTHER_SPELLING}|{FILE}" if stage in METHODS else OTHER_SPELLING}


def unknown_parameters(stage: str) -> Json:
    """Return the schema of a mapping that describes a policy whose name is not in the catalogue. Any parameters are
    valid."""
    return {"type": "object", "properties": {"name": other_names(stage)}, "required": ["name"]}


def described(entry: Entry, definitions: Definitions, **more: Json) -> Json:
    """Return the schema of a mapping that describes a policy. The mapping must have the policy's name and the keys in
    `more`, and may have the policy's parameters."""
    name = {"const": entry.name, "description": entry.summary}
    return {
        "title": entry.name,
        "description": entry.summary,
        **parameters_schema(entry, definitions, name=name, **more),
    }


def parameters_schema(entry: Entry, definitions: Definitions, **required: Json) -> Json:
    """Return the schema of a mapping that has the keys in `required` and may have the parameters of a policy."""
    meaning = {"description": f"parameter of {entry.name}. {entry.summary}"}
    parameters = {each.name: meaning | parameter_schema(each, definitions) for each in entry.parameters}
    schema = strict({**required, **parameters}, list(required))
    dashed = [name.replace("_", "-") for name in parameters if "_" in name]
    return schema | ({"patternProperties": {f"^({'|'.join(dashed)})$": {}}} if dashed else {})


def parameter_schema(parameter: Parameter, definitions: Definitions) -> Json:
    """Return the schema of one parameter: its type, bounds and default."""
    schema = schema_of(parameter.type if parameter.form is None else parameter.form, definitions)
    if parameter.bounds is not None:
        for part in (schema, *schema.get("anyOf", ())):
            if part.get("type") in NUMBERS:
                part |= {"minimum": parameter.bounds.low, "maximum": parameter.bounds.high}
    return (
        schema
        if parameter.default in (None, "", [], {})
        else schema | {"default": registry.written_value(parameter.default)}
    )


class ScorersForm(Struct, frozen=True, eq=False):
    """Scorers with their weights, in one of three forms: text, mapping or list."""

    def schema(self, definitions: Definitions) -> Json:
        return definitions.refer("scorers", lambda: self._alternatives(definitions))

    def _alternatives(self, definitions: Definitions) -> Json:
        entries = known_entries("scorer")
        by_name = {
            entry.name: any_of(WEIGHT, parameters_schema(entry, definitions, weight=WEIGHT))
            | {"description": entry.summary}
            for entry in entries
        }
        other = any_of(WEIGHT, {"type": "object", "required": ["weight"]})
        mapping = strict(by_name) | {"patternProperties": {f"{OTHER_SPELLING}|{FILE}": other}}
        items = any_of(
            *(described(entry, definitions, weight=WEIGHT) for entry in entries), unknown_parameters("scorer")
        )
        text: Any = {"type": "string", "pattern": ":", "examples": ["prefix-affinity:3,queue-depth:2"]}
        return any_of(text, mapping, {"type": "array", "items": items})

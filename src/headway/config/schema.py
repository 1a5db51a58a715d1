"""Generates JSON Schemas from the declarations of settings, for editors and other tools.

`schema_of` converts a type to a schema. For a struct, it returns the schema of the section with the struct's keys. If
the type of a key is too general, such as `Any`, its `Form` describes the valid values. A schema accepts the same names
of keys as `read`. For values, a schema is less strict than `read`, because it cannot check values against each other.
All schemas follow draft 7 of JSON Schema, which every editor knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin, runtime_checkable

from msgspec import UNSET, Meta, Struct

from headway.config.keys import Form, Key, Unit, keys_of, write_value
from headway.types import Json

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
# Phrases that refer to a place further down on a documentation page. Schemas omit them.
BELOW: Final = re.compile(r"[,;:]? (?:see )?(?:listed )?below\b|[,;] below$")
PLAIN: Final[dict[Any, Json]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    bytes: {"type": "string"},
    NoneType: {"type": "null"},
    None: {"type": "null"},
    Any: {},
}
LIMITS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
}


class Definitions:
    """The named parts of a schema. A part that occurs several times, or that contains itself, is written once and
    referred to by name."""

    def __init__(self) -> None:
        self.parts: dict[str, Json] = {}

    def refer(self, name: str, make: Callable[[], Json]) -> Json:
        """Return a reference to the part with this name. If the part is not defined yet, `make` defines it."""
        if name not in self.parts:
            self.parts[name] = {}  # define the name first, because the part may refer to itself
            self.parts[name] = make()
        return {"$ref": f"#/definitions/{name}"}

    def section(self, kind: type[Struct]) -> Json:
        """Return a reference to the schema of a section. If the section has a short form, the schema accepts the short
        form too."""
        name = f"{kind.__module__.removeprefix('headway.')}.{kind.__name__.lstrip('_')}"
        return self.refer(name, lambda: _with_short_form(kind, self))


@runtime_checkable
class Described(Protocol):
    """A form that no Python type can express. It generates its own schema."""

    def schema(self, definitions: Definitions) -> Json: ...


# --- forms ------------------------------------------------------------------------------------------------------------


class Later(Struct, frozen=True, eq=False):
    """A form that is made only when a schema is generated, because it contains itself or needs modules that are loaded
    later."""

    name: str
    make: Callable[[], Any]

    def schema(self, definitions: Definitions) -> Json:
        return definitions.refer(self.name, lambda: schema_of(self.make(), definitions))


class Part(Struct, frozen=True, eq=False):
    """A mapping with some keys of a section. If `changes` is set, no key is required, because the mapping only changes
    another section."""

    section: type[Struct]
    only: Collection[str] | None = None
    without: Collection[str] = ()
    changes: bool = False
    more: Mapping[str, Any] = {}  # further keys, which the section does not declare
    required: Collection[str] = ()  # keys that are required here

    def schema(self, definitions: Definitions) -> Json:
        keys = [
            key
            for key in keys_of(self.section).values()
            if key.name not in self.without and (self.only is None or key.field in self.only or key.name in self.only)
        ]
        properties = {name: schema_of(kind, definitions) for name, kind in self.more.items()}
        properties |= {key.name: key_schema(key, definitions) for key in keys}
        required = [key.name for key in keys if key.required and key.doc.default is None]
        return strict(properties, [*self.required, *([] if self.changes else required)])


class ListOf(Struct, frozen=True, eq=False):
    """A list whose items have this form."""

    item: Any

    def schema(self, definitions: Definitions) -> Json:
        return {"type": "array", "items": schema_of(self.item, definitions)}


class MapOf(Struct, frozen=True, eq=False):
    """A mapping of any names to values of this form."""

    value: Any

    def schema(self, definitions: Definitions) -> Json:
        return {"type": "object", "additionalProperties": schema_of(self.value, definitions)}


class Mapped(Struct, frozen=True, eq=False):
    """A mapping with these keys, some of which are required."""

    keys: Mapping[str, Any]
    required: Collection[str] = ()

    def schema(self, definitions: Definitions) -> Json:
        return strict({name: schema_of(kind, definitions) for name, kind in self.keys.items()}, [*self.required])


class Variants(Struct, frozen=True, eq=False):
    """A mapping of one of several kinds. The key `tag` names the kind, and the other keys are the keys of this kind.
    With `bare`, the name of the kind alone is valid too. With `optional`, the tag may be missing; the mapping then is
    of the first kind."""

    tag: str
    kinds: Callable[[], Mapping[str, Any]]
    bare: bool = True
    optional: bool = False

    def schema(self, definitions: Definitions) -> Json:
        kinds = self.kinds()
        meaning = f"one of {', '.join(kinds)}"
        variants: list[Json] = [{"enum": list(kinds)}] if self.bare else []
        for place, (name, kind) in enumerate(kinds.items()):
            keys = inline(kind, definitions)
            properties = {self.tag: {"const": name, "description": meaning}, **keys["properties"]}
            required = keys.get("required", [])
            needed = required if self.optional and not place else [self.tag, *required]
            variants.append({"title": name, **strict(properties, needed)})  # an editor shows the title of a variant
        return any_of(*variants)


class Names(Struct, frozen=True, eq=False):
    """A name from a table. If `others` is set, any text that matches this pattern is valid too, such as another
    spelling or the path of a file."""

    known: Callable[[], Collection[str]]
    others: str | None = None

    def schema(self, definitions: Definitions) -> Json:
        names = {"enum": list(self.known())}
        return names if self.others is None else any_of(names, {"type": "string", "pattern": self.others})


def strict(properties: Json, required: Sequence[str] = ()) -> Json:
    """Return the schema of a mapping that may have only these keys."""
    schema: Json = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {}) | {"additionalProperties": False}


def any_of(*schemas: Json) -> Json:
    """Return the schema of a value that matches one of the schemas."""
    alternatives: list[Json] = []
    for schema in schemas:
        inner = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        alternatives += [each for each in inner if each not in alternatives]
    if {} in alternatives:
        return {}
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


# --- types ------------------------------------------------------------------------------------------------------------


def json_schema(kind: Any, **facts: str) -> Json:
    """Return the complete JSON Schema of a section or another type, including the definitions that it refers to.
    `facts` are top-level keys of the schema, such as title and description."""
    definitions = Definitions()
    schema = inline(kind, definitions)
    parts = {name: definitions.parts[name] for name in sorted(definitions.parts)}
    return facts | schema | ({"definitions": parts} if parts else {})


def inline(kind: Any, definitions: Definitions) -> Json:
    """Return the schema of a type. For a section, return the schema itself, not a reference, and without the short
    form."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return Part(kind).schema(definitions)
    return schema_of(kind, definitions)


def _with_short_form(kind: type[Struct], definitions: Definitions) -> Json:
    schema = Part(kind).schema(definitions)
    short = getattr(kind, "short_form", None)
    return schema if short is None else any_of(schema_of(short, definitions), schema)


def schema_of(kind: Any, definitions: Definitions) -> Json:
    """Return the schema of a type: it describes the values that a file may have where this type is declared."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return definitions.section(kind)
    if isinstance(kind, dict):  # a schema
        return dict(kind)
    if isinstance(kind, Form):
        return any_of(*(schema_of(form, definitions) for form in kind.alternatives))
    if isinstance(kind, Described) and not isinstance(kind, type):
        return kind.schema(definitions)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(inner[0], inner[1:], definitions)
    if origin in (Union, UnionType):
        return any_of(*(schema_of(part, definitions) for part in inner))
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "items": [schema_of(part, definitions) for part in inner], "minItems": len(inner)}
    if origin in (list, tuple, Sequence) or kind in (list, tuple):
        return {"type": "array"} | ({"items": schema_of(inner[0], definitions)} if inner else {})
    if origin in (dict, Mapping) or kind is dict:
        values = schema_of(inner[1], definitions) if inner else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    return dict(PLAIN[kind])


def _annotated(kind: Any, marks: Sequence[Any], definitions: Definitions) -> Json:
    for mark in reversed(marks):
        form = mark.form if isinstance(mark, Unit) else mark
        if isinstance(form, Form):
            schema = schema_of(form, definitions)
            break
    else:
        schema = schema_of(kind, definitions)
    for mark in marks:
        if isinstance(mark, Meta):
            schema |= _limits(mark)
        elif isinstance(mark, str):
            schema = {"description": mark} | schema
    return schema


def _limits(meta: Meta) -> Json:
    limits = {word: getattr(meta, name) for name, word in LIMITS.items()}
    return {word: limit for word, limit in limits.items() if limit is not None}


def key_schema(key: Key, definitions: Definitions) -> Json:
    """Return the schema of a key: its form, its meaning and its default."""
    schema = {name: part for name, part in schema_of(key.type, definitions).items() if name != "description"}
    if not key.required and (key.default is None or key.section is not None):
        schema = any_of(schema, {"type": "null"})
    meaning = BELOW.sub("", key.doc.meaning)
    if key.doc.default is not None:
        meaning = f"{meaning}. Default: {key.doc.default}"
    described = {"description": meaning} if meaning else {}
    return described | schema | _default(key)


def _default(key: Key) -> Json:
    if key.required or key.doc.default is not None or key.default is UNSET:
        return {}
    value = write_value(key, key.default)
    return {} if value is None or value in ([], {}) else {"default": value}

"""Where policies are declared, found, described and built.

One touch point a plug-in: `@policy(stage, name)` above a class. Annotated fields of the class are at once its YAML
keys, its `--set` paths and its search space; the docstring is its catalogue entry.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

import msgspec

from headway.types import HeadwayError
from headway.wording import expected, suggest

T = TypeVar("T", bound=type)

# What a policy of one's own has to have, by stage. A scheduler handles requests with their true lengths, so it is ours.
METHODS = {
    "admission": "admit",
    "routing": "route",
    "scorer": "score",
    "filter": "keep",
    "picker": "pick",
}

REPORTED = ("queued", "running", "kv_used", "busy", "watts")


class Bounds(msgspec.Struct, frozen=True):
    """The range of a numeric parameter: checked when a policy is built, and the range a search draws from."""

    low: float
    high: float
    log: bool = False


class Entry(msgspec.Struct, frozen=True):
    """A catalogue entry: one policy class and what it declares of itself."""

    stage: str
    name: str
    make: type
    exact: tuple[str, ...]  # signals it reads that this router counts itself
    reported: tuple[str, ...]  # signals it reads that instances report
    oracle: bool  # asks for the truth, which no live router has

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n\n")[0].replace("\n", " ")

    @property
    def parameters(self) -> list[Parameter]:
        return parameters(self.make)


class Parameter(msgspec.Struct, frozen=True):
    name: str
    type: Any
    default: Any
    bounds: Bounds | None


_ENTRIES: dict[tuple[str, str], Entry] = {}


def canonical(name: str) -> str:
    """`_` and `-` are equal in all names."""
    return name.strip().replace("_", "-")


def policy(
    stage: str,
    name: str,
    *,
    exact: Iterable[str] = (),
    reported: Iterable[str] = (),
    oracle: bool = False,
) -> Callable[[T], T]:
    """Declare a policy class: make it a dataclass and file it under its stage and name."""

    def register(cls: T) -> T:
        made: type = dataclasses.dataclass(eq=False, repr=False)(cls)
        entry = Entry(stage, canonical(name), made, tuple(exact), tuple(reported), oracle)
        known = _ENTRIES.setdefault((stage, entry.name), entry)
        if known.make.__module__ != made.__module__:
            raise HeadwayError(f"There is a {stage} policy called {entry.name!r} already; choose another name.")
        _ENTRIES[(stage, entry.name)] = entry
        setattr(made, "entry", entry)  # noqa: B010  (a class attribute that mypy cannot know)
        return cast(T, made)

    return register


def entries(stage: str | None = None) -> list[Entry]:
    """All catalogue entries in order of declaration."""
    return [entry for entry in _ENTRIES.values() if stage is None or entry.stage == stage]


def names(stage: str) -> list[str]:
    return [entry.name for entry in entries(stage)]


def parameters(cls: type) -> list[Parameter]:
    """The parameters of a policy class, from its annotated dataclass fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        hint, bounds = hints[field.name], None
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        found.append(Parameter(field.name, hint, default, bounds))
    return found


def find(stage: str, name: str, where: str) -> Entry:
    """The entry of a name, or of `path/to/file.py:Class`."""
    if ".py" in name:
        return load(stage, name, where)
    entry = _ENTRIES.get((stage, canonical(name)))
    if entry is None:
        noun = f"{stage} policy" if stage in ("routing", "admission") else stage
        raise HeadwayError(f"{where}: no {noun} is called {name!r}.{suggest(canonical(name), names(stage))}")
    return entry


def load(stage: str, reference: str, where: str) -> Entry:
    """A policy from a user's own file, `path/to/my_policy.py:MyPolicy`; it reads every signal unless it says less."""
    if stage not in METHODS:
        raise HeadwayError(f"{where}: a {stage} cannot be taken from a file. Known: {', '.join(names(stage))}.")
    file, _, attribute = reference.rpartition(":")
    if not file.endswith(".py") or not attribute.isidentifier():
        raise HeadwayError(f"{where}: {reference!r} is not of the form path/to/file.py:ClassName.")
    path = FilePath(file).expanduser()
    if not path.is_file():
        raise HeadwayError(f"{where}: there is no file {file!r}.")
    module_name = f"headway_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise HeadwayError(f"{where}: {file} could not be loaded: {type(error).__name__}: {error}") from error
    cls = getattr(module, attribute, None)
    if not isinstance(cls, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise HeadwayError(f"{where}: {file} has no class {attribute!r}.{suggest(attribute, classes)}")
    entry = vars(cls).get("entry")
    if isinstance(entry, Entry):
        if entry.stage != stage:
            raise HeadwayError(
                f"{where}: {reference!r} is of stage {entry.stage}, but a policy of stage {stage} is wanted here."
            )
        return entry
    if not callable(getattr(cls, METHODS[stage], None)):
        raise HeadwayError(f"{where}: class {attribute!r} has no method {METHODS[stage]!r}, as a {stage} policy needs.")
    if not dataclasses.is_dataclass(cls) and not any("__init__" in vars(base) for base in cls.__mro__[:-1]):
        cls = dataclasses.dataclass(eq=False, repr=False)(cls)
    return Entry(stage, canonical(attribute), cls, ("all",), REPORTED, False)


def split(spec: object, where: str) -> tuple[str, dict[str, Any]]:
    """A policy is a name, or a mapping with `name` and parameters."""
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, dict):
        rest = {str(key): value for key, value in spec.items()}
        name = rest.pop("name", None)
        if isinstance(name, str):
            return name, rest
        raise HeadwayError(f"{where}: a mapping must say the policy's name, as in {{name: round-robin}}.")
    raise HeadwayError(f"{where}: expected a name or a mapping with 'name', got {spec!r}.")


def build(stage: str, spec: object, where: str) -> Any:
    """Make a policy from its name or its mapping, with every mistake told at its place."""
    name, given = split(spec, where)
    entry = find(stage, name, where)
    return make(entry, given, where)


def make(entry: Entry, given: dict[str, Any], where: str) -> Any:
    """Make a policy from its entry and parameters."""
    known = {parameter.name: parameter for parameter in entry.parameters}
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = known.get(key.replace("-", "_"))
        if parameter is None:
            raise HeadwayError(f"{where}.{key}: {entry.name!r} has no such parameter.{suggest(key, known)}")
        if parameter.name in values:
            raise HeadwayError(f"{where}.{key}: the parameter is given twice.")
        values[parameter.name] = check(value, parameter, f"{where}.{key}")
    try:
        made = entry.make(**values)
        if not isinstance(vars(type(made)).get("entry"), Entry):
            made.entry = entry
    except HeadwayError as error:  # the policy knows what is wrong, but not always where it was given
        raise error if str(error).startswith("policies.") else HeadwayError(f"{where}: {error}") from None
    except (TypeError, AttributeError) as error:
        raise HeadwayError(f"{where}: {entry.name!r} could not be made: {error}.") from error
    return made


def check(value: Any, parameter: Parameter, where: str) -> Any:
    try:
        converted = msgspec.convert(value, parameter.type)
    except (msgspec.ValidationError, TypeError):
        raise HeadwayError(f"{where}: expected {expected(parameter.type)}, got {value!r}.") from None
    bounds = parameter.bounds
    if bounds and isinstance(converted, (int, float)) and not bounds.low <= converted <= bounds.high:
        raise HeadwayError(f"{where}: must lie between {bounds.low:g} and {bounds.high:g}, got {value!r}.")
    return converted

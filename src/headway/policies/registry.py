"""The registry: declares, finds, describes and builds policies.

`@policy(stage, name)` above a class is all that a policy needs. The annotated fields of the class are its YAML keys,
its `--set` paths and its search space. The docstring is its catalogue entry.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec

from headway.config.dated_defaults import SETS, Dated
from headway.config.keys import Form
from headway.config.wording import cut, describe_type, one_line, shown, suggest
from headway.errors import HeadwayError
from headway.policies.policy_files import FROM_FILE, load_class
from headway.policies.user_policies import METHODS, check_methods, outside
from headway.views.instance import REPORTED as REPORTED

T = TypeVar("T", bound=type)
Names = Iterable[str] | None  # names of signals

# The default policy of each stage. The stages are in the order in which a request passes through them.
DEFAULT_POLICIES: Final = {
    "admission": "always",
    "priority": "none",
    "flow": "none",
    "estimator": "auto",
    "routing": "weighted",
    "decider": "always",
    "scheduler": "fcfs",
    "scaling": "static",
}


def gateway_policies(defaults: Dated) -> dict[str, Any]:
    """Return the default policies of a gateway. A scenario plans its load, so its default admits every request. A
    gateway limits the requests in flight."""
    admission = {"name": "max-concurrency", "max_queue": SETS[defaults].gateway_max_queue}
    return {**DEFAULT_POLICIES, "admission": admission, "routing": SETS[defaults].gateway_routing}


AUTO: Final = "auto"  # value of a parameter that Headway derives from the instances
EVERYTHING = ("all",)  # value of `exact` if the policy reads every exact signal

# The role of a policy in a comparison. A `policy` runs unless the caller names other policies.
# An `extra` is a variant of another policy, or a rule for rare cases. A `template` has constants to search.
# A `control` shows one effect and is not for production.
# Extras, controls and templates run only if the caller asks for all policies.
Kind = Literal["policy", "extra", "control", "template"]


class Bounds(msgspec.Struct, frozen=True):
    """The range of a numeric parameter. Building a policy checks that the value is in the range, and a search chooses
    values from it."""

    low: float
    high: float
    log: bool = False


class Usual(int):
    """The default number of a parameter. If the dated defaults of a file set `auto`, the default is `auto` instead."""

    __slots__ = ()


def written_value(value: Any, auto: bool = False) -> Any:
    """Return the value of a parameter as resolved copies write it. If `auto` is set, a default number that is marked
    as `Usual` becomes "auto"."""
    if isinstance(value, Usual):
        return AUTO if auto else int(value)
    return msgspec.to_builtins(value)


class Entry(msgspec.Struct, frozen=True):
    """A catalogue entry: a policy class and its declarations."""

    stage: str
    name: str
    make: type
    exact: tuple[str, ...]  # signals that the policy reads and that the router counts itself
    reported: tuple[str, ...]  # signals that the policy reads and that instances report
    oracle: bool  # whether the policy reads the true cache state, which no live router knows
    kind: Kind = "policy"

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n\n")[0].replace("\n", " ")

    @property
    def parameters(self) -> list[Parameter]:
        return parameters(self.make)

    @property
    def blank(self) -> bool:
        """Whether the policy needs a source or a module from the user."""
        return bool(getattr(self.make, "blank", False))


class Parameter(msgspec.Struct, frozen=True):
    name: str
    type: Any
    default: Any
    bounds: Bounds | None
    form: Form | None = None  # form of the values in a file, for schemas; None: the type determines the form


# The catalogue. Each value is an entry, or a function that makes the entry when a caller first looks it up.
_ENTRIES: dict[tuple[str, str], Entry | Callable[[], Entry]] = {}
# Reading the annotations of a class takes about 0.2 ms, and a run needs them about 40 times.
_DECLARED: WeakKeyDictionary[type, list[tuple[Parameter, Callable[[], Any] | None]]] = WeakKeyDictionary()
_MAKING = threading.RLock()  # prevents two threads from making two classes of the same policy


def canonical(name: str) -> str:
    """Return the name with `-` in place of `_`: in names, both characters mean the same."""
    return name.strip().replace("_", "-")


def policy(
    stage: str, name: str, *, exact: Names = None, reported: Names = None, oracle: bool = False, kind: Kind = "policy"
) -> Callable[[T], T]:
    """Declare a policy class: make it a dataclass and register it under its stage and name. A class that is loaded by
    its path (`my_policy.py:MyPolicy`) is not registered.

    `reported` lists the reported signals that the policy reads, and reading any other reported signal raises an error.
    If `reported` is omitted, the policy may read all reported signals. If `exact` is omitted too, the policy may also
    read tenants and totals. `kind` decides whether the policy runs in a comparison that names no policies."""

    def register(cls: T) -> T:
        entry = describe(cls, stage, name, exact, reported, oracle, kind)
        policy_class = entry.make
        registered = not policy_class.__module__.startswith(FROM_FILE)
        known = _look_up((stage, entry.name)) or entry
        if known.make.__module__ != policy_class.__module__ and (registered or not outside(known.make)):
            raise HeadwayError(f"A {stage} policy called {entry.name!r} exists already. Choose another name.")
        if registered:
            _ENTRIES[(stage, entry.name)] = entry
        return cast(T, policy_class)

    return register


def describe(
    cls: type, stage: str, name: str, exact: Names, reported: Names, oracle: bool = False, kind: Kind = "policy"
) -> Entry:
    """Turn a class into a policy class and return its catalogue entry, without registering it."""
    policy_class: type = dataclasses.dataclass(eq=False, repr=False)(cls)
    if stage not in METHODS and outside(policy_class):
        raise HeadwayError(f"{cls.__name__}: {stage!r} is not a stage for users' policies.{suggest(stage, METHODS)}")
    if kind not in get_args(Kind):
        nearest = suggest(str(kind), get_args(Kind))
        raise HeadwayError(f"{cls.__name__}: {shown(kind)} is not a kind of policy.{nearest}")
    reads = REPORTED if reported is None else tuple(reported)
    for signal in reads:
        if signal not in REPORTED:
            nearest = suggest(str(signal), REPORTED)
            raise HeadwayError(f"{cls.__name__}: reads the signal {shown(signal)}, which does not exist.{nearest}")
    counts = tuple(exact) if exact is not None else EVERYTHING if reported is None else ()
    entry = Entry(stage, canonical(name), policy_class, counts, reads, oracle, kind)
    setattr(policy_class, "entry", entry)  # noqa: B010  (a class attribute that mypy cannot know)
    return entry


def defer(stage: str, name: str, make: Callable[[], Entry]) -> None:
    """Register a policy whose class is slow to make: `make` is called when the policy is first looked up."""
    _ENTRIES[(stage, canonical(name))] = make


def _look_up(key: tuple[str, str]) -> Entry | None:
    with _MAKING:
        known = _ENTRIES.get(key)
        if known is not None and not isinstance(known, Entry):
            known = _ENTRIES[key] = known()
        return known


def own_entry(policy: Any) -> Entry | None:
    """Return the entry that a policy (an object or a class) declares itself; the entry of a base class is ignored."""
    for holder in (policy, type(policy)):
        entry = getattr(holder, "__dict__", {}).get("entry")
        if isinstance(entry, Entry):
            return entry
    return None


def default_entry(stage: str, cls: type) -> Entry:
    """Return the entry of a class that declares no entry. The policy is assumed to read every signal. If its base class
    is an oracle, the policy is assumed to be an oracle too."""
    base = getattr(cls, "entry", None)
    return Entry(stage, canonical(cls.__name__), cls, EVERYTHING, REPORTED, isinstance(base, Entry) and base.oracle)


def entry_of(policy: Any, stage: str = "routing") -> Entry:
    """Return the entry that a policy (an object or a class) declares, or the default entry."""
    return own_entry(policy) or default_entry(stage, policy if isinstance(policy, type) else type(policy))


def entries(stage: str | None = None, name: str | None = None) -> list[Entry]:
    """Return the catalogue entries in order of declaration: all, or only those with this stage or name."""
    keys = [key for key in _ENTRIES if stage in (None, key[0]) and name in (None, key[1])]
    return [entry for key in keys if (entry := _look_up(key)) is not None]


def names(stage: str) -> list[str]:
    """Return the names of the policies that need no source or module from the user."""
    return [entry.name for entry in entries(stage) if not entry.blank]


def parameters(cls: type) -> list[Parameter]:
    """Return the parameters of a policy class: its annotated dataclass fields."""
    if not dataclasses.is_dataclass(cls):
        return []
    declared = _DECLARED.get(cls)
    if declared is None:
        declared = _DECLARED[cls] = _declared(cls)
    return [
        parameter if make is None else msgspec.structs.replace(parameter, default=make())
        for parameter, make in declared
    ]


def _declared(cls: type) -> list[tuple[Parameter, Callable[[], Any] | None]]:
    """Return each parameter of a dataclass with its default factory, or None if it has no factory. A default factory
    makes a new default for each policy; a parameter with a factory has no default of its own."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise HeadwayError(f"{cls.__name__}: an annotation cannot be read: {one_line(error)}.") from error
    known = []
    for field in dataclasses.fields(cls):
        hint, bounds, form = hints[field.name], None, None
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
            form = next((extra for extra in extras if isinstance(extra, Form)), None)
        make = None if field.default_factory is dataclasses.MISSING else field.default_factory
        if field.default is dataclasses.MISSING and make is None:
            raise HeadwayError(f"{cls.__name__}: the parameter {field.name!r} has no default; give it one.")
        known.append((Parameter(field.name, hint, None if make else field.default, bounds, form), make))
    return known


def is_file(name: str) -> bool:
    """Return whether a name refers to a class in a user's file, `path/to/file.py:Class`."""
    return ".py:" in name


def find(stage: str, name: str, where: str) -> Entry:
    """Return the catalogue entry of the policy with this name, or of the class `path/to/file.py:Class`."""
    if is_file(name) or name.endswith(".py"):
        return load(stage, name, where)
    entry = _look_up((stage, canonical(name)))
    if entry is None:
        known = [candidate.name for candidate in entries(stage)]
        noun = f"{stage} policy" if stage in ("routing", "admission", "scaling") else stage
        raise HeadwayError(f"{where}: no {noun} is called {shown(name)}.{suggest(cut(canonical(name)), known)}")
    return entry


def load(stage: str, reference: str, where: str) -> Entry:
    """Load a policy from a user's file, `path/to/my_policy.py:MyPolicy`."""
    if stage not in METHODS:
        raise HeadwayError(f"{where}: a {stage} cannot be loaded from a file. Known: {', '.join(names(stage))}.")
    cls = load_class(reference, where)
    entry = own_entry(cls)
    if entry is not None:
        if entry.stage != stage:
            raise HeadwayError(f"{where}: {reference!r} is a policy of stage {entry.stage}, not of stage {stage}.")
        return entry
    name, method = cls.__name__, METHODS[stage]
    if not callable(getattr(cls, method, None)):
        raise HeadwayError(f"{where}: class {name!r} has no method {method!r}, which every {stage} policy needs.")
    if not dataclasses.is_dataclass(cls) and not any("__init__" in vars(base) for base in cls.__mro__[:-1]):
        try:
            cls = dataclasses.dataclass(eq=False, repr=False)(cls)
        except (TypeError, ValueError, AttributeError) as error:
            raise HeadwayError(f"{where}: the fields of {name!r} are not valid: {one_line(error)}.") from error
    return default_entry(stage, cls)


def load_all(reference: str, where: str) -> list[Entry]:
    """Return the catalogue entries of a class in a user's file. If the class declares its stage, there is one entry.
    Otherwise there is one entry for each stage whose method the class has."""
    cls = load_class(reference, where)
    entry = own_entry(cls)
    if entry is not None:
        return [entry]
    stages = [stage for stage, method in METHODS.items() if callable(getattr(cls, method, None))]
    if not stages:
        methods = ", ".join(METHODS.values())
        raise HeadwayError(f"{where}: class {cls.__name__!r} has none of the methods of a policy: {methods}.")
    return [load(stage, reference, where) for stage in stages]


def split(spec: object, where: str) -> tuple[str, dict[str, Any]]:
    """Split a policy (a name, or a mapping with `name` and parameters) into name and parameters."""
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, dict):
        rest = {str(key): value for key, value in spec.items()}
        name = rest.pop("name", None)
        if isinstance(name, str):
            return name, rest
        raise HeadwayError(f"{where}: the mapping has no name. Give the policy's name, as in {{name: round-robin}}.")
    raise HeadwayError(f"{where}: expected a name or a mapping with 'name', got {shown(spec)}.")


def values_of(policy: Any) -> dict[str, Any]:
    """Return the values of a policy's parameters."""
    return {parameter.name: getattr(policy, parameter.name) for parameter in parameters(type(policy))}


def explicit(stage: str, spec: Any, where: str, policy: Any = None, auto: bool = False) -> dict[str, Any]:
    """Return a policy's name and all its parameters. If the policy object of `spec` already exists, pass it as
    `policy`, so that it is not built again. `auto` is as in `written_value`."""
    name, _ = split(spec, where)
    policy = build(stage, spec, where) if policy is None else policy
    values = {key: written_value(value, auto) for key, value in values_of(policy).items()}
    return {"name": name if is_file(name) else policy.entry.name, **values}


def build(stage: str, spec: object, where: str) -> Any:
    """Make a policy from its name or its mapping. Error messages begin with `where`."""
    name, parameters = split(spec, where)
    return make(find(stage, name, where), parameters, where)


def remake(policy: Any) -> Any:
    """Return a new policy of the same class with the same parameters, and without the state of this one."""
    return make(entry_of(policy), values_of(policy), f"policies.{entry_of(policy).stage}")


def make(entry: Entry, parameters: dict[str, Any], where: str) -> Any:
    """Make a policy from its entry and parameters."""
    try:
        known = {parameter.name: parameter for parameter in entry.parameters}
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None
    values: dict[str, Any] = {}
    for key, value in parameters.items():
        parameter = known.get(key.replace("-", "_"))
        if parameter is None:
            raise HeadwayError(f"{where}.{cut(key)}: {entry.name!r} has no such parameter.{suggest(cut(key), known)}")
        if parameter.name in values:
            raise HeadwayError(f"{where}.{key}: the parameter is set twice.")
        values[parameter.name] = check(value, parameter, f"{where}.{key}")
    try:
        policy = entry.make(**values)
        if own_entry(policy) is None:
            _label(policy, entry)
    except HeadwayError as error:  # the message may not name the location of the parameters
        raise error if str(error).startswith("policies.") else HeadwayError(f"{where}: {error}") from None
    except (TypeError, AttributeError) as error:
        raise HeadwayError(f"{where}: {entry.name!r} could not be created: {one_line(error, kind=False)}.") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or not outside(entry.make):
            raise
        raise HeadwayError(f"{where}: {entry.name!r} could not be created: {one_line(error)}.") from error
    check_methods(entry.stage, policy, where)
    return policy


def _label(policy: Any, entry: Entry) -> None:
    try:
        policy.entry = entry
    except (AttributeError, TypeError):
        raise HeadwayError(
            f"{entry.name!r} does not let Headway set attributes. Remove __slots__, slots and frozen."
        ) from None


def check(value: Any, parameter: Parameter, where: str) -> Any:
    try:
        converted = msgspec.convert(value, parameter.type)
    except (msgspec.ValidationError, TypeError):
        raise HeadwayError(f"{where}: expected {describe_type(parameter.type)}, got {shown(value)}.") from None
    bounds = parameter.bounds
    if bounds and isinstance(converted, (int, float)) and not bounds.low <= converted <= bounds.high:
        raise HeadwayError(f"{where}: must lie between {bounds.low:g} and {bounds.high:g}, got {shown(value)}.")
    return converted

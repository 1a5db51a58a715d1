"""Kinds of sessions: the keys `kind`, `kinds` and `models` of a workload or a tenant (`docs/workloads.md`).

A completion is one request. The other kinds are conversations, whose context grows as described in `contexts`. A
reasoning answer begins with a chain of thought that later turns do not repeat. A turn of an agent calls tools or starts
sub-agents; each tool result is sent in a new request.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Struct, field, to_builtins

from headway.config.keys import Doc, Form
from headway.config.schema import Later, Variants
from headway.config.section import check_range, read, split_kind
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload import durations, shapes
from headway.workload.shapes import MAX_TOKENS, PROBABILITY, Lengths, check_probability, check_weights
from headway.workload.traces.record import present

GROWTHS: Final = ("linear", "sublinear", "bounded")
CONTEXT_LIMIT: Final = 8192
TOKENS: Final = ("prompt_tokens", "output_tokens", "max_tokens")
SUBAGENT_LENGTHS: Final = ("count", "turns", "prompt_tokens")


def _dist(**figures: Any) -> Any:
    """Return a struct field whose default is this distribution."""
    return field(default_factory=lambda: dict(figures))


class Kind(Struct, frozen=True, kw_only=True):
    """The keys of every kind of session. If a length is not set, the tenant's length is the default."""

    weight: Annotated[float, "share of the sessions, relative to other kinds"] = 1.0
    prompt_tokens: Annotated[Lengths, "length of a session's first prompt"] = None
    output_tokens: Annotated[Lengths, "length of an output"] = None
    max_tokens: Annotated[Lengths, "limit of an output that clients send"] = None


class Completion(Kind, frozen=True, kw_only=True, tag_field="kind", tag="completion"):
    pass


class Turns(Kind, frozen=True, kw_only=True):
    """The keys of all conversations."""

    turns: Annotated[Lengths, "requests of a session"] = _dist(dist="geometric", mean=5, max=50)
    turn_tokens: Annotated[Lengths, "new tokens of each later prompt"] = _dist(
        dist="lognormal", mean=120, std=120, min=4, max=4096
    )
    think_time: Annotated[durations.Durations, "time between an answer and the next prompt"] = _dist(
        dist="exponential", mean="10s"
    )
    growth: Annotated[
        str,
        Form.of(Literal[GROWTHS]),
        "what a prompt repeats of earlier turns: all (linear), a summary (sublinear), or the last `context_limit` "
        "tokens (bounded)",
    ] = "linear"
    context_limit: Annotated[int | None, Doc("most tokens of history, if bounded", default=str(CONTEXT_LIMIT))] = None


class Chat(Turns, frozen=True, kw_only=True, tag_field="kind", tag="chat"):
    pass


class Reasoning(Turns, frozen=True, kw_only=True, tag_field="kind", tag="reasoning"):
    turns: Annotated[Lengths, "requests of a session"] = _dist(dist="geometric", mean=2, max=20)
    steps: Annotated[Lengths, "steps of a chain of thought"] = _dist(dist="normal", mean=10, std=4, min=1, max=40)
    step_tokens: Annotated[Lengths, "tokens of a step"] = _dist(dist="lognormal", mean=120, std=60, min=8, max=1024)


class Subagents(Struct, frozen=True):
    """Sub-agents that replace a tool call: `count` sub-agents work in parallel, and the agent waits for all of them.

    Each sub-agent has its own context, which begins with `prompt_tokens` tokens, and sends `turns` requests, separated
    by a tool's latency. The result of a sub-agent is its last output.
    """

    probability: Annotated[float, PROBABILITY, "probability that sub-agents replace a tool call"]
    count: Annotated[Lengths, "sub-agents that work in parallel"] = _dist(dist="uniform", min=1, max=4)
    turns: Annotated[Lengths, "requests of a sub-agent"] = _dist(dist="geometric", mean=4, max=20)
    prompt_tokens: Annotated[Lengths, "length of its first prompt"] = _dist(
        dist="lognormal", mean=1500, std=1000, min=64, max=16384
    )

    def validate(self, where: str) -> Subagents:
        check_probability(self.probability, f"{where}.probability")
        for name in SUBAGENT_LENGTHS:
            shapes.parse(getattr(self, name), f"{where}.{name}")
        return self


class Agentic(Turns, frozen=True, kw_only=True, tag_field="kind", tag="agentic"):
    turns: Annotated[Lengths, "turns of the user"] = 1
    tool_call: Annotated[float, PROBABILITY, "probability that a turn calls tools"] = 0.9
    calls: Annotated[Lengths, "tool calls of such a turn"] = _dist(dist="geometric", mean=8, max=60)
    tool_latency: Annotated[durations.Durations, "time that a tool runs"] = _dist(
        dist="lognormal", mean="2s", std="4s", max="120s"
    )
    tool_tokens: Annotated[Lengths, "tokens of a tool's result"] = _dist(
        dist="lognormal", mean=600, std=900, min=8, max=16384
    )
    subagents: Annotated[Subagents | None, "sub-agents that replace some tool calls"] = None


AnyKind = Completion | Chat | Reasoning | Agentic
KINDS: Final[dict[str, type[AnyKind]]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyKind)}
LENGTHS: Final = (*TOKENS, "turns", "turn_tokens", "steps", "step_tokens", "calls", "tool_tokens")
DURATIONS: Final = ("think_time", "tool_latency")


KindSpec = Annotated[Any, Form.of(Later("kind", lambda: Variants("kind", lambda: KINDS)))]


class Model(Struct, frozen=True):
    """A model that a tenant's sessions use, and the kinds of these sessions."""

    name: str  # an empty string means the cluster's model
    weight: float
    kinds: tuple[AnyKind, ...]
    own: bool = False  # whether the model has its own kinds, instead of those of the tenant


class _ModelKeys(Struct, frozen=True):
    name: Annotated[str, "name of the model"]
    weight: Annotated[float, "share of the sessions, relative to other models"] = 1.0
    kind: Annotated[KindSpec, "kind of its sessions"] = None
    kinds: Annotated[Any, Form.of(list[KindSpec]), "several kinds of sessions, by weight"] = None


# Valid values of models in a file: weights by name, or a list.
ModelsSpec = Annotated[Any, Form.of(dict[str, float], list[str | _ModelKeys])]


def parse(spec: object, where: str, turns: Any = None) -> AnyKind:
    """Read a kind from its name or its mapping. If the mapping does not set `turns`, the argument `turns` is used. A
    completion has no key `turns`, so the argument is ignored."""
    name, rest = split_kind(spec, where, "kind", KINDS, "kind", "kind of request")
    if turns is not None and name != "completion":
        rest.setdefault("turns", turns)
    return _check(read(KINDS[name], rest, where), where)


def _check(kind: AnyKind, where: str) -> AnyKind:
    check_weights([kind.weight], 1, "kinds", f"{where}.weight")
    for name in kind.__struct_fields__:
        value = getattr(kind, name)
        if name in DURATIONS:
            durations.parse(value, f"{where}.{name}")
        elif name in LENGTHS and value is not None:
            shapes.parse(value, f"{where}.{name}")
    if isinstance(kind, Completion):
        return kind
    if kind.growth not in GROWTHS:
        raise HeadwayError(f"{where}.growth: no growth is called {shown(kind.growth)}.{suggest(kind.growth, GROWTHS)}")
    if kind.context_limit is not None:
        if kind.growth != "bounded":
            raise HeadwayError(f"{where}.context_limit: only a bounded context has a limit. Set 'growth: bounded'.")
        check_range(kind.context_limit, 1, MAX_TOKENS, f"{where}.context_limit")
    if isinstance(kind, Agentic):
        check_probability(kind.tool_call, f"{where}.tool_call")
    return kind


def explicit(kind: AnyKind) -> Json:
    """Return a kind as a mapping, with all defaults."""
    keys = present(to_builtins(kind))
    if isinstance(kind, Turns) and kind.growth == "bounded":
        keys["context_limit"] = limit_of(kind)
    return keys


def limit_of(kind: Turns) -> int:
    return CONTEXT_LIMIT if kind.context_limit is None else kind.context_limit


def mix(kind: Any, kinds: Any, where: str, turns: Any = None) -> tuple[AnyKind, ...]:
    """Read the key `kind` or the list `kinds`. If neither is set, return the kind completion."""
    if kinds is None:
        return (parse("completion" if kind is None else kind, f"{where}.kind", turns),)
    if kind is not None:
        raise HeadwayError(f"{where}.kinds: 'kind' is set too. Remove one of the two.")
    if not isinstance(kinds, list) or not kinds:
        raise HeadwayError(f"{where}.kinds: expected a list of kinds, got {shown(kinds)}.")
    parsed = tuple(parse(entry, f"{where}.kinds[{number}]", turns) for number, entry in enumerate(kinds))
    check_weights([kind.weight for kind in parsed], len(parsed), "kinds", f"{where}.kinds")
    return parsed


def models(spec: Any, ours: tuple[AnyKind, ...], where: str, turns: Any = None) -> tuple[Model, ...]:
    """Read `models`: a mapping of names to weights, or a list of models that may have their own kinds."""
    if spec is None:
        return (Model("", 1.0, ours),)
    weighed = isinstance(spec, dict)
    if weighed:
        spec = [{"name": name, "weight": weight} for name, weight in spec.items()]
    if not isinstance(spec, list) or not spec:
        raise HeadwayError(f"{where}: expected a mapping of models to weights or a list of models, got {shown(spec)}.")
    by_name: dict[str, Model] = {}
    for number, entry in enumerate(spec):
        place = f"{where}.{entry['name']}" if weighed else f"{where}[{number}]"
        keys = read(_ModelKeys, {"name": entry} if isinstance(entry, str) else entry, place)
        if not keys.name or keys.name in by_name:
            wrong = "is listed twice. Remove one of the two" if keys.name else "is not a name"
            raise HeadwayError(f"{place}.name: {shown(keys.name)} {wrong}.")
        own = keys.kind is not None or keys.kinds is not None
        theirs = mix(keys.kind, keys.kinds, place, turns) if own else ours
        by_name[keys.name] = Model(keys.name, keys.weight, theirs, own)
    check_weights([model.weight for model in by_name.values()], len(by_name), "models", where)
    return tuple(by_name.values())


def explicit_mix(kinds: tuple[AnyKind, ...]) -> Json:
    """Return a mapping with the key `kind` of a section or, if there are several kinds, with the key `kinds`."""
    return {"kind": explicit(kinds[0])} if len(kinds) == 1 else {"kinds": [explicit(kind) for kind in kinds]}


def explicit_models(models: tuple[Model, ...]) -> list[Json]:
    return [
        {"name": model.name, "weight": model.weight, **(explicit_mix(model.kinds) if model.own else {})}
        for model in models
    ]

"""Tenants: the senders of requests. A key at the top level of the workload is the default for all tenants. A workload
without the `tenants` key has one tenant, called "default"."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, to_builtins

from headway import hashing
from headway.config.keys import DURATION, RATE, Doc, Form, write
from headway.config.schema import Later, Part
from headway.config.section import read
from headway.config.units import duration_text
from headway.config.units import rate as parse_rate
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.streams import derive
from headway.types import Json
from headway.workload import adapters, arrivals, behaviour, clients, kinds, prefixes, profiles, shapes
from headway.workload.arrivals import ArrivalSpec
from headway.workload.behaviour import BehaviourSpec
from headway.workload.clients import ClosedLoop, Slo
from headway.workload.correlations import Correlations
from headway.workload.kinds import KindSpec, ModelsSpec
from headway.workload.prefixes import Prefix
from headway.workload.profiles import ProfileSpec
from headway.workload.shapes import PROBABILITY, Lengths
from headway.workload.traces.record import present
from headway.workload.traffic import Retry

DEFAULT: Final = "default"
PROMPT_TOKENS: Final = {"dist": "normal", "mean": 512, "std": 128, "min": 16, "max": 2048}
OUTPUT_TOKENS: Final = {"dist": "normal", "mean": 256, "std": 64, "min": 8, "max": 1024}
PROMPT_SIZES: Final[dict[str, Json]] = {
    "small": {"dist": "lognormal", "mean": 256, "std": 256, "min": 16, "max": 2048},
    "medium": {"dist": "lognormal", "mean": 1024, "std": 1024, "min": 32, "max": 8192},
    "large": {"dist": "lognormal", "mean": 4096, "std": 4096, "min": 64, "max": 32768},
    "elephant": {"dist": "lognormal", "mean": 16384, "std": 16384, "min": 1024, "max": 131072},
}
LENGTHS: Final = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "max_tokens": None}
LONGEST_NAME: Final = 100


def _text(shape: Json) -> str:
    """Return a distribution as a scenario file writes it: a YAML mapping on one line."""
    return "{" + ", ".join(f"{name}: {value}" for name, value in shape.items()) + "}"


class SenderKeys(Struct):
    """The keys that a tenant may set, and that the workload may set for all tenants. A key that is not set is None."""

    rate: Annotated[Any, RATE, "rate of new sessions; required unless `closed_loop` or a trace sets their times"] = None
    arrival: Annotated[ArrivalSpec, Doc("arrival process", default="poisson")] = None
    profile: Annotated[ProfileSpec, Doc("how the rate varies over time", default="constant")] = None
    prompt_tokens: Annotated[Lengths, Doc("length of a session's first prompt", default=_text(PROMPT_TOKENS))] = None
    output_tokens: Annotated[Lengths, Doc("length of an output", default=_text(OUTPUT_TOKENS))] = None
    max_tokens: Annotated[Lengths, Doc("limit that clients send; no output exceeds it", default="none")] = None
    prefix: Annotated[Any, Form.of(Prefix), "groups of sessions that share the beginning of their prompts"] = None
    kind: Annotated[KindSpec, Doc("kind of the sessions", default="completion")] = None
    kinds: Annotated[Any, Form.of(list[KindSpec]), "several kinds of sessions, by weight; excludes `kind`"] = None
    models: Annotated[ModelsSpec, Doc("models that the sessions use", default="the cluster's model")] = None
    adapters: Annotated[
        Any, Form.of(list[str], dict[str, float]), "LoRA adapters, or weights by adapter; `base` means no adapter"
    ] = None
    priority: Annotated[str | None, Doc("the SLO class", default="standard")] = None
    slo: Annotated[Any, Form.of(Slo), "latency targets of its requests"] = None
    behaviour: Annotated[BehaviourSpec, Doc("how the traffic differs from ordinary sessions", default="normal")] = None
    archetype: Annotated[Any, Form.of(Later("archetype", lambda: Part(Archetype))), "a short form of other keys"] = None
    correlations: Annotated[Any, Form.of(Correlations), "correlations of sessions, and of the turns of a session"] = (
        None
    )
    closed_loop: Annotated[
        Any, Form.of(ClosedLoop), "a fixed number of users, each with one session at a time; excludes `rate`"
    ] = None
    retry: Annotated[Any, Form.of(Retry), Doc("retries of failed requests", default="none")] = None
    timeout: Annotated[Any, DURATION, Doc("how long clients wait for a request", default="without limit")] = None


class TenantKeys(SenderKeys):
    weight: Annotated[float | None, Doc("share of the workload's rate, if the tenant has no rate", default="1")] = None


KEYS: Final = TenantKeys.__struct_fields__
INHERITED: Final = tuple(name for name in SenderKeys.__struct_fields__ if name != "rate")
INSTEAD: Final = {  # key of a tenant -> other keys of the workload that it replaces
    "kind": ("kinds",),
    "kinds": ("kind",),
    "rate": ("closed_loop",),
    "closed_loop": ("arrival", "profile", "behaviour"),
}


class Archetype(Struct, frozen=True):
    """The `archetype` key: a short form for several keys. If such a key is set too, it overrides the archetype."""

    prompt_size: Annotated[str | None, Form.of(Literal[tuple(PROMPT_SIZES)]), "sets `prompt_tokens`"] = None
    reuse_affinity: Annotated[float | None, PROBABILITY, "sets `prefix` of `correlations`"] = None
    burst_propensity: Annotated[float | None, PROBABILITY, "sets the probability of a bursty `behaviour`"] = None
    session_turns: Annotated[Lengths, "sets `turns` of every kind of session that has turns"] = None


class Tenant(Struct):
    """A tenant with all keys read and checked."""

    name: str
    places: dict[str, str]  # key -> path of the key in the scenario, for errors
    rate: Fraction | None  # None in a closed loop, and for a trace that plays as recorded
    given_rate: Any  # rate as written; None if the tenant gets a fraction of the workload's rate
    weight: float
    arrival: arrivals.Arrival
    profile: profiles.Profile
    prompt_tokens: Any
    output_tokens: Any
    max_tokens: Any
    prefix: prefixes.Prefix | None
    models: tuple[kinds.Model, ...]
    adapters: tuple[adapters.Share, ...]
    kinds: tuple[kinds.AnyKind, ...]
    priority: str
    slo: clients.Slo
    behaviour: behaviour.Behaviour
    correlations: Correlations
    closed_loop: clients.ClosedLoop | None
    retry: Retry
    timeout_ps: int | None  # maximum time that clients wait for a request; None: unlimited

    @property
    def base(self) -> int:
        """The first content number of the tenant. Requests and prefixes are numbered from it, so that tenants have no
        content in common. It depends only on the tenant's name, not on other tenants."""
        return 0 if self.name == DEFAULT else (1 + hashing.stable("tenant", self.name) % (2**27 - 1)) << 32

    def seed(self, seed: int) -> int:
        """Return the seed of the tenant's random streams. It depends only on `seed` and the tenant's name."""
        return seed if self.name == DEFAULT else derive(seed, f"workload.tenant.{self.name}")

    def plain(self) -> bool:
        """Return whether all requests of the tenant are independent of each other."""
        return (
            len(self.models) == len(self.kinds) == 1
            and self.kinds[0] == kinds.Completion(weight=self.kinds[0].weight)
            and not self.models[0].name
            and self.adapters == adapters.NONE
            and isinstance(self.behaviour, behaviour.Normal)
            and self.correlations == Correlations()
            and self.closed_loop is None
            and not self.retry.max
        )

    def explicit(self) -> Json:
        """Return all keys of the tenant except its rate and weight as a mapping, including defaults."""
        starts: Json = {
            "arrival": arrivals.explicit(self.arrival),
            "profile": to_builtins(self.profile),
            "behaviour": to_builtins(self.behaviour),
        }
        return present(
            {
                **(starts if self.closed_loop is None else {"closed_loop": to_builtins(self.closed_loop)}),
                "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens,
                "max_tokens": self.max_tokens,
                "prefix": None if self.prefix is None else prefixes.explicit(self.prefix),
                **kinds.explicit_mix(self.kinds),
                "models": kinds.explicit_models(self.models) if self.models[0].name else None,
                "adapters": None if self.adapters == adapters.NONE else adapters.explicit(self.adapters),
                "priority": self.priority,
                "slo": self.slo.explicit() or None,
                "correlations": self.correlations.explicit(),
                "retry": write(self.retry),
                "timeout": duration_text(self.timeout_ps),
            }
        )


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_all(top: SenderKeys, tenants: Any) -> list[Tenant]:
    """Read the tenants of a workload whose top-level keys are `top`."""
    where = "workload"
    common = _settle(top, where)
    if tenants is None:
        return [_tenant(DEFAULT, common, dict.fromkeys(KEYS, where), None)]
    if not isinstance(tenants, dict) or not tenants:
        raise HeadwayError(f"{where}.tenants: expected a mapping of names to tenants, got {shown(tenants)}.")
    shared = {name: common[name] for name in INHERITED if name in common}
    # Check the top-level keys here, so that a mistake in them is reported even if every tenant overrides them.
    some_rate = None if _has_interval(shared) else Fraction(1)
    _tenant(DEFAULT, shared, dict.fromkeys(KEYS, where), some_rate)
    read_keys: dict[str, tuple[Json, dict[str, str]]] = {}
    for name, section in tenants.items():
        place = f"{where}.tenants.{name}"
        if not isinstance(name, str) or not name or "/" in name or len(name) > LONGEST_NAME:
            raise HeadwayError(
                f"{where}.tenants: {shown(name)} is not a valid name. Use 1 to {LONGEST_NAME} characters without '/'."
            )
        own = _settle(read(TenantKeys, {} if section is None else section, place), place)
        keys = fill(own, shared, INSTEAD)
        inherited = (key for key in keys if key not in own)
        read_keys[name] = (keys, dict.fromkeys(KEYS, place) | dict.fromkeys(inherited, where))
    return _share_rate(read_keys, top.rate)


def fill(own: Json, common: Json, instead: Mapping[str, Sequence[str]]) -> Json:
    """Return the keys of a section (`own`) and the common keys that it does not override. If the section sets a key of
    `instead`, it also overrides the common keys that `instead` lists for this key."""
    replaced = [*own, *(other for key in own for other in instead.get(key, ()))]
    return {key: value for key, value in common.items() if key not in replaced} | own


def _share_rate(tenants: dict[str, tuple[Json, dict[str, str]]], total: Any) -> list[Tenant]:
    """Return the tenants. The tenants without a rate split the total rate in proportion to their weights."""
    weights = {
        name: Fraction(str(keys.get("weight", 1.0)))
        for name, (keys, _) in tenants.items()
        if "rate" not in keys and "closed_loop" not in keys and not _has_interval(keys)
    }
    rates: dict[str, Fraction] = {}
    if total is not None:
        whole = parse_rate(total, "workload.rate")
        if not weights:
            raise HeadwayError("workload.rate: every tenant has its own rate or closed loop. Remove this key.")
        unit = whole / sum(weights.values(), Fraction(0))
        rates = {name: unit * weight for name, weight in weights.items()}
    senders = [_tenant(name, keys, places, rates.get(name)) for name, (keys, places) in tenants.items()]
    names: dict[int, str] = {}
    for tenant in senders:
        if tenant.base in names:
            both = f"{names[tenant.base]!r} and {tenant.name!r}"
            raise HeadwayError(f"workload.tenants: the names {both} have the same hash. Rename one of them.")
        names[tenant.base] = tenant.name
    return senders


def _settle(keys: SenderKeys, where: str) -> Json:
    """Return the keys that a section sets. If the section has an archetype, add the keys that the archetype sets,
    except keys that the section sets itself."""
    values: Json = present({name: getattr(keys, name, None) for name in KEYS})
    weight = values.get("weight")
    if weight is not None and not (isfinite(weight) and 1e-9 <= weight <= 1e9):
        raise HeadwayError(f"{where}.weight: must lie between 1e-9 and 1e9, got {weight:g}.")
    if "archetype" not in values:
        return values
    place = f"{where}.archetype"
    kind = read(Archetype, values["archetype"], place)
    if kind.prompt_size is not None:
        if kind.prompt_size not in PROMPT_SIZES:
            known = suggest(kind.prompt_size, PROMPT_SIZES)
            raise HeadwayError(f"{place}.prompt_size: no size is called {shown(kind.prompt_size)}.{known}")
        values.setdefault("prompt_tokens", PROMPT_SIZES[kind.prompt_size])
    if kind.reuse_affinity is not None:
        shapes.check_probability(kind.reuse_affinity, f"{place}.reuse_affinity")
        values.setdefault("correlations", {"prefix": kind.reuse_affinity})
    if kind.burst_propensity is not None:
        behaviour.check_propensity(kind.burst_propensity, f"{place}.burst_propensity")
        values.setdefault("behaviour", {"type": "bursty", "probability": kind.burst_propensity})
    if kind.session_turns is not None:
        shapes.parse(kind.session_turns, f"{place}.session_turns")
    return values


def _tenant(name: str, keys: Json, places: dict[str, str], share: Fraction | None) -> Tenant:
    place = {key: f"{where}.{key}" for key, where in places.items()}
    get = keys.get
    lengths = [(key, get(key, default)) for key, default in LENGTHS.items()]
    for key, spec in lengths:
        if spec is not None:
            shapes.parse(spec, place[key])
    turns = read(Archetype, get("archetype", {}), place["archetype"]).session_turns
    ours = kinds.mix(get("kind"), get("kinds"), places["kind" if get("kinds") is None else "kinds"], turns)
    priority = get("priority", "standard")
    if not 1 <= len(priority) <= LONGEST_NAME:
        raise HeadwayError(f"{place['priority']}: must have 1 to {LONGEST_NAME} characters, got {shown(priority)}.")
    closed_loop = clients.read_closed_loop(keys, place)
    arrival, rate = arrivals.parse(get("arrival", "poisson"), place["arrival"]), None
    if closed_loop is None:
        rate = share if get("rate") is None else parse_rate(get("rate"), place["rate"])
        if rate is None and arrival.process != "trace" and arrival.interval is None:
            raise HeadwayError(f"{place['rate']}: is missing. Set the rate of new sessions, as in 40/s.")
        rate = arrivals.base_rate(arrival, rate, place["arrival"])
    return Tenant(
        name=name,
        places=place,
        rate=rate,
        given_rate=get("rate"),
        weight=get("weight", 1.0),
        arrival=arrival,
        profile=profiles.parse(get("profile", "constant"), place["profile"]),
        prefix=None if get("prefix") is None else prefixes.parse(keys["prefix"], place["prefix"]),
        models=kinds.models(get("models"), ours, place["models"], turns),
        adapters=adapters.parse(get("adapters"), place["adapters"]),
        kinds=ours,
        priority=priority,
        slo=read(clients.Slo, get("slo", {}), place["slo"]),
        behaviour=behaviour.parse(get("behaviour", "normal"), place["behaviour"]),
        correlations=read(Correlations, get("correlations", {}), place["correlations"]),
        closed_loop=closed_loop,
        retry=read(Retry, get("retry", {}), place["retry"]),
        timeout_ps=clients.positive_duration(get("timeout"), place["timeout"]),
        **dict(lengths),
    )


def _has_interval(keys: Json) -> bool:
    arrival = keys.get("arrival")
    return isinstance(arrival, dict) and arrival.get("interval") is not None

"""Tenants: who sends. Every key of a tenant may also stand at the top of the workload, where it holds for all that do
not say otherwise; a workload without tenants is that of one, called "default"."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import Any, Final

from msgspec import Struct, to_builtins

from headway import hashing
from headway.config.section import read
from headway.config.units import duration_text, rate
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.streams import derive
from headway.types import Json
from headway.workload import adapters, arrivals, behaviour, clients, correlations, kinds, prefixes, profiles, shapes
from headway.workload.correlations import Correlations
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


class Keys(Struct):
    """What a tenant may say; what is None was not said."""

    weight: float | None = None  # of the workload's rate, where it has none of its own
    rate: Any = None
    arrival: Any = None
    profile: Any = None
    prompt_tokens: Any = None
    output_tokens: Any = None
    max_tokens: Any = None
    prefix: Any = None
    kind: Any = None
    kinds: Any = None
    models: Any = None
    adapters: Any = None
    priority: str | None = None
    slo: Any = None
    behaviour: Any = None
    archetype: Any = None
    correlations: Any = None
    closed_loop: Any = None
    retry: Any = None
    timeout: Any = None


INHERITED: Final = tuple(name for name in Keys.__struct_fields__ if name not in ("weight", "rate"))
INSTEAD: Final = {  # what of the workload's a key stands in place of, beside its namesake
    "kind": ("kinds",),
    "kinds": ("kind",),
    "rate": ("closed_loop",),
    "closed_loop": ("arrival", "profile", "behaviour"),
}


class Archetype(Struct, frozen=True):
    """A tenant in a few words; it stands for keys that are not given beside it."""

    prompt_size: str | None = None
    reuse_affinity: float | None = None  # correlations.prefix
    burst_propensity: float | None = None  # probability of a bursty behaviour
    session_turns: Any = None  # turns of every kind that has them


class Tenant(Struct):
    """A tenant whose every key has been read."""

    name: str
    places: dict[str, str]  # of its keys
    rate: Fraction | None  # None in a closed loop, and for a trace's times as recorded
    given_rate: Any  # as written, None where it has a share of the workload's
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
    timeout_ps: int | None  # how long its clients wait; None: as long as it takes

    @property
    def base(self) -> int:
        """Where the numbers of its contents begin. It hangs on the name alone, so no other tenant can move it."""
        return 0 if self.name == DEFAULT else (1 + hashing.stable("tenant", self.name) % (2**27 - 1)) << 32

    def seed(self, seed: int) -> int:
        """Where its streams come from, likewise."""
        return seed if self.name == DEFAULT else derive(seed, f"workload.tenant.{self.name}")

    def plain(self) -> bool:
        """Whether it only sends requests that hang together with no other."""
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

    def share(self) -> Json:
        """Its rate or weight as it would be written."""
        return {"weight": self.weight} if self.given_rate is None else {"rate": self.given_rate}

    def explicit(self) -> Json:
        """All of it as it would be written, but for its rate or weight."""
        found: Json = {}
        if self.closed_loop is None:
            found |= {"arrival": arrivals.written(self.arrival), "profile": to_builtins(self.profile)}
            found["behaviour"] = behaviour.explicit(self.behaviour)
        else:
            found["closed_loop"] = to_builtins(self.closed_loop)
        found |= {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        if self.max_tokens is not None:
            found["max_tokens"] = self.max_tokens
        if self.prefix is not None:
            found["prefix"] = prefixes.explicit(self.prefix)
        found |= kinds.explicit_mix(self.kinds)
        if self.models[0].name:
            found["models"] = kinds.explicit_models(self.models)
        if self.adapters != adapters.NONE:
            found["adapters"] = adapters.explicit(self.adapters)
        found["priority"] = self.priority
        if self.slo != clients.Slo():
            found["slo"] = clients.explicit_slo(self.slo)
        found["correlations"] = correlations.explicit(self.correlations)
        found["retry"] = {"max": self.retry.max, "backoff": duration_text(self.retry.backoff_ps)}
        if self.timeout_ps is not None:
            found["timeout"] = duration_text(self.timeout_ps)
        return found


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_all(top: Keys, tenants: Any) -> list[Tenant]:
    """The tenants of a workload, whose own keys are `top`."""
    where = "workload"
    common = _settle(top, where)
    if tenants is None:
        return [_tenant(DEFAULT, common, dict.fromkeys(Keys.__struct_fields__, where), None)]
    if not isinstance(tenants, dict) or not tenants:
        raise HeadwayError(f"{where}.tenants: expected a mapping of names to tenants, got {shown(tenants)}.")
    shared = {name: common[name] for name in INHERITED if name in common}
    # A mistake is told where it was made, even where every tenant has its own.
    some_rate = None if _has_interval(shared) else Fraction(1)
    _tenant(DEFAULT, shared, dict.fromkeys(Keys.__struct_fields__, where), some_rate)
    read_keys: dict[str, tuple[Json, dict[str, str]]] = {}
    for name, given in tenants.items():
        place = f"{where}.tenants.{name}"
        if not isinstance(name, str) or not name or "/" in name or len(name) > LONGEST_NAME:
            raise HeadwayError(f"{where}.tenants: {shown(name)} is not a tenant's name; it is a text without '/'.")
        own = _settle(read(Keys, {} if given is None else given, place), place)
        dropped = [other for key in own for other in INSTEAD.get(key, ())]
        inherited = {key: value for key, value in shared.items() if key not in own and key not in dropped}
        places = dict.fromkeys(Keys.__struct_fields__, place) | dict.fromkeys(inherited, where)
        read_keys[name] = (inherited | own, places)
    return _share(read_keys, top.rate)


def _share(given: dict[str, tuple[Json, dict[str, str]]], total: Any) -> list[Tenant]:
    """The tenants, those without a rate of their own given a share of the total by weight."""
    weights = {
        name: Fraction(str(keys.get("weight", 1.0)))
        for name, (keys, _) in given.items()
        if "rate" not in keys and "closed_loop" not in keys and not _has_interval(keys)
    }
    rates: dict[str, Fraction] = {}
    if total is not None:
        whole = rate(total, "workload.rate")
        if not weights:
            raise HeadwayError("workload.rate: every tenant has its own rate or closed loop; leave this one out.")
        unit = whole / sum(weights.values(), Fraction(0))
        rates = {name: unit * weight for name, weight in weights.items()}
    tenants = [_tenant(name, keys, places, rates.get(name)) for name, (keys, places) in given.items()]
    seen: dict[int, str] = {}
    for tenant in tenants:
        if tenant.base in seen:
            both = f"{seen[tenant.base]!r} and {tenant.name!r}"
            raise HeadwayError(f"workload.tenants: {both} would have the same contents by a rare chance; rename one.")
        seen[tenant.base] = tenant.name
    return tenants


def _settle(keys: Keys, where: str) -> Json:
    """The keys that are given, the archetype's among them where nothing else is said."""
    found: Json = {name: value for name in keys.__struct_fields__ if (value := getattr(keys, name)) is not None}
    weight = found.get("weight")
    if weight is not None and not (isfinite(weight) and 1e-9 <= weight <= 1e9):
        raise HeadwayError(f"{where}.weight: must lie between 1e-9 and 1e9, got {weight:g}.")
    if "archetype" not in found:
        return found
    place = f"{where}.archetype"
    kind = read(Archetype, found["archetype"], place)
    if kind.prompt_size is not None:
        if kind.prompt_size not in PROMPT_SIZES:
            known = suggest(kind.prompt_size, PROMPT_SIZES)
            raise HeadwayError(f"{place}.prompt_size: no size is called {shown(kind.prompt_size)}.{known}")
        found.setdefault("prompt_tokens", PROMPT_SIZES[kind.prompt_size])
    if kind.reuse_affinity is not None:
        kinds.check_probability(kind.reuse_affinity, f"{place}.reuse_affinity")
        found.setdefault("correlations", {"prefix": kind.reuse_affinity})
    if kind.burst_propensity is not None:
        behaviour.check_propensity(kind.burst_propensity, f"{place}.burst_propensity")
        found.setdefault("behaviour", {"type": "bursty", "probability": kind.burst_propensity})
    if kind.session_turns is not None:
        shapes.parse(kind.session_turns, f"{place}.session_turns")
    return found


def _tenant(name: str, keys: Json, places: dict[str, str], share: Fraction | None) -> Tenant:
    place = {key: f"{where}.{key}" for key, where in places.items()}
    get = keys.get
    lengths = [(key, get(key, default)) for key, default in LENGTHS.items()]
    for key, spec in lengths:
        if spec is not None:
            shapes.parse(spec, place[key])
    turns = read(Archetype, get("archetype", {}), place["archetype"]).session_turns
    ours = kinds.mix(get("kind"), get("kinds"), places["kind" if get("kinds") is None else "kinds"], turns)
    closed_loop = None if get("closed_loop") is None else clients.closed_loop(keys, place)
    arrival, found = arrivals.parse(get("arrival", "poisson"), place["arrival"]), None
    if closed_loop is None:
        found = arrivals.base_rate(arrival, _rate(get("rate"), share, arrival, place["rate"]), place["arrival"])
    return Tenant(
        name=name,
        places=place,
        rate=found,
        given_rate=get("rate"),
        weight=get("weight", 1.0),
        arrival=arrival,
        profile=profiles.parse(get("profile", "constant"), place["profile"]),
        prefix=None if get("prefix") is None else prefixes.parse(keys["prefix"], place["prefix"]),
        models=kinds.models(get("models"), ours, place["models"], turns),
        adapters=adapters.parse(get("adapters"), place["adapters"]),
        kinds=ours,
        priority=clients.priority(get("priority", "standard"), place["priority"]),
        slo=clients.slo(get("slo", {}), place["slo"]),
        behaviour=behaviour.parse(get("behaviour", "normal"), place["behaviour"]),
        correlations=correlations.parse(get("correlations", {}), place["correlations"]),
        closed_loop=closed_loop,
        retry=clients.retry(get("retry", {}), place["retry"]),
        timeout_ps=clients.timeout(get("timeout"), place["timeout"]),
        **dict(lengths),
    )


def _rate(given: Any, share: Fraction | None, arrival: arrivals.Arrival, where: str) -> Fraction | None:
    if given is not None:
        return rate(given, where)
    if share is None and not _times_itself(arrival):
        raise HeadwayError(f"{where}: is missing; say how many requests arrive, as in 40/s.")
    return share


def _has_interval(keys: Json) -> bool:
    arrival = keys.get("arrival")
    return isinstance(arrival, dict) and arrival.get("interval") is not None


def _times_itself(arrival: arrivals.Arrival) -> bool:
    """Whether a process needs no rate."""
    return arrival.process == "trace" or arrival.interval is not None

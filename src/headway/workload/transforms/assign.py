"""`assign`: assign requests of a trace to tenants, with SLO classes."""

from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Form
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import FACTOR, FactorNumber, Transform, factor, with_records

RANGE: Final = 1 << 64  # number of possible values of a stable hash


class Tenant(Struct, frozen=True):
    weight: Annotated[Any, FACTOR, "share of the sessions, relative to other tenants"] = 1
    slo_class: Annotated[str | None, Doc("SLO class of its requests", default="unchanged")] = None


class Spec(Struct, frozen=True):
    tenants: Annotated[dict[str, Any], Form.of(dict[str, FactorNumber | Tenant]), "weights by tenant"]
    seed: Annotated[int, "seed of the choice"] = 0


def transform(spec: Spec, where: str) -> Transform:
    """Assign each session, and each request without a session, to one of the `tenants` at random, by weight: {search:
    3, crawler: {weight: 1, slo_class: batch}}.

    This replaces the tenant of a request and, if the tenant has an SLO class, also the SLO class. The choice depends
    only on the seed and on the session's name or, without a session, on the position of the request. No requests are
    kept in memory.
    """
    tenants = {name: _tenant(entry, f"{where}.tenants.{name}") for name, entry in spec.tenants.items()}
    if not tenants:
        raise HeadwayError(f"{where}.tenants: is empty. Name tenants, as in {{search: 3, crawler: 1}}.")
    weights = [factor(tenant.weight, f"{where}.tenants.{name}.weight") for name, tenant in tenants.items()]
    total = sum(weights, Fraction())
    ends = [int(sum(weights[: place + 1], Fraction()) * RANGE / total) for place in range(len(weights))]
    return lambda reader: with_records(reader, _assign(reader, list(tenants.items()), ends, spec.seed))


def _tenant(entry: object, where: str) -> Tenant:
    if isinstance(entry, dict):
        return read(Tenant, entry, where)
    if entry is None or isinstance(entry, list):
        raise HeadwayError(f"{where}: expected a weight, or a mapping with weight and slo_class, got {shown(entry)}.")
    return Tenant(entry)


def _assign(reader: Reader, tenants: list[tuple[str, Tenant]], ends: list[int], seed: int) -> Iterator[Record]:
    for position, record in enumerate(reader.records):
        sender = position if record.session is None else f"session {record.session}"
        name, tenant = tenants[bisect_right(ends, stable("assign", seed, sender))]
        yield replace(record, tenant=name, slo_class=tenant.slo_class or record.slo_class)

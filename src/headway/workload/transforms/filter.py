"""`filter`: keep the requests of a model, a tenant, a kind, a session, a turn or a range of lengths."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from headway.errors import HeadwayError
from headway.workload.traces.record import Record
from headway.workload.transforms.base import Transform, keep_where, with_records

Texts = str | list[str]
Number = Annotated[int, Meta(ge=0)]

VALUES: Final = ("model", "tenant", "kind", "slo_class", "session", "turn")
RANGES: Final = ("prompt_tokens", "output_tokens", "turn")


class Spec(Struct, frozen=True):
    model: Annotated[Texts | None, "models to keep"] = None
    tenant: Annotated[Texts | None, "tenants to keep"] = None
    kind: Annotated[Texts | None, "kinds of requests to keep"] = None
    slo_class: Annotated[Texts | None, "SLO classes to keep"] = None
    session: Annotated[Texts | None, "sessions to keep"] = None
    turn: Annotated[Number | list[int] | None, "turns to keep, counted from 0"] = None
    min_prompt_tokens: Annotated[Number | None, "shortest prompt to keep"] = None
    max_prompt_tokens: Annotated[Number | None, "longest prompt to keep"] = None
    min_output_tokens: Annotated[Number | None, "shortest output to keep"] = None
    max_output_tokens: Annotated[Number | None, "longest output to keep"] = None
    min_turn: Annotated[Number | None, "first turn to keep, counted from 0"] = None
    max_turn: Annotated[Number | None, "last turn to keep, counted from 0"] = None


def transform(spec: Spec, where: str) -> Transform:
    """Keep the requests that match all keys. A field must have the value of its key, or one of the values if the key
    has a list. A length or a turn must be between its bounds, inclusive.

    A request that lacks the field does not match. Times do not change. Memory holds the names of sessions and the ids
    of removed requests.
    """
    values = []
    for name in VALUES:
        value = getattr(spec, name)
        if value is not None:
            values.append((name, tuple(value) if isinstance(value, list) else (value,)))
    bounds = []
    for name in RANGES:
        low, high = getattr(spec, f"min_{name}"), getattr(spec, f"max_{name}")
        if low is not None or high is not None:
            bounds.append((name, 0 if low is None else low, float("inf") if high is None else high))
    if not values and not bounds:
        raise HeadwayError(f"{where}: has no key to filter by. Set model, tenant, min_prompt_tokens or another key.")

    def keeps(record: Record) -> bool:
        for name, allowed in values:
            if getattr(record, name) not in allowed:
                return False
        for name, low, high in bounds:
            value = getattr(record, name)
            if value is None or not low <= value <= high:
                return False
        return True

    return lambda reader: with_records(reader, keep_where(reader.records, keeps))

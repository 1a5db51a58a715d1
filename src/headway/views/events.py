"""Observation events: what a policy hears of requests and instances."""

from msgspec import Struct

from headway.types import Request
from headway.views.instance import InstanceView


class Routed(Struct, frozen=True, gc=False):
    """Observation: the router sent a request to an instance."""

    at_ps: int
    request: Request
    instance: InstanceView
    prefill: InstanceView | None = None  # that which computes the prompt, where it is another


class Handed(Struct, frozen=True, gc=False):
    """Observation: a prompt was computed on one instance, and the request goes on to the other."""

    at_ps: int
    request: Request
    instance: InstanceView  # that which generates
    prefill: InstanceView


class FirstToken(Struct, frozen=True, gc=False):
    at_ps: int
    request: Request
    instance: InstanceView


class Finished(Struct, frozen=True, gc=False):
    at_ps: int
    request: Request
    instance: InstanceView
    outcome: str
    output_tokens: int


class InstanceChanged(Struct, frozen=True, gc=False):
    """Observation: an instance comes, goes, or is not to be sent anything for a time. `instance.state` is the new
    state; where that is `stopped`, whatever was cached there is gone."""

    at_ps: int
    instance: InstanceView
    was: str


Event = Routed | Handed | FirstToken | Finished | InstanceChanged

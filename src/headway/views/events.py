"""Observation events, which policies receive about requests and instances."""

from msgspec import Struct

from headway.types import Request
from headway.views.instance import InstanceView


class RequestEvent(Struct, frozen=True, gc=False):
    at_ps: int
    request: Request
    instance: InstanceView  # the request's instance; with two instances, the decode instance


class Routed(RequestEvent, frozen=True, gc=False):
    """The router sent a request to an instance."""

    prefill: InstanceView | None = None  # the instance that computes the prompt; None: it is `instance`


class Handed(RequestEvent, frozen=True, gc=False):
    """The prefill instance has computed the prompt, and the request moves to the decode instance."""

    prefill: InstanceView


class FirstToken(RequestEvent, frozen=True, gc=False):
    """A request generated its first token."""


class Finished(RequestEvent, frozen=True, gc=False):
    """A request ended, or left its instance."""

    outcome: str
    output_tokens: int


class InstanceChanged(Struct, frozen=True, gc=False):
    """An instance changed its state. `instance.state` is the new state; in the state `stopped`, the cache is lost."""

    at_ps: int
    instance: InstanceView
    was: str


Event = Routed | Handed | FirstToken | Finished | InstanceChanged

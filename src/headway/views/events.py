"""Observation events, which policies receive about requests and instances.

Every policy with `observe` receives the events in `Event`. The other events are created only if a policy names their
classes in its attribute `observes`, as in `observes = (Arrived, Preempted)`.
"""

from typing import Any, Final

from msgspec import Struct

from headway.errors import HeadwayError
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


# --- events that a policy must name in `observes` ---------------------------------------------------------------------


class Arrived(Struct, frozen=True, gc=False):
    """A request arrived at the router, which asks admission next."""

    at_ps: int
    request: Request


class Delayed(Struct, frozen=True, gc=False):
    """Admission delayed a request."""

    at_ps: int
    request: Request
    until_ps: int  # when the router asks admission again


class Rejected(Struct, frozen=True, gc=False):
    """The router rejected a request, or the request waited too long in the router's queue. It is at no instance."""

    at_ps: int
    request: Request
    reason: str
    outcome: str = "rejected"  # or timed_out


class Preempted(RequestEvent, frozen=True, gc=False):
    """An instance preempted a request, because it had too few KV blocks. The request waits there again."""


class BlocksMoved(Struct, frozen=True, gc=False):
    """KV blocks began to move between the GPU of an instance and a store below it."""

    at_ps: int
    instance: InstanceView
    kind: str  # offload or reload; swap_out or swap_in for a preempted request
    tier: str  # the store
    blocks: int
    request: Request | None = None  # the request that owns the blocks; None if no request does


class TransferBegan(RequestEvent, frozen=True, gc=False):
    """A prefill instance began to send the KV blocks of a prompt to the decode instance."""

    prefill: InstanceView


class TransferEnded(RequestEvent, frozen=True, gc=False):
    """The last KV block of a prompt reached the decode instance."""

    prefill: InstanceView


class BatchRan(Struct, frozen=True, gc=False):
    """An instance ended a run of equal steps. Equal steps have the same requests in the batch, and compute the same
    number of prompt tokens of each request. The run is as long as possible. `at_ps` is the end of its last step."""

    at_ps: int
    instance: InstanceView
    start_ps: int  # start of the first step
    first_step: int  # number of steps that the instance had completed before this run
    steps: int
    running: int  # number of requests in the batch
    decodes: int  # number of requests in the batch that generate a token in each step
    prefill_tokens: int  # number of prompt tokens that each step computes


FURTHER: Final = (Arrived, Delayed, Rejected, Preempted, BlocksMoved, TransferBegan, TransferEnded, BatchRan)


def observed_kinds(policy: Any) -> tuple[type, ...]:
    """Return the classes that a policy names in `observes`."""
    kinds = getattr(policy, "observes", ())
    if not isinstance(kinds, list | tuple) or not all(kind in FURTHER for kind in kinds):
        known = ", ".join(kind.__name__ for kind in FURTHER)
        raise HeadwayError(f"policies: {type(policy).__name__}.observes must be a tuple of these classes: {known}.")
    return tuple(kinds)

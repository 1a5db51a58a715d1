"""A request on its way through the cluster, as the router that sent it counts it; and what else may become of one."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headway.types import Hints, Reject, Request
from headway.views.instance import InstanceView


class Flight(Struct, eq=False, gc=False):
    """Where a request went, and what its instance is told of how much it matters. Its instances' views count it once
    each while it is with them."""

    request: Request
    view: InstanceView
    cached: int  # prompt tokens believed cached there
    pending: int  # those believed uncached, until the first token comes
    priority: float
    hints: Hints
    reason: str = ""  # that the policy gave
    prefill: InstanceView | None = None  # where the prompt is computed, if elsewhere, until it is
    first_ps: int = -1  # when the first token came

    def depart(self) -> None:
        view, prefill, tokens = self.view, self.prefill, self.request.prompt_tokens
        view.inflight += 1
        view.inflight_tokens += tokens
        view.routed += 1
        if prefill is not None:
            prefill.inflight += 1
            prefill.inflight_tokens += tokens
            prefill.routed += 1
            view = prefill
        view.pending_prefill_tokens += self.pending

    def first_token(self, now_ps: int) -> None:
        (self.prefill or self.view).pending_prefill_tokens -= self.pending
        self.view.decode_tokens += self.request.prompt_tokens
        self.pending = 0
        self.first_ps = now_ps

    def leave_prefill(self) -> None:
        """The prompt has been computed on one instance, and the request goes on to the other; or it ends there."""
        view = self.prefill
        assert view is not None
        view.inflight -= 1
        view.inflight_tokens -= self.request.prompt_tokens
        view.pending_prefill_tokens -= self.pending
        self.pending = 0
        self.prefill = None

    def arrive(self, completed: bool, output_tokens: int) -> None:
        """The request has ended."""
        if self.prefill is not None:
            self.leave_prefill()
        view, tokens = self.view, self.request.prompt_tokens
        view.inflight -= 1
        view.inflight_tokens -= tokens
        view.pending_prefill_tokens -= self.pending
        if self.first_ps >= 0:
            view.decode_tokens -= tokens
        if completed:
            view.completed += 1
        view.output_tokens += output_tokens


class Queued:
    """A request was admitted and waits in the router's queue."""

    __slots__ = ()


QUEUED: Final = Queued()


class TimedOut(Struct, frozen=True, gc=False):
    """A request waited in the router's queue for as long as one may."""

    reason: str


class Unserved(Reject, frozen=True, gc=False):
    """No instance came up for as long as a request may wait for one."""


Answer = Flight | Reject | TimedOut | Queued | None  # None: the request waits, and `ControlPlane.wake` answers later
Decision = tuple[Request, Answer]  # on a request that waited

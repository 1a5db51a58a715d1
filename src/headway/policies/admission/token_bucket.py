"""The token bucket: a steady rate with bursts. It computes with exact integers, so that it does not drift."""

from collections import OrderedDict
from fractions import Fraction
from typing import Annotated, Literal

from msgspec import Struct

from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.types import ADMIT, PS_PER_SECOND, Admit, Delay, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Routed

MAX_PAID = 1_000_000  # maximum number of recorded requests that have paid and are not yet routed


class Bucket(Struct, eq=False):
    """The balance of one allowance. Its unit is a small fraction of a request or token, called a part. Each picosecond
    refills a whole number of parts, so the balance is an integer and has no rounding error."""

    at_ps: int
    left: int  # balance in parts; negative if waiting requests have already paid from future refills


@policy("admission", "token-bucket", reported=())
class TokenBucket:
    """Admits requests at a steady `rate`, with bursts of up to `burst`: a token bucket.

    The allowance starts at `burst`, which is also its maximum, and refills by `rate` a second. A request costs 1 (`by:
    requests`) or its prompt tokens (`by: tokens`). `per: tenant` gives each tenant its own allowance.

    If the allowance is too low, `on_empty: reject` rejects the request; `on_empty: delay` delays it to the first
    picosecond at which it and all earlier requests are paid for, in order of arrival. A request that would wait longer
    than `max_wait_s`, or that costs more than `burst`, is rejected. Rejected requests pay nothing; a client that gives
    up is not refunded. A request pays once, even if a later policy of an `all-of` delays it. It reads no signal.
    """

    by: Literal["requests", "tokens"] = "requests"
    per: Literal["all", "tenant"] = "all"
    rate: Annotated[float, Bounds(0.001, 1e9, log=True)] = 10.0  # requests or tokens per second
    burst: Annotated[int, Bounds(1, 1_000_000_000, log=True)] = 20  # number of requests or tokens
    on_empty: Literal["reject", "delay"] = "reject"
    max_wait_s: Annotated[float, Bounds(0, 1_000_000)] = 60.0  # maximum delay of a request, in seconds

    def bind(self, context: Context) -> None:
        # The balance counts parts, see `Bucket`. `unit`: parts in one request or token. `flow`: parts per picosecond.
        self.flow, parts = Fraction(str(self.rate)).as_integer_ratio()
        self.unit = parts * PS_PER_SECOND
        self.full = self.burst * self.unit
        self.longest_ps = int(Fraction(str(self.max_wait_s)) * PS_PER_SECOND)
        self.buckets: dict[str, Bucket] = {}
        self.paid: OrderedDict[int, int] = OrderedDict()  # id of a request that has paid -> time at which it may enter
        allowance = "the tenant's allowance" if self.per == "tenant" else "the allowance"
        self.spent = Reject(f"429: {allowance} of {self.by} is spent")
        self.too_large = Reject(f"429: the request costs more {self.by} than {allowance} can hold")

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        now = cluster.now_ps
        due_ps = self.paid.get(request.id)
        if due_ps is None:
            answer = self.charge(request, now)
            if isinstance(answer, Reject):
                return answer
            due_ps = answer
        return ADMIT if due_ps <= now else Delay(due_ps - now)

    def charge(self, request: Request, now: int) -> int | Reject:
        """Charge the request. Return the time at which it may enter, in picoseconds, or the rejection."""
        owner = request.tenant if self.per == "tenant" else ""
        bucket = self.buckets.get(owner)
        if bucket is None:
            bucket = self.buckets[owner] = Bucket(now, self.full)
        left = min(self.full, bucket.left + (now - bucket.at_ps) * self.flow)
        bucket.left, bucket.at_ps = left, now
        cost = (request.prompt_tokens if self.by == "tokens" else 1) * self.unit
        if cost > self.full:
            return self.too_large
        wait_ps = max(0, -((left - cost) // self.flow))  # rounded up to whole picoseconds
        if wait_ps and (self.on_empty == "reject" or wait_ps > self.longest_ps):
            return self.spent
        bucket.left = left - cost
        self.paid[request.id] = now + wait_ps
        if len(self.paid) > MAX_PAID:
            self.paid.popitem(last=False)
        return now + wait_ps

    def observe(self, event: Event) -> None:
        if isinstance(event, Routed):
            self.paid.pop(event.request.id, None)

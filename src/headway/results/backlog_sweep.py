"""Computes the backlog of one instance at each time of a run, and the part of this backlog that each tenant's bursts
left.

The definitions are those of the finding `tenant_burst`. Each event takes constant time, however many tenants burst. For
this, the remaining work of tenant k's bursts is stored as `weights[k]` · `scale`: a change of `scale` shrinks the work
of all tenants at once.

The blame on tenant k is the integral over time of weights[k] · scale / backlog · late_k. Here late_k is the sum of
1/wait over the late requests of other tenants that wait at that time. To update the blame on k, `_settle` uses two
running integrals: `_plain` of scale / backlog, and `_weighted` of scale / backlog · late, where `late` is the same sum
over the late requests of all tenants. `_settle` must run before weights[k] or the late requests of k change.
"""

from collections import defaultdict
from typing import Final

Period = tuple[int, int]
SMALLEST: Final = 1e-9  # minimum of `_scale`; below this value, the weights are rescaled


class Sweep:
    def __init__(self, usual: int) -> None:
        self.usual = usual
        self.blame: defaultdict[int, float] = defaultdict(float)  # tenant -> late requests blamed on its bursts
        self.own: defaultdict[int, float] = defaultdict(float)  # tenant -> its own late requests blamed on its bursts
        self.periods: defaultdict[int, list[Period]] = defaultdict(list)  # tenant -> when work of its bursts remained
        self.spans: list[Period] = []  # periods in which work of at least one burst remained
        # For each late request: the fraction of the backlog that all bursts left, as a mean over the request's wait.
        self.shares: dict[int, float] = {}
        self._now = 0
        self._backlog = 0
        self._left = 0.0  # remaining work of all bursts, in tokens
        self._scale = 1.0
        self._weights: dict[int, float] = {}
        self._since: dict[int, int] = {}
        self._marks: dict[int, tuple[float, float]] = {}  # tenant -> `_plain` and `_weighted` at its last `_settle`
        self._waiting = 0  # number of late requests that are waiting now
        self._late = 0.0  # sum of 1/wait over these requests, where `wait` is the length of the whole wait
        self._late_of: defaultdict[int, float] = defaultdict(float)  # tenant -> its part of `_late`
        # Integrals over time of scale / backlog, of late · scale / backlog, and of left / backlog.
        self._plain = self._weighted = self._share = 0.0

    def advance(self, at: int) -> None:
        if self._left and at > self._now:
            step = self._scale / self._backlog * (at - self._now)
            self._plain += step
            self._weighted += step * self._late
            self._share += self._left / self._backlog * (at - self._now)
        self._now = at

    def add_work(self, tokens: int, burst_of: int | None) -> None:
        self._backlog += tokens
        if burst_of is None or not tokens:
            return
        if burst_of in self._weights:
            self._settle(burst_of)
        else:
            self._weights[burst_of] = 0.0
            self._since[burst_of] = self._now
            self._marks[burst_of] = (self._plain, self._weighted)
        self._weights[burst_of] += tokens / self._scale
        self._left += tokens
        self._limit()

    def remove_work(self, tokens: int) -> None:
        self._backlog -= tokens
        self._limit()

    def begin_wait(self, row: int, tenant: int, length: int) -> None:
        """Begin the wait of a late request. `length` is the length of its whole wait, which may be at two instances. It
        is 0 if the request did not wait, for example because it was rejected."""
        if tenant in self._weights:
            self._settle(tenant)
        if not length:
            if self._left:
                self._weighted += self._scale / self._backlog
                self.shares[row] = self._left / self._backlog
                if tenant in self._weights:
                    self.own[tenant] += self._weights[tenant] * self._scale / self._backlog
                    self._marks[tenant] = (self._plain, self._weighted)
            return
        self._waiting += 1
        self._late += 1 / length
        self._late_of[tenant] += 1 / length
        self.shares[row] = self.shares.get(row, 0.0) - self._share / length

    def end_wait(self, row: int, tenant: int, length: int) -> None:
        if tenant in self._weights:
            self._settle(tenant)
        self._waiting -= 1
        self._late = self._late - 1 / length if self._waiting else 0.0
        self._late_of[tenant] -= 1 / length
        self.shares[row] += self._share / length

    def close(self) -> None:
        """End the periods of all tenants."""
        if self._since:
            self.spans.append((min(self._since.values()), self._now))
        for tenant, since in self._since.items():
            self._settle(tenant)
            if self._now > since:
                self.periods[tenant].append((since, self._now))
        self._weights.clear()
        self._since.clear()
        self._marks.clear()
        self._left, self._scale = 0.0, 1.0

    def _limit(self) -> None:
        """Shrink the remaining work of bursts so that it does not exceed the backlog minus its usual level."""
        most = self._backlog - self.usual
        if not self._left or self._left <= most:
            return
        if most <= 0:
            self.close()
            return
        self._scale *= most / self._left
        self._left = most
        if self._scale < SMALLEST:
            for tenant in self._weights:
                self._settle(tenant)
                self._weights[tenant] *= self._scale
            self._scale = 1.0

    def _settle(self, tenant: int) -> None:
        plain, weighted = self._marks[tenant]
        own = self._late_of[tenant] * (self._plain - plain)
        grown = self._weighted - weighted - own
        self.own[tenant] += self._weights[tenant] * own
        self.blame[tenant] += self._weights[tenant] * grown
        self._marks[tenant] = (self._plain, self._weighted)

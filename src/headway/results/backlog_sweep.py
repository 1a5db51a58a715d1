"""Follows the backlog of one instance through a run, and how much of it the bursts of each tenant left.

The definitions are those of the finding `tenant_burst`. Each event takes constant time, however many tenants burst:
the work that tenant k left is `weights[k]` · `scale`, so that all shrink at once with `scale`. The blame on k is the
integral of weights[k] · scale / backlog · (late_k), where late_k is the sum of 1/wait over the late requests of other
tenants that wait. Two running integrals, of scale / backlog and of the same times the sum over all tenants, give its
growth since the last change of weights[k] or of k's own late requests.
"""

from collections import defaultdict
from typing import Final

Period = tuple[int, int]
SMALLEST: Final = 1e-9  # minimum of `_scale`; below this value, the weights are rescaled


class Sweep:
    def __init__(self, usual: int) -> None:
        self.usual = usual
        self.blame: defaultdict[int, float] = defaultdict(float)  # tenant -> late requests blamed on its bursts
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
        """Begin the wait of a late request. `length` is its whole wait, which may be at two instances; 0 if it has no
        length, as that of a rejected request."""
        if tenant in self._weights:
            self._settle(tenant)
        if not length:
            if self._left:
                self._weighted += self._scale / self._backlog
                self.shares[row] = self._left / self._backlog
                if tenant in self._weights:
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
        """Shrink the work that bursts left to what the backlog has above its usual level."""
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
        grown = self._weighted - weighted - self._late_of[tenant] * (self._plain - plain)
        self.blame[tenant] += self._weights[tenant] * grown
        self._marks[tenant] = (self._plain, self._weighted)

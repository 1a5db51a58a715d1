"""Estimators: how many tokens a request will generate.

The router asks the estimator when it looks at a request, before admission and before routing. Admission, priority,
routing, scorers and deciders read the estimate of the current request as `cluster.expected_tokens`, schedulers as
`ticket.expected_tokens`, and `view.expected_output_tokens` is the sum over the requests in flight at an instance. A
policy declares what it reads: `exact=("expected_tokens",)`, `exact=("expected_output_tokens",)`.

No estimate is above the client's `max_tokens`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil, exp
from typing import Annotated, Literal

from headway.policies.answers import MOST_EXPECTED
from headway.policies.context import Context
from headway.policies.registry import Bounds, policy
from headway.streams import stream
from headway.types import Estimate, Request
from headway.views.cluster import ClusterView
from headway.views.events import Event, Finished

Tokens = Annotated[int, Bounds(1, 1_000_000, log=True)]
Quantile = Annotated[float, Bounds(0.01, 0.99)]
Count = Annotated[int, Bounds(1, 100_000, log=True)]


class Lengths:
    """The output lengths of the last answers of one kind, and the error that estimates of this kind would have had."""

    __slots__ = ("error", "kept", "newest", "ordered", "total")

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.newest: deque[int] = deque()
        self.ordered: list[int] = []
        # sums over all answers that came after an estimate was possible: |length - estimate|, and the length
        self.error = self.total = 0

    def learn(self, tokens: int, estimate: int | None) -> None:
        """Add an answer. `estimate` is what this kind would have been estimated at just before."""
        if estimate is not None:
            self.error += abs(tokens - estimate)
            self.total += tokens
        if len(self.newest) == self.kept:
            del self.ordered[bisect_left(self.ordered, self.newest.popleft())]
        self.newest.append(tokens)
        insort(self.ordered, tokens)

    def quantile(self, share: float) -> int:
        """Return the smallest length that is at least as long as this share of the answers."""
        return self.ordered[max(1, ceil(share * len(self.ordered))) - 1]


class Learned:
    """Learns a quantile of the output lengths of completed requests, for each kind of request. `kinds` returns the
    kinds of a request, the most specific first: the first that has `least` answers gives the estimate."""

    quantile: Quantile
    least: Count
    kept: Count
    unknown_tokens: Tokens

    def bind(self, context: Context) -> None:
        self.lengths: dict[tuple[str, ...], Lengths] = {}

    def kinds(self, request: Request) -> tuple[tuple[str, ...], ...]:
        raise NotImplementedError

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        for kind in self.kinds(request):
            lengths = self.lengths.get(kind)
            if lengths is not None and len(lengths.ordered) >= self.least:
                error = lengths.error / lengths.total if lengths.total else None
                return Estimate(limited(lengths.quantile(self.quantile), request), error)
        return Estimate(limited(self.unknown_tokens, request))

    def observe(self, event: Event) -> None:
        if isinstance(event, Finished) and event.outcome == "completed" and event.output_tokens:
            for kind in self.kinds(event.request):
                lengths = self.lengths.get(kind)
                if lengths is None:
                    lengths = self.lengths[kind] = Lengths(self.kept)
                known = len(lengths.ordered) >= self.least
                before = limited(lengths.quantile(self.quantile), event.request) if known else None
                lengths.learn(event.output_tokens, before)


@policy("estimator", "constant", reported=())
class Constant:
    """Expects `tokens` of every request, or `max_tokens` if the client allows fewer."""

    tokens: Tokens = 256

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        return Estimate(limited(self.tokens, request))


@policy("estimator", "by-class", reported=())
class ByClass(Learned):
    """Expects the `quantile` of the last `kept` completed answers of the request's class and tenant.

    A tenant's class with fewer than `least` answers is expected to be like its class at large, that like all requests
    for its model, and these like `unknown_tokens`. The stated error is the sum of |length - estimate| over the sum of
    the lengths, for the answers of the same kind so far. It reads no signal.
    """

    quantile: Quantile = 0.5
    least: Count = 10
    kept: Count = 1000
    unknown_tokens: Tokens = 256

    def kinds(self, request: Request) -> tuple[tuple[str, ...], ...]:
        model, name = request.model, request.slo_class
        return (model, name, request.tenant), (model, name), (model,)


@policy("estimator", "auto", reported=())
class Auto(ByClass):
    """Is `by-class` if a policy of the run reads an estimate. If none does, no estimate is made."""

    if_read = True  # runs only if a policy of the run reads an estimate


@policy("estimator", "by-prompt", reported=())
class ByPrompt(Learned):
    """Expects the `quantile` of the last `kept` completed answers to prompts of about the same length.

    Two prompts are in one bucket if their lengths, in tokens, have the same number of binary digits: 256 to 511, 512 to
    1023. With `by_class`, each class has buckets of its own. A bucket with fewer than `least` answers is expected to be
    like all requests for its model, and these like `unknown_tokens`. The stated error is that of `by-class`. It reads
    no signal.
    """

    quantile: Quantile = 0.5
    by_class: bool = True
    least: Count = 10
    kept: Count = 1000
    unknown_tokens: Tokens = 256

    def kinds(self, request: Request) -> tuple[tuple[str, ...], ...]:
        bucket = str(request.prompt_tokens.bit_length())
        model = request.model
        return (model, bucket, request.slo_class if self.by_class else ""), (model,)


@policy("estimator", "ratio", reported=())
class Ratio:
    """Expects `ratio` × the prompt's tokens, but at most `most_tokens`: the former estimate of llm-d's router (1.5)."""

    ratio: Annotated[float, Bounds(0.001, 1000, log=True)] = 1.5
    most_tokens: Annotated[int | None, Bounds(1, 1_000_000, log=True)] = None

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        tokens = max(1, int(request.prompt_tokens * self.ratio + 0.5))
        return Estimate(limited(tokens if self.most_tokens is None else min(tokens, self.most_tokens), request))


@policy("estimator", "noisy-oracle", reported=(), oracle=True, kind="control")
class NoisyOracle:
    """Expects the true length × e^(`error` × z), where z is drawn from a standard normal law: for studies.

    Each request has one z, from the seeded estimator stream, however often it is estimated. With `error` 0 it is the
    truth, which no live router knows. `law` uniform draws z from -1.73 to 1.73, which has the same spread. The stated
    error is `error`.
    """

    error: Annotated[float, Bounds(0, 5)] = 0.5
    law: Literal["normal", "uniform"] = "normal"

    def bind(self, context: Context) -> None:
        self.true_length = context.true_length
        self.seed = context.rng("estimator").getrandbits(64)

    def estimate(self, request: Request, cluster: ClusterView) -> Estimate:
        tokens = self.true_length(request)
        if self.error:
            draws = stream(self.seed, str(request.id))
            z = draws.gauss(0.0, 1.0) if self.law == "normal" else (2.0 * draws.random() - 1.0) * 3.0**0.5
            tokens = int(tokens * exp(self.error * z) + 0.5)
        return Estimate(limited(min(max(1, tokens), MOST_EXPECTED), request), self.error)


def limited(tokens: int, request: Request) -> int:
    """Return the estimate, or the client's `max_tokens` if that is lower."""
    most = request.max_tokens
    return tokens if most is None or most > tokens else max(1, most)

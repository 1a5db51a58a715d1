"""Asks the estimator how many tokens the current request will generate, and shows the answer to the other policies."""

from collections.abc import Callable, Iterable
from typing import Any

from headway.policies.answers import check_estimate
from headway.policies.context import Context
from headway.policies.registry import entry_of
from headway.types import Estimate, Request
from headway.views.cluster import EXPECTED, ClusterView

READS = (EXPECTED, "expected_output_tokens")
LengthsOf = Callable[[Request], int]


def is_read(policies: Iterable[Any]) -> bool:
    """Return whether a policy declares that it reads an estimate."""
    return any(name in entry_of(policy).exact for policy in policies for name in READS)


def running(estimator: Any, readers: Iterable[Any]) -> Any:
    """Return the estimator, or None if it must not run: the default runs only if one of `readers` reads estimates."""
    return None if estimator is None or (getattr(estimator, "if_read", False) and not is_read(readers)) else estimator


class Continued:
    """An estimator that continues with what it has learned in a new control plane, which does not bind it again."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.entry, self.estimate = entry_of(estimator, "estimator"), estimator.estimate
        for name in ("observe", "observes", "metrics"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))


class Expectations:
    """The estimator of a router. `lengths` returns true output lengths, for an oracle."""

    def __init__(self, estimator: Any, lengths: LengthsOf | None) -> None:
        self.estimator, self.lengths = estimator, lengths

    def context(self, context: Context) -> Context:
        """Return the context that the estimator is bound to. Only an oracle's context leads to the true lengths."""
        oracle = entry_of(self.estimator, "estimator").oracle
        return context if self.lengths is None or not oracle else context.with_lengths(self.lengths)

    def look(self, request: Request, cluster: ClusterView, call: Callable[..., Any] | None) -> Estimate:
        """Estimate the request, and show the estimate in the cluster view. `call` calls a policy while the views are
        locked."""
        ask = self.estimator.estimate
        answer = ask(request, cluster) if call is None else call(self.estimator, ask, request, cluster)
        estimate = cluster._estimate = check_estimate(self.estimator, answer, request)
        return estimate

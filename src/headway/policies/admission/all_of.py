"""Several admission policies as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from msgspec import to_builtins

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answers import VERDICT, refuses, wrong_answer
from headway.policies.context import Context
from headway.policies.parts import joined, observer
from headway.policies.registry import policy
from headway.types import ADMIT, Admit, Delay, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

PLACE = "policies.admission.policies"


@policy("admission", "all-of", reported=(), kind="extra")
class AllOf:
    """Asks several admission policies in turn; the first that does not admit decides.

    `policies` is a list of names or mappings, as in [{name: token-bucket, rate: 50}, saturation]. A request is admitted
    when all of them admit it; those after one that does not are not asked. One that was put off is asked by all again
    when it comes up. Reads what its policies read.
    """

    policies: list[Any] = dataclasses.field(default_factory=lambda: ["always"])

    def __post_init__(self) -> None:
        if not self.policies:
            raise HeadwayError(f"{PLACE}: there is none; list one or more, as in [token-bucket, saturation].")
        self._asked = [registry.build("admission", given, f"{PLACE}[{at}]") for at, given in enumerate(self.policies)]
        self._parts = [part for one in self._asked for part in (one, *getattr(one, "_parts", ()))]
        self.policies = [explicit(given, made) for given, made in zip(self.policies, self._asked, strict=True)]
        self.entry = joined(registry.declared(type(self)), [part.entry for part in self._asked])
        if (observe := observer(self._asked)) is not None:
            self.observe = observe
        if permits := [part.permit for part in self._asked if hasattr(part, "permit")]:
            self.permit = partial(first_refusal, permits)

    def bind(self, context: Context) -> None:
        for at, part in enumerate(self._asked):
            if hasattr(part, "bind"):
                own = copy(context)  # the same indexes, but streams of its own
                own.rng = partial(stream, context.rng, at)
                part.bind(own)

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        for at, part in enumerate(self._asked):
            verdict = part.admit(request, cluster)
            if verdict is ADMIT or isinstance(verdict, Admit):
                continue
            if not refuses(verdict):
                raise wrong_answer(f"{PLACE}[{at}]", part, VERDICT, verdict, request)
            answer: Reject | Delay = verdict
            return answer
        return ADMIT

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for at, part in enumerate(self._asked):
            if hasattr(part, "metrics"):
                found.update(registry.figures(part, f"{PLACE}[{at}]"))
        return found


def explicit(given: Any, made: Any) -> dict[str, Any]:
    """A policy as it would be written with nothing left implicit."""
    name, _ = registry.split(given, PLACE)
    values = {parameter.name: getattr(made, parameter.name) for parameter in made.entry.parameters}
    return {"name": name if registry.is_file(name) else made.entry.name, **to_builtins(values)}


def first_refusal(permits: list[Any], request: Request, targets: Sequence[InstanceView]) -> Reject | None:
    return next((refusal for permit in permits if (refusal := permit(request, targets)) is not None), None)


def stream(rng: Callable[[str], Any], at: int, name: str) -> Any:
    return rng(f"{name}.{at}")

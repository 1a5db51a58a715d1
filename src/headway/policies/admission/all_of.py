"""Combines several admission policies into one."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from headway.config.keys import Form
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answers import VERDICT, refuses, wrong_answer
from headway.policies.context import Context
from headway.policies.parts import collect_metrics, combine_entries, combine_kinds, observer
from headway.policies.policy_schema import policy_form
from headway.policies.registry import policy
from headway.types import ADMIT, Admit, Delay, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

PLACE = "policies.admission.policies"
Member = Annotated[Any, policy_form("admission")]


@policy("admission", "all-of", reported=(), kind="extra")
class AllOf:
    """Asks several admission policies in order; the first that does not admit the request decides.

    `policies` is a list of names or mappings, as in [{name: token-bucket, rate: 50}, saturation]. The policies after
    the deciding one are not asked. After a delay, all policies are asked again. It reads the signals that its policies
    read.
    """

    policies: Annotated[list[Any], Form.of(list[Member])] = dataclasses.field(default_factory=lambda: ["always"])

    def __post_init__(self) -> None:
        if not self.policies:
            remedy = "Name at least one policy, as in [token-bucket, saturation]"
            raise HeadwayError(f"{PLACE}: the list is empty. {remedy}.")
        self._members = [registry.build("admission", spec, f"{PLACE}[{at}]") for at, spec in enumerate(self.policies)]
        self._parts = [part for member in self._members for part in (member, *getattr(member, "_parts", ()))]
        self.policies = [
            registry.explicit("admission", spec, PLACE, member)
            for spec, member in zip(self.policies, self._members, strict=True)
        ]
        self.entry = combine_entries(type(self), self._members)
        if (observe := observer(self._members)) is not None:
            self.observe, self.observes = observe, combine_kinds(self._members)
        if permits := [member.permit for member in self._members if hasattr(member, "permit")]:
            self.permit = partial(first_refusal, permits)

    def bind(self, context: Context) -> None:
        for at, part in enumerate(self._members):
            if hasattr(part, "bind"):
                part.bind(context.with_streams(f"{{}}.{at}"))

    def admit(self, request: Request, cluster: ClusterView) -> Admit | Reject | Delay:
        for at, part in enumerate(self._members):
            verdict = part.admit(request, cluster)
            if verdict is ADMIT or isinstance(verdict, Admit):
                continue
            if not refuses(verdict):
                raise wrong_answer(f"{PLACE}[{at}]", part, VERDICT, verdict, request)
            answer: Reject | Delay = verdict
            return answer
        return ADMIT

    def metrics(self) -> dict[str, float]:
        return collect_metrics((f"{PLACE}[{at}]", part) for at, part in enumerate(self._members))


def first_refusal(permits: list[Any], request: Request, targets: Sequence[InstanceView]) -> Reject | None:
    return next((refusal for permit in permits if (refusal := permit(request, targets)) is not None), None)

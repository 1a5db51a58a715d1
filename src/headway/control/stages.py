"""Sets of policies that decide on a request, and the guard that chooses between them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from headway.config.wording import shown
from headway.control.audience import Observe
from headway.control.flights import Answer, Flight
from headway.errors import HeadwayError
from headway.policies.answers import VERDICT, refuses, wrong_answer
from headway.policies.registry import entry_of
from headway.types import SERVING, Reject, Request, Route
from headway.views.instance import InstanceView

Permit = Callable[[Request, Sequence[InstanceView]], Reject | None]


class Stages:
    """The policies that decide on a request: admission, priority and routing."""

    def __init__(self, admission: Any, priority: Any, routing: Any) -> None:
        self.admission, self.priority, self.routing = admission, priority, routing
        self.permit: Permit | None = getattr(admission, "permit", None)  # checks the targets that routing chose
        # The reasons to record if the policies give no reasons.
        self.chosen = f"chosen by {entry_of(routing).name}"
        self.scored = f"scored by {entry_of(priority, 'priority').name}"

    def with_reason(self, route: Route) -> Route:
        """Return the route as journals record it. If the policy gives no reason, add a general one, such as
        `highest score`."""
        if route.reason:
            return route
        card = route.scorecard
        scored = "" if card is None or not card.totals else "lowest score" if card.lowest_wins else "highest score"
        return replace(route, reason=scored or self.chosen)

    def check_verdict(self, verdict: object, request: Request) -> None:
        if not refuses(verdict):
            raise wrong_answer("policies.admission", self.admission, VERDICT, verdict, request)

    def check_refusal(self, refusal: object, request: Request) -> None:
        if not isinstance(refusal, Reject) or not isinstance(refusal.reason, str):
            right = "permit must return None or a Reject"
            raise wrong_answer("policies.admission", self.admission, right, refusal, request)

    def wrong_target(self, view: InstanceView | None, target: object, request: Request) -> HeadwayError:
        """Return the error for a target that cannot serve the request."""
        if view is None:
            why = "is not an instance of this cluster"
        elif view.state not in SERVING:
            why = f"is {view.state} and takes no requests"
        else:
            why = f"does not serve model {shown(request.model)}"
        policy = f"policies.routing: {type(self.routing).__name__}"
        return HeadwayError(f"{policy} routed request {request.id} to {shown(target)}, which {why}.")

    def check_roles(self, route: Route, view: InstanceView, prefill: InstanceView | None, request: Request) -> None:
        if prefill is None:
            if view.role == "prefill":
                right = "a decode instance as target, and this prefill instance as 'prefill'"
                raise self.wrong_route(right, route.target, request)
        elif prefill.role != "prefill" or view.role != "decode" or prefill.pool != view.pool:
            right = "a prefill instance as 'prefill', and a decode instance of the same pool as target"
            raise self.wrong_route(right, (prefill.id, view.id), request)

    def wrong_route(self, right: str, value: object, request: Request) -> HeadwayError:
        return wrong_answer("policies.routing", self.routing, f"route must return {right}", value, request)


class Guard(Protocol):
    """Chooses the stages that decide on a request, and handles their exceptions: if `decide` raises an exception, the
    guard may call `decide` again with other stages. A control plane without a guard has only one set of stages, and
    passes their exceptions on to its caller."""

    def arrive(self, now_ps: int, request: Request, decide: Callable[[Stages], Answer]) -> Answer: ...

    def route(
        self, now_ps: int, request: Request, stages: Stages, decide: Callable[[Stages], Flight | Reject]
    ) -> Flight | Reject:
        """Route a request by calling `decide`. `stages` are the stages that admitted the request."""

    def observer_failed(self, observe: Observe, error: BaseException) -> None: ...

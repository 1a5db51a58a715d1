"""The control plane of a gateway, which no policy can bring down. Where one raises or answers what is none, others
decide on that request: of a candidate those in force, of those in force the ones before them, and at last the plainest
there are. All of it follows from the inputs alone, so that what was written down fails again at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from headway.config.wording import one_line
from headway.control.flight import Flight, Queued
from headway.control.journal import Journal
from headway.control.plane import ControlPlane
from headway.control.router_state import RouterState, Served
from headway.gateway.deciding.arm import Arm, kept
from headway.gateway.live_policies import DEFAULTS, build_policies
from headway.gateway.signals.beliefs import Beliefs
from headway.policies.context import Context
from headway.types import Json, Priority, Reject, Request
from headway.views.events import Event, FirstToken, Routed

LIVE, CANARY = "live", "canary"
PLAIN: Final[Json] = {
    "admission": DEFAULTS["admission"],
    "priority": DEFAULTS["priority"],
    "routing": "least-loaded",
}
T = TypeVar("T")
Failed = Callable[[Arm, Exception], None]


class LiveControl(ControlPlane):
    def __init__(
        self,
        context: Context,
        policies: Mapping[str, Any],
        beliefs: Beliefs,
        *,
        former: Sequence[Json] = (),
        journals: Sequence[Journal] = (),
        failed: Failed | None = None,
    ) -> None:
        """`former`: who decides where these fail, the first first; `failed` hears of it."""
        self.live = Arm(LIVE, policies, context)
        live = self.live
        super().__init__(context, live.admission, live.priority, live.routing, policies.get("flow"), journals=journals)
        self.acting, self.trial = live, None
        self.chosen: Callable[[Request], bool] = _nobody
        self.beliefs, self.former, self.failed = beliefs, [*former, PLAIN], failed
        self.standing_by: list[Arm] = []
        self.kept = dict.fromkeys(kept(tuple(self.stages.values())))
        beliefs.bind(self.indexes)

    trial: Arm | None

    # --- who decides -------------------------------------------------------------------------------------------------

    def try_out(self, now_ps: int, policies: Mapping[str, Any], chosen: Callable[[Request], bool]) -> None:
        """From now on a candidate decides on those that are `chosen`."""
        self.trial, self.chosen = self._joined(now_ps, Arm(CANARY, policies, self.context, self.live)), chosen

    def end_trial(self) -> None:
        arm, self.trial, self.chosen = self.trial, None, _nobody
        if arm is not None:
            gone = [stage.observe for stage in arm.stages if hasattr(stage, "observe")]
            self.observers = [observe for observe in self.observers if observe not in gone]

    def _joined(self, now_ps: int, arm: Arm) -> Arm:
        """An arm hears of all that happens from now on, and of what is in flight as if it were sent now."""
        for stage in arm.stages:
            bind = getattr(stage, "bind", None)
            if bind is not None:
                bind(self.context)
        self.show(now_ps, arm.kept)
        self.believe()
        heard = [stage.observe for stage in arm.stages if hasattr(stage, "observe")]
        for flight in self.flights.values():
            for observe in heard:
                observe(Routed(now_ps, flight.request, flight.view, flight.prefill))
                if flight.first_ps >= 0:
                    observe(FirstToken(now_ps, flight.request, flight.view))
        self.observers += heard
        return arm

    def believe(self) -> None:
        """Somebody has asked for an index that was not there."""
        self.indexes = self.context.indexes
        self.beliefs.bind(self.indexes)

    def show(self, now_ps: int, names: Sequence[str]) -> None:
        """Keep and show so much of this router's past. What is kept already goes on as it is."""
        self.kept.update(dict.fromkeys(names))
        if not self.kept:
            return
        cluster, instances = self.cluster, self.cluster.instances
        if self.state is None:
            cluster.instances = self.ordered
            self.state = RouterState(cluster, self.kept)
            cluster.instances = instances
            for flight in self.flights.values():
                self.state.arrived(now_ps, flight.request)
                self.state.routed(flight.request)
            return
        state = self.state
        cluster.keep(state.tenants if "tenants" in self.kept else None, state.totals if "totals" in self.kept else None)
        if "recent" in self.kept and not state.served:
            for view in self.ordered:
                view._recent = state.served[view.index] = Served(cluster)

    def _use(self, arm: Arm) -> None:
        self.acting = arm
        self.admission, self.permit = arm.admission, arm.permit
        self.priority, self.routing = arm.priority, arm.routing

    # --- decisions ---------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request, again: bool = False) -> Flight | Reject | Queued | None:
        before = self.acting
        if self.trial is not None and self.chosen(request):
            self._use(self.trial)
        try:
            return ControlPlane.arrive(self, now_ps, request, again)
        except (Exception, SystemExit) as error:
            asked = super().arrive
            return self._otherwise(now_ps, error, lambda: asked(now_ps, request, True))
        finally:
            if self.acting is not before:
                self._use(before)

    def route(self, now_ps: int, request: Request, priority: Priority) -> Flight | Reject:
        before = self.acting
        if self.trial is not None and before is self.live and self.chosen(request):
            self._use(self.trial)
        try:
            answer = ControlPlane.route(self, now_ps, request, priority)
            return answer if self.acting is self.live else self._named(answer)
        except (Exception, SystemExit) as error:
            asked = super().route
            self.flights.pop(request.id, None)
            return self._otherwise(now_ps, error, lambda: self._named(asked(now_ps, request, priority)))
        finally:
            if self.acting is not before:
                self._use(before)

    def _named(self, answer: Flight | Reject) -> Flight | Reject:
        """Whoever is asked why a request went where it did is told who decided, where that is not the usual."""
        acting = self.acting
        if acting is not self.live and isinstance(answer, Flight):
            answer.reason = f"{acting.name}: {answer.reason}" if answer.reason else acting.name
        return answer

    def _otherwise(self, now_ps: int, error: BaseException, ask: Callable[[], T]) -> T:
        """The next arm that can decides."""
        while True:
            self._fail(self.acting, error)
            following = self._next(now_ps)
            if following is None:
                raise error
            self._use(following)
            try:
                return ask()
            except (Exception, SystemExit) as caught:
                error = caught

    def _next(self, now_ps: int) -> Arm | None:
        acting = self.acting
        if acting is self.trial:
            return self.live
        place = self.standing_by.index(acting) + 1 if acting in self.standing_by else 0
        while place >= len(self.standing_by):
            if not self.former:
                return None
            spec = self.former.pop(0)
            try:
                made = Arm("fallback", build_policies(spec), self.context)
                self.standing_by.append(self._joined(now_ps, made))
            except Exception as error:  # it could be made once, and cannot now
                self._fail(acting, error)
        return self.standing_by[place]

    def _fail(self, arm: Arm, error: BaseException) -> None:
        arm.failures += 1
        if self.failed is not None:
            self.failed(arm, error if isinstance(error, Exception) else RuntimeError(one_line(error)))

    def tell(self, event: Event) -> None:
        """Who cannot hear of something keeps nobody else from it."""
        self.cluster.now_ps = event.at_ps
        for observe in self.observers:
            try:
                observe(event)
            except (Exception, SystemExit) as error:
                self._fail(self._whose(observe), error)

    def _whose(self, observe: Callable[[Event], None]) -> Arm:
        for arm in (self.trial, *self.standing_by):
            if arm is not None and any(getattr(stage, "observe", None) == observe for stage in arm.stages):
                return arm
        return self.live


def _nobody(request: Request) -> bool:
    return False

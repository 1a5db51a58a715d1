"""The decisions of the control plane: asks the policies about a request, checks their answers, and carries them out in
the router's own counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from headway.config.wording import shown
from headway.control.audience import Audience
from headway.control.expectations import Expectations
from headway.control.flights import QUEUED, Answer, Flight, Flights
from headway.control.journal import Forced, Journal
from headway.control.model_groups import ModelGroups
from headway.control.stages import Guard, Stages
from headway.control.view_lock import ViewLock
from headway.control.waiting_room import WaitingRoom
from headway.policies.answers import check_priority, is_number, wrong_answer
from headway.types import ADMIT, NO_PRIORITY, SERVING, Admit, Delay, Estimate, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

MOST_TOKENS: Final = 1 << 62  # maximum value of `cached_tokens` in a route
UNKNOWN: Final = Estimate(256)  # the estimate of a request if the estimator of a gateway fails
MOST_DELAYS: Final = 100_000  # maximum number of delays per request; with more, the policy would never admit it


class DecisionMaker:
    """Decides on requests that arrive, and on requests that are routed later."""

    def __init__(
        self,
        cluster: ClusterView,
        stages: Stages,
        groups: ModelGroups,
        waiting: WaitingRoom,
        flights: Flights,
        audience: Audience,
        expectations: Expectations | None,
        journals: Sequence[Journal],
        forced: Forced,
        guard: Guard | None,
    ) -> None:
        self.cluster, self.stages, self.groups = cluster, stages, groups
        self.waiting, self.flights, self.audience = waiting, flights, audience
        self.expectations, self.journals, self.guard = expectations, journals, guard
        self.forced = dict(forced)
        self.views: dict[str, InstanceView] = {}  # the instances that a route may name
        self.lock: ViewLock | None = None  # set during the first decisions of new policies

    def admit(self, now_ps: int, request: Request, stages: Stages) -> Answer:
        """Ask the estimator, admission and priority about a request. Then put it into the queue of flow control, or
        route it."""
        cluster = self.cluster
        cluster.now_ps = now_ps
        cluster.priority = NO_PRIORITY
        group = self.groups.only or self.groups.of(request.model)
        if group is None:
            return Reject(f"404: model {shown(request.model)} is not served")
        cluster.instances, cluster.group = group.instances, group.number
        if not group.instances:
            self.waiting.strand(now_ps, request, group)
            return None
        if self.expectations is not None:
            self.expect(request)
        lock = self.lock
        if lock is None:
            verdict = stages.admission.admit(request, cluster)
        else:
            verdict = lock.call(stages.admission, stages.admission.admit, request, cluster)
        if verdict is not ADMIT and not isinstance(verdict, Admit):
            return self._refuse(now_ps, request, verdict, stages)
        if lock is None:
            priority = stages.priority.prioritise(request, cluster)
        else:
            priority = lock.call(stages.priority, stages.priority.prioritise, request, cluster)
        if priority is not NO_PRIORITY:
            check_priority(stages.priority, priority, request)
            cluster.priority = priority
            if self.journals:
                scored = priority if priority.reason else replace(priority, reason=stages.scored)
                for journal in self.journals:
                    journal.on_prioritised(now_ps, request, scored)
        if group.flow is not None:
            group.flow.put(now_ps, request, priority)
            if self.audience.state is not None:
                self.audience.state.on_queued(request)
            return QUEUED
        if self.guard is None:
            return self._choose(now_ps, request, priority, stages)
        return self.route(now_ps, request, priority, stages)

    def expect(self, request: Request) -> None:
        """Estimate the output length of a request before policies decide on it."""
        assert self.expectations is not None
        try:
            self.expectations.look(request, self.cluster, None if self.lock is None else self.lock.call)
        except (Exception, SystemExit) as error:
            if self.guard is None:
                raise
            self.cluster._estimate = UNKNOWN
            self.guard.observer_failed(self.expectations.estimator.estimate, error)

    def _refuse(self, now_ps: int, request: Request, verdict: Reject | Delay, stages: Stages) -> Reject | None:
        stages.check_verdict(verdict, request)
        self._count_locked()
        for journal in self.journals:
            journal.on_refused(now_ps, request, verdict)
        if not isinstance(verdict, Delay):
            return verdict
        if self.waiting.delays(request.id) >= MOST_DELAYS:
            right = f"admit delayed a request {MOST_DELAYS:,} times; it must admit or reject it, or delay it longer"
            raise wrong_answer("policies.admission", stages.admission, right, verdict, request)
        self.waiting.delay(now_ps + verdict.duration_ps, request)
        self.audience.on_delayed(now_ps, request, now_ps + verdict.duration_ps)
        return None

    def route(self, now_ps: int, request: Request, priority: Priority, stages: Stages) -> Flight | Reject:
        """Route an admitted request. If there is a guard, as in a gateway, it chooses which stages decide. If these
        stages fail, the guard may use other stages."""
        if self.guard is None:
            return self._choose(now_ps, request, priority, stages)
        return self.guard.route(now_ps, request, stages, partial(self._choose, now_ps, request, priority))

    def _choose(self, now_ps: int, request: Request, priority: Priority, stages: Stages) -> Flight | Reject:
        if self.lock is None:
            decision = stages.routing.route(request, self.cluster)
        else:
            decision = self.lock.call(stages.routing, stages.routing.route, request, self.cluster)
            self._count_locked()
        if self.forced and request.id in self.forced:
            decision = self._force(request, decision)
        if isinstance(decision, Route):
            view = self._find_target(decision.target, request, stages)  # raise before journals record an invalid target
            prefill = None if decision.prefill is None else self._find_target(decision.prefill, request, stages)
            if stages.permit is not None:
                refusal = stages.permit(request, (view,) if prefill is None else (view, prefill))
                if refusal is not None:
                    stages.check_refusal(refusal, request)
                    return refusal
            if self.journals:
                recorded = stages.with_reason(decision)
                for journal in self.journals:
                    journal.on_routed(now_ps, request, recorded, priority)
            cached, score = decision.cached_tokens, decision.priority
            if type(cached) is not int or not 0 <= cached <= MOST_TOKENS:
                raise stages.wrong_route("cached_tokens as a whole number that is not negative", cached, request)
            if score is None:
                score = priority.score
            elif not is_number(score):
                raise stages.wrong_route("priority as a finite number", score, request)
            if prefill is not None or view.role != "both":
                stages.check_roles(decision, view, prefill, request)
            pending = request.prompt_tokens - cached if request.prompt_tokens > cached else 0
            flight = Flight(request, view, cached, pending, score, priority.hints, decision.reason, prefill)
            if self.expectations is not None:
                flight.expected = self.cluster.expected_tokens
            self.flights.send(flight)
            self.audience.on_routed(now_ps, flight)
            return flight
        if isinstance(decision, Reject) and isinstance(decision.reason, str):
            return decision
        right = "route must return a Route, as in Route(view.id), or a Reject"
        raise wrong_answer("policies.routing", stages.routing, right, decision, request)

    def _count_locked(self) -> None:
        """Count a decision during which the views were locked."""
        if self.lock is not None:
            self.lock.left -= 1
            if not self.lock.left:
                self.lock = self.audience.lock = None

    def _force(self, request: Request, decision: Any) -> Any:
        """Return the forced decision in place of the policy's decision. The policy is still asked first, so that its
        random numbers and its rotation are the same as without force. The expected number of cached tokens comes from
        the first prefix index, and is 0 if there is none."""
        choice = self.forced.pop(request.id)
        to = choice if isinstance(choice, tuple) else choice()
        if to is None or not isinstance(decision, Route) or (decision.target, decision.prefill) == to:
            return decision
        target, prefill = to
        place = self.views[target if prefill is None else prefill].index
        cached = 0
        indexes = self.audience.indexes
        if indexes:
            cached = indexes[0].matches(request.path)[place] * indexes[0].block_tokens
        return Route(target, "forced", cached, decision.priority, decision.scorecard, prefill)

    def _find_target(self, target: str, request: Request, stages: Stages) -> InstanceView:
        try:
            view = self.views.get(target)
        except TypeError:  # the target is not hashable
            view = None
        if view is None or view.state not in SERVING or (self.groups.by_name and request.model not in view.serves):
            raise stages.wrong_target(view, target, request)
        return view

"""Chooses the policies that decide on a request in a live gateway, and falls back if they fail.

If a policy raises or returns an invalid answer, a fallback decides on the request: the policies in force if a canary
failed, then the former policies, and finally `PLAIN`. The choice depends only on the inputs, so a replay makes the same
decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from headway.config.dated_defaults import CURRENT
from headway.config.wording import one_line
from headway.control.audience import Observe
from headway.control.flights import Answer, Flight
from headway.control.plane import ControlPlane
from headway.control.stages import Stages
from headway.errors import HeadwayError
from headway.gateway.live_policies import build_policies
from headway.policies.context import Context
from headway.policies.disaggregation import make_pairing
from headway.policies.registry import gateway_policies, remake
from headway.types import Json, Reject, Request

LIVE, CANARY = "live", "canary"
STAGES: Final = ("admission", "priority", "routing")
PLAIN: Final[Json] = {
    **{stage: gateway_policies(CURRENT)[stage] for stage in ("admission", "priority")},
    "routing": "least-loaded",
}
FAILURES: Final = (Exception, SystemExit)
T = TypeVar("T")


class Arm:
    """A set of policies that can decide on a request: the policies in force, a canary or a fallback. If an arm lacks a
    stage, the policies in force decide that stage. All arms share the queue."""

    def __init__(self, name: str, policies: Mapping[str, Any], context: Context, live: Arm | None = None) -> None:
        own = {stage: policies[stage] for stage in STAGES if stage in policies}
        if "decider" in policies and "routing" not in policies:
            raise HeadwayError(f"{CANARY}.policies.decider: it needs a routing policy of its own. Add `routing`.")
        self.decider = policies.get("decider")
        if self.decider is None and live is not None and live.decider is not None:
            self.decider = remake(live.decider)
        if "routing" in own:
            own["routing"] = make_pairing(own["routing"], context.instances, self.decider)
        self.name, self.failures = name, 0
        self.policies = tuple(own.values())
        whole = own if live is None else {stage: getattr(live.stages, stage) for stage in STAGES} | own
        self.stages: Stages = Stages(**whole)


class Arms:
    """Chooses the arm that decides on each request. If the arm fails, a fallback decides. The control plane makes all
    its decisions through this object, its `guard`."""

    control: ControlPlane
    selects: Callable[[Request], bool]  # returns whether the canary decides on a request

    def __init__(
        self,
        context: Context,
        policies: Mapping[str, Any],
        former: Sequence[Json],
        on_failure: Callable[[Arm, Exception], None],
    ) -> None:
        """`policies` are the policies in force. If these policies fail, the policies in `former` decide, in order, and
        finally `PLAIN`."""
        self.context = context
        self.live = Arm(LIVE, policies, context)
        self.former, self.on_failure = [*former, PLAIN], on_failure
        self.fallbacks: list[Arm] = []  # the fallbacks built so far; each is built when it is first needed
        self.trial: Arm | None = None  # the canary; None if there is no canary

    def try_out(self, now_ps: int, policies: Mapping[str, Any], selects: Callable[[Request], bool]) -> None:
        """Let a canary decide on the requests that `selects` accepts."""
        arm = Arm(CANARY, policies, self.context, self.live)
        self.control.join(now_ps, arm.policies)
        self.trial, self.selects = arm, selects

    def end_trial(self) -> None:
        if self.trial is not None:
            self.control.audience.dismiss(self.trial.policies)
        self.trial = None

    # --- decisions ---------------------------------------------------------------------------------------------------

    def arrive(self, now_ps: int, request: Request, decide: Callable[[Stages], Answer]) -> Answer:
        arm = self._choose(request, self.live)
        try:
            return decide(arm.stages)
        except FAILURES as error:
            return self._fall_back(now_ps, arm, error, lambda arm: decide(arm.stages))

    def route(
        self, now_ps: int, request: Request, stages: Stages, decide: Callable[[Stages], Flight | Reject]
    ) -> Flight | Reject:
        acting = self.live
        if stages is not acting.stages:
            acting = next((arm for arm in self._others() if arm.stages is stages), acting)
        arm = self._choose(request, acting)
        try:
            return self._name(arm, decide(arm.stages))
        except FAILURES as error:
            return self._fall_back(now_ps, arm, error, lambda arm: self._name(arm, decide(arm.stages)))

    def _choose(self, request: Request, acting: Arm) -> Arm:
        return self.trial if self.trial is not None and acting is self.live and self.selects(request) else acting

    def _name(self, arm: Arm, answer: Flight | Reject) -> Flight | Reject:
        """If a canary or a fallback decided, add the arm's name to the reason of the route."""
        if arm is not self.live and isinstance(answer, Flight):
            answer.reason = f"{arm.name}: {answer.reason}" if answer.reason else arm.name
        return answer

    def _fall_back(self, now_ps: int, arm: Arm, error: BaseException, decide: Callable[[Arm], T]) -> T:
        """After an arm has failed, return the answer of the first fallback that succeeds."""
        while True:
            self._fail(arm, error)
            following = self._next(now_ps, arm)
            if following is None:
                raise error
            arm = following
            try:
                return decide(arm)
            except FAILURES as failure:
                error = failure

    def _next(self, now_ps: int, arm: Arm) -> Arm | None:
        if arm is self.trial:
            return self.live
        place = self.fallbacks.index(arm) + 1 if arm in self.fallbacks else 0
        while place >= len(self.fallbacks):
            if not self.former:
                return None
            spec = self.former.pop(0)
            try:
                fallback = Arm("fallback", build_policies(spec), self.context)
                self.control.join(now_ps, fallback.policies)
                self.fallbacks.append(fallback)
            except Exception as error:  # these policies were valid before, but their file may have changed
                self._fail(arm, error)
        return self.fallbacks[place]

    def _others(self) -> list[Arm]:
        return [*self.fallbacks] if self.trial is None else [self.trial, *self.fallbacks]

    # --- failures ----------------------------------------------------------------------------------------------------

    def _fail(self, arm: Arm, error: BaseException) -> None:
        arm.failures += 1
        self.on_failure(arm, error if isinstance(error, Exception) else RuntimeError(one_line(error)))

    def observer_failed(self, observe: Observe, error: BaseException) -> None:
        for arm in self._others():
            if any(getattr(policy, "observe", None) == observe for policy in arm.policies):
                self._fail(arm, error)
                return
        self._fail(self.live, error)

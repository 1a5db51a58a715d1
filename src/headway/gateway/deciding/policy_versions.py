"""Which policies decide in a gateway: those in force, how others follow them, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from headway.config.wording import one_line
from headway.control.journal import Journal
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.gateway.deciding.arms import PLAIN, Arm, Arms
from headway.gateway.deciding.places import Places
from headway.gateway.live_policies import build_policies
from headway.gateway.shadow.canary import CANARY, Choice
from headway.gateway.signals.beliefs import Beliefs
from headway.policies.context import Context
from headway.streams import stream
from headway.types import Json, Request
from headway.views.instance import Estimator, InstanceView

MOST_FAILURES: Final = 5
UNSERVED: Final = "503: no engine came up in time"


class StepTimes:
    """Assumed step times of an engine that was not measured: 20 us a prefill token, 7 ms a step."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.007 + 2e-5 * prefill_tokens + 4e-8 * context if prefill_tokens or decodes else 0.0


class PolicyVersions:
    """Has the control plane of the policies in force. A method that replaces it returns the requests that waited at the
    one before, to arrive again; what is in flight goes on."""

    def __init__(
        self,
        policies: Json,
        places: Places,
        beliefs: Beliefs,
        *,
        seed: int,
        patience_ps: int,
        most_failures: int,
        journals: Sequence[Journal],
    ) -> None:
        """`journals` hear of the decisions of whichever policies are in force. Policies that fail `most_failures` times
        give way to those before them."""
        self.policies, self.places, self.beliefs = policies, places, beliefs
        self.seed, self.patience_ps, self.most_failures, self.journals = seed, patience_ps, most_failures, journals
        self.estimator: Estimator = StepTimes()
        self.former: Json | None = None  # the policies before those
        self.version = 0
        self.on_failure: Callable[[str, Exception], None] | None = None  # hears whose policies failed, and how
        self.on_change: Callable[[str], None] | None = None  # hears that others decide now, and why
        self.on_rebuilt: Callable[[], None] | None = None  # hears of another control plane
        self._context: Context | None = None
        self.pairs = False  # whether they were built for engines that compute prompts apart
        self.check(policies)
        self.control, self.arms = self._build(0)

    def check(self, policies: Json) -> None:
        """Build and bind policies once for nothing, so that what is wrong with them is told before anything has
        changed."""
        places = self.places
        context = Context(places.views, partial(_stream, self.seed, 0), self.estimator, places.block_tokens)
        built = build_policies(policies)
        try:
            live = Arm("", built, context)
            everyone = [*live.policies, built.get("flow")]
            if CANARY in policies:
                everyone += Arm("", build_policies(policies[CANARY]["policies"]), context, live).policies
            for policy in everyone:
                bind = getattr(policy, "bind", None)
                if bind is not None:
                    bind(context)
        except HeadwayError:
            raise
        except Exception as error:
            raise HeadwayError(f"policies: they cannot be bound to the engines: {one_line(error)}.") from error

    def _build(self, now_ps: int) -> tuple[ControlPlane, Arms]:
        places, policies = self.places, self.policies
        places.take_declared_roles()
        rng = partial(_stream, self.seed, self.version)
        context = Context(places.views, rng, self.estimator, places.block_tokens, follows=self._context)
        built = build_policies(policies)
        arms = Arms(context, built, [] if self.former is None else [self.former], self._failed)
        stages = arms.live.stages
        control = ControlPlane(
            context,
            stages.admission,
            stages.priority,
            stages.routing,
            built.get("flow"),
            patience_ps=self.patience_ps,
            unserved=UNSERVED,
            journals=self.journals,
            guard=arms,
            on_indexes=self.beliefs.bind,
        )
        arms.bind(control)
        if CANARY in policies:
            canary = policies[CANARY]
            arms.try_out(now_ps, build_policies(canary["policies"]), Choice(canary["share"], canary["by"]))
        self._context, self.pairs = context, places.pairs
        self._stand_in(now_ps, control)
        return control, arms

    def stand_in(self, now_ps: int) -> None:
        """An engine of one half may have to serve whole requests now, or no longer."""
        self._stand_in(now_ps, self.control)

    def _stand_in(self, now_ps: int, control: ControlPlane) -> None:
        if self.pairs and self.places.stand_in():
            for group in control.groups:
                group.refresh(now_ps)

    # --- others follow -----------------------------------------------------------------------------------------------

    def swap(self, now_ps: int, policies: Json) -> list[Request]:
        """Other policies decide from now on; they have been checked."""
        former: Json | None = lasting(self.policies)
        if former == lasting(policies):  # only what is tried is another
            former = self.former
        return self._follow(now_ps, policies, former, "swap")

    def rebuild(self, now_ps: int) -> list[Request]:
        """The same policies for other engines."""
        return self._follow(now_ps, self.policies, self.former, "")

    def _follow(self, now_ps: int, policies: Json, former: Json | None, why: str) -> list[Request]:
        old, self.former, self.version = self.control, former, self.version + bool(why)
        self.policies = policies  # those who hear of decisions read them when they are bound
        self.control, self.arms = self._build(now_ps)
        waiting, flights = old.waiting.leave(), old.flights.by_id
        self.control.take_over(now_ps, flights)
        for flight in flights.values():
            self.beliefs.touched(now_ps, flight.view.index, flight.request.path)
        if self.on_rebuilt is not None:
            self.on_rebuilt()
        if why and self.on_change is not None:
            self.on_change(why)
        return waiting

    def halt(self, why: str) -> None:
        """The candidate decides on no request any more; those in force go on as they are."""
        if CANARY in self.policies:
            self.policies = lasting(self.policies)
            self.version += 1
            self.arms.end_trial()
            if self.on_change is not None:
                self.on_change(f"halt: {why}")

    # --- policies that fail ------------------------------------------------------------------------------------------

    def _failed(self, arm: Arm, error: Exception) -> None:
        if self.on_failure is not None:
            self.on_failure(arm.name, error)

    @property
    def spent(self) -> bool:
        """Whether an arm has failed too often."""
        return self.arms.failed_often(self.most_failures)

    def give_way(self, now_ps: int) -> list[Request]:
        """To the policies before them, or to the plainest, where an arm is spent. It follows from the inputs, and so is
        no input itself."""
        live, trial = self.arms.live, self.arms.trial
        if trial is not None and trial.failures >= self.most_failures:
            self.halt(f"its policies failed {self.most_failures} times")
        if live.failures < self.most_failures:
            return []
        back = self.former or {**PLAIN, "flow": self.policies["flow"]}
        if CANARY in self.policies:
            back = {**back, CANARY: self.policies[CANARY]}
        return self._follow(now_ps, back, None, "failure")


def lasting(policies: Json) -> Json:
    """Without what is only tried."""
    return {stage: spec for stage, spec in policies.items() if stage != CANARY}


def _stream(seed: int, version: int, name: str) -> Random:
    """Policies that follow others draw anew."""
    return stream(seed, f"{name}.{version}" if version else name)

"""The versions of a gateway's policies: replaces policies, starts and ends canaries, and falls back after failures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import one_line
from headway.control.audience import Observe
from headway.control.expectations import Continued, running
from headway.control.journal import Journal
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.gateway.deciding.arms import PLAIN, Arm, Arms
from headway.gateway.deciding.places import Places
from headway.gateway.live_policies import build_policies, without_canary
from headway.gateway.shadow.canary import CANARY, Choice
from headway.gateway.signals.beliefs import SPECULATIVE_PS, TTL_PS, Beliefs
from headway.policies.context import Context
from headway.policies.user_policies import ours
from headway.streams import stream
from headway.types import Belief, Json, LoadRule, Request
from headway.views.instance import Estimator, InstanceView

MOST_FAILURES: Final = 5
UNSERVED: Final = "503: no engine became available in time"


class StepTimes:
    """Assumed step times of an engine that was not measured: 7 ms per step, plus 20 us per prefill token."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.007 + 2e-5 * prefill_tokens + 4e-8 * context if prefill_tokens or decodes else 0.0


class PlaneSettings(Struct, frozen=True):
    """The settings of a gateway's control plane. They are plain values, because the journal file (`tape`) stores them
    in its first record."""

    places: int
    policies: Json
    block_tokens: int = 16
    seed: int = 0
    patience_ps: int = 10**13
    alone: bool = True  # whether a prefill or decode engine without a partner serves whole requests
    ttl_ps: int = TTL_PS
    speculative_ps: int = SPECULATIVE_PS
    most_failures: int = MOST_FAILURES  # number of failed decisions after which the former policies take over
    # Old journals lack the next three fields. Their gateways used the defaults below.
    effective_load: LoadRule = "snapshot"
    belief: Belief = "both"
    auto: bool = False  # whether a prefix index uses each engine's KV capacity if its policy sets no capacity


class PolicyVersions:
    """Owns the control plane of the policies in force. A method that replaces the control plane returns the requests
    that waited in the old one. The caller must pass these requests to the new control plane as arrivals. Requests in
    flight continue."""

    def __init__(self, settings: PlaneSettings, places: Places, beliefs: Beliefs, journals: Sequence[Journal]) -> None:
        self.settings, self.policies = settings, settings.policies
        self.places, self.beliefs, self.journals = places, beliefs, journals
        self.estimator: Estimator = StepTimes()
        self.former: Json | None = None  # policies of the previous version; None: there is no previous version
        self.version = 0
        # Called with the name of the arm that failed to decide, and with the error.
        self.on_failure: Callable[[str, Exception], None] = lambda arm, error: None
        self.on_change: Callable[[str], None] = lambda why: None  # called with the reason for a new version
        self.on_rebuilt: Callable[[], None] | None = None  # called after the control plane was replaced
        self.followers: list[Observe] = []  # they receive the events of requests and engines, beside the policies
        self._context: Context | None = None
        self._estimating: tuple[Any, Any] | None = None  # settings of the estimator, and the estimator, if one runs
        self.pairs = False  # whether the policies were built for prefill and decode engines
        self.check(self.policies)
        self._build(0)

    def check(self, policies: Json) -> None:
        """Build and bind policies to test them, before anything changes. If they are invalid, raise HeadwayError."""
        context = self._new_context(partial(_stream, self.settings.seed, 0))
        built = build_policies(policies)
        try:
            live = Arm("", built, context)
            objects = [*live.policies, built.get("flow"), built.get("estimator")]
            if CANARY in policies:
                objects += Arm("", build_policies(policies[CANARY]["policies"]), context, live).policies
            for policy in objects:
                bind = getattr(policy, "bind", None)
                if bind is not None:
                    bind(context)
        except HeadwayError:
            raise
        except Exception as error:
            raise HeadwayError(f"policies: a policy cannot be bound to the engines: {one_line(error)}.") from error

    def _new_context(self, rng: Callable[[str], Random], follows: Context | None = None) -> Context:
        places, settings = self.places, self.settings
        return Context(
            places.views,
            rng,
            self.estimator,
            places.block_tokens,
            follows=follows,
            auto=settings.auto,
            belief=settings.belief,
        )

    def _build(self, now_ps: int) -> None:
        places, policies = self.places, self.policies
        for view, role in zip(places.views, places.roles, strict=True):
            view.role = role
        rng = partial(_stream, self.settings.seed, self.version)
        context = self._new_context(rng, self._context)
        built = build_policies(policies)
        former = [] if self.former is None else [self.former]
        arms = Arms(context, built, former, lambda arm, error: self.on_failure(arm.name, error))
        stages = arms.live.stages
        trial = build_policies(policies[CANARY]["policies"]) if CANARY in policies else {}
        control = ControlPlane(
            context,
            stages.admission,
            stages.priority,
            stages.routing,
            built.get("flow"),
            self._estimator(built, [*arms.live.policies, built.get("flow"), *trial.values()]),
            arms.live.decider,
            patience_ps=self.settings.patience_ps,
            unserved=UNSERVED,
            journals=self.journals,
            guard=arms,
            on_indexes=self.beliefs.bind,
        )
        arms.control = control
        if CANARY in policies:
            canary = policies[CANARY]
            arms.try_out(now_ps, trial, Choice(canary["share"], canary["by"]))
        self.control, self.arms = control, arms
        self._context, self.pairs = context, places.pairs
        self.stand_in(now_ps)

    def _estimator(self, built: Mapping[str, Any], readers: Sequence[Any]) -> Any:
        """Return the estimator, or None if none runs. If its settings are unchanged, it keeps what it has learned."""
        estimator = running(built.get("estimator"), [policy for policy in readers if policy is not None])
        spec = self.policies.get("estimator")
        if estimator is not None and ours(estimator) and self._estimating is not None and self._estimating[0] == spec:
            return Continued(self._estimating[1])
        self._estimating = None if estimator is None else (spec, estimator)
        return estimator

    def follow(self, observe: Observe) -> None:
        """Call `observe` with all events from now on, whichever policies are in force. It must not raise."""
        self.followers.append(observe)
        self.control.observers.append(observe)

    def stand_in(self, now_ps: int) -> None:
        """Update which prefill and decode engines serve whole requests alone."""
        if self.pairs and self.places.stand_in():
            for group in self.control.groups:
                group.refresh(now_ps)

    # --- new versions ------------------------------------------------------------------------------------------------

    def swap(self, now_ps: int, policies: Json) -> list[Request]:
        """Put new policies in force. The caller has checked them with `check`."""
        former: Json | None = without_canary(self.policies)
        if former == without_canary(policies):  # only the canary differs
            former = self.former
        return self._replace(now_ps, policies, former, "swap")

    def rebuild(self, now_ps: int) -> list[Request]:
        """Build the same policies again, because the engines have changed."""
        return self._replace(now_ps, self.policies, self.former, "")

    def _replace(self, now_ps: int, policies: Json, former: Json | None, why: str) -> list[Request]:
        old, self.former, self.version = self.control, former, self.version + bool(why)
        self.policies = policies  # set the policies first, because journals read them in `bind`
        self._build(now_ps)
        waiting, flights = old.waiting.leave(), old.flights.by_id
        self.control.take_over(now_ps, flights)
        self.control.observers.extend(self.followers)  # they already know the requests in flight
        for flight in flights.values():
            self.beliefs.touch(now_ps, flight.view.index, flight.request.path)
        if self.on_rebuilt is not None:
            self.on_rebuilt()
        if why:
            self.on_change(why)
        return waiting

    def halt(self, why: str) -> None:
        """End the canary. The policies in force stay."""
        if CANARY in self.policies:
            self.policies = without_canary(self.policies)
            self.version += 1
            self.arms.end_trial()
            self.on_change(f"halt: {why}")

    # --- failures ----------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> bool:
        """Whether the canary or the policies in force are spent: they have reached the limit on failures."""
        most, trial = self.settings.most_failures, self.arms.trial
        return self.arms.live.failures >= most or (trial is not None and trial.failures >= most)

    def give_way(self, now_ps: int) -> list[Request]:
        """If the canary is spent, end it. If the policies in force are spent, replace them by the former policies or
        `PLAIN`. The tape does not record this step, because a replay counts the same failures and repeats it."""
        live, trial = self.arms.live, self.arms.trial
        if trial is not None and trial.failures >= self.settings.most_failures:
            self.halt(f"its policies failed {self.settings.most_failures} times")
        if live.failures < self.settings.most_failures:
            return []
        back = self.former or {**PLAIN, "flow": self.policies["flow"]}
        if CANARY in self.policies:
            back = {**back, CANARY: self.policies[CANARY]}
        return self._replace(now_ps, back, None, "failure")


def _stream(seed: int, version: int, name: str) -> Random:
    """Return the random stream of this name. Each version of the policies has separate streams."""
    return stream(seed, f"{name}.{version}" if version else name)

"""The half of a gateway's plane that is about its policies: which are in force, how others follow them, and what
becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from headway.config.wording import one_line
from headway.control.flight import Answer, Decision, Flight, TimedOut
from headway.control.journal import Journal
from headway.control.model_groups import OTHER
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.gateway.deciding.arms import PLAIN, Arm, Arms
from headway.gateway.live_policies import build_policies
from headway.gateway.shadow.canary import CANARY, Choice
from headway.gateway.signals.beliefs import SPECULATIVE_PS, TTL_PS, Beliefs
from headway.policies.context import Context
from headway.streams import stream
from headway.types import SERVING, Json, Path, Reject, Request
from headway.views.instance import Estimator, InstanceView

Decided = list[Decision]
Tape = Callable[[int, str, tuple[Any, ...]], None]
Counts = tuple[int, int, int, int]  # of a place: in flight, their tokens, pending prefill, decode
MOST_FAILURES: Final = 5


class StepTimes:
    """Of an engine that nobody has measured: a prefill token takes 20 us, a step 7 ms. For policies that predict."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.007 + 2e-5 * prefill_tokens + 4e-8 * context if prefill_tokens or decodes else 0.0


class PolicyPlane:
    def __init__(
        self,
        places: int,
        policies: Json,
        *,
        block_tokens: int = 16,
        seed: int = 0,
        patience_ps: int = 10**13,
        alone: bool = True,
        ttl_ps: int = TTL_PS,
        speculative_ps: int = SPECULATIVE_PS,
        most_failures: int = MOST_FAILURES,
        tape: Tape | None = None,
        journals: Sequence[Journal] = (),
    ) -> None:
        """`alone`: an engine of one half serves whole requests while the other half is gone. `journals` hear of the
        decisions of whichever policies are in force. Policies that fail `most_failures` times give way to those before
        them."""
        self.head: Json = {
            "places": places,
            "policies": policies,
            "block_tokens": block_tokens,
            "seed": seed,
            "patience_ps": patience_ps,
            "alone": alone,
            "ttl_ps": ttl_ps,
            "speculative_ps": speculative_ps,
            "most_failures": most_failures,
        }
        self.views = tuple(InstanceView(place, "") for place in range(places))
        for view in self.views:
            view.state = "stopped"
        self.block_tokens, self.seed, self.patience_ps = block_tokens, seed, patience_ps
        self.estimator: Estimator = StepTimes()
        self.policies = policies
        self.former: Json | None = None  # the policies before those
        self.tape, self.journals = tape, journals
        self.version = 0  # of the policies
        self.most_failures = most_failures
        self.alone, self.roles = alone, ["both"] * places  # as engines declare them
        self.reporting = [False] * places  # whether what an engine reports is fresh enough to go by
        self.peers: dict[str, dict[int, Counts]] = {}  # what other gateways have under way, by place
        self.on_sent: Callable[[int, Path], None] | None = None  # hears where a prompt goes
        self.on_failure: Callable[[str, Exception], None] | None = None  # hears whose policies failed, and how
        self.on_change: Callable[[str], None] | None = None  # hears that others decide now, and why
        self.on_made: Callable[[], None] | None = None  # hears of another control plane
        self.context: Context | None = None
        self.pairs = False
        self.beliefs = Beliefs(places, (), ttl_ps, speculative_ps)
        self._check(policies)
        self.control, self.arms = self._build(0, policies)

    def _check(self, policies: Json) -> None:
        """Make and bind them once for nothing, so that what is wrong with them is told before anything has changed."""
        context = Context(self.views, partial(_stream, self.seed, 0), self.estimator, self.block_tokens)
        made = build_policies(policies)
        try:
            live = Arm("", made, context)
            everyone = [*live.policies, made.get("flow")]
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

    def _build(self, now_ps: int, policies: Json) -> tuple[ControlPlane, Arms]:
        for view, role in zip(self.views, self.roles, strict=True):
            view.role = role
        rng = partial(_stream, self.seed, self.version)
        context = Context(self.views, rng, self.estimator, self.block_tokens, follows=self.context)
        built = build_policies(policies)
        arms = Arms(context, built, [] if self.former is None else [self.former], self._failed)
        control = ControlPlane(
            context,
            arms.live.stages.admission,
            arms.live.stages.priority,
            arms.live.stages.routing,
            built.get("flow"),
            patience_ps=self.patience_ps,
            unserved="503: no engine came up in time",
            journals=self.journals,
            guard=arms,
            on_indexes=self.beliefs.bind,
        )
        arms.bind(control)
        if CANARY in policies:
            canary = policies[CANARY]
            arms.try_out(now_ps, build_policies(canary["policies"]), Choice(canary["share"], canary["by"]))
        self.context = context
        self.pairs = "prefill" in self.roles
        self._stand_in(now_ps, control)
        return control, arms

    def _stand_in(self, now_ps: int, control: ControlPlane) -> None:
        """Roles follow from who can be reached."""
        if self.alone and self.pairs and stand_in(self.views, self.roles):
            for group in control.groups:
                group.refresh(now_ps)

    @property
    def next_ps(self) -> int:
        return 0 if self._spent() else self.control.next_ps

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _write(self, now_ps: int, kind: str, *values: Any) -> None:
        """Every input and every decision goes on the tape, if there is one: enough to decide the same again."""
        if self.tape is not None:
            self.tape(now_ps, kind, values)

    def _decided(self, now_ps: int, request: Request, answer: Answer) -> Decision:
        """A decision is written down, and counted where reports do not tell of it yet."""
        if isinstance(answer, Flight):
            self._sent(now_ps, answer.view, request.path)
            if answer.prefill is not None:
                self._sent(now_ps, answer.prefill, request.path)
        self._write(now_ps, "decided", request.id, in_words(answer))
        return request, answer

    def _sent(self, now_ps: int, view: InstanceView, path: Path) -> None:
        self.beliefs.touched(now_ps, view.index, path)
        if self.on_sent is not None:
            self.on_sent(view.index, path)
        if self.reporting[view.index]:
            view.routed_since_report += 1
        else:
            self._count(view)

    def _count(self, view: InstanceView) -> None:
        """Of an engine that reports nothing, or nothing fresh, this gateway's own counts stand for its report."""
        if not self.reporting[view.index]:
            inflight, most, used = view.inflight, view.max_batch_size, view.inflight_tokens // self.block_tokens
            view.running = running = inflight if inflight < most else most
            view.queued = inflight - running
            view.kv_used = used if used < view.kv_blocks else view.kv_blocks

    # --- other policies ----------------------------------------------------------------------------------------------

    def swap(self, now_ps: int, policies: Json) -> Decided:
        """Other policies from now on. A wrong one raises, and all stays as it was. Those in flight are taken over, and
        those that wait are asked anew."""
        self._check(policies)
        self._write(now_ps, "swap", policies)
        former: Json | None = lasting(self.policies)
        if former == lasting(policies):  # only what is tried is another
            former = self.former
        return self._follow(now_ps, policies, former, "swap")

    def _follow(self, now_ps: int, policies: Json, former: Json | None, why: str) -> Decided:
        """`why` is empty where the policies are the same."""
        old, self.former, self.version = self.control, former, self.version + bool(why)
        self.policies = policies  # those who hear of decisions read them when they are bound
        self.control, self.arms = self._build(now_ps, policies)
        control, waiting, flights = self.control, old.waiting.leave(), old.flights.by_id
        control.take_over(now_ps, flights)
        for flight in flights.values():
            self.beliefs.touched(now_ps, flight.view.index, flight.request.path)
        if self.on_made is not None:
            self.on_made()
        if why and self.on_change is not None:
            self.on_change(why)
        return [self._decided(now_ps, one, control.arrive(now_ps, one)) for one in waiting]

    def halt(self, now_ps: int, why: str) -> None:
        """The candidate decides on nobody any more; those in force go on as they are."""
        self._write(now_ps, "halt", why)
        self._halt(why)

    def _halt(self, why: str) -> None:
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

    def _spent(self) -> bool:
        """Whether an arm has failed too often."""
        return self.arms.failed_often(self.most_failures)

    def _give_way(self, now_ps: int) -> Decided:
        """To the policies before them, or to the plainest. It follows from the inputs, and so is none itself."""
        live, trial = self.arms.live, self.arms.trial
        if trial is not None and trial.failures >= self.most_failures:
            self._halt(f"its policies failed {self.most_failures} times")
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


def in_words(answer: Answer) -> str:
    if isinstance(answer, Flight):
        return answer.view.id if answer.prefill is None else f"{answer.view.id} after {answer.prefill.id}"
    if isinstance(answer, Reject | TimedOut):
        return f"refused: {answer.reason}"
    return "later" if answer is None else "queued"


def stand_in(views: Sequence[InstanceView], roles: Sequence[str]) -> bool:
    """Give each view its role of now; `roles` are those that were declared. True where any has changed."""
    serving = [view for view in views if view.id and view.state in SERVING]
    changed = False
    for view, role in zip(views, roles, strict=True):
        wanted = OTHER.get(role)
        if wanted is not None and not any(
            roles[other.index] == wanted and together(view, other) for other in serving if other is not view
        ):
            role = "both"
        if view.role != role:
            view.role = role
            changed = True
    return changed


def together(one: InstanceView, other: InstanceView) -> bool:
    """Whether they could serve a request as its two halves."""
    if one.pool != other.pool:
        return False
    return not one.serves or any(model in other.serves for model in one.serves)

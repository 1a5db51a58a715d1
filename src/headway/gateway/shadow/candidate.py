"""A shadow candidate: a routing policy that is asked where it would send live requests. Its effect is estimated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, to_builtins

from headway.config.keys import PositiveSeconds, Unit
from headway.config.section import read
from headway.config.wording import cut, one_line, shown
from headway.control.view_lock import ViewLock
from headway.errors import HeadwayError
from headway.gateway.live_policies import read_candidate
from headway.gateway.settings import check_name
from headway.gateway.shadow.canary import CANDIDATE_FORM
from headway.gateway.shadow.frozen import FrozenContext, Shot, Stage
from headway.policies import registry
from headway.policies.disaggregation import make_pairing
from headway.policies.user_policies import ours
from headway.streams import stream
from headway.types import Json, Reject, Route
from headway.views.events import Event
from headway.views.instance import InstanceView

LONG: Final = 10  # number of consecutive decisions above the budget that stop a candidate
KEPT: Final = 64


class CandidateSpec(Struct, frozen=True):
    """One entry of the section `shadow:` of a gateway's file."""

    policies: Annotated[
        Json,
        Unit("mapping or file", read_candidate, dict, form=CANDIDATE_FORM),
        "policies by stage, or a bundle's file",
    ]
    sample: Annotated[float, Meta(gt=0, le=1), "share of decisions that the candidate is asked about"] = 1.0
    budget_s: Annotated[PositiveSeconds, "time limit of a decision; ten longer ones in a row stop it"] = 0.002
    short_form: ClassVar[Any] = Annotated[Any, CANDIDATE_FORM]

    @classmethod
    def read(cls, data: Any, where: str) -> CandidateSpec:
        """Read a candidate, which is given as policies by stage, as a bundle, as a bundle's file, or as a mapping with
        the key `policies`."""
        if isinstance(data, dict) and "policies" in data and "format" not in data:
            spec = read(cls, data, where)
        else:
            spec = cls(read_candidate(data, where))
        if "routing" not in spec.policies:
            raise HeadwayError(f"{where}: a shadow candidate needs a `routing` policy.")
        return spec

    @property
    def plain(self) -> Json:
        return {"policies": self.policies, "sample": self.sample, "budget": f"{self.budget_s:.9f}s"}


def read_shadows(data: Any, where: str = "shadow") -> dict[str, CandidateSpec]:
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping of names to policies, got {shown(data)}.")
    for name in data:
        check_name(name, where)
    return {name: CandidateSpec.read(spec, f"{where}.{cut(name)}") for name, spec in data.items()}


class Candidate:
    def __init__(self, name: str, spec: CandidateSpec, stage: Stage, seed: int) -> None:
        self.name, self.spec, self.stage, self.seed = name, spec, stage, seed
        self.why: str | None = None  # reason why the candidate was stopped; None if it was not stopped
        self.decisions = self.agreed = self.compared = self.refused = self.skipped = self.errors = 0
        # Numbers of tokens that were believed cached only at the candidate's target, and only at the live target.
        self.gained = self.forgone = 0
        self.ttft_s = [0.0, 0.0]  # sums of the estimated TTFT at the live target and at the candidate's target
        self.spent_s = 0.0
        self.opinions: deque[Json] = deque(maxlen=KEPT)  # the last opinions that have a scorecard
        self._credit = 0.0
        self._long = 0
        self.make()

    def make(self) -> None:
        """Build the routing policy. Called again after prefill engines have joined or left."""
        routing = registry.build("routing", self.spec.policies["routing"], f"shadow.{cut(self.name)}.routing")
        named, decider = self.spec.policies.get("decider"), self.stage.control.decider
        if named is not None:
            decider = registry.build("decider", named, f"shadow.{cut(self.name)}.decider")
        elif decider is not None:
            decider = registry.remake(decider)
        self.routing = make_pairing(routing, self.stage.views, decider)
        bind = getattr(self.routing, "bind", None)
        if bind is not None:
            bind(FrozenContext(self.stage, partial(stream, self.seed)))
        # Set during the first decisions of a user's policy. All candidates share the views and the live tenants.
        self.lock = None if ours(self.routing) else ViewLock((), self.stage.cluster)
        self.observe: Callable[[Event], None] | None = getattr(self.routing, "observe", None)

    def wants(self) -> bool:
        """Return whether to ask the candidate about the next decision, according to its `sample`."""
        if self.why is not None:
            return False
        self._credit += self.spec.sample
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def hear(self, event: Event) -> None:
        if self.observe is not None and self.why is None:
            try:
                self._call(self.observe, event)
            except (Exception, SystemExit) as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.errors += 1
        self.why = one_line(error)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the policy. During the first decisions of a user's policy, `lock` is set, and a policy that
        writes to a view gets an error."""
        if self.lock is None:
            return method(*arguments)
        self.lock.instances = self.stage.cluster.instances
        return self.lock.call(self.routing, method, *arguments)

    # --- a decision --------------------------------------------------------------------------------------------------

    def ask(self, shot: Shot, explain: bool) -> Json | None:
        cluster = self.stage.show(shot)
        cluster.explain = explain
        start = perf_counter()
        try:
            answer = self._call(self.routing.route, shot.request, cluster)
            opinion = self._opinion(shot, answer, explain)
        except (Exception, SystemExit) as error:
            self.fail(error)
            return None
        took = perf_counter() - start
        if self.lock is not None:
            self.lock.left -= 1
            self.lock = self.lock if self.lock.left else None
        self.spent_s += took
        self._long = self._long + 1 if took > self.spec.budget_s else 0
        if self._long >= LONG:
            self.errors += 1
            self.why = f"its last {LONG} decisions took longer than its budget of {1000 * self.spec.budget_s:g} ms each"
        return opinion

    def _opinion(self, shot: Shot, answer: Any, explain: bool) -> Json | None:
        """Return the answer as the admin API shows it; None for a rejection. Tokens and times are estimates."""
        self.decisions += 1
        if isinstance(answer, Reject):
            self.refused += 1
            return None
        if not isinstance(answer, Route):
            raise HeadwayError(f"route must return a Route or a Reject, got {shown(answer)}")
        live = shot.route
        there, here = (self._computes(route, shot) for route in (live, answer))
        agrees = (answer.target, answer.prefill) == (live.target, live.prefill)
        self.agreed += agrees
        cached = (self._believed_tokens(shot, live, there), self._believed_tokens(shot, answer, here))
        tokens = shot.request.prompt_tokens
        self.gained += max(0, cached[1] - cached[0])
        self.forgone += max(0, cached[0] - cached[1])
        ttft = (there.estimated_ttft(max(0, tokens - cached[0])), here.estimated_ttft(max(0, tokens - cached[1])))
        self.compared += 1
        self.ttft_s[0] += ttft[0]
        self.ttft_s[1] += ttft[1]
        card = to_builtins(answer.scorecard) if explain and answer.scorecard is not None else None
        target = answer.target if answer.prefill is None else f"{answer.prefill} → {answer.target}"
        opinion = {
            "target": target,
            "agrees": agrees,
            "believed_tokens": {"live": cached[0], "candidate": cached[1]},
            "estimated_ttft_s": {"live": ttft[0], "candidate": ttft[1]},
            "scorecard": card,
        }
        if explain:
            self.opinions.append({"request": shot.request.id, "live": live.target, **opinion})
        return opinion

    def _computes(self, route: Route, shot: Shot) -> InstanceView:
        """Return the view of the engine that would compute the prompt: the route's prefill engine if it has one,
        otherwise its target."""
        view = self.stage.view(route.target if route.prefill is None else route.prefill, shot.places)
        if view is None or self.stage.view(route.target, shot.places) is None:
            raise HeadwayError(f"chose {shown(route.target)}, which cannot serve request {shot.request.id}")
        return view

    def _believed_tokens(self, shot: Shot, route: Route, view: InstanceView) -> int:
        """Return how many prompt tokens are believed cached at an engine. If a policy has a prefix index, use the
        index; otherwise use the number in the route."""
        for (block_tokens, _), matches in shot.matches.items():
            return min(matches[view.index] * block_tokens, shot.request.prompt_tokens)
        return min(route.cached_tokens, shot.request.prompt_tokens)

    def status(self) -> Json:
        decisions, compared = self.decisions, self.compared
        return {
            "name": self.name,
            "policies": self.spec.policies,
            "running": self.why is None,
            "why": self.why,
            "asked": decisions,
            "agreement": self.agreed / decisions if decisions else None,
            "refused": self.refused,
            "skipped": self.skipped,
            "gained_tokens": self.gained,
            "forgone_tokens": self.forgone,
            "ttft_live_s": self.ttft_s[0] / compared if compared else None,
            "ttft_s": self.ttft_s[1] / compared if compared else None,
            "took_us": 1e6 * self.spent_s / decisions if decisions else None,
        }

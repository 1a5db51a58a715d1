"""The state of a gateway's engines, as policies see it: roles, reported signals and the gateway's own request counts.

Each engine has a place, which is its index in `views`. There are `max_backends` places. The view at a free place has an
empty id and receives no requests.
"""

from collections.abc import Mapping
from typing import Any, Final

from headway.control.model_groups import OTHER
from headway.types import SERVING, Json, LoadRule
from headway.views.instance import (
    EXACT,
    MEAN_IF_MISSING,
    REPORTED,
    REPORTED_LIVE,
    SHARED,
    STATIC,
    InstanceView,
)

Counts = tuple[int, int, int, int, int]  # values of the signals in `SHARED`, for one place
NO_COUNTS: Final[Counts] = (0, 0, 0, 0, 0)
FREE: Final = InstanceView(0, "")  # the signals of a free place


class Places:
    def __init__(self, count: int, block_tokens: int, alone: bool, load_rule: LoadRule = "snapshot") -> None:
        """With `alone`, a prefill or decode engine without a partner serves whole requests."""
        self.views = tuple(InstanceView(place, "") for place in range(count))
        for view in self.views:
            view.state = "stopped"
            view._load_rule = load_rule
        self.block_tokens = block_tokens
        self.alone, self.roles = alone, ["both"] * count  # roles of the engines by place, as specified
        self.reporting = [False] * count  # for each place: whether its engine's reports are fresh
        self.peers: dict[str, dict[int, Counts]] = {}  # counts of other gateways, by the gateway's name and by place

    def take(self, place: int, member: Json) -> InstanceView:
        """Put an engine at a place, or change the specification of the engine there."""
        view = self.views[place]
        for name in STATIC:
            if name in member:
                setattr(view, name, member[name])
        view.serves = tuple(member["serves"])
        self.roles[place] = view.role
        return view

    def free(self, place: int) -> None:
        """Reset the place of an engine that has left."""
        view = self.views[place]
        for counts in self.peers.values():
            counts.pop(place, None)
        for name in ("id", "serves", "role", *EXACT, *REPORTED):
            setattr(view, name, getattr(FREE, name))
        self.roles[place] = view.role
        self.reporting[place] = False

    # --- roles -------------------------------------------------------------------------------------------------------

    @property
    def pairs(self) -> bool:
        """Whether at least one engine computes prompts for other engines (has the role `prefill`)."""
        return "prefill" in self.roles

    def stand_in(self) -> bool:
        """Let each prefill or decode engine without a reachable partner serve both phases. Return whether any role
        changed."""
        if not self.alone:
            return False
        serving = [view for view in self.views if view.id and view.state in SERVING]
        changed = False
        for view, role in zip(self.views, self.roles, strict=True):
            partner = OTHER.get(role)
            if partner is not None and not any(
                self.roles[other.index] == partner and other is not view and _together(view, other) for other in serving
            ):
                role = "both"
            if view.role != role:
                view.role = role
                changed = True
        return changed

    # --- load --------------------------------------------------------------------------------------------------------

    def report(self, now_ps: int, place: int, signals: Mapping[str, Any], finished: int = 0) -> None:
        """Copy an engine's report to its view. `finished` is the number of requests that the report counts, but that
        have ended since."""
        view = self.views[place]
        for name in REPORTED_LIVE:
            if name in signals:
                setattr(view, name, signals[name])
        if "queued" in signals or "running" in signals:
            self.reporting[place] = True
            view.routed_since_report, view.finished_since_report = 0, finished
        view.observed_at = now_ps

    def mark_stale(self, place: int, neutral: Mapping[str, float]) -> None:
        view = self.views[place]
        self.reporting[place] = False
        view.observed_at, view.adapters, view.tier_used = None, (), FREE.tier_used
        view.routed_since_report = view.finished_since_report = 0
        for name in MEAN_IF_MISSING:
            setattr(view, name, neutral.get(name, 0.0))
        self.count(view)

    def count(self, view: InstanceView) -> None:
        """If an engine has no fresh report, estimate the engine's load from the gateway's own counts."""
        if not self.reporting[view.index]:
            inflight, most, used = view.inflight, view.max_batch_size, view.inflight_tokens // self.block_tokens
            view.running = running = inflight if inflight < most else most
            view.queued = inflight - running
            view.kv_used = used if used < view.kv_blocks else view.kv_blocks

    def count_route(self, view: InstanceView) -> None:
        """Count a request that is routed to an engine, because the engine's reports do not include it yet."""
        if self.reporting[view.index]:
            view.routed_since_report += 1
        else:
            self.count(view)

    def count_end(self, view: InstanceView) -> None:
        """Count a request that has left an engine, because the engine's last report may still include it."""
        if self.reporting[view.index]:
            view.finished_since_report += 1
        else:
            self.count(view)

    def ended(self, place: int) -> int:
        """Return how many of this gateway's requests have left the engine so far."""
        return self.views[place].routed - self.own(place)[0]

    # --- other gateways ----------------------------------------------------------------------------------------------

    def hear(self, peer: str, counts: Mapping[int, Counts]) -> None:
        """Store the request counts that another gateway reports, by the engine's place. The new counts replace the
        earlier counts of that gateway."""
        before = self.peers.setdefault(peer, {})
        for place, count in counts.items():
            view = self.views[place]
            _add(view, before.get(place, NO_COUNTS), -1)
            _add(view, count, 1)
            before[place] = count
            self.count(view)

    def lose(self, peer: str) -> None:
        """Remove the counts of another gateway."""
        self.hear(peer, dict.fromkeys(self.peers.get(peer, {}), NO_COUNTS))
        self.peers.pop(peer, None)

    def own(self, place: int) -> Counts:
        """Return this gateway's own counts for the engine at a place, without the counts of other gateways."""
        own = [getattr(self.views[place], name) for name in SHARED]
        for counts in self.peers.values():
            own = [total - theirs for total, theirs in zip(own, counts.get(place, NO_COUNTS), strict=True)]
        return own[0], own[1], own[2], own[3], own[4]


def _add(view: InstanceView, counts: Counts, sign: int) -> None:
    for name, count in zip(SHARED, counts, strict=True):
        setattr(view, name, getattr(view, name) + sign * count)


def _together(view: InstanceView, other: InstanceView) -> bool:
    """Return whether two engines can serve a request together, one as prefill and one as decode engine."""
    if view.pool != other.pool:
        return False
    return not view.serves or any(model in other.serves for model in view.serves)

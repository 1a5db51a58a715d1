"""A candidate that decides on a share of the live requests: its section, whom it decides on, and when it ends.

canary:
  policies: {routing: lmetric}          # or the file of a bundle
  share: 0.05
  by: session                           # or tenant, request
  stop: {metric: ttft_p90, worse_by: 0.2, min_requests: 50}      # or several
  slo: {ttft: 1s}
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, to_builtins

from headway.config.keys import Doc
from headway.config.section import read
from headway.config.units import positive_duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.types import Json, Request

CANARY: Final = "canary"  # beside the stages, where policies are written down
# By metric, how much worse a candidate may be: for times as a share of the others', for shares as a difference.
WORSE_BY: Final = {"ttft_p90": 0.2, "error_rate": 0.05, "slo": 0.05}
MIN_REQUESTS: Final = 50
By = Literal["session", "tenant", "request"]


class CanaryKeys(Struct):
    policies: Annotated[Any, Doc("as of a shadow; of any stage but the queue", type="mapping or file")]
    share: Annotated[float, "of those it decides on"] = 0.05
    by: Annotated[
        By,
        "what is drawn: session (with its tenant; a request without one is drawn by itself), tenant or request",
    ] = "session"
    stop: Annotated[
        Any,
        Doc(
            "`metric` (ttft_p90, error_rate or slo), `worse_by` and `min_requests` (50); or a list of them",
            default="all that can be told",
            type="mapping or list",
        ),
    ] = None
    slo: Annotated[Any, Doc("`ttft`: what a first token may take", type="mapping")] = None


class _StopKeys(Struct):
    metric: Literal["ttft_p90", "error_rate", "slo"]
    worse_by: float | None = None
    min_requests: int = MIN_REQUESTS


class _SloKeys(Struct):
    ttft: Any


def read_canary(data: Any, where: str, read_policies: Callable[[Any, str], Json]) -> Json:
    """Read a `canary:` section into plain values, which read again give the same."""
    keys = read(CanaryKeys, data, where)
    if not 0 < keys.share <= 1:
        raise HeadwayError(f"{where}.share: must be above 0 and at most 1, got {shown(keys.share)}.")
    slo = None if keys.slo is None else read(_SloKeys, keys.slo, f"{where}.slo")
    if slo is not None:
        positive_duration_ps(slo.ttft, f"{where}.slo.ttft")
    stop = keys.stop
    if stop is None:
        stop = [{"metric": metric} for metric in WORSE_BY if metric != "slo" or slo is not None]
    rules = stop if isinstance(stop, list) else [stop]
    return {
        "policies": read_policies(keys.policies, f"{where}.policies"),
        "share": keys.share,
        "by": keys.by,
        "stop": [_rule(rule, f"{where}.stop", slo is not None) for rule in rules],
        "slo": None if slo is None else {"ttft": slo.ttft},
    }


def _rule(data: Any, where: str, has_slo: bool) -> Json:
    keys = read(_StopKeys, data, where)
    if keys.metric == "slo" and not has_slo:
        raise HeadwayError(f"{where}.metric: 'slo' wants to know which; say so with `slo`, as in {{ttft: 1s}}.")
    worse_by = WORSE_BY[keys.metric] if keys.worse_by is None else keys.worse_by
    if not 0 <= worse_by <= 100:
        raise HeadwayError(f"{where}.worse_by: must be 0 to 100, got {shown(worse_by)}.")
    if not 5 <= keys.min_requests <= 10**6:
        raise HeadwayError(f"{where}.min_requests: must be 5 to 1,000,000, got {shown(keys.min_requests)}.")
    return {**to_builtins(keys), "worse_by": worse_by}


class Choice:
    """The same for each request of a session, in every process and after every start; a larger share has all that a
    smaller one has."""

    def __init__(self, share: float, by: By) -> None:
        self.below, self.by = int(share * 2**64), by
        self._last = (-1, False)  # who asks for admission asks for routing next

    def __call__(self, request: Request) -> bool:
        if request.id != self._last[0]:
            self._last = request.id, self._select(request)
        return self._last[1]

    def _select(self, request: Request) -> bool:
        if self.by == "tenant":
            drawn = stable("canary", request.tenant)
        elif self.by == "session" and request.session is not None:
            drawn = stable("canary", request.tenant, request.session)
        else:
            drawn = stable("canary", request.id)
        return drawn < self.below

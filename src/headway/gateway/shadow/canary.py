"""A canary: a candidate that decides on a fraction of the live requests. This module reads the section `canary:` and
selects the canary's requests.

canary:
  policies: {routing: lmetric}          # or the file of a bundle
  share: 0.05
  by: session                           # or tenant, request
  stop: {metric: ttft_p90, worse_by: 0.2, min_requests: 50}      # or a list of rules
  slo: {ttft: 1s}
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, to_builtins

from headway.config.keys import DURATION, Doc, Form
from headway.config.schema import Mapped
from headway.config.section import read
from headway.config.units import positive_duration_ps
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.policies.bundle import BundleKeys
from headway.policies.policy_schema import policy_form
from headway.types import Json, Request

CANARY: Final = "canary"  # a key of `policies`, in addition to the stages
# Metric -> how much worse a canary may be by default: relative for TTFT, an absolute difference for fractions.
WORSE_BY: Final = {"ttft_p90": 0.2, "error_rate": 0.05, "slo": 0.05}
MIN_REQUESTS: Final = 50
By = Literal["session", "tenant", "request"]
UNUSED: Final = {"description": "only the simulator uses this stage; the gateway ignores it"}
STAGES_FORM: Final = Mapped(
    {stage: policy_form(stage, live=True) for stage in ("admission", "priority", "routing", "decider")}
    | dict.fromkeys(("scheduler", "scaling"), UNUSED)
)


class StopKeys(Struct):
    """A rule that ends the canary."""

    metric: Annotated[Literal["ttft_p90", "error_rate", "slo"], "metric to compare with the policies in force"]
    worse_by: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Doc("how much worse it may be; relative for times, a difference for shares", default="0.2 or 0.05"),
    ] = None
    min_requests: Annotated[int, Meta(ge=5, le=10**6), "requests before the rule applies"] = MIN_REQUESTS


class SloKeys(Struct):
    ttft: Annotated[Any, DURATION, "the longest time to a first token"]


# A candidate's policies: a bundle's file, policies by stage, or a bundle.
CANDIDATE_FORM: Final = Form.of(str, STAGES_FORM, BundleKeys)


class CanaryKeys(Struct):
    policies: Annotated[
        Any,
        CANDIDATE_FORM,
        Doc("policies of any stage except `flow` and `estimator`, or a bundle's file", type="mapping or file"),
    ]
    share: Annotated[float, Meta(gt=0, le=1), "share of `by` that the canary decides on"] = 0.05
    by: Annotated[By, "unit of selection; with `session`, a request without one is selected by itself"] = "session"
    stop: Annotated[
        Any,
        Form.of(StopKeys, list[StopKeys]),
        Doc(
            "rule that ends the canary: `metric` (ttft_p90, error_rate or slo), `worse_by` and `min_requests` (50); "
            "or a list of rules",
            default="all metrics; slo only with `slo`",
            type="mapping or list",
        ),
    ] = None
    slo: Annotated[Any, Form.of(SloKeys), Doc("`ttft`: the longest time to a first token", type="mapping")] = None


def read_canary(data: Any, where: str, read_policies: Callable[[Any, str], Json]) -> Json:
    """Read a `canary:` section into plain values. The function also accepts its own result."""
    keys = read(CanaryKeys, data, where)
    slo = None if keys.slo is None else read(SloKeys, keys.slo, f"{where}.slo")
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
    keys = read(StopKeys, data, where)
    if keys.metric == "slo" and not has_slo:
        raise HeadwayError(f"{where}.metric: 'slo' needs a limit; set `slo` of the canary, as in {{ttft: 1s}}.")
    return {**to_builtins(keys), "worse_by": WORSE_BY[keys.metric] if keys.worse_by is None else keys.worse_by}


class Choice:
    """Selects requests by a stable hash, which is the same in every process and after every start. A larger share
    selects all requests that a smaller share selects."""

    def __init__(self, share: float, by: By) -> None:
        self.below, self.by = int(share * 2**64), by
        self._last = (-1, False)  # last request id and its result: admission and routing ask about the same request

    def __call__(self, request: Request) -> bool:
        if request.id != self._last[0]:
            self._last = request.id, self._select(request)
        return self._last[1]

    def _select(self, request: Request) -> bool:
        if self.by == "tenant":
            return stable("canary", request.tenant) < self.below
        if self.by == "session" and request.session is not None:
            return stable("canary", request.tenant, request.session) < self.below
        return stable("canary", request.id) < self.below

"""Checks the answers of policies, and creates the errors for wrong answers."""

from collections.abc import Mapping
from sys import float_info
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Delay, Estimate, Priority, Reject, Request, Scale
from headway.views.pool import PoolView

LONGEST_PS: Final = 1 << 62  # maximum delay of a request
MOST_EXPECTED: Final = 1_000_000_000  # maximum number of expected output tokens
VERDICT: Final = "admit must return ADMIT, a Reject, or a Delay of 1 ps to 2**62 ps"


def refuses(verdict: object) -> bool:
    """Return whether an answer of an admission policy is a valid Reject or Delay."""
    if isinstance(verdict, Reject):
        return isinstance(verdict.reason, str)
    if isinstance(verdict, Delay):
        return type(verdict.duration_ps) is int and 1 <= verdict.duration_ps <= LONGEST_PS
    return False


def check_priority(policy: Any, priority: object, request: Request) -> None:
    right = "prioritise must return a Priority with a finite score"
    if not isinstance(priority, Priority) or not is_number(priority.score):
        raise wrong_answer("policies.priority", policy, right, priority, request)
    if priority.hints and not (isinstance(priority.hints, Mapping) and all(map(is_number, priority.hints.values()))):
        right = "prioritise must give hints as a mapping of names to finite numbers"
        raise wrong_answer("policies.priority", policy, right, priority.hints, request)
    if not isinstance(priority.reason, str):
        right = "prioritise must give the reason as a text"
        raise wrong_answer("policies.priority", policy, right, priority.reason, request)


def check_estimate(policy: Any, answer: object, request: Request) -> Estimate:
    """Return the answer of an estimator as an `Estimate`. A whole number is an estimate without a stated error."""
    estimate = answer if isinstance(answer, Estimate) else Estimate(answer)  # type: ignore[arg-type]
    error = estimate.error
    stated = error is None or (is_number(error) and error >= 0)
    if type(estimate.tokens) is int and 1 <= estimate.tokens <= MOST_EXPECTED and stated:
        return estimate
    right = (
        f"estimate must return a whole number of tokens from 1 to {MOST_EXPECTED:,}, or an Estimate of such a number"
    )
    raise wrong_answer("policies.estimator", policy, right, answer, request)


def check_scale(policy: Any, answer: object, pool: PoolView) -> None:
    scale = answer if isinstance(answer, Scale) else Scale(-1)
    if type(scale.replicas) is int and scale.replicas >= 0 and isinstance(scale.reason, str):
        return
    method = f"policies.scaling: {type(policy).__name__}.scale"
    right = "must return None, or a Scale with a whole number of replicas that is not negative"
    raise HeadwayError(f"{method} {right}, got {shown(answer)}, for pool {shown(pool.id)} at {pool.now:g} s.")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


def wrong_answer(where: str, policy: Any, right: str, answer: object, request: Request) -> HeadwayError:
    return HeadwayError(f"{where}: {type(policy).__name__}.{right}, got {shown(answer)}, at request {request.id}.")


def policy_metrics(policy: Any, where: str) -> dict[str, float]:
    """Return the metrics that a policy reports. Raise an error unless each metric is a name with a finite number."""
    metrics = policy.metrics()
    right = f"{where}: {type(policy).__name__}.metrics must return a mapping of names to finite numbers"
    if not isinstance(metrics, dict):
        raise HeadwayError(f"{right}, got {shown(metrics)}.")
    for name, value in metrics.items():
        number = isinstance(value, int | float) and abs(value) <= float_info.max
        if not isinstance(name, str) or not number:
            raise HeadwayError(f"{right}, got {shown(name)}: {shown(value)}.")
    return metrics

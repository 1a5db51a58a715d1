"""The methods that each stage asks of a policy, and the check that a user's policy has them."""

import inspect
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError

# For each stage, the method that a user's policy must have, and the number of its arguments.
CALLS: Final = {
    "admission": ("admit", 2),
    "priority": ("prioritise", 2),
    "estimator": ("estimate", 2),
    "routing": ("route", 2),
    "scorer": ("score", 3),
    "filter": ("keep", 3),
    "picker": ("pick", 3),
    "decider": ("apart", 3),
    "scheduler": ("queue", 0),
    "scaling": ("scale", 1),
}
METHODS: Final = {stage: method for stage, (method, _) in CALLS.items()}
# Optional methods, with the number of their arguments.
OPTIONAL: Final = {"bind": 1, "observe": 1, "metrics": 0, "believed_tokens": 1}


def outside(cls: type) -> bool:
    """Return whether a class is not part of Headway."""
    return not cls.__module__.startswith("headway.")


def ours(policy: Any) -> bool:
    """Return whether a policy and all its parts are classes of Headway."""
    return not any(outside(type(part)) for part in (policy, *getattr(policy, "_parts", ())))


def check_methods(stage: str, policy: Any, where: str) -> None:
    """Check that a user's policy has the methods of its stage, with the right number of arguments."""
    if not outside(type(policy)):
        return
    needed = METHODS.get(stage)
    for name, count in (*([CALLS[stage]] if needed else []), *OPTIONAL.items()):
        cls = f"{where}: {type(policy).__name__}"
        if hasattr(policy, name):
            check_call(getattr(policy, name), count, f"{cls}.{name}")
        elif name == needed:
            raise HeadwayError(f"{cls} has no method {name!r}, which every {stage} policy needs.")


def check_call(method: Any, count: int, place: str) -> None:
    """Check that a method can be called with this number of arguments."""
    if not callable(method):
        raise HeadwayError(f"{place} must be a method, got {shown(method)}.")
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError as error:
        arguments = "1 argument" if count == 1 else f"{count} arguments"
        raise HeadwayError(f"{place} must accept {arguments} after self: {error}.") from None
    except ValueError:  # a callable without a signature
        return

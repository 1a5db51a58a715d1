"""A planted trouble: a healthy scenario, and the changes that cause one known problem in it."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headway.types import Json

NONE: Final = "none"
SEVERITIES: Final = ("mild", "medium", "severe")


class Trouble(Struct, frozen=True, kw_only=True):
    """A scenario with one known problem, at three severities.

    `healthy` is the scenario without the problem: at least 97 % of its requests meet their SLO. `mild`, `medium` and
    `severe` are changes to it, nested as the scenario is; a list replaces a list, and `DROP` removes a key. About 5 to
    10 % of the requests are late if the trouble is mild, 20 to 40 % if it is medium, and at least 60 % if it is severe.

    `causes` are the diagnoses that are right. Each is the kind of a finding, or a kind and what it must name:
    `bottleneck:kv` (a resource), or `tenant_burst:tenant=gold` (a blame).
    """

    name: str
    text: str  # one sentence: what is wrong
    healthy: Json
    mild: Json
    medium: Json
    severe: Json
    causes: tuple[str, ...]

    def build(self, severity: str, seed: int = 0) -> Json:
        """Return the scenario at a severity of `SEVERITIES`, or the healthy one for `NONE`."""
        changes = {} if severity == NONE else {place: getattr(self, place) for place in SEVERITIES}[severity]
        return {"name": f"{self.name}-{severity}", **changed(self.healthy, changes), "seed": seed}


class _Drop:
    """Marks a key that a change removes."""


DROP: Final[Any] = _Drop()


def changed(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> Json:
    """Return a copy of `base` with nested changes, the later ones on top."""
    result = {key: changed(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for change in changes:
        for key, value in change.items():
            if value is DROP:
                result.pop(key, None)
            elif isinstance(value, Mapping):
                inner = result.get(key)
                result[key] = changed(inner if isinstance(inner, Mapping) else {}, value)
            else:
                result[key] = value
    return result

"""What the requests of a run were promised, read back from its resolved scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headway.config.section import read
from headway.results.recorder import Targets

KINDS: Final = ("ttft", "tpot", "e2e")


class Promises(Struct, frozen=True):
    everybody: Targets  # of whoever has none of its own
    own: dict[str, Targets]  # by tenant

    @property
    def any(self) -> bool:
        return self.everybody != Targets() or bool(self.own)

    def to(self, tenant: str) -> Targets:
        return self.own.get(tenant, self.everybody)


def promises(scenario: Mapping[str, Any]) -> Promises:
    workload = scenario.get("workload") or {}
    tenants = {name: _targets(keys.get("slo")) for name, keys in (workload.get("tenants") or {}).items()}
    return Promises(
        everybody=_targets(workload.get("slo") or scenario.get("slo")),  # an only tenant's are the workload's
        own={name: targets for name, targets in tenants.items() if targets != Targets()},
    )


def _targets(slo: Mapping[str, Any] | None) -> Targets:
    return read(Targets, slo or {}, "slo")

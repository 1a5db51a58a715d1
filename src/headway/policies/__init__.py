"""The policies. Importing the package files every built-in one in the registry."""

from headway.policies import (
    adapters,
    admission,
    b3,
    basic,
    disaggregation,
    filters,
    flow,
    kv_aware,
    priority,
    routesim,
    scaling,
    scheduling,
    scorers,
    weighted,
)

__all__ = [
    "adapters",
    "admission",
    "b3",
    "basic",
    "disaggregation",
    "filters",
    "flow",
    "kv_aware",
    "priority",
    "routesim",
    "scaling",
    "scheduling",
    "scorers",
    "weighted",
]

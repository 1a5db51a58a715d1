"""The policies. Importing the package files every built-in one in the registry."""

from headway.policies import (
    admission,
    b3,
    basic,
    filters,
    flow,
    kv_aware,
    priority,
    routesim,
    scheduling,
    scorers,
    weighted,
)

__all__ = [
    "admission",
    "b3",
    "basic",
    "filters",
    "flow",
    "kv_aware",
    "priority",
    "routesim",
    "scheduling",
    "scorers",
    "weighted",
]

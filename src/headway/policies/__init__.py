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
    templates,
    trees,
    weighted,
)
from headway.policies.code import stages as code
from headway.policies.code import wasm

__all__ = [
    "adapters",
    "admission",
    "b3",
    "basic",
    "code",
    "disaggregation",
    "filters",
    "flow",
    "kv_aware",
    "priority",
    "routesim",
    "scaling",
    "scheduling",
    "scorers",
    "templates",
    "trees",
    "wasm",
    "weighted",
]

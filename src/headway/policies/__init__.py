"""The policies. Importing the package files every built-in one in the registry."""

from headway.policies import (  # noqa: F401
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
from headway.policies.code import stages, wasm  # noqa: F401

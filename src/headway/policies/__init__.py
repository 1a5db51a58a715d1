"""The built-in policies. Importing this package registers all of them."""

from headway.policies import (  # noqa: F401
    admission,
    b3,
    basic,
    deciders,
    disaggregation,
    estimators,
    filters,
    flow,
    kv_aware,
    kv_aware_spill,
    least_delay,
    priority,
    routesim,
    scaling,
    scheduling,
    scorers,
    templates,
    tree,
    weighted,
)
from headway.policies.code import stages  # noqa: F401

"""Admission: whether a request may enter at all, must wait, or is turned away. A file a family."""

from headway.policies.admission import all_of, budgets, shedding, token_bucket  # noqa: F401

"""Admission policies, which admit, reject or delay a request. Each family has its own file."""

from headway.policies.admission import all_of, budgets, shedding, token_bucket  # noqa: F401

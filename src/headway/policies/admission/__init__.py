"""Admission: whether a request may enter at all, must wait, or is turned away. A file a family."""

from headway.policies.admission import all_of, budgets, deadline, fixed, shedding, token_bucket

__all__ = ["all_of", "budgets", "deadline", "fixed", "shedding", "token_bucket"]

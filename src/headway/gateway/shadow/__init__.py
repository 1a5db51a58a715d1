"""Policies that are tried on live traffic: beside it, or on a share of it."""

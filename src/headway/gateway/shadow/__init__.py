"""Trials of policies on live traffic: shadow candidates decide on no request, a canary on a share of them."""

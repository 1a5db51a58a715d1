"""Trials of policies on live traffic. Shadow candidates decide on no request; a canary decides on a share of them."""

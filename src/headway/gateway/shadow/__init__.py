"""Trials of policies on live traffic. Shadow candidates decide on no request; a canary decides on some requests."""

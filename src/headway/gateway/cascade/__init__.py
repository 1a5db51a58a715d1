"""Cascades: the smallest model of a chain answers first, and larger ones only if it is not confident."""

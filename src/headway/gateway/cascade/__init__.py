"""Cascades: the smallest model of a chain answers first. Larger models answer only if it is not confident."""

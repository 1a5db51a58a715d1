"""Cascades: the smallest model of a chain answers first. If its answer is not confident, larger models answer."""

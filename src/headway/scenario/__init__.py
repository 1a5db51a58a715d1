"""Scenarios: the YAML files that describe a run."""

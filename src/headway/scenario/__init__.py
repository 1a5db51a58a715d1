"""Scenarios: the YAML files that describe a simulation run."""

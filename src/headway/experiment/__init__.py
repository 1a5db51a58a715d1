"""Experiments: one run, comparisons, sweeps, plans and calibrations, on processes or on Ray."""

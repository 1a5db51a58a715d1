"""Workloads: synthetic requests or the requests of a trace, planned one at a time in order of arrival."""

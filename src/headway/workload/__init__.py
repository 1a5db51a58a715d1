"""Workloads: synthetic requests or the requests of a trace, which are planned one at a time in order of arrival."""

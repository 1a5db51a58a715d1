"""Compares the simulation of a scenario with a live run of it, in which the gateway routes to emulated engines."""

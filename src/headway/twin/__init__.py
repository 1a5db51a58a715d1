"""Compares a simulated scenario with a live run of it, with emulated engines behind the gateway."""

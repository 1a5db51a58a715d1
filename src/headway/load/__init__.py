"""Drives any OpenAI endpoint with a workload and measures what its clients see.

traffic (what comes when) -> driver (the clock) -> asking (the bytes) -> line (a connection) -> book (a run's result)
                                                   conversations <- question (the answer)
"""

"""Sends a workload to any OpenAI-compatible endpoint and measures what clients see.

traffic (requests and times) -> driver (clock) -> asking (bytes) -> line (connection) -> load_book (result of the run)
                                                   conversations <- question (answer)
"""

"""Metrics, recent decisions, spans, records, and the admin API of the gateway."""

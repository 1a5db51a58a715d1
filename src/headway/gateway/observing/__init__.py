"""What is seen of the gateway: figures, decisions, spans, records, and the admin API."""

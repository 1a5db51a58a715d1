"""The engines behind the gateway: membership, health checks and polling."""

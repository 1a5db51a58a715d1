"""The engines behind the gateway: who they are, and whether they can be sent to."""

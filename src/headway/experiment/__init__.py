"""Running scenarios: one, or one under many policies."""

"""A scenario: one YAML file and what it describes."""

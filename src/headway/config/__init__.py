"""Reads settings: strict sections, YAML documents, quantities with units, and the wording of error messages."""

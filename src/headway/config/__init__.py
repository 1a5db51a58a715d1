"""Reading settings: strict sections, YAML documents, units and the wording of errors."""

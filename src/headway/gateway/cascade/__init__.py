"""A chain of models, of which the smallest answers first."""

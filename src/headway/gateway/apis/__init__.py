"""The APIs that the gateway routes: their paths, the fields of their bodies, and the form of their errors."""

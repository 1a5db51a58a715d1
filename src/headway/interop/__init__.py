"""Formats and protocols of other projects: llm-d's scheduling profiles, BLIS's workloads and traces, and Envoy's
external processing, by which an inference gateway asks for an endpoint."""

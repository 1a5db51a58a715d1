"""Prefill/decode disaggregation: one engine computes the prompt, another generates the answer."""

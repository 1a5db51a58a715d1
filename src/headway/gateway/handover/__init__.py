"""Prompts that are computed on one engine and go on to another."""

"""Conformance checks for any router in front of OpenAI-compatible engines, run with emulated engines."""

"""A run in words: outcome, issues and suggestions, for people and for language models."""

from headway.results.words.compose import STRATEGIES, Summary, compose, facts, summarize
from headway.results.words.issues import FOCUS
from headway.results.words.phrases import Fact, tokens

__all__ = ["FOCUS", "STRATEGIES", "Fact", "Summary", "compose", "facts", "summarize", "tokens"]

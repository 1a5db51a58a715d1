"""A run in words: what came of it, what went wrong and what to try, for people and for language models."""

from headway.results.words.compose import Summary, compose, facts, summarize
from headway.results.words.figures import Fact
from headway.results.words.issues import FOCUS
from headway.results.words.strategies import STRATEGIES
from headway.results.words.tokens import tokens

__all__ = ["FOCUS", "STRATEGIES", "Fact", "Summary", "compose", "facts", "summarize", "tokens"]

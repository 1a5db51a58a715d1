"""What proposes candidates and learns how they fared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.evolve.evaluation import Evaluation
from headway.policies.bundle import Bundle


class Searcher(Protocol):
    """Asked for batches of a fixed size, and told of each as a whole, in the order that it was asked in: what it does
    is then a function of its seed alone, wherever and in whatever order candidates are run."""

    def ask(self, count: int) -> list[Bundle]: ...

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None: ...

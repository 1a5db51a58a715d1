"""Python's garbage collector, for code that makes many objects and hardly any reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COLLECT_AFTER: Final = 200_000  # number of new objects between two collections


@contextmanager
def collecting_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    if 0 < before[0] < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

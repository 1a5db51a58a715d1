"""Independent runs, wherever they are done. Only plain values travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headway.policies import registry

Finished = Callable[[int, Any], None]  # the place of a job, and what came of it
Lost = Callable[[int, str], None]  # the place of a job that brought its process down every time, and a sentence on it
AHEAD: Final = 2  # jobs under way for each slot: one that runs, and one that waits for it
RETRIES: Final = 3


class Job(Struct, frozen=True):
    """A call of a module's function. One that is at home here alone cannot go to another process. `folder` is the place
    among the arguments of a folder that it writes, or beside which it writes."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    home: bool = False
    folder: int | None = None


def first_failed(failed: Mapping[int, Exception], under_way: Iterable[int]) -> Exception | None:
    """The error to raise of a batch whose jobs were begun in order: that of the first job that has one, once none
    before it is under way, so that it is the same however many run at a time."""
    if not failed or any(place < min(failed) for place in under_way):
        return None
    return failed[min(failed)]


def strange(spec: Any) -> bool:
    """Whether a policy, or a part of it, lives in the caller's program alone."""
    if isinstance(spec, dict):
        return any(strange(part) for pair in spec.items() for part in pair)
    if isinstance(spec, list | tuple):
        return any(map(strange, spec))
    if isinstance(spec, str):
        return any(registry.outside(entry.make) for entry in registry.entries(name=registry.canonical(spec)))
    return not isinstance(spec, int | float | None)

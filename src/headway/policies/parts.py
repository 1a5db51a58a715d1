"""A policy that is made of others: what they read, and what they are told, together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from headway.policies.registry import REPORTED, Entry
from headway.views.events import Event

Observe = Callable[[Event], None]


def joined(own: Entry, read: Sequence[Entry]) -> Entry:
    """The entry of the whole, which reads what these do."""
    return replace(
        own,
        exact=tuple(dict.fromkeys(signal for entry in read for signal in entry.exact)),
        reported=tuple(signal for signal in REPORTED if any(signal in entry.reported for entry in read)),
        oracle=any(entry.oracle for entry in read),
    )


def observer(parts: Iterable[Any]) -> Observe | None:
    """Tells those that listen. None where nobody does: a policy without `observe` costs no event."""
    listeners = [part.observe for part in parts if hasattr(part, "observe")]
    if len(listeners) > 1:
        return partial(tell, listeners)
    return listeners[0] if listeners else None


def tell(listeners: list[Observe], event: Event) -> None:
    for observe in listeners:
        observe(event)

"""Policies made of others: their signals, metrics and events together."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from headway.policies.registry import REPORTED, Entry, entry_of, figures
from headway.views.events import Event

Observe = Callable[[Event], None]


def combine_entries(whole: Any, parts: Iterable[Any]) -> Entry:
    """The entry of a policy that reads what its parts read."""
    entries = [entry_of(part) for part in parts]
    return replace(
        entry_of(whole),
        exact=tuple(dict.fromkeys(signal for entry in entries for signal in entry.exact)),
        reported=tuple(signal for signal in REPORTED if any(signal in entry.reported for entry in entries)),
        oracle=any(entry.oracle for entry in entries),
    )


def collect_metrics(parts: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """What those that report metrics report; each part comes with its place for errors."""
    reports = [figures(part, place) for place, part in parts if hasattr(part, "metrics")]
    return {name: value for report in reports for name, value in report.items()}


def observer(parts: Iterable[Any]) -> Observe | None:
    """One `observe` for all parts that have it; None if none has, since a policy without it costs no event."""
    listeners = [part.observe for part in parts if hasattr(part, "observe")]
    if len(listeners) > 1:
        return partial(tell, listeners)
    return listeners[0] if listeners else None


def tell(listeners: list[Observe], event: Event) -> None:
    for observe in listeners:
        observe(event)

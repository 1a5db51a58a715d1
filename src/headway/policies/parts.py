"""Helpers for policies that consist of other policies: they combine signals, metrics and observers."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from headway.policies.answers import policy_metrics
from headway.policies.registry import REPORTED, Entry, entry_of
from headway.views.events import FURTHER, Event, observed_kinds

Observe = Callable[[Event], None]


def combine_entries(whole: Any, parts: Iterable[Any]) -> Entry:
    """Return the catalogue entry of `whole`, but with the signals that the parts read in place of the signals of
    `whole`."""
    entries = [entry_of(part) for part in parts]
    return replace(
        entry_of(whole),
        exact=tuple(dict.fromkeys(signal for entry in entries for signal in entry.exact)),
        reported=tuple(signal for signal in REPORTED if any(signal in entry.reported for entry in entries)),
        oracle=any(entry.oracle for entry in entries),
    )


def collect_metrics(parts: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Merge the metrics of all parts that report metrics. `parts` has (location, part) pairs; error messages name the
    location."""
    reports = [policy_metrics(part, place) for place, part in parts if hasattr(part, "metrics")]
    return {name: value for report in reports for name, value in report.items()}


def observer(parts: Iterable[Any]) -> Observe | None:
    """Return one `observe` function for all parts. If no part observes, return None, so that no events are created."""
    observers = [(part.observe, observed_kinds(part)) for part in parts if hasattr(part, "observe")]
    if len(observers) > 1:
        return partial(notify, observers)
    return observers[0][0] if observers else None


def notify(observers: list[tuple[Observe, tuple[type, ...]]], event: Event) -> None:
    """Send an event to the parts. A part gets an event in `FURTHER` only if its `observes` lists the event's class."""
    named = isinstance(event, FURTHER)
    for observe, kinds in observers:
        if not named or type(event) in kinds:
            observe(event)


def combine_kinds(parts: Iterable[Any]) -> tuple[type, ...]:
    """Return the classes of events that any of the parts names in `observes`."""
    observing = [part for part in parts if hasattr(part, "observe")]
    return tuple(dict.fromkeys(kind for part in observing for kind in observed_kinds(part)))

"""Declarations of signals. A signal is a value of an instance that a policy may read.

The annotated fields of `InstanceView` and its properties with `@derived_signal` are the only declarations. `table`
collects them into `headway.views.instance.SIGNALS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

Freshness = Literal["static", "exact", "reported", "estimated"]
Kind = Literal["number", "count", "tokens", "blocks", "share", "rate", "power", "seconds", "name"]
UNITS: Final = {
    "number": "",
    "count": "requests",
    "tokens": "tokens",
    "blocks": "blocks",
    "share": "0 to 1",
    "rate": "1/s",
    "power": "W",
    "seconds": "s",
    "name": "",
}
Getter = TypeVar("Getter", bound=Callable[..., Any])
NOT_AVAILABLE: Final = ""  # marks a signal without a source: its value stays the default


class Signal(Struct, frozen=True):
    """The declaration of one signal."""

    freshness: Freshness
    kind: Kind
    description: str = ""  # meaning of the signal; for a derived signal, the docstring of its property
    simulated: str = NOT_AVAILABLE  # source of the value in the simulator
    live: str = NOT_AVAILABLE  # source of the value in the gateway
    unit: str = ""  # unit of the value; empty: the usual unit of the signal's kind
    # Names that a policy must declare to read the signal: the signal's own name, unless it is static or derived.
    reads: tuple[str, ...] = ()
    derived: bool = False
    # Policy language: whether the language has this field, the number of extra steps to read it, and whether a language
    # model needs the description because the name is not clear enough. The field's kind follows from its type.
    language: bool = True
    steps: int = 0
    hint: bool = False
    # Exact signals: whether routers exchange their counts, so that each router adds the counts of the others.
    shared: bool = False
    # Reported signals: whether the signal is maintained even if no policy of the run declares it.
    always: bool = False
    # Reported signals: whether the mean of the other engines replaces the value if an engine does not report it.
    mean_if_missing: bool = False
    # Whether the record of a routing decision has the signal for each candidate, if the run maintains it.
    recorded: bool = False
    # Whether the value only grows during a run: a total since its start, or an instant.
    grows: bool = False
    # Position of the signal among an engine's fields in the status document; None: it is not in the document.
    status: int | None = None
    # `table` sets the following fields.
    name: str = ""
    type: Any = None


static = partial(Signal, "static", simulated="the scenario's cluster", live="the engine's settings")
exact = partial(Signal, "exact", simulated="counted by the router", live="counted by the gateway")
reported = partial(Signal, "reported")


def derived_signal(freshness: Freshness, kind: Kind, *reads: str, **more: Any) -> Callable[[Getter], Getter]:
    """Declare a property as a signal that is computed from the signals in `reads`. Put this decorator below
    `@property`."""
    source = ", ".join(reads)
    signal = Signal(freshness, kind, simulated=source, live=source, reads=reads, derived=True, **more)

    def attach(getter: Getter) -> Getter:
        text = (inspect.getdoc(getter) or "").split("\n\n")[0].replace("\n", " ")
        setattr(getter, "signal", replace(signal, description=text))  # noqa: B010  (mypy does not know this attribute)
        return getter

    return attach


def table(view: type) -> dict[str, Signal]:
    """Return the signals of a class by name: annotated fields, then derived properties, in order of declaration."""
    signals: dict[str, Signal] = {}
    for name, hint in get_type_hints(view, include_extras=True).items():
        for signal in getattr(hint, "__metadata__", ()):
            reads = () if signal.freshness == "static" else (name,)
            signals[name] = _complete(signal, name, get_args(hint)[0], reads)
    for name, member in vars(view).items():
        signal = getattr(getattr(member, "fget", None), "signal", None)
        if signal is not None:
            signals[name] = _complete(signal, name, get_type_hints(member.fget)["return"], signal.reads)
    return signals


def readable(view: type) -> dict[str, Signal]:
    """Return all that a policy may read of a view, a request or a ticket by name: its signals, and its other public
    fields and properties, which need no declaration. A field without an annotation is not meant for policies."""
    known = table(view)
    plain = Signal("static", "number")
    found: dict[str, Signal] = {}
    for name, hint in get_type_hints(view).items():
        if not name.startswith("_") and get_origin(hint) is not ClassVar:
            found[name] = known.get(name) or replace(plain, name=name, type=hint)
    for name, member in vars(view).items():
        if isinstance(member, property) and not name.startswith("_"):
            kind = get_type_hints(member.fget)["return"]
            found[name] = known.get(name) or replace(plain, name=name, type=kind, derived=True)
    return found


def _complete(signal: Signal, name: str, type_: Any, reads: tuple[str, ...]) -> Signal:
    return replace(signal, name=name, type=type_, reads=reads, unit=signal.unit or UNITS[signal.kind])

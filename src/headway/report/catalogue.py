"""The catalogue of policies: what there is, and what each declares of itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import headway.policies  # noqa: F401  (declares the policies)
from headway import registry
from headway.registry import Entry, Parameter
from headway.report.terminal import facts, table
from headway.types import HeadwayError, Json


def find(name: str | None) -> list[Entry]:
    """All entries, or those of one name (a name may stand in more than one stage), or that of a user's own file."""
    entries = registry.entries()
    if name is None:
        return entries
    if ".py:" in name:
        return [registry.load("routing", name, "policies")]
    found = [entry for entry in entries if entry.name == registry.canonical(name)]
    if not found:
        known = dict.fromkeys(entry.name for entry in entries)
        raise HeadwayError(
            f"policies: no policy is called {name!r}.{registry.suggest(registry.canonical(name), known)}"
        )
    return found


def document(entry: Entry) -> Json:
    """An entry as plain values."""
    return {
        "stage": entry.stage,
        "name": entry.name,
        "summary": entry.summary,
        "parameters": [
            {
                "name": parameter.name,
                "type": type_name(parameter.type),
                "default": msgspec.to_builtins(parameter.default),
                "bounds": [parameter.bounds.low, parameter.bounds.high] if parameter.bounds else None,
            }
            for parameter in entry.parameters
        ],
        "signals": {"exact": list(entry.exact), "reported": list(entry.reported)},
        "oracle": entry.oracle,
    }


def type_name(kind: Any) -> str:
    if typing.get_origin(kind) is not None:
        return str(kind).replace("typing.", "")
    return getattr(kind, "__name__", str(kind))


def listing(found: Sequence[Entry]) -> RenderableType:
    """All policies, stage by stage."""
    parts: list[RenderableType] = []
    for stage in dict.fromkeys(entry.stage for entry in found):
        rows = Table(box=None, padding=(0, 1), show_header=False)
        rows.add_column(no_wrap=True, style="bold")
        rows.add_column()
        for entry in found:
            if entry.stage == stage:
                rows.add_row(Text(entry.name), Text(entry.summary))
        parts.extend((Text(stage, style="bold underline"), rows, ""))
    parts.append(Text("headway policies NAME shows a policy's parameters and the signals it reads.", style="dim"))
    return Group(*parts)


def page(entry: Entry) -> RenderableType:
    """One policy: what it does, its parameters, and how fresh the signals are that it reads."""
    doc = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(entry.make) or "").split("\n\n"))
    parts: list[RenderableType] = [Text(f"{entry.name} ({entry.stage})", style="bold"), "", Text(doc), ""]
    if entry.parameters:
        rows = table("parameter", "default", "range")
        for parameter in entry.parameters:
            rows.add_row(Text(parameter.name), Text(plain(parameter.default)), Text(limits(parameter)))
        parts.extend((rows, ""))
    parts.extend((facts(signals(entry)), ""))
    return Group(*parts)


def signals(entry: Entry) -> list[tuple[str, str]]:
    rows = [
        ("reads as exact", ", ".join(entry.exact) or "nothing"),
        ("reads as reported", ", ".join(entry.reported) or "nothing"),
    ]
    if entry.oracle:
        rows.append(("oracle", "asks for the true cache state, which no live router has"))
    return rows


def plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value == () or value == [] else str(value)


def limits(parameter: Parameter) -> str:
    return f"{parameter.bounds.low:g} to {parameter.bounds.high:g}" if parameter.bounds else ""

"""The catalogue of policies: what there is, and what each declares of itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import headway.policies  # noqa: F401  (declares the policies)
from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.registry import Entry, Parameter
from headway.report.terminal import facts, table
from headway.scenario.overrides import DEFAULT_POLICIES
from headway.types import Json

HEADINGS: Final = {
    "routing": "routing policies",
    "scorer": "scorers, for the routing policy weighted",
    "filter": "filters, for weighted",
    "picker": "pickers, for weighted",
    "decider": "deciders, for the routing policies that choose pairs",
    "admission": "admission policies",
    "priority": "priority policies",
    "flow": "flow control, the router's queue",
    "scheduler": "schedulers",
    "scaling": "autoscalers",
}
# Stages that look at instances.
READERS: Final = ("routing", "scorer", "filter", "decider", "admission", "priority", "flow", "scaling")
DEFAULTS: Final = {**DEFAULT_POLICIES, "picker": "max-score", "decider": "always"}


def find(name: str | None) -> list[Entry]:
    """All entries, or those of one name (a name may stand in more than one stage), or that of a user's own file."""
    entries = ordered(registry.entries())
    if name is None:
        return entries
    if registry.is_file(name):
        return registry.load_all(name, "policies")
    found = [entry for entry in entries if entry.name == registry.canonical(name)]
    if not found:
        known = dict.fromkeys(entry.name for entry in entries)
        raise HeadwayError(f"policies: no policy is called {name!r}.{suggest(registry.canonical(name), known)}")
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
        "kind": entry.kind,
        "oracle": entry.oracle,
        "default": is_default(entry),
    }


def type_name(kind: Any) -> str:
    if typing.get_origin(kind) is not None:
        return str(kind).replace("typing.", "")
    return getattr(kind, "__name__", str(kind))


def ordered(found: Iterable[Entry]) -> list[Entry]:
    """Stage by stage, what is most looked for first; within one in order of declaration."""
    stages = list(HEADINGS)
    return sorted(found, key=lambda entry: stages.index(entry.stage))


def is_default(entry: Entry) -> bool:
    """Whether it is what a scenario gets that names none."""
    return DEFAULTS.get(entry.stage) == entry.name


def listing(found: Sequence[Entry]) -> RenderableType:
    """All policies, stage by stage, each with its parameters and the signals it reads."""
    parts: list[RenderableType] = []
    for stage, heading in HEADINGS.items():
        rows = Table(box=None, padding=(0, 1), show_header=False)
        rows.add_column(no_wrap=True, style="bold")
        rows.add_column()
        for entry in found:
            if entry.stage != stage:
                continue
            rows.add_row(Text(entry.name), Text(f"{marks(entry)}{entry.summary}"))
            if brief := declared(entry):
                rows.add_row("", Text(brief, style="dim"))
        if rows.row_count:
            parts.extend((Text(heading, style="bold underline"), rows, ""))
    parts.append(Text("headway policies NAME tells all of one policy: its rule, its parameters with their ranges."))
    return Group(*parts)


def marks(entry: Entry) -> str:
    words = [word for word, holds in (("default", is_default(entry)), ("oracle", entry.oracle)) if holds]
    words += [] if entry.kind == "policy" else [entry.kind]
    return f"({', '.join(words)}) " if words else ""


def declared(entry: Entry) -> str:
    """Parameters with their defaults, and signals by freshness, in a line."""
    given = " ".join(f"{parameter.name}={compact(parameter.default)}" for parameter in entry.parameters)
    exact = f"exact: {', '.join(entry.exact)}" if entry.exact else ""
    reported = f"reported: {', '.join(entry.reported)}" if entry.reported else ""
    if entry.stage in READERS and not (exact or reported):
        exact = "reads the true cache state" if entry.oracle else "reads no signal"
    return " · ".join(part for part in (given, exact, reported) if part)


def compact(value: Any) -> str:
    return plain(value).replace(", ", ",").replace(": ", ":")


def page(entry: Entry) -> RenderableType:
    """One policy: what it does, its parameters, and how fresh the signals are that it reads."""
    doc = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(entry.make) or "").split("\n\n"))
    stage = f"{entry.stage}, default" if is_default(entry) else entry.stage
    parts: list[RenderableType] = [Text(f"{entry.name} ({stage})", style="bold"), "", Text(doc), ""]
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
    return f"{figure(parameter.bounds.low)} to {figure(parameter.bounds.high)}" if parameter.bounds else ""


def figure(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


# What a policy file holds, for the terminal.


def policy_file_page(found: Mapping[str, Any]) -> RenderableType:
    """Each policy of a file that is right: what it reads, its parameters, how large it is."""
    parts: list[RenderableType] = []
    if found["bundle"] is not None:
        about = found["bundle"]
        rows = [("bundle", about["name"]), ("id", about["id"]), ("generation", str(about["generation"]))]
        if about["parent"] is not None:
            rows.append(("parent", about["parent"]))
        rows.append(("complexity", str(sum(one["complexity"] for one in found["policies"]))))
        parts += [facts(rows), ""]
    for one in found["policies"]:
        parts += [Text(f"{one['stage']}: {one['name']}", style="bold"), facts(_policy_rows(one)), ""]
    return Group(*parts[:-1])


def _policy_rows(one: Json) -> list[tuple[str, str]]:
    unit = "parameters" if one["form"] == "parameters" else "nodes of syntax"
    return [
        ("parameters", ", ".join(_policy_parameter(given) for given in one["parameters"]) or "none"),
        ("reads as exact", ", ".join(one["signals"]["exact"]) or "nothing"),
        ("reads as reported", ", ".join(one["signals"]["reported"]) or "nothing"),
        ("complexity", f"{one['complexity']} {unit}"),
    ]


def _policy_parameter(given: Json) -> str:
    limits = "" if given["low"] is None else f" ({given['low']:g} to {given['high']:g})"
    return f"{given['name']} {plain(given['value'])}{limits}"

"""The catalogue of policies: what there is, and what each declares of itself."""

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
from headway.policies.registry import DEFAULT_POLICIES, Entry, Parameter
from headway.report.terminal import facts, table
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
    stages = list(HEADINGS)
    entries = sorted(registry.entries(), key=lambda entry: stages.index(entry.stage))
    if name is None:
        return entries
    if registry.is_file(name):
        return registry.load_all(name, "policies")
    matches = [entry for entry in entries if entry.name == registry.canonical(name)]
    if not matches:
        known = dict.fromkeys(entry.name for entry in entries)
        raise HeadwayError(f"policies: no policy is called {name!r}.{suggest(registry.canonical(name), known)}")
    return matches


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


def is_default(entry: Entry) -> bool:
    """Whether it is what a scenario gets that names none."""
    return DEFAULTS.get(entry.stage) == entry.name


def listing(entries: Sequence[Entry]) -> RenderableType:
    """All policies, stage by stage, each with its parameters and the signals it reads."""
    parts: list[RenderableType] = []
    for stage, heading in HEADINGS.items():
        rows = Table(box=None, padding=(0, 1), show_header=False)
        rows.add_column(no_wrap=True, style="bold")
        rows.add_column()
        for entry in entries:
            if entry.stage != stage:
                continue
            rows.add_row(Text(entry.name), Text(f"{marks(entry)}{entry.summary}"))
            if brief := describe_declaration(entry):
                rows.add_row("", Text(brief, style="dim"))
        if rows.row_count:
            parts.extend((Text(heading, style="bold underline"), rows, ""))
    parts.append(Text("headway policies NAME tells all of one policy: its rule, its parameters with their ranges."))
    return Group(*parts)


def marks(entry: Entry) -> str:
    words = [word for word, holds in (("default", is_default(entry)), ("oracle", entry.oracle)) if holds]
    words += [] if entry.kind == "policy" else [entry.kind]
    return f"({', '.join(words)}) " if words else ""


def describe_declaration(entry: Entry) -> str:
    """Parameters with their defaults, and signals by freshness, in a line."""
    defaults = " ".join(
        f"{parameter.name}={plain(parameter.default).replace(', ', ',').replace(': ', ':')}"
        for parameter in entry.parameters
    )
    exact = f"exact: {', '.join(entry.exact)}" if entry.exact else ""
    reported = f"reported: {', '.join(entry.reported)}" if entry.reported else ""
    if entry.stage in READERS and not (exact or reported):
        exact = "reads the true cache state" if entry.oracle else "reads no signal"
    return " · ".join(part for part in (defaults, exact, reported) if part)


def page(entry: Entry) -> RenderableType:
    """One policy: what it does, its parameters, and how fresh the signals are that it reads."""
    doc = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(entry.make) or "").split("\n\n"))
    stage = f"{entry.stage}, default" if is_default(entry) else entry.stage
    parts: list[RenderableType] = [Text(f"{entry.name} ({stage})", style="bold"), "", Text(doc), ""]
    if entry.parameters:
        rows = [[each.name, plain(each.default), limits(each)] for each in entry.parameters]
        parts.extend((table("parameter", "default", "range", rows=rows), ""))
    reads = signals(entry.exact, entry.reported)
    if entry.oracle:
        reads.append(("oracle", "asks for the true cache state, which no live router has"))
    return Group(*parts, facts(reads), "")


def signals(exact: Iterable[str], reported: Iterable[str]) -> list[tuple[str, str]]:
    return [
        ("reads as exact", ", ".join(exact) or "nothing"),
        ("reads as reported", ", ".join(reported) or "nothing"),
    ]


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


def policy_file_page(document: Mapping[str, Any]) -> RenderableType:
    """Each policy of a valid file: what it reads, its parameters, how large it is."""
    parts: list[RenderableType] = []
    if document["bundle"] is not None:
        about = document["bundle"]
        rows = [("bundle", about["name"]), ("id", about["id"]), ("generation", str(about["generation"]))]
        if about["parent"] is not None:
            rows.append(("parent", about["parent"]))
        rows.append(("complexity", str(sum(policy["complexity"] for policy in document["policies"]))))
        parts += [facts(rows), ""]
    for policy in document["policies"]:
        parts += [Text(f"{policy['stage']}: {policy['name']}", style="bold"), facts(_policy_rows(policy)), ""]
    return Group(*parts[:-1])


def _policy_rows(policy: Json) -> list[tuple[str, str]]:
    unit = "parameters" if policy["form"] == "parameters" else "nodes of syntax"
    return [
        ("parameters", ", ".join(map(_policy_parameter, policy["parameters"])) or "none"),
        *signals(policy["signals"]["exact"], policy["signals"]["reported"]),
        ("complexity", f"{policy['complexity']} {unit}"),
    ]


def _policy_parameter(parameter: Json) -> str:
    bounds = "" if parameter["low"] is None else f" ({parameter['low']:g} to {parameter['high']:g})"
    return f"{parameter['name']} {plain(parameter['value'])}{bounds}"

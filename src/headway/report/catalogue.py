"""The catalogue of policies for the terminal: a table of all policies, and a page for each."""

import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import headway.policies  # noqa: F401  (declares the policies)
from headway.config.dated_defaults import CURRENT
from headway.config.wording import suggest
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES, Entry, Parameter, gateway_policies
from headway.report.terminal import facts, table
from headway.types import Json

HEADINGS: Final = {
    "routing": "choose an instance for a request",
    "scorer": "rate instances, for the routing policy weighted",
    "filter": "exclude instances, for weighted",
    "picker": "choose by score, for weighted",
    "decider": "split prefill from decode or not, on disaggregated clusters",
    "admission": "admit, delay or reject a request",
    "priority": "rank requests",
    "flow": "hold requests in the router's queue",
    "estimator": "expect how many tokens a request will generate",
    "scheduler": "order and batch requests within an engine",
    "scaling": "add and remove instances",
}
DEFAULT, GATEWAY_DEFAULT = "default", "default of gateways"
DEFAULTS: Final = {**DEFAULT_POLICIES, "picker": "max-score"}


def find(name: str | None) -> list[Entry]:
    """Return the entries with this name, which may be several because stages may share a name. If `name` is the path of
    a user's file, return the entries of the file. If `name` is None, return all entries."""
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
    """Return an entry as plain values."""
    return {
        "stage": entry.stage,
        "name": entry.name,
        "summary": entry.summary,
        "parameters": [
            {
                "name": parameter.name,
                "type": type_name(parameter.type),
                "default": registry.written_value(parameter.default),
                "bounds": [parameter.bounds.low, parameter.bounds.high] if parameter.bounds else None,
            }
            for parameter in entry.parameters
        ],
        "signals": {"exact": list(entry.exact), "reported": list(entry.reported)},
        "kind": entry.kind,
        "oracle": entry.oracle,
        "default": is_default(entry),
        "gateway_default": is_gateway_default(entry),
    }


def type_name(kind: Any) -> str:
    if typing.get_origin(kind) is not None:
        return str(kind).replace("typing.", "")
    return getattr(kind, "__name__", str(kind))


def is_default(entry: Entry) -> bool:
    """Return whether a scenario uses this policy if it names no policy for the stage."""
    return DEFAULTS.get(entry.stage) == entry.name


def is_gateway_default(entry: Entry) -> bool:
    """Return whether a gateway uses this policy by default, and a scenario does not."""
    name, _ = registry.split(gateway_policies(CURRENT).get(entry.stage, ""), "")
    return name == entry.name and not is_default(entry)


def listing(entries: Sequence[Entry]) -> RenderableType:
    """Return a table of the policies by stage, one line each, cut at the terminal's width."""
    rows = Table(box=None, padding=(0, 1), show_header=False, expand=True)
    rows.add_column(no_wrap=True, min_width=max(len(entry.name) for entry in entries) + 2)
    rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for stage, heading in HEADINGS.items():
        policies = [entry for entry in entries if entry.stage == stage]
        if policies:
            rows.add_row(Text(stage, style="bold underline"), Text(heading, style="dim"))
        for entry in policies:
            rows.add_row(Text(f"  {entry.name}", style="bold"), Text(f"{marks(entry)}{entry.summary}"))
    return Group(rows, "", Text("headway policies NAME shows a policy's rule, parameters with ranges, and signals."))


def marks(entry: Entry) -> str:
    words = [DEFAULT] * is_default(entry) + [GATEWAY_DEFAULT] * is_gateway_default(entry) + ["oracle"] * entry.oracle
    words += [] if entry.kind == "policy" else [entry.kind]
    return f"({', '.join(words)}) " if words else ""


def page(entry: Entry) -> RenderableType:
    """Return the page of one policy: its rule, its parameters and the signals it reads."""
    doc = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(entry.make) or "").split("\n\n"))
    mark = f", {DEFAULT}" * is_default(entry) + f", {GATEWAY_DEFAULT}" * is_gateway_default(entry)
    parts: list[RenderableType] = [Text(f"{entry.name} ({entry.stage}{mark})", style="bold"), "", Text(doc), ""]
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


def policy_file_page(document: Mapping[str, Any]) -> RenderableType:
    """Return a page on each policy of a valid file: the signals it reads, its parameters, and its complexity."""
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

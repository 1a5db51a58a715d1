"""What a policy file holds, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.report.catalogue import plain
from headway.report.terminal import facts
from headway.types import Json


def page(found: Mapping[str, Any]) -> RenderableType:
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
        parts += [Text(f"{one['stage']}: {one['name']}", style="bold"), facts(_rows(one)), ""]
    return Group(*parts[:-1])


def _rows(one: Json) -> list[tuple[str, str]]:
    unit = "parameters" if one["form"] == "parameters" else "nodes of syntax"
    return [
        ("parameters", ", ".join(_parameter(given) for given in one["parameters"]) or "none"),
        ("reads as exact", ", ".join(one["signals"]["exact"]) or "nothing"),
        ("reads as reported", ", ".join(one["signals"]["reported"]) or "nothing"),
        ("complexity", f"{one['complexity']} {unit}"),
    ]


def _parameter(given: Json) -> str:
    limits = "" if given["low"] is None else f" ({given['low']:g} to {given['high']:g})"
    return f"{given['name']} {plain(given['value'])}{limits}"

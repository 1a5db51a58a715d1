"""Hardware profiles in the terminal: all of them in a table, or one with its constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.report.terminal import GAP, facts, number, table

SPEC_SHEET = "spec sheet"
NOT_MEASURED = "Of a spec sheet: the card's peaks at the efficiencies of a measured one; results say so."

Found = Mapping[str, Any]


def listing(found: Found) -> RenderableType:
    """One row a profile, the measured ones first."""
    rows = sorted(found["profiles"], key=lambda one: not one["calibrated"])
    made = table("profile", "constants", "as of", "tokens\na step", "context", "memory\nGB", "TB/s", "TFLOP/s")
    made.columns[1].justify = "left"
    for one in rows:
        reach = one["range"] or {"tokens": [None, None], "context": [None, None]}
        card = one["card"]
        made.add_row(
            Text(one["name"]),
            "measured" if one["calibrated"] else SPEC_SHEET,
            one["as_of"],
            number(reach["tokens"][1], 0),
            number(reach["context"][1], 0),
            number(card["memory_gb"], 0),
            number(card["bandwidth_tb_s"], 2),
            number(card["tflops"], 0),
        )
    errors: list[RenderableType] = []
    for one in (row for row in rows if row["calibrated"]):
        errors += ["", Text(one["name"], style="bold"), facts([("source", one["source"]), *_errors(one)])]
    return Group(made, "", Text(NOT_MEASURED), *errors)


def page(found: Found) -> RenderableType:
    """One profile: where it is from, how far it holds, its constants, and steps as examples."""
    kind = "measured" if found["calibrated"] else f"{SPEC_SHEET}, not calibrated"
    rows = [("source", found["source"]), ("as of", found["as_of"]), ("measured", found["measured"]), *_errors(found)]
    if found["range"] is not None:
        tokens, context = (found["range"][key] for key in ("tokens", "context"))
        rows.append(("range", f"{_span(tokens)} tokens a step, {_span(context)} of context"))
    if found["shapes"]:
        rows.append(("models", ", ".join(found["shapes"])))
    if found["card"] is not None:
        card = found["card"]
        figures = f"{card['memory_gb']:g} GB, {card['bandwidth_tb_s']:g} TB/s, {card['tflops']:g} TFLOP/s in BF16"
        rows.append(("card", figures))
    rows.append(("host", f"{found['host_ms']:g} ms a step, beside the GPU's time"))
    constants = table("constant", "value", "unit", "of")
    for column in constants.columns[2:]:
        column.justify = "left"
    constants.columns[3].no_wrap = False
    for name, one in found["constants"].items():
        constants.add_row(name, f"{one['value']:.5g}", one["unit"], Text(one["of"]))
    parts: list[RenderableType] = [Text(f"{found['name']}: {kind}", style="bold"), facts(rows), "", constants, ""]
    return Group(*parts, *_examples(found["examples"]))


def _errors(found: Found) -> list[tuple[str, str]]:
    return [("error", f"{what}: {value}") for what, value in found["error"].items()]


def _span(bounds: list[int]) -> str:
    return f"{bounds[0]:,} to {bounds[1]:,}"


def _examples(found: Found) -> list[RenderableType]:
    split = f" on {found['tp']} GPUs" if found["tp"] > 1 else ""
    parts: list[RenderableType] = [Text(f"Steps of {found['model']}{split}, without the host", style="bold")]
    made: Table = table("decodes", "context", "chunk", "past", "ms")
    made.columns[0].justify = "right"
    for step in found["steps"]:
        new, past = step["chunks"][0] if step["chunks"] else (None, None)
        context = step["context"] or None
        cells = [number(value, 0) for value in (step["decodes"] or None, context, new, past)]
        made.add_row(*cells, f"{step['gpu_ms']:.3f}" if step["gpu_ms"] else GAP)
    parts.append(made)
    if found["note"]:
        parts.append(Text(found["note"]))
    return parts

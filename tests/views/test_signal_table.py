"""The table of signals: what is declared of each is all there is to change, and the docs say the same."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pytest

import headway
from headway import InstanceView
from headway.policies import registry
from headway.policies.code import language as lang
from headway.views.cluster import EXPECTED
from headway.views.instance import SIGNALS
from headway.views.pool import PoolView
from headway.views.signals import Signal, derived_signal, exact, reported, static

SOURCE = Path(headway.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "write-a-policy.md"
MOST = 3  # names of signals in one list outside views/


def row(signal: Signal) -> str:
    """As the docs have it."""
    cells = (f"`{signal.name}`", signal.freshness, signal.unit, signal.description, signal.simulated, signal.live)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=lambda one: one.name)
def test_a_view_shows_the_signal_and_the_docs_have_its_row(signal: Signal) -> None:
    fields = InstanceView.__slots__ if not signal.derived else vars(InstanceView)
    assert signal.name in fields
    assert row(signal) in PAGE.read_text(encoding="utf-8").splitlines()
    assert signal.description[-1] == "." and signal.simulated


def test_every_public_field_and_property_is_a_signal() -> None:
    properties = {name for name, member in vars(InstanceView).items() if isinstance(member, property)}
    fields = {name for name in InstanceView.__slots__ if not name.startswith("_")}
    assert fields | properties == set(SIGNALS)


def test_the_docs_have_no_row_of_a_signal_that_is_not_there() -> None:
    rows = {row(signal) for signal in SIGNALS.values()}
    words = {f"| {freshness} |" for freshness in ("static", "exact", "reported", "estimated")}
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if any(word in line for word in words)]
    assert set(lines) == rows


def test_what_a_derived_signal_reads_can_be_declared() -> None:
    for signal in SIGNALS.values():
        assert all(name in SIGNALS or name == "recent" for name in signal.reads)
        assert bool(signal.reads) == (signal.freshness != "static")


def test_positions_in_the_status_document_are_whole_and_unique() -> None:
    positions = [one.status for one in SIGNALS.values() if one.status is not None]
    assert sorted(positions) == list(range(len(positions)))


def test_a_new_signal_of_any_plain_type_is_at_once_a_field_of_the_language() -> None:
    class View:
        load: Annotated[int, exact("count", "Its load.")]
        heat: Annotated[Mapping[str, float], reported("share", "Its heat.")]
        names: Annotated[tuple[str, ...], static("name", "Its names.")]
        secret: Annotated[int, exact("count", "Not for programs.", language=False)]
        start_ps: int

        @property
        @derived_signal("reported", "share", "busy", steps=2)
        def ease(self) -> float | None:
            """Its ease."""

    assert lang._fields(View) == {
        "load": lang.Field(lang.INT, exact=("load",)),
        "heat": lang.Field(lang.TABLE, exact=("heat",)),  # no signal of instances, so that it is the router's own
        "names": lang.Field(lang.TUPLE, held=lang.STR),
        "ease": lang.Field(lang.FLOAT | lang.NONE, reported=("busy",), steps=2),
    }


def test_the_language_has_every_signal_but_names_and_picoseconds() -> None:
    assert set(SIGNALS) - set(lang.FIELDS[lang.INSTANCE]) == {"id", "observed_at"}


def test_built_in_policies_declare_signals_of_the_table() -> None:
    pool = PoolView("p", "m", "both", 1, 2, [], block_tokens=16)
    others = {"all", "tenants", "totals", "recent", "windows", "prefix_index", EXPECTED, *dir(pool)}
    for entry in registry.entries():
        assert set(entry.reported) <= set(registry.REPORTED)
        assert set(entry.exact) <= set(SIGNALS) | others, entry.name


def lists(tree: ast.Module) -> list[set[str]]:
    """The texts that stand together in one tuple, list or set, or as the keys of one dict; slots are not meant."""
    slots = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_slots(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in slots:
            continue
        parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else getattr(node, "keys", [])
        found.append({one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)})
    return found


def _is_slots(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets)


@pytest.mark.full
def test_no_other_file_lists_signals() -> None:
    measured = {name for name, signal in SIGNALS.items() if signal.freshness != "static"}
    wrong = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] in ("views", "presets"):
            continue
        for texts in lists(ast.parse(path.read_text(encoding="utf-8"))):
            if len(texts & measured) > MOST:
                wrong[str(place)] = sorted(texts & measured)
    assert wrong == {}

"""docs/metrics.md names every column of the requests and every figure of a summary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.results.figure_table import FIGURES
from headway.results.statistics import NAMES
from headway.results.table import COLUMNS

CELL = re.compile(r"(?<!\\)\|")


@pytest.fixture(scope="module")
def documented() -> set[str]:
    """The names in the first two cells of all table rows. A name such as `.rejected` after `requests.completed` is one
    of the same group."""
    found = set()
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            continue
        group = ""
        for name in re.findall(r"`([^`]+)`", "|".join(CELL.split(line)[1:3])):
            found.add(group + name if name.startswith(".") else name)
            group = name.rpartition(".")[0] if not name.startswith(".") else group
    return found


def has_row(path: str, documented: set[str]) -> bool:
    """Whether a row names this path or, in the section of its group, an end of it. Statistics have a section of their
    own, and the table of tiers is that of the tier cpu."""
    parts = re.sub(r"^tiers\.[^.]+", "tiers.cpu", path).split(".")
    if parts[-1] in NAMES:
        parts.pop()
    return any(".".join(parts[at:]) in documented for at in range(len(parts)))


def leaves(value: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, each in value.items():
        inner = each[0] if isinstance(each, list) and each else each
        yield from leaves(inner, f"{path}{key}.") if isinstance(inner, dict) and inner else [f"{path}{key}"]


def test_every_column_of_the_requests_has_a_row(documented: set[str]) -> None:
    assert not [name for name in COLUMNS if name not in documented]


def test_every_figure_has_a_row(documented: set[str]) -> None:
    assert not [path for path in FIGURES if not has_row(path, documented)]


@pytest.mark.parametrize("example", ["07_tenants", "12_tiers", "13_disaggregated", "15_autoscaling"])
def test_every_entry_of_a_summary_has_a_row(example: str, documented: set[str]) -> None:
    summary = headway.simulate(str(ROOT / "examples" / f"{example}.yaml"), overrides="workload.requests=20").summary()
    summary.pop("policy_metrics", None)  # a policy's own
    assert not [path for path in leaves(summary) if not has_row(path, documented)]

"""Runs to report, and a reader of what the page says."""

from __future__ import annotations

import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from conftest import ROOT
from headway import simulate
from headway.results.records import Counterfactual, Finding
from headway.results.result import Result
from headway.types import PS_PER_SECOND

HOSTILE = "<script>alert(1)</script>\"'&$title</style>"
VOID = {"meta", "br", "line", "rect", "link", "img", "input", "wbr"}
POLICIES = ("round-robin", "lmetric", "weighted")
SCENARIO: dict[str, Any] = {
    "name": "tenants",
    "seed": 3,
    "workload": {
        "requests": 300,
        "rate": "14/s",
        "prompt_tokens": {"dist": "uniform", "min": 1100, "max": 2000},
        "output_tokens": {"dist": "uniform", "min": 20, "max": 120},
        "prefix": {"groups": 12, "tokens": 1024},
        "tenants": {"shop": {"weight": 6, "priority": "realtime"}, "crawler": {"weight": 4, "priority": "batch"}},
    },
    "cluster": {"instances": 3, "latency": {"model": "fixed"}, "kv": {"gpu_blocks": 3000}},
    "slo": {"ttft": "400ms", "tpot": "25ms"},
}


@cache
def compared() -> tuple[Result, ...]:
    """One scenario under three policies, decisions written down."""
    return tuple(simulate(SCENARIO, routing=policy, trace="decisions") for policy in POLICIES)


def example(requests: int = 60, **given: Any) -> Result:
    return simulate(ROOT / "examples" / "01_first_run.yaml", overrides=[f"workload.requests={requests}"], **given)


def finding(title: str = "12 requests waited long.", **more: Any) -> Finding:
    second = PS_PER_SECOND
    evidence = {"requests": 12, "share": 0.04}
    return Finding("starvation", second, 3 * second, 0.7, 12, title, [1, 2], [0], evidence, **more)


def counterfactual(result: Result, place: int, sooner_ps: int) -> Counterfactual:
    """What another target would have given to a decision's request: its first token so much sooner."""
    assert result.decisions is not None
    each = result.decisions[place]
    ttft = 2000 * PS_PER_SECOND
    other = next(index for index in each.candidates if index != each.target)
    figures = ("slo.goodput_ratio", 0.5, 0.6)
    return Counterfactual(each.request, each.at_ps, each.target, other, ttft, ttft - sooner_ps, 9, 9, *figures)


class Read(HTMLParser):
    """The elements, the visible text and the scripts of a page; that each element which opens closes in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.data: list[str] = []
        self.cells: list[list[str]] = []  # of all tables, row by row
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            (self.data if dict(attrs).get("type") else self.scripts).append("")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            (self.data if self.seen[-1][1].get("type") else self.scripts)[-1] += data
        elif "style" not in self.open:
            self.text += data
            if {"td", "th"} & set(self.open):
                self.cells[-1][-1] += data

    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.data]

    def row(self, label: str, columns: int) -> list[str]:
        """The first row of so many cells whose first begins so."""
        return next(row for row in self.cells if len(row) == columns and row[0].startswith(label))


def read(path: Path) -> Read:
    return Read(path.read_text(encoding="utf-8"))

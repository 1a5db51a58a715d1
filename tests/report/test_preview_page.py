"""The preview as people see it: in the terminal, and as a page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path as FilePath
from typing import Any

import pytest
from rich.console import Console

from conftest import Run
from headway.report.workload_tables import preview_page as page
from headway.report.workload_tables import preview_report as report
from headway.types import PS_PER_SECOND, Path, Request
from headway.workload.preview import look
from headway.workload.traffic import OpenLoop, Planned

HOSTILE = '<script src="https://evil.example/x.js">alert(1)</script>"\'&$title'
CHART = re.compile(r'<script type="application/json" data-chart="([^"]*)">(.*?)</script>')
VOID = {"meta", "br", "line", "rect", "link", "img", "input"}
LOADS = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "formaction"}


class Read(HTMLParser):
    """Which elements and texts there are, and whether each that opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Read:
    reader = Read()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def found(tenants: list[str], **more: Any) -> dict[str, Any]:
    rows = []
    for number in range(200):
        request = Request(
            number,
            number * PS_PER_SECOND // 4,
            64 + number,
            Path((number,), (64 + number,)),
            tenant=tenants[number % len(tenants)],
            session=f"s{number % 20}",
            kind=("chat", "agentic")[number % 2],
        )
        rows.append(Planned(request, 1 + number % 50, 1000 + number))
    return {"scenario": "made", "expected_requests": 1000, **look(OpenLoop(rows), 150), **more}


def terminal(document: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, file=StringIO())
    console.print(report(document))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_page_loads_nothing_from_anywhere(count: int) -> None:
    text = page(found([f"tenant-{number}" for number in range(count)]))
    reader = read(text)
    tags = {tag for tag, _ in reader.seen}
    assert not tags & {"link", "iframe", "object", "embed", "img", "base"}
    for _, attributes in reader.seen:
        assert not LOADS & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_names_from_outside_are_escaped_everywhere() -> None:
    document = found([HOSTILE, f"{HOSTILE}2", "plain"], scenario=HOSTILE)
    reader = read(page(document))
    plain = read(page(found(["plain"])))
    assert sum(tag == "script" for tag, _ in reader.seen) == sum(tag == "script" for tag, _ in plain.seen)
    assert HOSTILE in reader.text


def test_the_page_shows_what_the_figures_say() -> None:
    document = found([f"tenant-{number}" for number in range(12)])
    reader = read(page(document))
    for words in ("the first 150 of 1,000 requests", "Prompt tokens", "By tenant", "By kind", "Sessions", "6 more"):
        assert words in reader.text
    charts = {name: json.loads(data) for name, data in CHART.findall(page(document))}
    assert list(charts) == ["rates", "prompt_tokens", "output_tokens"]
    assert all(chart["description"] for chart in charts.values())
    for key in ("prompt_tokens", "output_tokens"):
        assert [bar["value"] for bar in charts[key]["data"]["values"]] == [
            count for _, count in document[key]["histogram"]
        ]


def test_the_terminal_shows_it_in_eighty_columns() -> None:
    text = terminal(found([f"tenant-{number}" for number in range(3)]))
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "the first 150 of 1,000 requests",
        "rate over time",
        "tenant-2",
        "agentic",
        "sessions",
        "ideal reuse",
    ):
        assert words in text


def test_a_workload_that_waits_says_how_its_times_are_meant() -> None:
    document = found(["a"], waits=True)
    for text in (terminal(document), read(page(document)).text):
        assert "as if the answer came at once" in " ".join(text.split())


def test_no_requests_make_a_page_all_the_same() -> None:
    nothing = {"scenario": "made", "requests": 0, "complete": True, "waits": False, "expected_requests": 0}
    assert "no requests" in read(page(nothing)).text
    assert "no requests" in terminal(nothing)


def test_requests_at_one_instant_have_no_rate_to_draw() -> None:
    rows = [Planned(Request(number, 0, 5, Path((number,), (5,))), 1, 100 + number) for number in range(3)]
    document = {"scenario": "made", "expected_requests": 3, **look(OpenLoop(rows), 10)}
    assert [name for name, _ in CHART.findall(page(document))] == ["prompt_tokens", "output_tokens"]
    assert "all 3 requests" in terminal(document)


SCENARIO = """
workload: {requests: 40, rate: 10/s, prompt_tokens: 64, output_tokens: 8}
cluster: {instances: 2, latency: {model: fixed}}
"""


def test_the_verb_prints_and_writes(headway: Run, tmp_path: FilePath) -> None:
    file, target = tmp_path / "small.yaml", tmp_path / "page.html"
    file.write_text(SCENARIO)
    completed = headway("workload", "preview", str(file), "--html", str(target))
    assert completed.returncode == 0, completed.stderr
    assert "small: all 40 requests" in completed.stdout
    assert "all 40 requests" in read(target.read_text(encoding="utf-8")).text
    completed = headway("workload", "preview", str(file), "--requests", "10", "--json", "--set", "workload.rate=20/s")
    document = json.loads(completed.stdout)
    assert document["scenario"] == "small" and document["requests"] == 10 and document["expected_requests"] == 40


def test_wrong_wishes_are_told_in_a_sentence(headway: Run, tmp_path: FilePath) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    for arguments, words in (
        (("--requests", "0"), "--requests: must be at least 1, got 0."),
        (("--html", str(tmp_path / "no" / "page.html")), "cannot be written"),
        (("--html", str(tmp_path)), "cannot be written"),
    ):
        completed = headway("workload", "preview", str(file), *arguments)
        assert completed.returncode == 2
        assert words in completed.stderr and len(completed.stderr.strip().splitlines()) == 1

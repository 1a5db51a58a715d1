"""Each setting is declared once: the pages have the tables of the declarations, and the schema knows the keys."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from conftest import ROOT
from headway.config.keys import Bytes, Doc, Duration, PositiveDuration, PositiveSeconds, keys_of, write
from headway.config.schema import json_schema
from headway.config.section import read
from headway.config.tables import BLOCK, fill_tables, find_section, key_table
from headway.errors import HeadwayError
from headway.scenario.scenario import Scenario

PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if BLOCK.search(page.read_text(encoding="utf-8"))]
SECTIONS = sorted({match[2] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_declarations(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill_tables(text) == text, "run python -m headway.config.tables docs/*.md"


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_says_what_it_means(name: str) -> None:
    for key in keys_of(find_section(name)).values():
        assert key.doc.meaning, key.name
        assert "|" not in f"{key.doc.meaning}{key.doc.default}{key.doc.type}", key.name


class Inner(Struct, frozen=True):
    wait_ps: Annotated[Duration, "how long"] = 0

    def validate(self, where: str) -> Inner:
        if self.wait_ps == 7:
            raise HeadwayError(f"{where}: seven is none.")
        return self


class Outer(Struct, frozen=True):
    size: Annotated[Bytes, "how large"]
    kind: Annotated[Literal["a", "b", "c"], "which"] = "a"
    share: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, Doc("of what", default="all")] = None
    gap_ps: Annotated[PositiveDuration | None, "between"] = 1_500_000_000
    timeout_s: Annotated[PositiveSeconds, "until"] = 0.25
    inner: Annotated[Inner, "below"] = Inner()
    whatever: Annotated[Any, Doc("any", type="name or list")] = None

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"size": data} if isinstance(data, str) else data


def test_a_section_is_read_by_its_declarations() -> None:
    assert read(Outer, "2KiB", "x") == Outer(2048)
    given = {"size": "1MB", "gap": None, "timeout": "2s", "inner": {"wait": "3ns"}, "whatever": [1]}
    assert read(Outer, given, "x") == Outer(10**6, gap_ps=None, timeout_s=2.0, inner=Inner(3000), whatever=[1])
    assert read(Outer, {"size": "1B", "inner": None}, "x").inner == Inner()
    assert read(Outer, {"size": "1B"}, "x", only=("size",)) == Outer(1)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "x: 'size' is missing."),
        ({"size": 3}, "x.size: 3 is not a size; write it with its unit, as in 80GB or 16GiB."),
        ({"size": "3B", "gap": "0s"}, "x.gap: must be greater than zero, got '0s'."),
        ({"size": "3B", "timeout": None}, "x.timeout: None is not a duration;"),
        ({"size": "3B", "share": 2}, "x.share: expected a number above 0 and of at most 1, got 2."),
        ({"size": "3B", "inner": {"wiat": 1}}, "x.inner.wiat: there is no such key. Did you mean 'wait'?"),
        ({"size": "3B", "inner": {"wait": "7ps"}}, "x.inner: seven is none."),
        ({"size": "3B", "inner": 5}, "x.inner: expected a mapping, got 5."),
        ({"size": "3B", "gap_ps": 5}, "x.gap_ps: there is no such key. Did you mean 'gap'?"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(data: Any, sentence: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        read(Outer, data, "x")
    assert str(caught.value).startswith(sentence)


def test_a_section_is_written_as_it_is_read() -> None:
    section = Outer(2048, share=0.5, inner=Inner(5))
    assert write(section, without=("whatever",)) == {
        "size": "2KiB",
        "kind": "a",
        "share": 0.5,
        "gap": "1500us",
        "timeout": "250ms",
        "inner": {"wait": "5ps"},
    }
    assert read(Outer, write(section), "x") == section


def test_a_table_has_a_row_for_each_key() -> None:
    assert key_table(Outer).splitlines()[2:] == [
        "| `size` | size | required | how large |",
        "| `kind` | a, b or c | a | which |",
        "| `share` | number, above 0, at most 1 | all | of what |",
        "| `gap` | duration above 0 | 1500us | between |",
        "| `timeout` | duration above 0 | 250ms | until |",
        "| `inner` | mapping | all defaults | below |",
        "| `whatever` | name or list | none | any |",
    ]


def test_a_schema_is_as_strict_as_the_reading() -> None:
    schema = json_schema(Outer)
    assert schema["required"] == ["size"] and schema["additionalProperties"] is False
    [inner] = schema["definitions"].values()
    assert inner["properties"]["wait"]["default"] == "0s" and inner["additionalProperties"] is False
    assert json_schema(Scenario)["properties"].keys() == keys_of(Scenario).keys()


def test_a_factor_is_written_as_a_number() -> None:
    warmup = Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "scaling": {"warmup": {"duration": "1s"}}})
    assert warmup.scaling is not None and warmup.scaling.warmup is not None
    assert warmup.scaling.warmup.penalty == Fraction(3, 2)
    assert warmup.resolved()["scaling"]["warmup"]["penalty"] == 1.5

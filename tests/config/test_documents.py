"""YAML documents mean the same whichever parser reads them."""

from __future__ import annotations

import pytest
import yaml

from conftest import ROOT
from headway.config import documents
from headway.errors import HeadwayError

FOLDERS = ("examples", *(f"src/headway/presets/{folder}" for folder in ("scenarios", "suites", "workloads")))
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.yaml"))


def test_both_parsers_read_every_file_alike() -> None:
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    fast = [text for text in texts if not documents.DISPUTED.search(text)]
    assert len(fast) > len(texts) / 2
    for text in fast:
        assert yaml.load(text, documents._FastLoader) == yaml.load(text, documents._StrictLoader)


@pytest.mark.parametrize("text", ["a: 1\t", "a: {b?: 1}", "a: !", "a: |#", "ä: 1"])
def test_what_the_parsers_dispute_is_read_by_the_slower_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_FastLoader", None)
    try:
        documents.parse_yaml(text, "f")
    except HeadwayError as error:
        assert str(error).startswith("f: ")


@pytest.mark.parametrize("deep", ["[" * 2000, "- " * 2000 + "a", "{a: " * 2000])
def test_a_document_that_may_be_nested_deeply_never_reaches_libyaml(deep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(yaml, "load", lambda text, loader: read.append(loader))
    documents.parse_yaml(deep, "f")
    assert read == [documents._StrictLoader]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a:\n  b: 1\n   c: 2\n", r"line 3: .* Indent this line like its neighbours"),
        ("a:\n  b: 1\n c: 2\n", r"line 3: .* Indent this line like its neighbours"),
        ("a: b: c\n", r"line 1: .* put text with a colon into quotes\.$"),
        ("a:\n\tb: 1\n", r"line 2: .* Indent with spaces, not with tabs\.$"),
    ],
)
def test_usual_mistakes_of_indentation_have_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(HeadwayError, match=remedy):
        documents.parse_yaml(text, "f")


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "a: {b: 1, b: 2}\n"])
def test_a_key_that_is_written_twice_is_rejected_by_both(text: str) -> None:
    for loader in (documents._FastLoader, documents._StrictLoader):
        with pytest.raises(HeadwayError, match="is written twice"):
            yaml.load(text, loader)

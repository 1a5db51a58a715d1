"""The documentation site: every page is in the navigation, and the built site is whole and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from conftest import ROOT, SOURCE

DOCS = ROOT / "docs"
PAGES = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
SECTIONS = ["Start", "Simulate", "Evolve", "Serve", "Questions", "Reference"]
NAMES = ("scenario-keys", "gateway-keys", "commands", "api", "metrics", "findings", "policies", "signals")
GENERATED = {f"reference/{name}.md" for name in NAMES}
CLICKS = 3


def navigation() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]  # type: ignore[no-any-return]


def paths(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for child in entry.values() if isinstance(entry, dict) else entry:
        yield from paths(child)


def test_the_navigation_has_every_page_once() -> None:
    listed = list(paths(navigation()))
    assert sorted(listed) == sorted(PAGES | GENERATED)
    assert [name for section in navigation() for name in section] == SECTIONS


def test_the_first_page_links_to_every_page() -> None:
    links = set(re.findall(r"\]\(([^)#\s]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert links == PAGES - {"index.md"}


def test_every_extra_is_on_the_page_that_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "start" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `pip install 'headway\[(\w+)\]'`", page, re.MULTILINE)
    assert sorted(rows) == sorted(project["optional-dependencies"].keys() - {"dev"})


class Links(HTMLParser):
    """Where a page leads to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and (target := values.get("href")):
            self.targets.append(target)
        attribute = "href" if tag == "link" else "src"
        if tag in ("link", "script", "img", "iframe") and (source := values.get(attribute)):
            self.loaded.append(source)


def follow(page: Path, link: str) -> Path | None:
    """The file of the site that a link leads to, or None if it leads elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    return (page.parent / unquote(parts.path)).resolve()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra `docs` is not installed: pip install 'headway[docs]'")
    folder = (tmp_path_factory.mktemp("docs") / "site").resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.full
def test_every_page_of_the_site_is_at_most_three_clicks_away(site: Path) -> None:
    seen = {site / "index.html"}
    latest = seen
    for _ in range(CLICKS):
        targets = {
            target
            for page in latest
            for link in Links(page.read_text(encoding="utf-8")).targets
            if (target := follow(page, link)) and target.suffix == ".html"
        }
        latest = targets - seen
        seen = seen | latest
    built = set(site.rglob("*.html")) - {site / "404.html"}
    assert {page.relative_to(site).with_suffix(".md").as_posix() for page in built} >= PAGES | GENERATED
    assert not built - seen, f"no way leads to {sorted(built - seen)}"


@pytest.mark.full
def test_the_site_loads_nothing_from_elsewhere_and_misses_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        links = Links(page.read_text(encoding="utf-8"))
        if page.name == "404.html":
            continue
        for source in links.loaded:
            file = follow(page, source)
            assert file is not None and file.exists(), f"{page.name} loads {source}"
        for link in links.targets:
            file = follow(page, link)
            assert file is None or file.exists(), f"{page.name} links to {link}"
    assert (site / "search" / "search_index.js").exists()

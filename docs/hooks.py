"""Pages of the site that are not files in `docs/`: references generated from declarations in the code, and a page for
each source file (examples, benchmarks) that another page links to."""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cyclopts import App
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from rich.console import Console

import headway
from headway.cli.verbs import app
from headway.config.tables import BLOCK, find_section, key_table
from headway.report.catalogue import HEADINGS, document, find
from headway.results.figure_table import FIGURES
from headway.results.findings import DETECTORS
from headway.views.instance import SIGNALS

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(((?:\.\./)*)\.\./((?:examples|benchmarks)/[^)\s]+)\)")
PAGE_LINK = re.compile(r"\]\((?=[\w-]+\.md)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
GATEWAY_PAGES = ("gateway", "membership", "observing", "shadow", "cascade", "disaggregation-live", "kvd")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".jsonl": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, page in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    linked = {match[2] for page in files.documentation_pages() for match in LINK.finditer(page.content_string)}
    for path in sorted(linked):
        page = File.generated(config, f"{path}.md", content=source(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to source files to their pages."""
    return LINK.sub(r"](\1\2.md)", markdown)


def source(path: str) -> str:
    """A page that shows a source file, and with an example its scenario and its output."""
    file = ROOT / path
    if file.suffix == ".ipynb":
        return _notebook(file)
    parts = [f"# {path}", _fenced(file)]
    for suffix, title in ((".yaml", "Scenario"), (".out", "Output")):
        if file.suffix in (".sh", ".py") and (beside := file.with_suffix(suffix)).exists():
            parts += [f"## {title}", _fenced(beside)]
    return "\n\n".join(parts) + "\n"


def _notebook(file: Path) -> str:
    """The texts and the code of a notebook; its figures appear when you run it."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _fenced(file: Path) -> str:
    return f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````"


def commands() -> str:
    """The help of every verb of the command line."""
    parts = [
        "# Commands",
        "This page shows the help of every command. `headway COMMAND --help` prints the same.",
        "Exit codes: 0 is success, 1 a negative answer (for example from `headway twin`), 2 wrong usage or input, "
        "3 a bug in Headway, 4 that `headway check` cannot tell.",
    ]
    for words in _verbs(app, []):
        page = io.StringIO()
        app.help_print(words, console=Console(file=page, width=100, no_color=True, highlight=False))
        parts.append(f"{'#' * (1 + len(words))} {' '.join(words)}\n\n```text\n{page.getvalue().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _verbs(parent: App, before: list[str]) -> Iterator[list[str]]:
    """The words of each verb, followed by those of the verbs below it."""
    for name, command in sorted(parent.resolved_commands().items()):
        if not name.startswith("-"):
            yield [*before, name]
            yield from _verbs(command, [*before, name])


def policies() -> str:
    """Every policy by stage, with its parameters and the signals that it reads."""
    parts = ["# Policies", "This page lists every built-in policy by stage. `headway policies NAME` prints one."]
    stage = None
    for entry in map(document, find(None)):
        if entry["stage"] != stage:
            stage = entry["stage"]
            parts += [f"## {stage.capitalize()}", f"These policies {HEADINGS[stage]}."]
        marks = [entry["kind"]] * (entry["kind"] != "policy") + ["default"] * entry["default"]
        marks += ["default of gateways"] * entry["gateway_default"]
        marks += ["oracle"] * entry["oracle"]
        parts.append(f"### {entry['name']}" + (f" ({', '.join(marks)})" if marks else ""))
        parts.append(_plain(entry["summary"]))
        signals = [f"{kind}: {', '.join(names)}" for kind, names in entry["signals"].items() if names]
        if signals:
            parts.append(f"Reads {'; '.join(signals)}.")
        if entry["parameters"]:
            parts.append(_table(entry["parameters"]))
    return "\n\n".join(parts) + "\n"


def _table(parameters: list[dict[str, Any]]) -> str:
    rows = ["| Parameter | Type | Default | Bounds |", "|---|---|---|---|"]
    for each in parameters:
        bounds = "" if each["bounds"] is None else " to ".join(str(bound) for bound in each["bounds"])
        cells = (f"`{each['name']}`", _plain(each["type"]), _plain(str(each["default"])), bounds)
        rows.append(f"| {' | '.join(cell.replace('|', 'or') for cell in cells)} |")
    return "\n".join(rows)


def api() -> str:
    """Every public name of the package, with its signature and its docstring."""
    parts = ["# Python API", "This page lists every public name. [Python](../python.md) shows them in use."]
    for name in sorted(set(headway.__all__) - {"__version__"}, key=str.lower):
        value = getattr(headway, name)
        parts.append(f"## {name}")
        if inspect.isfunction(value):
            parts.append(f"```python\n{name}{_signature(value)}\n```")
        parts.append(_plain(inspect.getdoc(value) or "") if not isinstance(value, str) else value)
    return "\n\n".join(parts) + "\n"


def signals() -> str:
    """Every signal that a policy may read of an instance."""
    parts = [
        "# Signals",
        "This page lists every signal of an instance that a policy may read. "
        "[Control plane](../control-plane.md) explains how fresh each kind of signal is.",
    ]
    rows = ["| Signal | Freshness | Unit | Meaning | Simulated from | Live from |", "|---|---|---|---|---|---|"]
    for name, signal in SIGNALS.items():
        sources = (signal.simulated or "not available", signal.live or "not available")
        sources = ("derived", "derived") if signal.derived else sources
        cells = (f"`{name}`", signal.freshness, signal.unit, signal.description, *sources)
        rows.append(f"| {' | '.join(_plain(' '.join(cell.split())).replace('|', 'or') for cell in cells)} |")
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def findings() -> str:
    """Every kind of finding: its definition and its area."""
    parts = [
        "# Kinds of findings",
        "This page lists every kind of finding that a run may have. [Findings](../findings.md) defines them in full.",
    ]
    for detector in DETECTORS:
        definition = _plain(inspect.getdoc(detector) or "")
        parts += [f"## {detector.KIND}", definition, f"Area: {detector.AREA}."]
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """Every figure of a summary: its unit, its meaning, and whether low or high is better."""
    parts = [
        "# Figures",
        "This page lists every figure of a summary by its path. `--by`, `--show` and `Comparison` take these paths. "
        "[Metrics](../metrics.md) has the formula of each. The path of a distribution ends in a statistic, such as "
        "`.p99`.",
    ]
    rows = ["| Path | Unit | Better | Meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{path.replace('*', 'TIER')}` | {figure.unit} | {figure.better or ''} | {figure.meaning} |"
        for path, figure in FIGURES.items()
    ]
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def scenario_keys() -> str:
    return _keys("Scenario keys", "scenario file", ["scenario"])


def gateway_keys() -> str:
    return _keys("Gateway keys", "gateway's file", GATEWAY_PAGES)


def _keys(title: str, file: str, pages: Iterable[str]) -> str:
    """The tables of keys of these pages, under the headings that they have there."""
    parts = [f"# {title}", f"This page lists every declared key of a {file}, section by section."]
    for name in pages:
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        blocks = [(_heading(text, block.start()), block[2]) for block in BLOCK.finditer(text)]
        headings = [heading for heading, _ in blocks]
        for heading, path in blocks:
            title = heading if headings.count(heading) == 1 else f"{heading}: {path.rpartition('.')[2]}"
            table = PAGE_LINK.sub("](../", key_table(find_section(path)).rstrip("\n"))
            parts += [f"## {title}", f"[{heading} in {name}.md](../{name}.md) explains these keys.", table]
    return "\n\n".join(parts) + "\n"


def _heading(text: str, end: int) -> str:
    """The last heading before a place in a page."""
    return [match[1] for match in HEADING.finditer(text, 0, end)][-1]


def _signature(function: Any) -> str:
    parameters = [f"    {each}," for each in inspect.signature(function).parameters.values()]
    returned = inspect.signature(function).return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}"
    return "\n".join(["(", *parameters, ")"]) + arrow


def _plain(text: str) -> str:
    """Text of a docstring as Markdown: what looks like a tag is none."""
    return text.replace("<", "&lt;")


REFERENCE = {
    "scenario-keys": scenario_keys,
    "gateway-keys": gateway_keys,
    "commands": commands,
    "api": api,
    "metrics": metrics,
    "findings": findings,
    "policies": policies,
    "signals": signals,
}

"""Modules that import each other, directly or by way of others, are few and stand together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

MOST_FILES = 3
SOURCE = Path(__file__).parents[2] / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Which module imports which, wherever the import stands: for types alone and within functions too."""
    files = {module_name(path): path for path in sorted((SOURCE / "headway").rglob("*.py"))}
    return {name: _imports(path, files) - {name} for name, path in files.items()}


def _imports(path: Path, files: dict[str, Path]) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"}
            names |= {name if name in files else node.module for name in inner}
    return names & files.keys()


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The strongly connected components of more than one module, by Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[frozenset[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == numbers[name]:
            at = stack.index(name)
            components.append(frozenset(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in numbers:
            visit(name)
    return [component for component in components if len(component) > 1]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert set(circles(graph)) == {frozenset("abc"), frozenset("de")}


@pytest.mark.full
def test_no_circle_of_imports_has_more_than_three_files() -> None:
    assert [sorted(circle) for circle in circles(import_graph()) if len(circle) > MOST_FILES] == []

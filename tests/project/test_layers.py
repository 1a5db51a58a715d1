"""The folder is the request's way: who may import whom."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FORBIDDEN = {"time", "os", "random", "asyncio", "socket", "pathlib", "io", "subprocess", "threading", "datetime"}


def policy_files(root: Path) -> list[Path]:
    """The files that policies run in: not those that look policies up, and read the files that users name."""
    files = sorted((root / "src" / "headway" / "policies").rglob("*.py"))
    return [file for file in files if file.name not in ("registry.py", "policy_files.py")]


def imported(path: Path) -> list[str]:
    """Modules that a file imports when it runs; imports for the type checker alone do not count."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_a_package_imports_only_what_stands_above_it(root: Path) -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("import-linter is not installed")
    environment = {"PYTHONPATH": str(root / "src"), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        [command, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_policies_touch_neither_time_nor_files_nor_sockets_nor_chance(root: Path) -> None:
    for path in policy_files(root):
        for module in imported(path):
            top = module.split(".")[0]
            # The type of a random stream may be named; a stream itself is handed in.
            typed_only = top == "random" and "Random" not in _called(path)
            assert top not in FORBIDDEN or typed_only, f"{path.name} imports {module}"


def _called(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_the_vocabulary_imports_nothing_else_of_ours(root: Path) -> None:
    for name in ("errors", "hashing", "streams", "types"):
        assert not [found for found in imported(root / f"src/headway/{name}.py") if found.startswith("headway")]


def test_only_the_vocabulary_lies_beside_the_packages(root: Path) -> None:
    loose = {file.stem for file in (root / "src/headway").glob("*.py")}
    assert loose == {"__init__", "errors", "hashing", "streams", "types"}

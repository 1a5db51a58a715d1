"""`headway deploy`: from a bundle to a live gateway, through its file, its admin API or etcd."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, chat, component
from etcd_server import started
from live_gateway import Live

from free_ports import free_port
from headway.cli import status
from headway.config.documents import parse_yaml
from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.deploy import FileTarget, GatewayFile

CODE = """\
def score(request, instance, cluster):
    '''Warm first, then idle.'''
    return cached_tokens(instance) - 100 * instance.inflight
"""
BUNDLE = f"""\
format: 1
name: warm first
policies:
  routing:
    type: code
    source: |
{"".join(f"      {line}" for line in CODE.splitlines(keepends=True))}
"""
FILE = """\
# What stands before our engines.
listen: 127.0.0.1:0
backends:
  e0: {url: "http://127.0.0.1:@engine"}   # the first

policies:
  routing: least-loaded     # for a start
  admission: {name: max-concurrency, max_queue: 77}

# Who may look.
admin: {listen: "127.0.0.1:@admin", key_env: TEST_ADMIN_KEY}
"""


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


@pytest.fixture
def bundle(tmp_path):
    file = tmp_path / "warm.yaml"
    file.write_text(BUNDLE)
    return file


class FromFile(Live):
    """Return a gateway that was started from a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gateway.yaml"
        super().__init__(1)

    async def _start(self) -> None:
        await self.engines[0].start()
        self.file.write_text(FILE.replace("@engine", str(self.engines[0].port)).replace("@admin", str(free_port())))
        self.app = App(asyncio.get_running_loop(), Config.load(self.file))
        self.server = await self.app.start()
        self.port = self.server.sockets[0].getsockname()[1]


@pytest.fixture
def gateway(tmp_path):
    running = FromFile(tmp_path)
    yield running
    running.stop()


def test_a_deployed_bundle_is_written_to_the_file_and_in_force(gateway, bundle, capsys):
    before = gateway.file.read_text()
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert (
        "-  routing: least-loaded     # for a start" in output
        and "+      def score(request, instance, cluster):" in output
    )
    assert gateway.file.read_text() == before
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes"]) == 0
    output = capsys.readouterr().out
    assert "version 1 is in force at http://127.0.0.1:" in output
    assert gateway.app.plane.policies["routing"] == {"name": "code", "source": CODE}
    # Of admission the bundle says nothing.
    assert gateway.app.plane.policies["admission"] == {"name": "max-concurrency", "max_queue": 77}
    assert chat(gateway).headers["x-headway-reason"] == "highest score"
    text = gateway.file.read_text()
    for kept in ("# What stands before our engines.\n", "# the first\n\npolicies:\n", "\n\n# Who may look.\nadmin: {"):
        assert kept in text
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes"]) == 0
    assert "nothing changes" in capsys.readouterr().out


def test_a_canary_is_written_to_the_file_and_the_next_deployment_removes_it(gateway, bundle, capsys):
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--canary", "100%", "--yes", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["deployed"] and "version 1 is in force" in output["said"] and "+canary:" in output["diff"]
    assert gateway.app.plane.policies["routing"] == "least-loaded"
    assert chat(gateway).headers["x-headway-reason"] == "canary: highest score"
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes"]) == 0
    assert "canary" not in gateway.app.plane.policies and "canary" not in gateway.file.read_text()
    assert chat(gateway).headers["x-headway-reason"] == "highest score"


@pytest.mark.parametrize(("dated", "routing"), [("", "kv-aware-spill"), ("defaults: 2026-11\n", "weighted")])
def test_a_deployment_expects_the_default_policies_of_the_files_set(tmp_path, dated, routing):
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{dated}backends: {{a: 'http://127.0.0.1:1'}}\n")
    change = FileTarget(file, None).change({"priority": "aging"}, None)
    assert (change.policies["priority"], change.policies["routing"]) == ("aging", routing)
    assert parse_yaml(change.after, "")["policies"] == {"priority": "aging"}


def test_a_deployment_needs_only_an_admin_api(live, bundle, capsys):
    gateway = live(2, admin=ADMIN, policies={"routing": "least-loaded"})
    url = f"http://127.0.0.1:{component(gateway, 'Admin').port}"
    arguments = ["deploy", str(bundle), "--admin", url, "--key-env", "TEST_ADMIN_KEY", "--yes"]
    assert status([*arguments, "--canary", "0.5"]) == 0
    assert gateway.app.plane.policies["canary"]["share"] == 0.5
    assert status(arguments) == 0
    assert "version 2 is in force" in capsys.readouterr().out
    assert gateway.app.plane.policies["routing"]["name"] == "code" and "canary" not in gateway.app.plane.policies
    assert status(["deploy", str(bundle), "--admin", url, "--key-env", "NOT_SET", "--yes"]) == 2
    assert "NOT_SET is not set" in capsys.readouterr().err


server = pytest.fixture(started)


def test_a_deployment_through_etcd_reaches_every_gateway(server, live, bundle, capsys):
    gateway = live(1, policies={"routing": "least-loaded"}, etcd=server.url)
    arguments = ["deploy", str(bundle), "--etcd", server.url, "--yes"]
    assert status(arguments) == 0
    output = capsys.readouterr().out
    assert "is in force at" in output and "+  name: code" in output
    assert gateway.app.plane.policies["routing"]["name"] == "code"
    assert status([*arguments, "--canary", "10%"]) == 0
    gateway.until(lambda: gateway.app.plane.policies.get("canary", {}).get("share") == 0.1)


def test_a_source_in_the_policy_language_can_be_deployed(live, tmp_path, capsys):
    source = tmp_path / "rule.py"
    source.write_text(CODE)
    gateway = live(2, admin=ADMIN, policies={"routing": "least-loaded"})
    url = f"http://127.0.0.1:{component(gateway, 'Admin').port}"
    assert status(["deploy", str(source), "--admin", url, "--key-env", "TEST_ADMIN_KEY", "--yes"]) == 0
    assert gateway.app.plane.policies["routing"]["source"] == CODE


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (
            {
                "routing": {
                    "type": "code",
                    "source": "import os\ndef score(request, instance, cluster):\n    return 1\n",
                }
            },
            "imports are not allowed",
        ),
        ({"routing": {"name": "weighted", "scorers": {"oracle-prefix": 1}}}, "is an oracle policy"),
        ({"routing": "lmetrik"}, "no routing policy is called 'lmetrik'"),
    ],
)
def test_policies_that_cannot_run_live_are_rejected_before_any_change(gateway, tmp_path, policies, message, capsys):
    file, before = tmp_path / "bundle.yaml", gateway.file.read_text()
    file.write_text(json.dumps({"format": 1, "policies": policies}))
    assert status(["deploy", str(file), "--to", str(gateway.file), "--yes"]) == 2
    assert message in capsys.readouterr().err
    assert gateway.file.read_text() == before and gateway.app.plane.version == 0


def test_the_file_stays_unchanged_if_the_admin_api_does_not_answer(gateway, bundle, capsys, monkeypatch):
    before = gateway.file.read_text()
    monkeypatch.setenv("TEST_ADMIN_KEY", "another")
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes"]) == 2
    output = capsys.readouterr().err
    assert "the key of the admin API is missing or wrong" in output and "is unchanged" in output
    assert gateway.file.read_text() == before
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    gateway.file.write_text(before.replace("admin: {listen: ", "admin: {listen: '127.0.0.1:9', x: "))
    before = gateway.file.read_text()
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes"]) == 2
    assert "Connection refused" in capsys.readouterr().err and gateway.file.read_text() == before


def test_a_bundle_is_not_overwritten(bundle, capsys):
    before = bundle.read_text()
    assert status(["deploy", str(bundle), "--to", str(bundle), "--yes"]) == 2
    assert "is not a gateway's file" in capsys.readouterr().err and bundle.read_text() == before


def test_without_a_terminal_a_deployment_needs_the_option_yes(gateway, bundle, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert status(["deploy", str(bundle), "--to", str(gateway.file)]) == 2
    assert "--yes" in capsys.readouterr().err and gateway.app.plane.version == 0
    for wrong in (["--canary", "0"], ["--canary", "much"], ["--etcd", "x:1"]):
        assert status(["deploy", str(bundle), "--to", str(gateway.file), "--yes", *wrong]) == 2
    assert status(["deploy", str(bundle)]) == 2


@pytest.mark.parametrize(("reply", "deployed"), [("y\n", True), ("no\n", False), ("", False)])
def test_the_confirmation_prompt_goes_to_stderr(gateway, bundle, capsys, monkeypatch, reply, deployed):
    terminal = io.StringIO(reply)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert status(["deploy", str(bundle), "--to", str(gateway.file), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["deployed"] is deployed and "Deploy this?" in output.err


def replace_blocks(tmp_path: Path, text: str, **blocks: Any) -> str:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    return GatewayFile(file).with_blocks(blocks)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: 1\npolicies: {routing: x}  # why\nb: 2\n", "a: 1\npolicies:  # why\n  routing: y\nb: 2\n"),
        ("policies: bundle.yaml\n\n# of b\nb: 2\n", "policies:\n  routing: y\n\n# of b\nb: 2\n"),
        ("policies:\n  routing: x\n  # within\n\n# of b\nb: 2\n", "policies:\n  routing: y\n\n# of b\nb: 2\n"),
        ("b: 2", "b: 2\npolicies:\n  routing: y\n"),
        ("policies:\n  routing: {name: code, source: |\n    x\n    }", None),
        ("b: |\n  policies: {}\npolicies: {}", "b: |\n  policies: {}\npolicies:\n  routing: y\n"),
        ("policies:\nb: 2\n", "policies:\n  routing: y\nb: 2\n"),
    ],
)
def test_only_the_changed_block_is_rewritten(tmp_path, before, after):
    if after is None:
        with pytest.raises(HeadwayError, match="not YAML"):
            replace_blocks(tmp_path, before, policies={"routing": "y"})
    else:
        assert replace_blocks(tmp_path, before, policies={"routing": "y"}) == after


def test_a_block_can_be_removed_and_an_uneditable_file_is_reported(tmp_path):
    text = "a: 1\ncanary:\n  share: 0.1\n\n# of b\nb: 2\n"
    assert replace_blocks(tmp_path, text, canary=None) == "a: 1\n\n# of b\nb: 2\n"
    with pytest.raises(HeadwayError, match="the file is one mapping in braces"):
        replace_blocks(tmp_path, "{a: 1, policies: {}}", policies={"routing": "y"})
    with pytest.raises(HeadwayError, match="Edit the file by hand"):
        replace_blocks(tmp_path, "policies: &p {routing: x}\nb: *p\n", policies={"routing": "y"})


def test_the_file_is_replaced_atomically_and_keeps_its_mode_and_link(tmp_path):
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("a: 1\n")
    real.chmod(0o640)
    link.symlink_to(real)
    file = GatewayFile(link)
    file.write(file.with_blocks({"b": 2}))
    assert real.read_text() == "a: 1\nb: 2\n" and link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

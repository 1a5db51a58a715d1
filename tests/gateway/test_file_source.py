"""The gateway's file, changed while the gateway runs."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.membership.file_source import LIVE

FIRST = "backends: {a: 'http://127.0.0.1:1', b: 'http://127.0.0.1:2'}\npolicies: {routing: random}\n"


class Scene:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.app = App(asyncio.get_running_loop(), Config.load(file))
        assert self.app.file_source is not None
        self.source = self.app.file_source

    def write(self, text: str) -> None:
        """And two looks, since a change is taken at the second."""
        self.file.write_text(text)
        self.source.look()
        self.source.look()

    @property
    def names(self) -> list[str]:
        return sorted(self.app.fleet.names)


def play(folder: Path, act: Callable[[Scene], Awaitable[None]], text: str = FIRST) -> None:
    file = folder / "gateway.yaml"
    file.write_text(text)

    async def go() -> None:
        await act(Scene(file))

    asyncio.run(go())


def test_backends_and_policies_of_a_changed_file_are_taken_over(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        backend = scene.app.fleet.names.get("a")
        scene.write(FIRST.replace("b:", "c:").replace("random", "round-robin"))
        assert scene.names == ["a", "c"] and scene.app.plane.policies["routing"] == "round-robin"
        assert scene.app.fleet.names.get("a") is backend

    play(tmp_path, act)


def test_a_change_is_taken_only_when_it_stays(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.file.write_text(FIRST.replace(", b: 'http://127.0.0.1:2'", ""))  # half of what is being written
        scene.source.look()
        assert scene.names == ["a", "b"]
        scene.write(FIRST.replace("b:", "c:"))
        assert scene.names == ["a", "c"]

    play(tmp_path, act)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a mapping with the settings of a gateway"),
        ("backends: {a: [", "this is not YAML"),
        (FIRST.replace("random", "nonesuch"), "nonesuch"),
        (FIRST.replace("http://127.0.0.1:2", "ftp://x"), "backends.b.url"),
        (FIRST + "retrys: 3\n", "Did you mean 'retries'?"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_once_and_what_was_in_force_stays(
    tmp_path: Path, text: str | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        if text is None:
            scene.file.unlink()
        else:
            scene.file.write_text(text)
        for _ in range(5):
            scene.source.look()
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(messages) == 1 and "is refused" in messages[0] and why in messages[0]
        assert scene.names == ["a", "b"] and scene.app.plane.policies["routing"] == "random"
        scene.write(FIRST.replace("b:", "c:"))
        assert scene.names == ["a", "c"]

    play(tmp_path, act)


def test_backends_that_do_not_fit_leave_the_policies_as_they_were(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.app.switch.swap({"routing": "least-loaded"}, "admin")
        scene.write(FIRST.replace("random", "round-robin").replace("max_backends: 2", "max_backends: 9") + "x")
        more = "{a: 'http://127.0.0.1:1', b: 'http://127.0.0.1:2', c: 'http://127.0.0.1:3'}"
        scene.write(f"backends: {more}\nmax_backends: 3\npolicies: {{routing: round-robin}}\n")
        assert scene.names == ["a", "b"] and scene.app.plane.policies["routing"] == "least-loaded"

    play(tmp_path, act, FIRST + "max_backends: 2\n")


def test_keys_that_want_a_new_start_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        scene.write(FIRST + "patience: 1s\nmax_backends: 9\n")
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(messages) == 1
        assert "the change of patience, max_backends takes effect at the next start" in messages[0]
        assert scene.app.plane.settings.places == 64
        caplog.clear()
        scene.write(FIRST)  # as it was
        assert not [record for record in caplog.records if record.levelno == logging.WARNING]

    play(tmp_path, act)


SETTINGS = """
retries: 7
timeouts: {connect: 1s}
health: {failures: 9, path: null}
limits: {body_bytes: 1000}
deadlines: {interactive: 9s}
classes: [batch, interactive, standard]
sessions: {user: false}
shutdown: {lame_duck: 1s}
log: {access: 0.5}
cascade: {chains: {both: [a, b]}}
"""


def test_settings_that_need_no_restart_take_effect_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def act(scene: Scene) -> None:
        app = scene.app
        scene.file.write_text(FIRST + SETTINGS)
        app.reload()
        assert app.services.retries == 7 and app.services.timeouts.connect_s == app.health.timeouts.connect_s == 1.0
        assert app.health.settings.failures == 9 and app.checks.settings.path is None
        assert app.reception.limits.body_bytes == 1000 and "both" in app.reception.chains
        assert app.intake.deadlines == {"interactive": 9 * 10**12} and not app.intake.sessions.user
        assert app.intake.ranks["batch"] == 0 and app.shutdown.lame_duck_s == 1.0 and app.access_log.share == 0.5
        messages = [record.getMessage() for record in caplog.records if "reloaded" in record.getMessage()]
        assert len(messages) == 1 and "timeouts" in messages[0] and "next start" not in caplog.text
        scene.file.write_text(FIRST)
        app.reload()
        assert app.services.retries == 2 and app.access_log.record_end not in app.services.on_end

    play(tmp_path, act)


def test_the_page_lists_the_keys_that_need_no_restart(tmp_path: Path, root: Path) -> None:
    page = (root / "docs" / "gateway.md").read_text(encoding="utf-8")
    sentence = next(line for line in page.splitlines() if line.endswith("Requests in flight go on."))

    async def act(scene: Scene) -> None:
        assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted([*LIVE, *scene.source.settings])

    play(tmp_path, act)


def test_a_reload_of_a_wrong_file_keeps_every_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        scene.file.write_text(FIRST + "retries: 7\npatience: soon\n")
        scene.app.reload()
        assert scene.app.services.retries == 2 and "the old settings stay: patience" in caplog.text

    play(tmp_path, act)


def test_each_reload_of_a_wrong_file_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def act(scene: Scene) -> None:
        scene.write(FIRST + "patience: soon\n")
        scene.app.reload()
        assert caplog.text.count("the old settings stay: patience") == 2 and "nothing has changed" not in caplog.text
        scene.file.write_text(FIRST)
        scene.app.reload()
        scene.app.reload()
        assert caplog.text.count("nothing has changed") == 1

    play(tmp_path, act)


def test_a_shortage_of_open_files_is_no_change_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    async def act(scene: Scene) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", refuse)
            scene.source.look()
            scene.source.look()
            assert not caplog.records
            scene.file.write_text(FIRST + "retries: 7\n")
            scene.app.reload()
        assert "cannot be read now, because open files are short" in caplog.text and "refused" not in caplog.text
        assert scene.app.services.retries == 2
        scene.source.look()
        scene.source.look()
        assert scene.app.services.retries == 7

    play(tmp_path, act)


def test_a_shortage_while_a_change_is_applied_delays_the_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def act(scene: Scene) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)  # the next open file is the one too many
            patch.setattr(Path, "read_bytes", lambda path: (FIRST + "retries: 7\n").encode())
            scene.source.look()
            scene.source.look()
        assert "cannot be read now" in caplog.text and "refused" not in caplog.text
        scene.write(FIRST + "retries: 7\n")
        assert scene.app.services.retries == 7

    play(tmp_path, act)


def test_a_change_while_the_gateway_starts_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(FIRST)

    async def start() -> None:
        config = Config.load(file)
        file.write_text(FIRST + "retries: 7\n")  # after it was read, before the gateway watches it
        source = App(asyncio.get_running_loop(), config).file_source
        assert source is not None
        source.look()
        source.look()
        assert source.config.retries == 7

    asyncio.run(start())


def test_a_reload_without_a_change_is_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def act(scene: Scene) -> None:
        scene.app.reload()
        assert scene.app.plane.version == 0 and "reloaded; nothing has changed" in caplog.text

    play(tmp_path, act)


def test_the_bundle_that_a_file_names_is_watched_too(tmp_path: Path) -> None:
    bundle = tmp_path / "best.yaml"
    written = "format: 1\npolicies: {routing: {type: parameters, template: NAME, parameters: {}}}\n"
    bundle.write_text(written.replace("NAME", "random"))

    async def act(scene: Scene) -> None:
        bundle.write_text(written.replace("NAME", "round-robin"))
        scene.source.look()
        scene.source.look()
        assert scene.app.plane.policies["routing"] == "round-robin"

    play(tmp_path, act, "backends: {a: 'http://127.0.0.1:1'}\npolicies: best.yaml\n")


def test_policies_of_another_source_stay_while_those_of_the_file_do_not_change(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.app.switch.swap({"routing": "round-robin"}, "etcd")
        scene.write(FIRST.replace("b:", "c:"))
        assert scene.names == ["a", "c"] and scene.app.plane.policies["routing"] == "round-robin"

    play(tmp_path, act)


@pytest.mark.parametrize(("date", "routing"), [("2026-11", "weighted"), ("2026-12", "kv-aware-spill")])
def test_the_set_of_defaults_at_the_start_supplies_what_new_policies_omit(
    tmp_path: Path, date: str, routing: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = f"backends: {{a: 'http://127.0.0.1:1'}}\ndefaults: {date}\n"
    other = "2026-12" if date == "2026-11" else "2026-11"

    async def act(scene: Scene) -> None:
        assert scene.app.plane.policies["routing"] == routing
        scene.app.switch.swap({"admission": "always"}, "admin")
        scene.write(start.replace(date, other) + "policies: {priority: aging}\n")
        assert [scene.app.plane.policies[stage] for stage in ("priority", "routing")] == ["aging", routing]
        assert scene.app.plane.version == 2
        scene.write(start.replace(date, other) + "policies: {priority: aging}\n# a comment\n")
        assert scene.app.plane.version == 2
        assert "the change of defaults takes effect at the next start" in caplog.text

    with caplog.at_level(logging.WARNING, "headway.gateway"):
        play(tmp_path, act, start)


def test_the_file_is_looked_at_by_itself(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.source.poll_s = 0.01
        await scene.source.start()
        scene.file.write_text(FIRST.replace("b:", "c:"))
        async with asyncio.timeout(60):
            while scene.names != ["a", "c"]:
                await asyncio.sleep(0.01)
        await scene.source.stop()

    play(tmp_path, act)

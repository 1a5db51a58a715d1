"""The gateway's file, changed while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.membership.file_source import FileSource

FIRST = "backends: {a: 'http://127.0.0.1:1', b: 'http://127.0.0.1:2'}\npolicies: {routing: random}\n"


class Scene:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.app = App(asyncio.get_running_loop(), Config.load(file))
        app = self.app
        self.source = FileSource(app.clock, app.fleet, app.switch, app.shadows, app.config)

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
        scene.write(FIRST + "retries: 1\nhealth: {failures: 9}\n")
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(messages) == 1 and "the change of retries, health takes effect at the next start" in messages[0]
        caplog.clear()
        scene.write(FIRST)  # as it was
        assert not [record for record in caplog.records if record.levelno == logging.WARNING]

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

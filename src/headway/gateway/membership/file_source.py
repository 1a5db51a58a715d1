"""Watches the gateway's file, and applies changes of engines, policies and other settings while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.config.documents import parse_yaml
from headway.errors import HeadwayError
from headway.gateway.config import Config, content_of, named_contents
from headway.http.event_loop import cancel
from headway.http.open_files import is_shortage

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.live_settings import Setters
    from headway.gateway.orders import PolicySwitch
    from headway.gateway.shadow.shadows import Shadows

SOURCE: Final = "file"
POLL_S: Final = 1.0
NOT_NOW: Final = "%s: cannot be read now, because open files are short; a change takes effect later"
LIVE: Final = ("backends", "policies", "canary", "shadow")  # keys that take effect while the gateway runs
log = logging.getLogger("headway.gateway")


class FileSource:
    """Reads the gateway's file, and the files that it names, every second. A change takes effect when two consecutive
    reads are equal, because a half-written file can be valid YAML. `reload` applies the file at once."""

    def __init__(
        self, clock: Clock, fleet: Fleet, switch: PolicySwitch, shadows: Shadows, settings: Setters, config: Config
    ) -> None:
        """`settings` are the other keys that take effect while the gateway runs."""
        assert config.file is not None
        self.clock, self.fleet, self.switch, self.shadows = clock, fleet, switch, shadows
        self.settings, self.path, self.poll_s = settings, config.file, POLL_S
        self.config = config  # the configuration that was applied last
        self._data: bytes | None = None
        self._document: dict[str, Any] = {}
        self._applied = self._latest = config.contents
        self._refused = False  # whether the content that was read last is invalid
        self._started = self._before = _document(config.contents[0], self.path)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = self.clock.create_task(self._run())

    async def stop(self) -> None:
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.poll_s)
            try:
                self.look()
            except Exception:  # a bug must not end the watch
                log.exception("%s: the gateway could not apply the changes in this file", self.path)

    def look(self) -> None:
        try:
            before, self._latest = self._latest, self._look()
        except OSError:  # a shortage of open files, which says nothing about the content
            return
        if self._latest != before or self._latest == self._applied:
            return
        self._apply()

    def reload(self) -> None:
        """Apply the file now. The log says so, even if nothing has changed."""
        try:
            self._latest = self._look()
        except OSError:
            log.warning(NOT_NOW, self.path)
            return
        if self._latest == self._applied and not self._refused:
            log.info("%s: reloaded; nothing has changed", self.path)
        else:
            self._apply()

    def _apply(self) -> None:
        before = self._applied
        self._applied, self._refused = self._latest, False
        try:
            self._take(Config.load(self.path))
        except HeadwayError as error:
            if is_shortage(error):  # it says nothing about the content: look at it again
                self._applied = before
                log.warning(NOT_NOW, self.path)
                return
            self._refused = True
            log.warning("%s: the new content is refused, and the old settings stay: %s", self.path, error)

    def _look(self) -> tuple[bytes | None, ...]:
        """Return the bytes of the file, of the bundles that it names, and of its key file. In a shortage of open files,
        raise OSError."""
        data = content_of(self.path)
        if data != self._data:
            self._data, self._document = data, _document(data, self.path)
        return data, *named_contents(self._document, self.path)

    def _take(self, config: Config) -> None:
        """Apply all changes. If one of them is refused, apply none."""
        before, in_force = self.config, self.switch.policies
        if config.policies != before.policies:
            self.switch.swap(config.policies, SOURCE)
        try:
            self.shadows.offer(SOURCE, config.shadows)
            if config.backends != before.backends:
                self.fleet.offer(SOURCE, config.backends)
        except HeadwayError:
            self.switch.swap(in_force, SOURCE)
            self.shadows.offer(SOURCE, before.shadows)
            raise
        for apply in self.settings.values():
            apply(config)
        self.config = config
        self._report()

    def _report(self) -> None:
        """Log the keys that have changed, and those whose change takes effect at the next start."""
        changed = ", ".join(_changes(self._before, self._document)) or "a file that it names"
        self._before = self._document
        log.info("%s: reloaded (%s); its engines and policies are in force", self.path, changed)
        live = {*LIVE, *self.settings}
        later = [key for key in _changes(self._started, self._document) if key not in live]
        if later:
            log.warning("%s: the change of %s takes effect at the next start", self.path, ", ".join(later))


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [str(key) for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]


def _document(data: bytes | None, path: Path) -> dict[str, Any]:
    try:
        document = parse_yaml((data or b"").decode(errors="replace"), str(path))
    except HeadwayError:  # `Config.load` reports the error
        return {}
    return document if isinstance(document, dict) else {}

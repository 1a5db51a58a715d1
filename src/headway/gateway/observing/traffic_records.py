"""Records live traffic as run folders, which `headway report` and `headway explain` read.

A folder holds one chapter: consecutive requests in order of arrival, all under the same policies. The folder's name is
the number F of its first request. A request with number N in the header `x-headway-request` has number N - F in the
folder. A separate process writes the folder.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.errors import HeadwayError
from headway.gateway.observing.chapter import Chapter, ChapterDocument, Engine
from headway.policies.prefix_index import largest_block
from headway.types import Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView

if TYPE_CHECKING:
    from headway.control.journal import Journal
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.exchange import Exchange
    from headway.gateway.intake import Intake
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.observing_settings import RecordSettings
    from headway.gateway.plane import Plane
    from headway.gateway.reception import Reception
    from headway.policies.context import Context
    from headway.results.recorder import ScaleRecord

GRACE_S: Final = 600.0  # maximum time that a chapter waits for its last requests to end
PENDING: Final = 4  # maximum number of ended chapters that wait for their last requests to end
WRITING: Final = 2  # maximum number of folders written at a time; further chapters are lost
MOST_BYTES: Final = 64 * 1024 * 1024  # maximum size of one chapter in memory
RUNS: Final = 100_000
log = logging.getLogger("headway.gateway")


class Records:
    """Collects and writes chapters. It is a component of the gateway, and also a journal of the control plane."""

    def __init__(self, clock: Clock, settings: RecordSettings, policies: Json) -> None:
        """Begin the first chapter. `attach` sets the other parts of the gateway, because they are built later."""
        self.clock, self.settings = clock, settings
        self.place = _own_folder(settings)
        self.bound: tuple[Context, ClusterView, tuple[str, ...]] | None = None
        self.current = Chapter(0, {}, policies, settings)
        self.pending: list[Chapter] = []
        self.writing = 0
        self.lost = 0  # number of requests that were not written, because the writers were too slow
        self._timer: Any = None

    def attach(self, plane: Plane, fleet: Fleet, intake: Intake, reception: Reception) -> None:
        self.plane, self.fleet, self.intake, self.reception = plane, fleet, intake, reception

    async def start(self) -> None:
        self.current.engines.update(self._engines())
        self.fleet.on_change.append(self._on_change)
        self._timer = self.clock.call_later(self.settings.roll_s, self._due)

    async def stop(self) -> None:
        """Write all chapters, and wait for the writers."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)  # yield to the event loop, so that the exchanges of disconnected clients can end
        self.roll()
        for chapter in list(self.pending):
            self._close(chapter)
        while self.writing:
            await asyncio.sleep(0.01)

    def _engines(self) -> dict[int, Engine]:
        return {backend.place: _engine(backend) for backend in self.fleet.members}

    def _on_change(self, backend: Backend, what: str) -> None:
        """If an engine has joined, add the engine to all open chapters. If the current chapter already has an engine
        with another name at the same place, begin a new chapter first."""
        if what != "joined":
            return
        known = self.current.engines.get(backend.place)
        if known is not None and known.spec.name != backend.spec.name:
            self.roll()
        for chapter in (self.current, *self.pending):
            chapter.engines.setdefault(backend.place, _engine(backend))

    # --- chapters ----------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """End the current chapter. A new chapter begins with the next request."""
        chapter, first = self.current, self.intake.count
        chapter.end = first
        self.current = Chapter(first, self._engines(), self.plane.policies, self.settings)
        if self.bound is not None and self.current.journal is not None:
            self.current.journal.bind(*self.bound)
        if chapter.end == chapter.first:  # without requests, there is no folder
            self.current.scaled = chapter.scaled
            return
        chapter.deadline = self.clock.seconds() + GRACE_S
        self.pending.append(chapter)
        if chapter.over:
            self._close(chapter)
        elif len(self.pending) > PENDING:
            self._close(self.pending[0])

    def _due(self) -> None:
        self._timer = self.clock.call_later(self.settings.roll_s, self._due)
        self.roll()
        now = self.clock.seconds()
        for chapter in [chapter for chapter in self.pending if chapter.deadline < now]:
            self._close(chapter)

    def _of(self, request: int) -> Chapter | None:
        if request >= self.current.first:
            return self.current
        return next((chapter for chapter in self.pending if chapter.first <= request < chapter.end), None)

    def _close(self, chapter: Chapter) -> None:
        self.pending.remove(chapter)
        if self.writing >= WRITING and not self.reception.draining:  # a draining gateway writes all chapters
            count = chapter.count + len(chapter.open)
            self.lost += count
            log.warning("records: %d requests were not recorded; they come faster than they can be written", count)
            return
        folder = str(self.place / f"{chapter.first:09d}")
        control = self.plane.control
        believed = largest_block(control.indexes)
        document = chapter.document(folder, self.plane.block_tokens, believed, control.metrics())
        self.writing += 1
        self.clock.spawn(self._write(document))

    async def _write(self, document: ChapterDocument) -> None:
        try:
            error = await write_folder(await asyncio.to_thread(msgspec.msgpack.encode, document))
            if error is not None:
                log.error("records: could not write %s: %s", document.folder, error)
        except OSError as error:
            log.error("records: could not write %s: %s", document.folder, error.strerror or error)
        finally:
            self.writing -= 1

    # --- events ------------------------------------------------------------------------------------------------------

    def record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        chapter = self._of(exchange.request.id)
        if chapter is None:  # the chapter was written before the request ended
            return
        chapter.record_end(exchange, now_ps, outcome, why)
        if chapter is not self.current:
            if chapter.over:
                self._close(chapter)
        elif chapter.count >= self.settings.requests or chapter.size > MOST_BYTES:
            self.roll()

    def record_scaling(self, record: ScaleRecord) -> None:
        self.current.scaled.append(record)

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        """Record decisions of new policies from now on: use the context that these policies received. Unless this is
        the first call, begin a new chapter."""
        again = self.bound is not None
        self.bound = context, cluster, tuple(reported)
        for chapter in self.pending:
            if chapter.journal is not None:
                chapter.journal.cluster = cluster
        if again:
            self.roll()
        elif self.current.journal is not None:
            self.current.journal.bind(*self.bound)

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        if (journal := self._journal_of(request)) is not None:
            journal.on_refused(now_ps, request, verdict)

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        if (journal := self._journal_of(request)) is not None:
            journal.on_prioritised(now_ps, request, priority)

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        if (journal := self._journal_of(request)) is not None:
            journal.on_routed(now_ps, request, route, priority)

    def _journal_of(self, request: Request) -> Journal | None:
        chapter = self._of(request.id)
        if chapter is None:
            return None
        chapter.open[request.id] = request
        return chapter.journal

    def on_stopped(self, instance: int) -> None:
        for chapter in (self.current, *self.pending):
            if chapter.journal is not None:
                chapter.journal.on_stopped(instance)


async def write_folder(document: bytes) -> str | None:
    """Write an encoded chapter in a separate process. If that fails, return the reason."""
    command = (sys.executable, "-m", "headway.gateway.observing.record_writer")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stderr=pipe)
    _, stderr = await process.communicate(document)
    if not process.returncode:
        return None
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "unknown error"


def _own_folder(settings: RecordSettings) -> Any:
    """Create a new folder for this process. Folders are named 0001, 0002 and so on."""
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(folder.name) for folder in settings.folder.iterdir() if folder.name.isdecimal()]
        for run in range(max(numbers, default=0) + 1, RUNS):
            place = settings.folder / f"{run:04d}"
            try:
                place.mkdir()
            except FileExistsError:  # another process created this folder first, so try the next number
                continue
            return place
    except OSError as error:
        raise HeadwayError(f"records: cannot write to {settings.folder}: {error.strerror or error}.") from None
    raise HeadwayError(
        f"records: {settings.folder} is full: its run folders have all numbers up to {RUNS - 1}. Choose another folder."
    )


def _engine(backend: Backend) -> Engine:
    return Engine(backend.spec, max(backend.spec.kv_blocks, backend.view.kv_blocks))

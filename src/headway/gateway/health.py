"""Which engines can be sent to: failures in a row take one out for a while, then one request may try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.gateway.app import App
    from headway.gateway.backend import Backend


class Health:
    def __init__(self, app: App, failures: int = 3, open_s: float = 5.0) -> None:
        self.app, self.failures, self.open_s = app, failures, open_s

    def answered(self, backend: Backend, status: int) -> None:
        if status >= 500:
            self.failed(backend, f"status {status}")
        else:
            backend.failures = 0

    def failed(self, backend: Backend, why: str) -> None:
        backend.failures += 1
        if backend.failures >= self.failures and backend.view.state == "ready":
            backend.open_until = self.app.seconds() + self.open_s
            self.app.plane.changed(self.app.now_ps(), backend.view.index, "unreachable")
            self.app.loop.call_later(self.open_s, self._again, backend)

    def _again(self, backend: Backend) -> None:
        """One failure more takes it out again."""
        if backend.view.state == "unreachable":
            backend.failures = self.failures - 1
            self.app.plane.changed(self.app.now_ps(), backend.view.index, "ready")
            self.app.wake()

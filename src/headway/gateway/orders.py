"""An operator's word, which goes for all the processes of a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headway.gateway.engines.member import BackendSpec
from headway.gateway.shadow.candidate import read_shadows

if TYPE_CHECKING:
    from headway.gateway.app import App


class Orders:
    def __init__(self, app: App) -> None:
        self.app = app

    def give(self, *order: Any) -> None:
        """To this process and to the others."""
        self.obey(list(order))
        if self.app.peers is not None:
            self.app.peers.order(*order)

    def obey(self, order: list[Any]) -> None:
        """(cordon, name), (uncordon, name), (swap, policies), (halt, why), (shadows, candidates) or (admin, members).
        Raises where it cannot be done."""
        kind, given = order
        app = self.app
        if kind == "cordon":
            app.fleet.cordon(given)
        elif kind == "uncordon":
            app.fleet.uncordon(given)
        elif kind == "swap":
            app.swap(given, "admin")
        elif kind == "halt":
            app.plane.halt(app.now_ps(), given)
        elif kind == "shadows":
            app.shadows.offer("admin", read_shadows(given))
        elif kind == "admin":
            app.fleet.offer("admin", msgspec.convert(given, dict[str, BackendSpec]))

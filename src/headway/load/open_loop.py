"""A scenario's workload, sent to an endpoint."""

from __future__ import annotations

import socket
from typing import Any, Final

from headway.errors import HeadwayError
from headway.load.asking import Ask, address_of
from headway.load.driver import Progress, drive
from headway.results.result import Result
from headway.scenario.scenario import DEFAULT, Scenario, Source

REACH_S: Final = 10.0


def load(
    ask: Ask,
    scenario: Source = DEFAULT,
    *,
    overrides: str | tuple[str, ...] = (),
    speed: float = 1.0,
    progress: Progress | None = None,
    tick_s: float | None = None,
    lines: int = 0,
) -> Result:
    """What clients saw. Of the scenario the workload, its seed, the targets, `warmup` and `horizon` count; times are
    the workload's, which pass `speed` times as fast as the wall's. With `tick_s` it begins at a multiple of that by
    this machine's clock; so many `lines` are open by then."""
    loaded = Scenario.load(scenario, overrides)
    traffic = loaded.workload.plan(loaded.seed.workload, loaded.cluster.default_model())
    book = drive(traffic, ask, speed, loaded.horizon_ps, progress, tick_s, lines)
    block_tokens = loaded.cluster.kv.block_tokens
    return book.result(told(loaded), traffic, block_tokens, loaded.slo, loaded.workload.slos())


def reach(url: str) -> None:
    """Raises HeadwayError where nobody listens there: better now than after all of a workload."""
    address = address_of(url)
    try:
        socket.create_connection((address.host, address.port), timeout=REACH_S).close()
    except (OSError, UnicodeError) as error:  # a name may be none
        why = getattr(error, "strerror", None) or str(error)
        raise HeadwayError(f"URL: {url} cannot be reached ({why}); is the endpoint up?") from None


def told(loaded: Scenario) -> dict[str, Any]:
    """Of the scenario, what concerns clients."""
    resolved = loaded.resolved()
    return {name: resolved[name] for name in ("name", "seed", "workload", "slo", "warmup")}

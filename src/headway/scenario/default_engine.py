"""The engine whose step times count where a scenario names none: it belongs to the set of dated defaults.

The set is known only once the whole file is read, so the engine is added to the text of the section `cluster` before
the section is read. A scenario that is written out then names it."""

from __future__ import annotations

from typing import Any

from headway import latency
from headway.scenario.pd_spec import ROLES


def with_default_engine(section: Any, engine: str) -> Any:
    """Return the section `cluster` with this `default_engine`, unless the section and its pools set that key. If the
    engine is auto, return the section unchanged."""
    section = {} if section is None else section
    if not isinstance(section, dict) or engine == "auto":
        return section
    section = _dated(section, engine, always=True)
    pools = section.get("deployments")
    if isinstance(pools, dict):
        section["deployments"] = {name: _dated(pool, engine) for name, pool in pools.items()}
    return section


def _dated(section: Any, engine: str, always: bool = False) -> Any:
    """Return the section of a pool, and of its prefill and decode pools, with this default engine. A pool without
    `latency` inherits it, unless `always` is set."""
    if not isinstance(section, dict):
        return section
    section = {**section, **{role: _dated(section[role], engine) for role in ROLES if role in section}}
    if always or "latency" in section:
        section["latency"] = latency.dated(section.get("latency"), engine)
    return section

"""The settings of a gateway that take effect while it runs, besides engines and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headway.gateway.intake import Intake, rank_classes
from headway.http.server_log import change_log

if TYPE_CHECKING:
    from headway.gateway.config import Config
    from headway.gateway.engines.engine_health import Checks
    from headway.gateway.observing.access_log import AccessLog
    from headway.gateway.reception import Reception
    from headway.gateway.services import Services
    from headway.gateway.usage import Ledger

    Setters = Mapping[str, Callable[[Config], None]]


def live_settings(
    services: Services, checks: Checks, intake: Intake, reception: Reception, access_log: AccessLog, ledger: Ledger
) -> Setters:
    """Return the keys of the file that can change while the gateway runs, each with the function that puts its new
    value in force. A request in flight keeps the limits and the chain of models with which it began."""

    def set_keys(config: Config) -> None:
        """Keep the usage of known keys."""
        if reception.keyring is None or config.keyring is None:
            reception.keyring = config.keyring
            if config.keyring is not None:
                config.keyring.use(ledger)
        else:
            reception.keyring.renew(config.keyring)

    def set_classes(config: Config) -> None:
        intake.ranks = rank_classes(config.classes)

    def set_deadlines(config: Config) -> None:
        intake.deadlines = config.deadlines

    def set_sessions(config: Config) -> None:
        intake.sessions = config.sessions

    def set_timeouts(config: Config) -> None:
        services.timeouts = services.health.timeouts = config.timeouts

    def set_health(config: Config) -> None:
        checks.change(config.health)

    def set_retries(config: Config) -> None:
        services.retries = config.retries

    def set_log(config: Config) -> None:
        change_log(config.log)
        access_log.set_share(config.log.access)

    def set_cascade(config: Config) -> None:
        reception.chains = config.chains

    def set_aliases(config: Config) -> None:
        reception.aliases = config.aliases

    def set_fallbacks(config: Config) -> None:
        reception.fallbacks = config.fallbacks

    def set_routes(config: Config) -> None:
        reception.routes = config.routes

    return {
        "keys": set_keys,
        "classes": set_classes,
        "deadlines": set_deadlines,
        "sessions": set_sessions,
        "timeouts": set_timeouts,
        "retries": set_retries,
        "health": set_health,
        "log": set_log,
        "cascade": set_cascade,
        "aliases": set_aliases,
        "fallbacks": set_fallbacks,
        "routes": set_routes,
    }

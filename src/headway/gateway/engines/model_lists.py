"""Discovery of models: for an engine with `models: auto`, the gateway reads the engine's own list of models.

The engine receives no requests until its first list has arrived. If a later list cannot be read, the last one stays.
An entry of the list with a `parent` is a LoRA adapter: requests for it carry its name as `adapter` for policies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.engines.engine_fleet import MODELS
from headway.gateway.engines.follower import Follower, Poller, PollFailed, turn
from headway.gateway.engines.member import MODEL_LONGEST
from headway.gateway.settings import check_name

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.live_clock import Clock

PATH: Final = "/v1/models"
INTERVAL_S: Final = 5.0
SOON_S: Final = 0.5  # time between two polls of an engine whose models are unknown
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_MODELS: Final = 1000  # maximum number of models of an engine; further ones are ignored
log = logging.getLogger("headway.gateway")


class ListedModel(Struct):
    id: str
    parent: str | None = None  # the model that a LoRA adapter extends


class ModelList(Struct):
    data: list[ListedModel]


class ModelLists:
    def __init__(self, clock: Clock, fleet: Fleet, poller: Poller | None = None) -> None:
        self.clock, self.fleet = clock, fleet
        self.follower = Follower(clock, fleet, poller or Poller(TIMEOUT_S, MOST_BYTES), self._follow, dict[str, str])
        self.problems = self.follower.states  # by engine: why the last poll failed

    async def start(self) -> None:
        await self.follower.start()

    async def stop(self) -> None:
        await self.follower.stop()

    async def _follow(self, backend: Backend) -> None:
        await asyncio.sleep(SOON_S * turn(backend))
        while True:
            if backend.offered.discovers:
                await self._poll(backend)
            await asyncio.sleep(SOON_S if MODELS in backend.unready else INTERVAL_S)

    async def _poll(self, backend: Backend) -> None:
        try:
            models = read_list(await self.follower.poller.text(backend, PATH))
        except (PollFailed, HeadwayError) as error:
            self._report(backend, str(error))
            return
        except Exception:  # an exception must not end the polls of this engine
            log.exception("%s: the poll of its models failed", backend.name)
            return
        self.problems[backend].clear()
        self.fleet.learn(backend, models)

    def _report(self, backend: Backend, why: str) -> None:
        known = self.problems.get(backend)
        if known is not None and known.get("why") != why:
            known["why"] = why
            log.warning("%s: its list of models cannot be read: %s", backend.name, why)


def read_list(text: str) -> dict[str, str]:
    """Return the models of an engine's list, in its order: the name of each, and the model that it extends if it is a
    LoRA adapter, otherwise an empty string."""
    try:
        listed = msgspec.json.decode(text, type=ModelList).data
    except (msgspec.MsgspecError, RecursionError):
        raise HeadwayError("it is not a list in the form of OpenAI's API") from None
    models: dict[str, str] = {}
    for model in listed[:MOST_MODELS]:
        try:
            check_name(model.id, PATH, MODEL_LONGEST)
        except HeadwayError:
            log.debug("a model's name is ignored: %s", shown(model.id))
            continue
        models[model.id] = model.parent or ""
    if not models:
        raise HeadwayError("it names no model")
    return models

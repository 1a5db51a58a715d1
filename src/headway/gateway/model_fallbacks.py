"""Fallbacks between models: if a model fails, is overloaded or cannot hold the prompt, another model answers.

The control plane handles the request to each model as a separate request. For the client, for the limits of its API
key and for its deadline, they are one request. The gateway falls back only while the client has received nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.exchange import AGAIN, Exchange
from headway.gateway.model_names import find_model, replace_model
from headway.gateway.request_body import LONGEST_MODEL
from headway.gateway.settings import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.gateway.api_keys import Key
    from headway.gateway.apis.api import Api
    from headway.gateway.intake import Intake
    from headway.gateway.request_body import Body
    from headway.gateway.services import Services
    from headway.http.known_heads import Fields
    from headway.http.request_reader import Incoming
    from headway.http.upstream import Upstream
    from headway.http.wire import ClientConnection
    from headway.types import Request

Cause = Literal["error", "overload", "context"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
MOST_MODELS: Final = 16
OVERLOADED: Final = (429, 503, 529)  # 529 is Anthropic's status for an overloaded server
JUDGED: Final = (400, 413, 422)  # statuses whose message may say that the prompt is too long
MOST_JUDGED: Final = 64 * 1024  # a longer error is forwarded without a look at its message
# What engines say of a prompt that is too long: vLLM and OpenAI, SGLang, llama.cpp, Anthropic.
TOO_LONG: Final = re.compile(
    rb"maximum context length|context_length_exceeded|longer than the model's context length|exceed_context_size_error"
    rb"|exceeds? the (?:\w+ ){0,3}(?:context|length)|prompt is too long",
    re.IGNORECASE,
)


class FallbackModels(Struct, frozen=True):
    models: Annotated[tuple[str, ...], "models to ask, in this order; a list alone may replace the mapping"]
    causes: Annotated[
        tuple[Cause, ...],
        "error: no engine answers, or its status is 500 or above; overload: admission or an engine rejects the "
        "request; context: the prompt is too long for the model",
    ] = CAUSES
    short_form: ClassVar[Any] = list[str]  # a list alone sets `models`

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"models": data} if isinstance(data, list) else data

    def validate(self, where: str) -> FallbackModels:
        for model in self.models:
            check_name(model, where, LONGEST_MODEL, ascii_only=True)
        if not 1 <= len(self.models) <= MOST_MODELS or len(dict.fromkeys(self.models)) < len(self.models):
            raise HeadwayError(
                f"{where}: expected 1 to {MOST_MODELS} different models, got {shown(list(self.models))}."
            )
        return self


def read_fallbacks(data: Any, where: str = "fallbacks") -> dict[str, FallbackModels]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping of models to lists of models, as in {{large: [small]}}.")
    fallbacks: dict[str, FallbackModels] = {}
    for name, value in data.items():
        check_name(name, where, LONGEST_MODEL, ascii_only=True)
        fallbacks[name] = read(FallbackModels, value, f"{where}.{name}")
        if name in fallbacks[name].models:
            raise HeadwayError(f"{where}.{name}: the model is in its own list. Name other models.")
    return fallbacks


def next_models(fallback: FallbackModels, aliases: Mapping[str, str], key: Key | None) -> FallbackModels:
    """Return the models that a key may use, with aliases resolved."""
    names = [name for name in fallback.models if key is None or key.models is None or name in key.models]
    return replace(fallback, models=tuple(dict.fromkeys(aliases.get(name, name) for name in names)))


class Fallback(Exchange):
    """Asks one model, and others if it cannot answer."""

    def __init__(
        self,
        services: Services,
        intake: Intake,
        client: ClientConnection,
        incoming: Incoming,
        request: Request,
        body: Body,
        key: Key | None,
        api: Api,
        fallback: FallbackModels,
    ) -> None:
        find_model(incoming.body)  # raises if the field cannot be replaced later
        super().__init__(services, client, incoming, request, bool(body.stream), key, api)
        self.intake, self.prompt, self.causes = intake, body, fallback.causes
        self.first, self.left = body.model, list(fallback.models)
        self.cause: Cause | None = None  # why the answer of this model is discarded
        self.judged = False  # whether an error is held back until its message has arrived

    def _may_fall_back(self, cause: Cause) -> bool:
        return bool(self.left) and cause in self.causes and not self.sent

    def _cause_of(self, status: int) -> Cause | None:
        """Return why to ask another model after this status; None if the status is an answer."""
        cause: Cause | None = None
        if status in OVERLOADED:
            cause = "overload"
        elif status >= 500 and status != 504:  # after a deadline, no time is left
            cause = "error"
        return cause if cause is not None and self._may_fall_back(cause) else None

    def _fall_back(self, cause: Cause, why: str, outcome: str = "failed") -> None:
        self._drop_upstream()
        self.leave(outcome, f"fell back ({cause}): {why}")
        self.cause, self.judged = None, False
        model = self.left.pop(0)
        self.marks = [f"x-headway-fallback: {model}; from={self.first}; cause={cause}".encode()]
        self.body = replace_model(self.incoming.body, model)
        self.intake.ask_model(self, self.prompt, model)

    def refuse(self, status: int, why: str, outcome: str = "rejected") -> None:
        cause = self._cause_of(status)
        if status == 404 and self._may_fall_back("error"):  # no engine serves the model
            cause = "error"
        if cause is None:
            super().refuse(status, why, outcome)
        else:
            self._fall_back(cause, why, outcome)

    def _retry(self, why: str, prefill: bool = False) -> None:
        self.cause, self.judged = None, False
        super()._retry(why, prefill)

    # --- the engine's answer -----------------------------------------------------------------------------------------

    def on_head(self, upstream: Upstream | None, status: int, fields: Fields) -> None:
        if status in AGAIN and self._may_retry():
            super().on_head(upstream, status, fields)
            return
        self.cause = self._cause_of(status)
        if self.cause is not None:
            self.status, self.again = status, True  # so that the answer is discarded
            return
        self.judged = status in JUDGED and self._may_fall_back("context")
        super().on_head(upstream, status, fields)

    def on_data(self, data: bytes) -> None:
        if not self.judged:
            super().on_data(data)
            return
        self.pieces.append(self.framed(data))
        self.piece_bytes += len(data)
        if self.piece_bytes > MOST_JUDGED:
            self.judged = False
            self.open(b"")

    def on_complete(self) -> None:
        if self.over:
            return
        cause, self.cause = self.cause, None
        if self.judged and TOO_LONG.search(b"".join(self.pieces)):
            cause = "context"
        if cause is None:
            super().on_complete()
            return
        self.upstream = None
        self.record_answer()
        self._fall_back(cause, f"status {self.status}")

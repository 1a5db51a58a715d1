"""Faults that can be injected into a replica."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, Struct, ValidationError, convert

from headway.errors import HeadwayError

Mode = Literal[
    "none",
    "slow",
    "hang",
    "freeze",
    "reset",
    "500",
    "503",
    "cut",
    "garbage",
    "unhealthy",
    "crash",
    "crash-after-tokens",
]
AT_ARRIVAL: Final = ("reset", "500", "503")  # modes that fail a request when it arrives
AMID_STREAMS: Final = ("cut", "garbage")  # modes that break each stream


class Fault(Struct, forbid_unknown_fields=True):
    """The body of `POST /faults`.

    slow                steps take `factor` times as long
    hang                no step ends, so requests are accepted but never answered
    freeze              the same, and no other request is answered either, such as `GET /health`, as after SIGSTOP
    reset               the connection of a request is closed before the first byte of the answer
    500, 503            every answer has this status
    cut                 each stream ends within the chunk that follows `tokens` tokens
    garbage             each stream continues with invalid HTTP after `tokens` tokens
    unhealthy           `GET /health` returns 503, but requests are served
    crash               all connections break, the cache is lost, and the port is closed
    crash-after-tokens  a crash after `tokens` more tokens
    none                no fault
    """

    mode: Mode
    replica: str | None = None  # name of the replica; None: the replica that receives this request
    factor: Annotated[float, Meta(gt=0, le=1e6)] = 10.0
    tokens: Annotated[int, Meta(ge=0)] = 0
    requests: Annotated[int, Meta(ge=1)] | None = None  # number of requests that fail; None: all requests
    seconds: Annotated[float, Meta(gt=0)] | None = None  # wall-clock time until recovery; None: never

    @classmethod
    def read(cls, data: Any, where: str) -> Fault:
        try:
            return convert(data, cls)
        except ValidationError as error:
            raise HeadwayError(f"{where}: {error}. Modes are {', '.join(get_args(Mode))}.") from None


NO_FAULT: Final = Fault("none")

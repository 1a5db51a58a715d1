"""What may be wrong with a replica, on purpose."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, convert
from msgspec import ValidationError as Wrong

from headway.errors import HeadwayError

Mode = Literal["none", "slow", "hang", "reset", "500", "503", "unhealthy", "crash", "crash-after-tokens"]
# What is wrong with requests as they come; the others are of the engine itself.
AT_THE_DOOR: Final = ("reset", "500", "503")


class Fault(Struct, forbid_unknown_fields=True):
    """The body of `POST /faults`.

    slow                steps take `factor` times as long
    hang                no step ends: requests are taken and nothing comes of them
    reset               the connection of a request is broken before a byte is sent
    500, 503            that is the answer
    unhealthy           `GET /health` says 503; requests are served
    crash               everybody's connection breaks, what was cached is gone, and nobody listens
    crash-after-tokens  that, after so many `tokens` more
    none                all is well
    """

    mode: Mode
    replica: str | None = None  # None: the one that is asked
    factor: Annotated[float, Meta(gt=0, le=1e6)] = 10.0
    tokens: Annotated[int, Meta(ge=0)] = 0
    requests: Annotated[int, Meta(ge=1)] | None = None  # how many it befalls; None: all
    seconds: Annotated[float, Meta(gt=0)] | None = None  # by the wall clock, until all is well again; None: for good

    @classmethod
    def read(cls, data: Any, where: str) -> Fault:
        try:
            return convert(data, cls)
        except Wrong as error:
            raise HeadwayError(
                f"{where}: {error}; modes are none, slow, hang, reset, 500, 503, unhealthy, crash and "
                "crash-after-tokens."
            ) from None


WELL: Final = Fault("none")

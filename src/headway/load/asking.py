"""Writes a planned request as the bytes of an HTTP request."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.http.address import Address
from headway.load.conversations import Conversations
from headway.load.prompt_texts import prompt_text
from headway.types import Request
from headway.workload.traffic import Planned

Api = Literal["completions", "chat"]
PATHS: Final = {"completions": b"/v1/completions", "chat": b"/v1/chat/completions"}
ROLES: Final = ("user", "assistant")
NAMES: Final = 200  # maximum number of characters in the value of a header field


class Ask(Struct, frozen=True):
    """The endpoint of a load run, and the form of its requests."""

    url: str
    model: str | None = None  # name of the model in every request; None: the model that the workload names
    api: Api = "completions"
    truth: bool = False  # whether to send the planned lengths and block keys too, for an emulator
    ignore_eos: bool = True  # whether engines must generate as many tokens as the workload plans
    key: str | None = None  # API key, sent as a bearer token; None: no key


def address_of(url: str) -> Address:
    if "?" in url or "#" in url:
        raise HeadwayError(f"URL: {url!r} has a query or fragment. Remove the part from ? or # on.")
    return Address(url.rstrip("/").removesuffix("/v1"), "URL")


class Writer:
    """Writes requests for one endpoint."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.address = address_of(ask.url)
        self.talks = None if ask.truth else Conversations()  # with `truth`, block keys identify earlier turns
        lines = [
            b"POST %b%b HTTP/1.1" % (self.address.base, PATHS[ask.api]),
            self.address.host_line,
            b"content-type: application/json",
            b"accept: text/event-stream",
        ]
        if ask.key is not None:
            lines.append(b"authorization: Bearer " + ask.key.encode())
        self._head = b"\r\n".join(lines)

    def request(self, planned: Planned) -> bytes:
        body = msgspec.json.encode(self.body(planned))
        request, lines = planned.request, [self._head]
        for name, value in (
            (b"session", request.session),
            (b"tenant", None if request.tenant == "default" else request.tenant),
            (b"class", None if request.slo_class == "standard" else request.slo_class),
        ):
            if value is not None:
                lines.append(b"x-headway-%b: %b" % (name, _plain(value)))
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        return b"\r\n".join(lines) + body

    def body(self, planned: Planned) -> dict[str, Any]:
        ask, request = self.ask, planned.request
        turns = (prompt_text(request),) if self.talks is None else self.talks.ask(request)
        body: dict[str, Any] = {"model": request.model if ask.model is None else ask.model}
        if ask.api == "chat":
            body["messages"] = [{"role": ROLES[at % 2], "content": text} for at, text in enumerate(turns)]
        else:
            body["prompt"] = "".join(turns)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.truth:
            if request.max_tokens is not None:
                body["max_tokens"] = request.max_tokens
            body["headway"] = truth(request, planned)
        else:
            body["max_tokens"] = planned.output_tokens
            if ask.ignore_eos:
                body["ignore_eos"] = True
        return body


def truth(request: Request, planned: Planned) -> dict[str, Any]:
    """Return the field `headway` of a request, which tells an emulator the planned lengths and the content of the
    prompt; see `emulator.engine_request`."""
    facts = {
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": planned.output_tokens,
        "output_key": planned.output_key,
        "path": {"keys": request.path.keys, "ends": request.path.ends},
    }
    return facts if request.adapter is None else {**facts, "adapter": request.adapter}


def _plain(text: str) -> bytes:
    """Return the text as the value of a header: printable ASCII, at most NAMES characters."""
    return "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in text)[:NAMES].encode()

"""Answers in vLLM's format: one JSON document, or a stream with a server-sent event for each token."""

import base64
import struct
from itertools import accumulate
from typing import Any, Final

import msgspec

from headway.emulator.engine_request import EngineRequest
from headway.emulator.tokens import WORDS, logprob, vector, word
from headway.hashing import stable

DONE: Final = b"data: [DONE]\n\n"
VECTOR: Final = 16  # default number of values in an embedding
encode: Final = msgspec.json.encode


class Answer:
    """The answer to one request. `head` is the JSON that precedes the choices in each event."""

    object = chunk = ""

    def __init__(self, id: str, created: int, model: str, request: EngineRequest) -> None:
        self.id, self.created, self.model, self.request, self.script = id, created, model, request, request.script
        options = request.body.stream_options
        self.continuous = options is not None and options.include_usage and options.continuous_usage_stats
        self.head = encode({"id": id, "object": self.chunk, "created": created, "model": model})[:-1] + b',"choices":'

    def opening(self) -> bytes:
        """Return the events that precede the first token."""
        return b""

    def event(self, choice: bytes, usage: dict[str, Any] | None) -> bytes:
        tail = b"" if usage is None else b',"usage":' + encode(usage)
        return b"data: " + self.head + b"[" + choice + b"]" + tail + b"}\n\n"

    def token(self, number: int, last: bool, usage: dict[str, Any] | None) -> bytes:
        raise NotImplementedError

    def closing(self, usage: dict[str, Any] | None) -> bytes:
        """Return the events that follow the last token."""
        final = b"" if usage is None else b"data: " + self.head + b'[],"usage":' + encode(usage) + b"}\n\n"
        return final + DONE

    def content(self) -> dict[str, Any]:
        """Return the fields of the answer's only choice, which contain the whole answer."""
        raise NotImplementedError

    def logprobs(self, start: int, end: int) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, usage: dict[str, Any], more: dict[str, Any]) -> bytes:
        script = self.script
        document = {"id": self.id, "object": self.object, "created": self.created, "model": self.model}
        choice = {
            "index": 0,
            **self.content(),
            "logprobs": None if self.request.logprobs is None else self.logprobs(0, script.tokens),
            "finish_reason": script.reason,
            "stop_reason": script.stop_reason,
        }
        return encode(
            {
                **document,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": usage,
                "prompt_logprobs": None,
                "kv_transfer_params": None,
                **more,
            }
        )


class ChatAnswer(Answer):
    object, chunk = "chat.completion", "chat.completion.chunk"

    def opening(self) -> bytes:
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return self.event(delta, None)

    def token(self, number: int, last: bool, usage: dict[str, Any] | None) -> bytes:
        script = self.script
        piece = script.piece(number)
        if script.call is None:
            delta = b'{"content":' + encode(piece) + b"}"
        else:
            delta = encode({"tool_calls": [self._call(piece, number == 0)]})
        probs = b"null" if self.request.logprobs is None else encode(self.logprobs(number, number + 1))
        end = b"null}" if not last else encode(script.reason) + b',"stop_reason":' + encode(script.stop_reason) + b"}"
        return self.event(b'{"index":0,"delta":' + delta + b',"logprobs":' + probs + b',"finish_reason":' + end, usage)

    def _call(self, piece: str, first: bool) -> dict[str, Any]:
        call = self.script.call
        assert call is not None
        if not first:
            return {"index": 0, "function": {"arguments": piece}}
        return {"index": 0, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": piece}}

    def logprobs(self, start: int, end: int) -> dict[str, Any]:
        return {"content": [self._logprob(number) for number in range(start, end)]}

    def _logprob(self, number: int) -> dict[str, Any]:
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in candidates(self.request, number)
        ]
        return {**entries[0], "top_logprobs": entries[: self.request.logprobs]}

    def content(self) -> dict[str, Any]:
        script = self.script
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "reasoning": None}
        if script.call is None:
            message["content"] = script.text(script.tokens)
        else:
            function = {"name": script.call.name, "arguments": script.text(script.tokens)}
            message["tool_calls"] = [{"id": script.call.id, "type": "function", "function": function}]
        return {"message": message}


class CompletionAnswer(Answer):
    object = chunk = "text_completion"

    def token(self, number: int, last: bool, usage: dict[str, Any] | None) -> bytes:
        script = self.script
        probs = b"null" if self.request.logprobs is None else encode(self.logprobs(number, number + 1))
        text = encode(script.piece(number))
        end = (encode(script.reason), encode(script.stop_reason)) if last else (b"null", b"null")
        choice = b'{"index":0,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b}' % (text, probs, *end)
        return self.event(choice, usage)

    def logprobs(self, start: int, end: int) -> dict[str, Any]:
        choices = [candidates(self.request, number) for number in range(start, end)]
        tokens = [ranked[0][0] for ranked in choices]
        return {
            "text_offset": list(accumulate(map(len, tokens[:-1]), initial=len(self.script.text(start)))),
            "token_logprobs": [ranked[0][1] for ranked in choices],
            "tokens": tokens,
            "top_logprobs": [dict(ranked) for ranked in choices],
        }

    def content(self) -> dict[str, Any]:
        return {"text": self.script.text(self.script.tokens)}


class EmbeddingAnswer(Answer):
    """An answer with made-up vectors, one for each input."""

    def whole(self, usage: dict[str, Any], more: dict[str, Any]) -> bytes:
        body = self.request.body
        texts = body.input if isinstance(body.input, list) and body.input else [body.input]
        inputs = [texts] if isinstance(texts[0], int) else texts
        data, size = [], body.dimensions or VECTOR
        for index, text in enumerate(inputs):
            numbers: Any = vector(stable("embedding", *(text if isinstance(text, list) else [str(text)])), size)
            if body.encoding_format == "base64":
                numbers = base64.b64encode(struct.pack(f"<{size}f", *numbers)).decode()
            data.append({"object": "embedding", "index": index, "embedding": numbers})
        prompt = usage["prompt_tokens"]
        tokens = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
        head = {"id": self.id, "object": "list", "created": self.created, "model": self.model}
        return encode({**head, "data": data, "usage": tokens})


ANSWERS: Final[dict[str, tuple[str, type[Answer]]]] = {
    "chat": ("chatcmpl-", ChatAnswer),
    "completion": ("cmpl-", CompletionAnswer),
    "embedding": ("embd-", EmbeddingAnswer),
}


def candidates(request: EngineRequest, number: int) -> list[tuple[str, float]]:
    """Return the token at position `number` of the answer, followed by alternative tokens for this position, each with
    its log-probability."""
    seed = request.script.seed
    tokens = [(request.script.piece(number), logprob(seed, number))]
    for rank in range(1, request.logprobs or 0):
        other = WORDS[(word(seed, number) + rank) % len(WORDS)]
        tokens.append((other, logprob(seed, number, rank)))
    return tokens

"""Parses a request: its body, and the header that a load generator may add."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headway.emulator.agent_requests import AGENTS, chat_document
from headway.emulator.content import Aliases, Content, PathContent, TokenContent
from headway.emulator.script import Script, choose_call
from headway.emulator.tokens import drawn_length, ids_of_chat, ids_of_text
from headway.errors import HeadwayError
from headway.hashing import stable
from headway.types import Path

FIELD: Final = b"x-headway-request"  # header with the same content as the `headway` field of the body
MOST_TOKENS: Final = 10_000_000
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Count = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]


class PathKeys(Struct, forbid_unknown_fields=True):
    keys: tuple[int, ...]
    ends: tuple[Count, ...]


class Truth(Struct, forbid_unknown_fields=True):
    """Values that only a load generator knows: the length of the answer and the content of the prompt."""

    output_tokens: Count | None = None
    prompt_tokens: Count | None = None
    path: PathKeys | None = None
    output_key: int | None = None  # block key of the answer, if later requests contain the answer in their prompts
    priority: float | None = None
    hints: dict[str, float] = {}  # hints of the priority policy for the scheduler
    adapter: str | None = None


class StreamOptions(Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(Struct):
    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    input: str | list[Any] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0)] | None = None
    n: int | None = 1
    best_of: int | None = 1
    echo: bool | None = False
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    logprobs: bool | Annotated[int, Meta(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    priority: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=8192)] | None = None
    headway: Truth | None = None


_body: Callable[[bytes], Body] = msgspec.json.Decoder(Body).decode
_truth: Callable[[bytes], Truth] = msgspec.json.Decoder(Truth).decode
EMPTY: Final = Truth()


class EngineRequest(Struct):
    kind: str  # chat, completion, embedding, responses, messages or count_tokens
    body: Body
    truth: Truth
    content: Content
    script: Script
    logprobs: int | None = None  # number of candidates to list for each token; None: no log-probabilities requested

    @property
    def priority(self) -> float:
        """The priority. Requests with higher values are served earlier, unlike in vLLM's own field `priority`."""
        if self.truth.priority is not None:
            return self.truth.priority
        return -float(self.body.priority or 0)


class Reader:
    """Parses the requests for one model."""

    def __init__(self, model: str, block_tokens: int, aliases: Aliases, mean_output: int, longest: int) -> None:
        self.block_tokens, self.aliases = block_tokens, aliases
        self.root = stable("model", model)
        self.mean_output, self.longest = mean_output, longest

    def read(self, kind: str, data: bytes, header: bytes | None, number: int) -> EngineRequest:
        """Parse a request. If the request cannot be served, raise a HeadwayError or a msgspec error."""
        body = msgspec.convert(chat_document(kind, data), Body) if kind in AGENTS else _body(data)
        truth = body.headway or EMPTY
        if header is not None:
            truth = _truth(header)
        if body.n not in (None, 1) or body.best_of not in (None, 1):
            raise HeadwayError("n and best_of: the emulator supports one answer per request. Set them to 1.")
        if body.echo:
            raise HeadwayError("echo: the emulator does not support it. Remove it.")
        content = self._content(kind, body, truth, number)
        self._check(content.prompt_tokens)
        script = Script(content.seed, 1) if kind == "embedding" else self._script(kind, body, truth, content)
        return EngineRequest(kind, body, truth, content, script, _logprobs(kind, body))

    def _content(self, kind: str, body: Body, truth: Truth, number: int) -> Content:
        if truth.path is not None:
            return self._by_path(truth, number)
        ids = _prompt(kind, body)
        if not ids:
            raise HeadwayError("the request has no messages, prompt or input. Add one of them.")
        return TokenContent(ids, self.root, self.block_tokens, self.aliases, truth.output_key)

    def _by_path(self, truth: Truth, number: int) -> Content:
        assert truth.path is not None
        keys, ends = truth.path.keys, truth.path.ends
        tokens = truth.prompt_tokens or (ends[-1] if ends else 0)
        if len(keys) != len(ends) or list(ends) != sorted(set(ends)) or (ends and ends[-1] > tokens) or not tokens:
            raise HeadwayError(
                "headway.path: `keys` and `ends` must have the same length, and `ends` must rise and stay within the "
                "prompt."
            )
        return PathContent(Path(keys, ends), tokens, self.block_tokens, truth.output_key, number)

    def _script(self, kind: str, body: Body, truth: Truth, content: Content) -> Script:
        """Return the planned answer. A function call determines its own length. For other answers, the load generator
        may send the length. If it does not, the length is the client's limit or, if there is no limit, a random number.
        No answer exceeds the client's limit."""
        calls = kind == "chat" or kind in AGENTS
        call = choose_call(body.tools, body.tool_choice, content.seed) if calls else None
        most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        room = self.longest - content.prompt_tokens
        length = truth.output_tokens
        if call is not None:
            length = len(call.pieces)
        elif length is None and most is None:
            length = drawn_length(content.seed, self.mean_output)
        most = room if most is None else max(1, min(most, room))
        cut = length is None or length > most
        script = Script(content.seed, most if length is None or cut else length, "length" if cut else "stop", call)
        if call is not None and not cut:
            script.reason = call.reason
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if call is None and any(stops):
            script.stop_at([stop for stop in stops if stop], body.include_stop_str_in_output)
        return script

    def _check(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self.longest:
            raise HeadwayError(
                f"This model's maximum context length is {self.longest} tokens. However, your request has "
                f"{prompt_tokens} input tokens. Please reduce the length of the input messages."
            )


def _logprobs(kind: str, body: Body) -> int | None:
    if kind == "chat":
        return (body.top_logprobs or 0) if body.logprobs else None
    if body.logprobs is None or body.logprobs is False:
        return None
    return int(body.logprobs)


def _prompt(kind: str, body: Body) -> array[int]:
    if kind == "chat" or kind in AGENTS:
        return ids_of_chat(body.messages, body.tools) if body.messages else array("I")
    prompt = body.prompt if kind == "completion" else body.input
    if isinstance(prompt, str):
        return ids_of_text(prompt)
    if not prompt:
        return array("I")
    several = not isinstance(prompt[0], int) if kind == "embedding" else isinstance(prompt[0], str | list)
    prompts = prompt if several else [prompt]
    if kind == "completion" and len(prompts) > 1:
        raise HeadwayError("prompt: the emulator supports one prompt per request, got a list of several.")
    ids = array("I")
    for each in prompts:  # several texts to embed count as one prompt
        ids.extend(ids_of_text(each) if isinstance(each, str) else array("I", msgspec.convert(each, list[TokenId])))
    return ids

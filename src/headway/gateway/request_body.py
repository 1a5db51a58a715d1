"""Bodies of requests: reads the fields that the gateway needs, hashes prompts to block keys, changes fields."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from headway.types import Path

# Size of a prompt's first blocks, in bytes. A later block is about 1/16 as long as the part of the prompt before it.
FIRST: Final = 256
LEAST: Final = 64  # minimum size of a prompt that has a block key, in bytes
KEPT_BLOCKS: Final = 32  # number of blocks at the beginning of a long prompt whose keys are kept
KEPT_BYTES: Final = KEPT_BLOCKS * FIRST
MOST_KEPT: Final = 4096  # maximum number of different beginnings
ENDS: Final = b']"'
LONGEST_MODEL: Final = 1024  # maximum length of a model's name, in characters
Digest = Callable[[bytes | memoryview, int], int]  # a hash function; its arguments are the data and a seed
Fields = dict[str, Raw]
Chat = tuple[list[dict[str, Any]], Any, Any]  # messages, tools, and further values for the chat template
Decoded = TypeVar("Decoded")
KV_FIELDS: Final = (
    *("kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "headway_kv"),
)
EXTRA: Final = "vllm_xargs"  # vLLM adds its entries to the arguments of a request, among them those of KV transfer
NULL: Final = b"null"
NOTHING: Final = (NULL, b"false")


class Body(Struct):
    """The fields of a request body that the gateway reads. Raw fields are decoded only when used. A field that is null
    counts as missing, except `prompt`, which OpenAI's API allows to be null."""

    model: Annotated[str, Meta(max_length=LONGEST_MODEL)] = ""
    stream: bool | None = False
    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    max_tokens: int | float | None = None  # a float, because some engines accept 5.0
    max_completion_tokens: int | float | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    tools: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    reasoning_effort: Raw = Raw()
    add_generation_prompt: Raw = Raw()
    add_special_tokens: Raw = Raw()
    # Fields of KV transfer, which only the gateway may set.
    kv_transfer_params: Raw = Raw()
    ec_transfer_params: Raw = Raw()  # of what an encoder computes
    bootstrap_host: Raw = Raw()
    bootstrap_port: Raw = Raw()
    bootstrap_room: Raw = Raw()
    headway_kv: Raw = Raw()
    vllm_xargs: Raw = Raw()
    # Whether engines merge later system messages into the first one if the chat template refuses them.
    merges_system: ClassVar[bool] = False

    @property
    def hint(self) -> str | None:
        """What the client says that requests with a common prefix share; None if it says nothing."""
        return self.prompt_cache_key

    @property
    def is_chat(self) -> bool:
        """Whether the engine renders the prompt with its chat template."""
        return bool(self.messages)

    @property
    def opening(self) -> bytes:
        """The bytes in which the session finds the first messages."""
        return bytes(self.messages)

    def chat(self) -> Chat:
        """Return messages, tools and further values for the chat template."""
        tools = _any(self.tools) if self.tools else None
        more = _any(self.chat_template_kwargs) if self.chat_template_kwargs else None
        effort = _any(self.reasoning_effort) if self.reasoning_effort else None
        return _any(self.messages), tools, with_effort(more, effort)

    @property
    def text(self) -> memoryview:
        """The bytes of the prompt without the closing bracket or quote. If a conversation gets more messages, the old
        text is therefore a prefix of the new text."""
        text = memoryview(self.messages or self.prompt or self.input)
        return text[:-1] if text and text[-1] in ENDS else text

    @property
    def sets_kv_transfer(self) -> bool:
        """Whether the client sets fields of KV transfer, which could make an engine connect to any host."""
        fields = (
            self.kv_transfer_params,
            self.ec_transfer_params,
            self.bootstrap_host,
            self.bootstrap_port,
            self.bootstrap_room,
            self.headway_kv,
        )
        return (any(fields) and any(map(is_set, fields))) or names_kv(self.vllm_xargs)


def with_effort(more: Any, effort: Any) -> Any:
    """Return the values for a chat template with the effort of reasoning that a request asks for, as vLLM sets them."""
    if effort is None or effort == "auto":
        return more
    return {"enable_thinking": effort != "none", **(more or {}), "reasoning_effort": effort}


def is_set(raw: Raw) -> bool:
    return bool(raw) and bytes(raw) != NULL


def names_kv(extra: Raw) -> bool:
    """Return whether further arguments for the engine have fields of KV transfer."""
    arguments = decode_safely(_any, bytes(extra)) if extra else None
    return isinstance(arguments, dict) and any(name in arguments for name in KV_FIELDS)


_any: Callable[[bytes | Raw], Any] = msgspec.json.Decoder().decode


def reader(kind: type[Body]) -> Callable[[bytes], Body]:
    """Return a function that decodes request bodies of an API. It raises msgspec.MsgspecError if a body is not a JSON
    object with the fields of `kind`."""
    decode: Callable[[bytes], Body] = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> Body:
        body = decode_safely(decode, data)
        if len(body.messages) == len(NULL) and not is_set(body.messages):
            body.messages = Raw()
        if len(body.input) == len(NULL) and not is_set(body.input):
            body.input = Raw()
        if (body.messages or body.input) and len(body.prompt) == len(NULL) and not is_set(body.prompt):
            body.prompt = Raw()
        return body

    return read


def decode_safely(decode: Callable[[bytes], Decoded], data: bytes) -> Decoded:
    """Decode JSON, with msgspec.MsgspecError as the only exception."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("the text is not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("the document is nested too deeply") from None


read_body: Final = reader(Body)


def boundaries(size: int) -> list[int]:
    """Return the positions at which the blocks of a prompt end. They do not depend on the text, so equal prefixes have
    equal blocks. Later blocks are longer: a prompt of 400 kB has 99 blocks instead of 1,600."""
    ends: list[int] = []
    at = 0
    while True:
        at += max(FIRST, at // 16 // FIRST * FIRST)
        if at > size:
            return ends
        ends.append(at)


_ENDS: Final = boundaries(1 << 22)
_BLOCKS: Final = [slice(start, end) for start, end in pairwise([0, *_ENDS])]


@lru_cache
def _token_ends(bytes_per_token: int) -> tuple[int, ...]:
    return tuple(end // bytes_per_token for end in _ENDS)


class BlockKeys:
    """Computes the block keys of prompts. A conversation repeats its beginning with every turn, and many agents begin
    with the same instructions and tools. Therefore the keys of the first blocks of long prompts are kept, under one
    hash of their text; computing this hash is 20 times as fast as computing the keys."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        self._first: dict[int, tuple[int, ...]] = {}

    def path(self, text: bytes | memoryview, salt: int, bytes_per_token: int = 4) -> Path:
        """Return the prompt as a chain of block keys. Each key depends on all blocks before it."""
        size = len(text)
        count = bisect_right(_ENDS, size)
        digest = self.digest
        if not count:  # a prompt shorter than one block has one key
            return Path((), ()) if size < LEAST else Path((digest(text, salt),), (size // bytes_per_token,))
        view, key = memoryview(text), salt
        if count < KEPT_BLOCKS:
            keys = tuple([key := digest(view[block], key) for block in _BLOCKS[:count]])
        else:
            first = self._first_keys(view[:KEPT_BYTES], salt)
            key = first[-1]
            keys = (*first, *[key := digest(view[block], key) for block in _BLOCKS[KEPT_BLOCKS:count]])
        return Path(keys, _token_ends(bytes_per_token)[:count])

    def _first_keys(self, view: memoryview, salt: int) -> tuple[int, ...]:
        digest = self.digest
        name = digest(view, salt)
        keys = self._first.get(name)
        if keys is None:
            key = salt
            keys = tuple([key := digest(view[block], key) for block in _BLOCKS[:KEPT_BLOCKS]])
            if len(self._first) >= MOST_KEPT:
                self._first.clear()
            self._first[name] = keys
        return keys


_fields: Callable[[bytes], Fields] = msgspec.json.Decoder(Fields).decode
_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def read_fields(data: bytes) -> Fields:
    """Return the fields of a JSON object. Raise msgspec.MsgspecError if it is none."""
    return decode_safely(_fields, data)


def asks_for(fields: Fields, name: str) -> bool:
    """Return whether a field is present and neither null nor false."""
    return name in fields and bytes(fields[name]) not in NOTHING


def amend_fields(fields: Fields, changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> bytes:
    amended: dict[str, Any] = {**fields, **changes}
    for name in without:
        amended.pop(name, None)
    return _encode(amended)

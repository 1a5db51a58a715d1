"""Prompts as chains of block keys. The keys are computed from the prompt's bytes or from the engine's tokens.

A key is a 64-bit hash of the block, of all blocks before it and of the model. With a tokenizer, keys are computed from
the engine's tokens, so a prompt and the engine's KV events have the same keys, and `exact` is true. Without a
tokenizer, keys are computed from bytes, and `exact` is false.

Tokenizing takes about half a second per megabyte, so a thread tokenizes long prompts. Hashing the bytes of 400 kB takes
less time than the switch to a thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path as File
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
import xxhash
from msgspec import Meta, Raw, Struct

from headway.config.keys import Doc, Unit
from headway.config.section import read
from headway.config.wording import one_line
from headway.errors import HeadwayError, missing_extra
from headway.gateway.chat_template import ChatTemplate, merge_system, plain
from headway.gateway.request_body import BlockKeys, Body, Digest
from headway.hashing import stable
from headway.types import Path

Prompt = tuple[Path, int]  # the prompt's block keys and its number of tokens
Ids = Sequence[int]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
BY_BYTES: Final = 1024 * 1024  # prompts with more bytes than this are hashed in a thread
BY_TOKENS: Final = 1024  # prompts with more bytes than this are tokenized in a thread
STRETCH: Final = 2048  # number of tokens that a thread hashes before it lets other threads run
WAITING: Final = 256  # maximum number of prompts in the thread pool; further prompts are hashed by bytes, not by tokens
MODELS: Final = 1000  # maximum number of models whose root key is cached
_texts = msgspec.json.Decoder(str | list[str | TokenId | list[TokenId]] | None)


class ModelTokens(Struct, frozen=True):
    path: Annotated[str, "folder of the model, or its tokenizer.json; a path alone may replace the mapping"]
    chat_template: Annotated[str | None, Doc("file in that folder", default="the model's own")] = None
    short_form: ClassVar[Any] = str  # a string alone sets `path`

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return {"path": data} if isinstance(data, str) else data


def _read_models(data: Any, where: str) -> dict[str, ModelTokens]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping of models to tokenizers, as in {{m: FOLDER}}.")
    return {str(name): read(ModelTokens, value, f"{where}.{name}") for name, value in data.items()}


class TokenSettings(Struct, frozen=True):
    """The section `tokens:` of a gateway's file."""

    hash: Annotated[Literal["xxh3", "blake3"], "hash function of block keys"] = "xxh3"
    block_tokens: Annotated[int, Meta(ge=1, le=4096), "tokens in a block"] = 16
    bytes_per_token: Annotated[int, Meta(ge=1, le=64), "estimate for models without a tokenizer"] = 4
    limit: Annotated[int, Meta(ge=1, le=10**8), "tokens of a prompt that get keys; later ones are ignored"] = 131_072
    threads: Annotated[int, Meta(ge=1, le=64), "threads that tokenize long prompts"] = 2
    path: Annotated[str | None, "folder or tokenizer.json for all models not listed in `models`"] = None
    chat_template: Annotated[str | None, Doc("file in that folder", default="the model's own")] = None
    models: Annotated[
        Mapping[str, ModelTokens],
        Unit("mapping", _read_models, dict),
        "model names to a `path`, or to a mapping with `path` and `chat_template`",
    ] = {}

    def validate(self, where: str) -> TokenSettings:
        if self.chat_template is not None and self.path is None:
            raise HeadwayError(f"{where}.chat_template: also needs `path`, the folder of the tokenizer.")
        return self


def digest_of(name: str) -> Digest:
    if name == "xxh3":
        return xxhash.xxh3_64_intdigest
    try:
        from blake3 import blake3
    except ImportError:
        raise missing_extra("tokens.hash", "blake3", "gateway") from None

    def digest(data: bytes | memoryview, seed: int) -> int:
        hasher = blake3(seed.to_bytes(8, "little"))
        hasher.update(data)
        return int.from_bytes(hasher.digest(8), "little")

    return digest


class Hasher:
    """Hashes the bytes of prompts, for models without a tokenizer."""

    exact = False  # whether a prompt's keys equal the keys computed from engines' KV events
    unread = 0  # number of prompts hashed by bytes although the model has a tokenizer

    def __init__(self, settings: TokenSettings) -> None:
        self.settings = settings
        self.block_tokens = settings.block_tokens
        self.digest = digest_of(settings.hash)
        self.keys = BlockKeys(self.digest)

    @staticmethod
    @lru_cache(maxsize=MODELS)
    def root(model: str) -> int:
        """Return the key that serves as the parent of a model's first block."""
        return stable("model", model)

    def chain(self, parent: int, token_ids: Ids) -> int:
        """Return the key of a block of tokens. `parent` is the key of the block before it, or the root."""
        return self.digest(_pack(token_ids), parent)

    def long(self, body: Body) -> bool:
        """Return whether the prompt is too long to be hashed on the event loop."""
        return len(body.text) > BY_BYTES

    def path(self, body: Body) -> Prompt:
        text, each = body.text, self.settings.bytes_per_token
        return self.keys.path(text, self.root(body.model), each), max(1, len(text) // each)

    async def path_later(self, body: Body) -> Prompt:
        return await asyncio.get_running_loop().run_in_executor(None, self.path, body)


class TokenHasher(Hasher):
    """Hashes the same tokens as the engine. If tokenizing fails, it hashes the bytes of the prompt instead, because the
    engine will fail on such a prompt too."""

    exact = True

    def __init__(self, settings: TokenSettings, model: ModelTokens, pool: ThreadPoolExecutor, where: str) -> None:
        super().__init__(settings)
        folder = File(model.path).expanduser()
        file = folder / "tokenizer.json" if folder.is_dir() else folder
        self.tokenizer = _load(file, where)
        self._encode: Callable[..., list[Any]] = getattr(
            self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch
        )
        self.template = ChatTemplate.find(file.parent, model.chat_template)
        self.pool = pool
        self.waiting = 0

    def long(self, body: Body) -> bool:
        return len(body.text) + len(body.tools) > BY_TOKENS

    def path(self, body: Body, breathe: bool = False) -> Prompt:
        try:
            many = self._ids(body)
            count = sum(map(len, many))
            ids = many[0].ids if hasattr(many[0], "ids") else many[0]
            return self._keys(body.model, ids, breathe), max(1, count)
        except Exception:  # the template may raise any exception, and so may a malformed body
            self.unread += 1
            return super().path(body)

    async def path_later(self, body: Body) -> Prompt:
        if self.waiting >= WAITING:
            self.unread += 1
            return super().path(body)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, self.path, body, True)
        finally:
            self.waiting -= 1

    def _ids(self, body: Body) -> list[Any]:
        """Return one entry for each prompt of the request: its token ids, or an encoding object with the token ids."""
        is_chat = body.is_chat
        special = _flag(body.add_special_tokens, not is_chat or self.template is None)
        if is_chat:
            return self._encode([self._chat(body)], add_special_tokens=special)
        raw = body.prompt or body.input
        prompts = _texts.decode(raw) if raw else None
        if isinstance(prompts, str):
            prompts = [prompts]
        if not prompts:
            return [[]]
        if isinstance(prompts[0], str):
            return self._encode(prompts, add_special_tokens=special)
        return prompts if isinstance(prompts[0], list) else [prompts]

    def _chat(self, body: Body) -> str:
        messages, tools, more = body.chat()
        if self.template is None:
            return "\n".join(plain(message.get("content")) for message in messages)
        if body.merges_system and self.template.system_first:
            messages = merge_system(messages, "")
        return self.template.render(messages, tools, more, _flag(body.add_generation_prompt, True))

    def _keys(self, model: str, ids: Ids, breathe: bool) -> Path:
        size, digest, key = self.block_tokens, self.digest, self.root(model)
        full = min(len(ids), self.settings.limit) // size * size
        step = max(size, STRETCH // size * size)
        width = 4 * size
        keys: list[int] = []
        for start in range(0, full, step):
            packed = memoryview(_pack(ids[start : min(start + step, full)]))
            for at in range(0, len(packed), width):
                key = digest(packed[at : at + width], key)
                keys.append(key)
            if breathe:
                time.sleep(0)  # let other threads run
        return Path(tuple(keys), tuple(range(size, full + 1, size)))


class Tokens:
    def __init__(self, settings: TokenSettings) -> None:
        self.settings = settings
        self.pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="tokens")
        self.models = {
            name: TokenHasher(settings, model, self.pool, f"tokens.models.{name}.path")
            for name, model in settings.models.items()
        }
        self.default = Hasher(settings)  # hasher of the models that are not listed in the settings
        if settings.path is not None:
            model = ModelTokens(settings.path, settings.chat_template)
            self.default = TokenHasher(settings, model, self.pool, "tokens.path")

    def of(self, model: str) -> Hasher:
        return self.models.get(model, self.default)

    @property
    def unread(self) -> int:
        """Number of prompts that were hashed by bytes although the model has a tokenizer."""
        return sum(hasher.unread for hasher in (self.default, *self.models.values()))

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def _pack(ids: Ids) -> bytes:
    """Return the token ids as bytes: four bytes for each id, little-endian."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _flag(raw: Raw, default: bool) -> bool:
    return {b"true": True, b"false": False}.get(bytes(raw), default)


def _load(file: File, where: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing_extra(where, "tokenizers", "gateway") from None
    if not file.is_file():
        raise HeadwayError(f"{where}: {file} does not exist. Name a model's folder or its tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizer library raises plain `Exception`
        raise HeadwayError(f"{where}: {file} is not a tokenizer ({one_line(error)}).") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer

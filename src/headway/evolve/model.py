"""Language models: an OpenAI-compatible endpoint, any function, or a transcript of earlier answers."""

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from headway.config.wording import cut, one_line, shown
from headway.errors import HeadwayError, argument

Message = Mapping[str, Any]  # {"role": ..., "content": ...}
Prompt = str | Sequence[Message]  # a string is a single user message
KEY: Final = "OPENAI_API_KEY"  # environment variable with the API key
RETRIED: Final = (408, 409, 429, 500, 502, 503, 504)  # HTTP statuses after which a request is retried
PAUSES_S: Final = (1.0, 4.0, 16.0)  # pause before each retry
LONGEST_PAUSE_S: Final = 60.0  # maximum pause that an endpoint can ask for by Retry-After
LONGEST_ANSWER: Final = 4 << 20  # maximum size of an answer in bytes
TOKENS: Final = ("prompt_tokens", "completion_tokens")  # fields of `usage` in a chat completion


class Model(Protocol):
    """A model answers prompts. If a framework calls it in other processes, it must be picklable."""

    def __call__(self, prompt: Prompt, /) -> str: ...


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [dict(message) for message in prompt]


class Answer(str):
    """The text of an answer. `counts` has the tokens that the endpoint counted, and the number of retries, if any."""

    counts: dict[str, int]

    def __new__(cls, text: str, counts: dict[str, int] | None = None) -> "Answer":
        answer = super().__new__(cls, text)
        answer.counts = counts or {}
        return answer


class Endpoint:
    """A model at `{api_base}/chat/completions`. Each request reads the API key from the environment. No error message
    contains the key. A request waits `timeout_s` for its answer. If it fails in a way that may pass, the endpoint gets
    the request again after each of `pauses_s`, or after the longer pause that it asked for by Retry-After."""

    def __init__(
        self,
        name: str,
        api_base: str,
        key_variable: str = KEY,
        *,
        timeout_s: float = 300.0,
        pauses_s: Sequence[float] = PAUSES_S,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(api_base)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise HeadwayError(
                f"{argument('api_base')}: expected a URL like http://127.0.0.1:8000/v1, got {shown(api_base)}."
            )
        if "@" in parts.netloc:
            raise HeadwayError(
                f"{argument('api_base')}: the URL contains a password. Set the key in {key_variable} instead."
            )
        self.name, self.url, self.key_variable = name, f"{api_base.rstrip('/')}/chat/completions", key_variable
        self.timeout_s, self.pauses_s, self.settings = timeout_s, tuple(pauses_s), dict(settings or {})

    def __call__(self, prompt: Prompt, /) -> str:
        body = json.dumps({"model": self.name, "messages": messages_of(prompt), **self.settings}).encode()
        for retries, pause in enumerate((*self.pauses_s, None)):
            try:
                answer = self._answer(body)
                return Answer(answer, {**answer.counts, "retries": retries}) if retries else answer
            except _Busy as error:
                if pause is None:
                    raise HeadwayError(f"{self.url}: {error} ({1 + len(self.pauses_s)} tries).") from None
                time.sleep(max(pause, error.pause_s))
        raise AssertionError  # not reached, because the last attempt returns or raises

    def _answer(self, body: bytes) -> Answer:
        key = os.environ.get(self.key_variable, "")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                return _text(answer.read(LONGEST_ANSWER), self.url)
        except urllib.error.HTTPError as error:
            why = _without(key, _body(error))
            if error.code in RETRIED:
                raise _Busy(f"answered {error.code}{why}", _asked_pause(error)) from None
            hint = f". Check the key in {self.key_variable}" if error.code in (401, 403) else ""
            raise HeadwayError(f"{self.url}: answered {error.code}{why}{hint}.") from None
        except (OSError, HTTPException) as error:
            raise _Busy(f"no answer: {_without(key, one_line(error))}") from None


class _Busy(Exception):
    """The endpoint returned no answer, but a retry may succeed after `pause_s`."""

    def __init__(self, why: str, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, so that the API key is sent only to the configured address."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _asked_pause(error: urllib.error.HTTPError) -> float:
    """Return the pause in seconds that the header Retry-After asks for, or 0 if it has none or a date."""
    asked = str(error.headers.get("Retry-After", "")).strip()
    return min(float(asked), LONGEST_PAUSE_S) if asked.isascii() and asked.isdigit() else 0.0


def _body(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(2000).decode("utf-8", "replace").strip()
    except (OSError, HTTPException):
        return ""
    return f": {cut(text, 200)}" if text else ""


def _without(key: str, text: str) -> str:
    return text.replace(key, "***") if key else text


def _text(data: bytes, url: str) -> Answer:
    try:
        document = json.loads(data)
        answer = document["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        start = cut(data[:100].decode("utf-8", "replace"))
        raise HeadwayError(f"{url}: the answer is not a chat completion: {start}.") from None
    if not isinstance(answer, str) or not answer.strip():
        raise HeadwayError(f"{url}: the model returned an empty answer.")
    return Answer(answer, _counts(document.get("usage"), TOKENS))


def _counts(usage: object, names: Sequence[str]) -> dict[str, int]:
    """Return the counts with these names. Leave out what is missing, and what is not a whole number."""
    fields = usage if isinstance(usage, dict) else {}
    return {name: fields[name] for name in names if type(fields.get(name)) is int and fields[name] >= 0}


class Recorder:
    """Calls a model, and appends every prompt and answer to a transcript file, as one line of JSON. If the file already
    exists, `go_on` must be true. In this case, prompts that the file contains get their answers from the file, and new
    lines are appended."""

    def __init__(self, model: Model, file: str | os.PathLike[str], *, go_on: bool = False) -> None:
        self.model, self.file = model, os.fspath(file)
        exists = Path(self.file).exists()
        if exists and not go_on:
            raise HeadwayError(f"{self.file}: exists already. Choose another file for {argument('record')}.")
        self.known = Replay(self.file) if exists else None
        _append(self.file, b"")  # if the file cannot be written, fail before the first prompt

    def __call__(self, prompt: Prompt, /) -> str:
        known = None if self.known is None else self.known.find(prompt)
        if known is not None:
            return known
        answer = self.model(prompt)
        row: dict[str, Any] = {"messages": messages_of(prompt), "answer": answer}
        if isinstance(answer, Answer) and answer.counts:
            row["counts"] = answer.counts
        _append(self.file, (json.dumps(row) + "\n").encode())
        return answer


class Replay:
    """Answers prompts from a transcript. If the transcript has several answers to a prompt, they are returned in order.
    If `in_order` is true, the n-th prompt gets the n-th answer, even if the prompts differ."""

    def __init__(self, file: str | os.PathLike[str], *, in_order: bool = False) -> None:
        self.file, self.in_order = os.fspath(file), in_order
        self.answers: dict[str, list[Answer]] = {}
        self.every: list[Answer] = []
        self.prompts = 0
        try:
            lines = Path(self.file).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeError) as error:
            raise HeadwayError(f"{self.file}: cannot be read ({one_line(error)}).") from None
        for number, line in enumerate(lines.split("\n") if lines else [], start=1):
            try:
                row = json.loads(line)
                text = row["answer"]
                if not isinstance(text, str):
                    raise TypeError
                answer = Answer(text, _counts(row.get("counts"), (*TOKENS, "retries")))
                self.answers.setdefault(_key(row["messages"]), []).append(answer)
                self.every.append(answer)
            except (ValueError, RecursionError):
                raise HeadwayError(f"{self.file}: line {number} is not JSON.") from None
            except (LookupError, TypeError):
                raise HeadwayError(f"{self.file}: line {number} is not a prompt with an answer.") from None

    def find(self, prompt: Prompt) -> str | None:
        several = self.answers.get(_key(messages_of(prompt)))
        return several.pop(0) if several else None

    def __call__(self, prompt: Prompt, /) -> str:
        self.prompts += 1
        if self.in_order:
            if self.prompts > len(self.every):
                raise HeadwayError(f"{self.file}: the transcript has only {len(self.every)} answers.")
            return self.every[self.prompts - 1]
        answer = self.find(prompt)
        if answer is None:
            last = str(messages_of(prompt)[-1]["content"])
            missing = f"the transcript has no answer, or no further answer, to prompt {self.prompts}"
            raise HeadwayError(f"{self.file}: {missing}, which ends in {shown(last[-60:])}.")
        return answer


class Conversation(Struct, frozen=True):
    """What a search asked its model for. An endpoint that counts no tokens leaves 0."""

    prompts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0

    @classmethod
    def of(cls, transcript: str | os.PathLike[str]) -> "Conversation":
        """Count the answers in a transcript. Prompts without an answer are not in it."""
        counted = [answer.counts for answer in Replay(transcript).every]
        names = (*TOKENS, "retries")
        return cls(len(counted), **{name: sum(counts.get(name, 0) for counts in counted) for name in names})

    def describe(self, prices: tuple[float, float] | None) -> str:
        """Return a sentence. `prices` are USD per million tokens of prompts and of answers."""
        text = f"The model answered {self.prompts:,} prompts"
        if self.prompt_tokens or self.completion_tokens:
            text += f": {self.prompt_tokens:,} prompt tokens and {self.completion_tokens:,} tokens of answers"
        if self.retries:
            text += f", {self.retries:,} retries"
        return f"{text}{'' if prices is None else f', {self.usd(prices):.4f} USD'}."

    def usd(self, prices: tuple[float, float]) -> float:
        return (self.prompt_tokens * prices[0] + self.completion_tokens * prices[1]) / 1e6


def _key(messages: Sequence[Message]) -> str:
    return json.dumps(messages_of(messages), sort_keys=True)


def _append(file: str, line: bytes) -> None:
    """Append a line to a file with a single write, so that the lines of several processes do not mix."""
    try:
        with Path(file).open("ab", buffering=0) as out:
            out.write(line)
    except OSError as error:
        raise HeadwayError(f"{file}: cannot be written ({error.strerror or error}).") from None


def code_in(answer: str) -> str:
    """Return the code of an answer: its last fenced block. If it has no fenced block, return the whole answer."""
    blocks: list[list[str]] = []
    inside = False
    for line in answer.splitlines():
        if line.strip().startswith("```"):
            inside = not inside
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    code = "\n".join(blocks[-1]) if blocks else answer
    return code.strip() + "\n"

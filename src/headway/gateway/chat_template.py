"""A model's chat template: renders messages as the text that the engine gives to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from headway.config.documents import read_text
from headway.config.wording import one_line
from headway.errors import HeadwayError, missing_extra

SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled chat template. `tools` is the source of a separate template for requests with tools, or None."""

    def __init__(self, source: str, special: Mapping[str, str], where: str, tools: str | None = None) -> None:
        environment = _environment()
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(tools) if tools else self._plain
        except Exception as error:  # compiling a template can raise any exception
            raise HeadwayError(f"{where}: invalid chat template ({one_line(error)}).") from None
        self._special = dict(special)

    @classmethod
    def find(cls, folder: Path, file_name: str | None = None) -> ChatTemplate | None:
        """Read the template from `file_name`. Without `file_name`, read it from chat_template.jinja or else from
        tokenizer_config.json. If there is no template, return None."""
        settings = _json(folder / "tokenizer_config.json")
        special = {name: _content(settings[name]) for name in SPECIAL if settings.get(name) is not None}
        file = folder / (file_name or "chat_template.jinja")
        if file_name or file.is_file():
            return cls(read_text(file, "a chat template in UTF-8"), special, str(file))
        source = settings.get("chat_template")
        where = str(folder / "tokenizer_config.json")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source, tools = named.get("default"), named.get("tool_use")
            return cls(source, special, where, tools) if isinstance(source, str) else None
        return cls(source, special, where) if isinstance(source, str) else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        more: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the rendered text. If the template rejects the messages, its exception propagates."""
        template = self._tools if tools else self._plain
        values = {**self._special, **(more or {})}
        values.update(messages=[_message(message) for message in messages], tools=tools or None, documents=None)
        values.setdefault("add_generation_prompt", add_generation_prompt)
        return str(template.render(values))


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form that engines give to a template: content parts joined, tool arguments decoded."""
    prepared = dict(message)
    prepared["content"] = plain(message.get("content"))
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        prepared["tool_calls"] = [_call(call) for call in calls]
    return prepared


def plain(content: Any) -> str:
    """Return the text parts of a message's content as one string. Ignore images and audio."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _environment() -> Any:
    """Return a sandboxed Jinja environment with the functions that chat templates expect."""
    try:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise missing_extra("tokens.chat_template", "jinja2", "gateway") from None

    class Generation(jinja2.ext.Extension):
        """The Jinja tag `generation`. For training, templates mark the model's output with this tag. Here, the tag only
        renders its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(why: str) -> None:
    raise ValueError(why)


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. If the file is missing, return {}, because a model for plain prompts needs no
    template."""
    try:
        document = json.loads(read_text(file)) if file.is_file() else {}
    except ValueError as error:
        raise HeadwayError(f"{file}: invalid JSON ({one_line(error)}).") from None
    return document if isinstance(document, dict) else {}

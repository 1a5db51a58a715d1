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
from headway.types import Json

SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
BILLING: Final = "x-anthropic-billing-header"


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
        sources = [source, tools] if tools else [source]
        # Whether the template refuses system messages after the first message.
        self.system_first = any(map(_refuses_late_system, sources))
        # Whether it knows the role developer, without and with tools.
        self._knows_developer = ["'developer'" in text or '"developer"' in text for text in (source, sources[-1])]

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
        prepared = [_message(message) for message in messages]
        if not self._knows_developer[bool(tools)] and any(each.get("role") == "developer" for each in prepared):
            prepared = merge_system(prepared, "\n\n", ("system", "developer"))
        values.update(messages=prepared, documents=None)
        values["tools"] = [_tool(tool) for tool in tools] if tools else None
        values.setdefault("add_generation_prompt", add_generation_prompt)
        return str(template.render(values))


def merge_system(messages: list[Json], between: str, roles: Sequence[str] = ("system",)) -> list[Json]:
    """Return the messages with those of these roles merged into one system message at the beginning, as engines do for
    templates that accept no others."""
    leading = [message for message in messages if message.get("role") in roles]
    if not leading or (len(leading) == 1 and messages[0] is leading[0]):
        return [{**message, "role": "system"} if message in leading else message for message in messages]
    texts = [message["content"] for message in leading if message["content"]]
    others = [message for message in messages if message.get("role") not in roles]
    return [{"role": "system", "content": between.join(texts)}, *others]


def _refuses_late_system(source: str) -> bool:
    """Try a conversation with a system message after the first message. vLLM tries the same, without the functions that
    `_environment` adds: a template that calls one of them counts as one that refuses."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    messages = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    try:
        environment.from_string(source).render(messages=messages, add_generation_prompt=False)
    except Exception:  # rendering a template can raise any exception
        return True
    return False


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form that engines give to a template: content parts joined, tool arguments decoded, and
    thoughts under both of their names."""
    prepared = dict(message)
    content = message.get("content")
    prepared["content"] = plain(_without_billing(content) if message.get("role") == "system" else content)
    calls = prepared.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        prepared["tool_calls"] = [_call(call) for call in calls]
    if isinstance(message.get("reasoning"), str):
        prepared["reasoning_content"] = message["reasoning"]
    return prepared


def _without_billing(content: Any) -> Any:
    """Return the content of a system message without the line that Claude Code puts first. It differs in each request,
    so engines drop it."""
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(BILLING) else content
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return [rest for text in texts if isinstance(text, str) and ((rest := _without_billing(text)) or not text)]


def _tool(tool: Any) -> Any:
    """Return a tool in the form that engines give to a template: in a fixed order, with a description and parameters
    even if the client sends none, and without unknown fields."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    fields = {name: function.get(name) for name in ("name", "description", "parameters")}
    fields.update((name, function[name]) for name in ("strict", "defer_loading") if function.get(name) is not None)
    return {"type": "function", "function": fields}


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
    if not isinstance(function, dict) or isinstance(function.get("arguments"), dict):
        return call
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


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

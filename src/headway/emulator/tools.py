"""Functions that an answer calls: arguments that fit their schema, made up the same way every time."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.emulator.tokens import WIDTH, WORDS, mixed
from headway.errors import HeadwayError

DEEPEST: Final = 16
MOST: Final = 4096  # values of one call


class Call(Struct):
    name: str
    id: str
    pieces: list[str]  # its arguments, a token each
    reason: str


def called(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, seed: int) -> Call | None:
    """The call that is asked for by `tool_choice`: of a function by its name, or of any; none where it is left to the
    engine."""
    functions = [function for tool in tools or [] if isinstance(function := tool.get("function") or {}, dict)]
    if isinstance(choice, dict):
        asked = choice.get("function")
        name = asked.get("name") if isinstance(asked, dict) else asked
        functions = [function for function in functions if function.get("name") == name]
        if not functions:
            raise HeadwayError(f"tool_choice: there is no tool with the name {name!r}.")
        reason = "stop"
    elif choice == "required":
        if not functions:
            raise HeadwayError("tool_choice: says that a tool is to be called, and there is none.")
        reason = "tool_calls"
    else:
        return None
    function = functions[mixed(seed, 0) % len(functions)]
    try:
        text = msgspec.json.encode(fitting(function.get("parameters") or {}, seed)).decode()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        raise HeadwayError(f"tools: the parameters of {function.get('name')!r} are no JSON schema.") from None
    pieces = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return Call(str(function.get("name")), f"chatcmpl-tool-{seed:016x}", pieces, reason)


def fitting(schema: Any, seed: int, depth: int = 0, made: list[int] | None = None) -> Any:
    """A value that fits a JSON schema, of those that one meets. `made` counts the values of the whole."""
    made = [0] if made is None else made
    made[0] += 1
    if made[0] > MOST:
        raise HeadwayError(f"tools: the parameters ask for more than {MOST:,} values, which are not made up.")
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][mixed(seed, depth) % len(schema["enum"])]
    for several in ("anyOf", "oneOf"):
        if schema.get(several):
            return fitting(schema[several][0], seed, depth + 1, made)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = schema.get("required", list(properties))
        return {name: fitting(properties.get(name), mixed(seed, at), depth + 1, made) for at, name in enumerate(wanted)}
    if kind == "array":
        count = int(schema.get("minItems", 1))
        return [fitting(schema.get("items"), mixed(seed, at), depth + 1, made) for at in range(min(count, 64))]
    if kind in ("integer", "number"):
        return int(schema.get("minimum", mixed(seed, depth) % 10))
    if kind == "boolean":
        return bool(mixed(seed, depth) % 2)
    return WORDS[mixed(seed, depth) % len(WORDS)].strip() if kind == "string" else None

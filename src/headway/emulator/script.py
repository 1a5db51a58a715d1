"""A planned answer: its tokens, the reason why it ends and, if it calls a function, made-up arguments that match the
function's schema."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.emulator.tokens import WIDTH, WORDS, mix, word
from headway.errors import HeadwayError

DEEPEST: Final = 16
MOST: Final = 4096  # maximum number of made-up values in the arguments of a call


class Call(Struct):
    name: str
    id: str
    pieces: list[str]  # arguments in JSON, split into one piece for each token
    reason: str


class Script:
    """An answer of `tokens` tokens. If a stop string ends the answer, `cut` is the length of the answer's text in
    characters."""

    __slots__ = ("call", "cut", "reason", "seed", "stop_reason", "tokens")

    def __init__(self, seed: int, tokens: int, reason: str = "stop", call: Call | None = None) -> None:
        self.seed, self.tokens, self.reason, self.call = seed, tokens, reason, call
        self.stop_reason: str | None = None
        self.cut: int | None = None

    def piece(self, number: int) -> str:
        if self.call is not None:
            return self.call.pieces[number]
        text = WORDS[word(self.seed, number)]
        if self.cut is not None and len(text) * (number + 1) > self.cut:
            text = text[: max(0, self.cut - len(text) * number)]
        return text

    def text(self, tokens: int) -> str:
        return "".join([self.piece(number) for number in range(tokens)])

    def stop_at(self, stops: list[str], included: bool) -> None:
        """If the answer's text contains one of these stop strings, end the answer with the token that completes the
        first of them. Unless `included` is set, cut the stop string itself off the text."""
        text = self.text(self.tokens)
        ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
        if not ends:
            return
        end, self.stop_reason = min(ends)
        self.reason = "stop"
        self.cut = end if included else end - len(self.stop_reason)
        self.tokens = -(-end // len(WORDS[0]))


def choose_call(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, seed: int) -> Call | None:
    """Return the function call that the request's `tool_choice` requires: a call of the named function, or of any
    function. If no call is required, return None."""
    functions = [function for tool in tools or [] if isinstance(function := tool.get("function") or {}, dict)]
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else function
        functions = [function for function in functions if function.get("name") == name]
        if not functions:
            raise HeadwayError(f"tool_choice: there is no tool with the name {name!r}.")
        reason = "stop"
    elif choice == "required":
        if not functions:
            raise HeadwayError("tool_choice: is 'required', but the request has no tools.")
        reason = "tool_calls"
    else:
        return None
    chosen = functions[mix(seed, 0) % len(functions)]
    try:
        text = msgspec.json.encode(make_up(chosen.get("parameters") or {}, seed)).decode()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        raise HeadwayError(f"tools: the parameters of {chosen.get('name')!r} are not a JSON schema.") from None
    pieces = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return Call(str(chosen.get("name")), f"chatcmpl-tool-{seed:016x}", pieces, reason)


def make_up(schema: Any, seed: int, depth: int = 0, total: list[int] | None = None) -> Any:
    """Return a value that matches a JSON schema with common keywords. `total` counts the values created so far."""
    total = [0] if total is None else total
    total[0] += 1
    if total[0] > MOST:
        raise HeadwayError(f"tools: the parameters need more than {MOST:,} values. Use a smaller schema.")
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][mix(seed, depth) % len(schema["enum"])]
    for several in ("anyOf", "oneOf"):
        if schema.get(several):
            return make_up(schema[several][0], seed, depth + 1, total)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        names = schema.get("required", list(properties))
        return {name: make_up(properties.get(name), mix(seed, at), depth + 1, total) for at, name in enumerate(names)}
    if kind == "array":
        count = int(schema.get("minItems", 1))
        return [make_up(schema.get("items"), mix(seed, at), depth + 1, total) for at in range(min(count, 64))]
    if kind in ("integer", "number"):
        return int(schema.get("minimum", mix(seed, depth) % 10))
    if kind == "boolean":
        return bool(mix(seed, depth) % 2)
    return WORDS[mix(seed, depth) % len(WORDS)].strip() if kind == "string" else None

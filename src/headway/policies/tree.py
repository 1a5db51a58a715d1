"""Decision trees, written as YAML and compiled to the policy language: the policy `tree` of every stage.

A tree is a value, or a mapping that branches:

    if: instance.kv_utilization > 0.9          # a condition; also {all: [...]}, {any: [...]}, {not: ...}
    then: -1                                   # a tree
    else: ratio(cached_tokens(instance), request.prompt_tokens)

Two other mappings are valid in place of a branch. `rules` is a list of {if, then}, tried in order; its last item is a
tree without a condition. `value` has a single value. The top level may also have `parameters` ({NAME: [default, low,
high]}) and `let` ({name: expression}, evaluated first, in order). Values and conditions are expressions of the policy
language.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, Final

from msgspec import Struct

from headway.config.keys import Form
from headway.config.schema import Later, ListOf, MapOf, Mapped
from headway.config.wording import cut, join_words, shown, suggest
from headway.errors import HeadwayError
from headway.policies.code import CodeError
from headway.policies.code.coded import Coded, MemoryKeys, Steps, Values
from headway.policies.code.language import ENTRANCES, MEMORY_KEYS, STEPS
from headway.policies.code.stages import BELIEF, LIMITS, declare
from headway.types import Json, Request

ENGINE: Final = re.compile(r"\bengine\b")
LINE: Final = re.compile(r"\btree line (\d+)")
LONGEST: Final = 2_000  # maximum number of characters of an expression
DEEPEST: Final = 30  # maximum depth of nested branches
WORDS: Final[dict[str, dict[str, str]]] = {  # stage -> names that a tree may use as values
    "admission": {"admit": "True", "reject": "False"},
    "decider": {"split": "True", "whole": "False"},
    "scaling": {"stay": "pool.replicas"},
}
BRANCH: Final = ("if", "then", "else")
TOP: Final = ("parameters", "let")
JOINED: Final = {"all": " and ", "any": " or "}


class TreeSource(Struct, frozen=True):
    """The source that a tree is compiled to. `places` has, for each line of the source, the location in the tree."""

    text: str
    places: list[str]

    def place(self, line: int) -> str:
        return self.places[min(max(line, 1), len(self.places)) - 1]


def tree_source(tree: object, stage: str, where: str = "tree") -> TreeSource:
    """Return the source of a tree with the location of each line. Errors name the location in the tree."""
    if stage not in ENTRANCES:
        raise HeadwayError(f"{where}: {shown(stage)} is not a stage for trees.{suggest(str(stage), ENTRANCES)}")
    writer = _Writer(stage)
    node: Any = tree
    if isinstance(tree, Mapping):
        node = {key: value for key, value in tree.items() if key not in TOP}
        writer.parameters(tree.get("parameters"), f"{where}.parameters")
    if writer.lines:
        writer.add(0, "", where)
        writer.add(0, "", where)
    writer.add(0, _head(tree, stage), where)
    if isinstance(tree, Mapping):
        writer.let(tree.get("let"), f"{where}.let")
    writer.node(node, where, 1, 0)
    return TreeSource("\n".join(writer.lines) + "\n", writer.places)


def _head(tree: object, stage: str) -> str:
    """Return the head of the function that a tree becomes. A scheduler's tree that reads the engine is evaluated again
    after each scheduling change."""
    name, entrance = next(iter(ENTRANCES[stage].items()))
    names = [argument for argument, _ in entrance.arguments]
    return f"def {name}({', '.join(names if ENGINE.search(str(tree)) else names[: entrance.least])}):"


class _Writer:
    def __init__(self, stage: str) -> None:
        self.words = WORDS.get(stage, {})
        self.lines: list[str] = []
        self.places: list[str] = []

    def add(self, level: int, text: str, place: str) -> None:
        self.lines.append("    " * level + text)
        self.places.append(place)

    def parameters(self, section: object, where: str) -> None:
        for name, values in _named_items(section, where, "[default, low, high]"):
            place = f"{where}.{name}"
            if isinstance(values, Mapping):
                values = [values.get(key) for key in ("default", "low", "high")] if len(values) == 3 else None
            if not isinstance(values, list | tuple) or len(values) != 3:
                raise HeadwayError(f"{place}: expected [default, low, high], got {shown(values)}.")
            self.add(0, f"{name} = parameter({', '.join(_number(value, place) for value in values)})", place)

    def let(self, section: object, where: str) -> None:
        for name, value in _named_items(section, where, "an expression"):
            self.add(1, f"{name} = {self.value(value, f'{where}.{name}')}", f"{where}.{name}")

    def node(self, node: object, where: str, level: int, depth: int) -> None:
        """Write the lines of a tree. Every path through these lines ends with a `return`."""
        if depth > DEEPEST:
            raise HeadwayError(f"{where}: a tree may have at most {DEEPEST} nested branches.")
        if not isinstance(node, Mapping):
            self.add(level, f"return {self.value(node, where)}", where)
        elif "rules" in node:
            _only(node, ("rules",), where)
            self.rules(node["rules"], f"{where}.rules", level, depth)
        elif "value" in node:
            _only(node, ("value",), where)
            self.add(level, f"return {self.value(node['value'], f'{where}.value')}", f"{where}.value")
        else:
            _only(node, BRANCH, where)
            missing = [repr(key) for key in BRANCH if key not in node]
            if missing:
                verb = "is" if len(missing) == 1 else "are"
                raise HeadwayError(f"{where}: a branch has if, then and else; {join_words(missing)} {verb} missing.")
            self.branch(node, where, level, depth)
            self.node(node["else"], f"{where}.else", level, depth + 1)

    def branch(self, node: Mapping[Any, Any], where: str, level: int, depth: int) -> None:
        self.add(level, f"if {self.condition(node['if'], f'{where}.if')}:", f"{where}.if")
        self.node(node["then"], f"{where}.then", level + 1, depth + 1)

    def rules(self, items: object, where: str, level: int, depth: int) -> None:
        if not isinstance(items, list | tuple) or not items:
            raise HeadwayError(f"{where}: expected a list of {{if, then}} that ends with a tree, got {shown(items)}.")
        for at, rule in enumerate(items[:-1]):
            place = f"{where}[{at}]"
            if not isinstance(rule, Mapping) or sorted(map(str, rule)) != ["if", "then"]:
                right = "every rule except the last must have the keys if and then only"
                raise HeadwayError(f"{place}: {right}, got {shown(rule)}.")
            self.branch(rule, place, level, depth)
        last = items[-1]
        if isinstance(last, Mapping) and sorted(map(str, last)) == ["if", "then"]:
            raise HeadwayError(f"{where}[{len(items) - 1}]: the last rule must not be conditional. Add an else.")
        self.node(last, f"{where}[{len(items) - 1}]", level, depth + 1)

    def condition(self, spec: object, where: str, depth: int = 0) -> str:
        if depth > DEEPEST:
            raise HeadwayError(f"{where}: a condition may have at most {DEEPEST} levels.")
        if not isinstance(spec, Mapping):
            return self.value(spec, where)
        if len(spec) != 1 or next(iter(spec)) not in (*JOINED, "not"):
            raise HeadwayError(f"{where}: expected an expression, or all, any or not, got {shown(dict(spec))}.")
        ((key, parts),) = spec.items()
        if key == "not":
            return f"not ({self.condition(parts, f'{where}.not', depth + 1)})"
        if not isinstance(parts, list | tuple) or not parts:
            raise HeadwayError(f"{where}.{key}: expected a list of conditions, got {shown(parts)}.")
        texts = [self.condition(part, f"{where}.{key}[{at}]", depth + 1) for at, part in enumerate(parts)]
        return JOINED[key].join(f"({text})" for text in texts)

    def value(self, spec: object, where: str) -> str:
        if isinstance(spec, bool):
            return str(spec)
        if isinstance(spec, int | float):
            return _number(spec, where)
        if not isinstance(spec, str):
            raise HeadwayError(f"{where}: expected a number, an expression or a branch, got {shown(spec)}.")
        return self.words.get(spec.strip()) or _expression(spec, where)


def _number(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise HeadwayError(f"{where}: expected a finite number, got {shown(value)}.")
    return repr(value)


def _expression(text: str, where: str) -> str:
    """Return an expression on one line. Parsing ensures that the text is a single expression, so that it cannot add
    other code to the source."""
    if len(text) > LONGEST:
        raise HeadwayError(f"{where}: an expression may have at most {LONGEST:,} characters, got {len(text):,}.")
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except SyntaxError as error:
        why = error.msg
    except (ValueError, MemoryError, RecursionError) as error:
        why = str(error) or "it is nested too deeply"
    raise HeadwayError(f"{where}: {shown(text)} is not an expression ({cut(why)}).")


def _named_items(section: object, where: str, what: str) -> list[tuple[str, Any]]:
    if section is None:
        return []
    if not isinstance(section, Mapping):
        raise HeadwayError(f"{where}: expected a mapping of names to {what}, got {shown(section)}.")
    for name in section:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise HeadwayError(f"{where}: {shown(name)} is not a name. Use letters, digits and _.")
    return list(section.items())


def _only(node: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in node:
        if key not in known:
            every = (*BRANCH, "rules", "value", *TOP)
            hint = f" It cannot be used together with {known[0]!r}." if key in every else suggest(str(key), every)
            raise HeadwayError(f"{where}.{cut(str(key))}: there is no such key here.{hint}")


# --- the form of a tree, for schemas ----------------------------------------------------------------------------------

VALUE_FORM: Final = Form.of(float, bool, str)
CONDITION_FORM: Final = Form.of(Later("tree-condition", lambda: _condition_form()))
NODE_FORM: Final = Form.of(Later("tree-node", lambda: _node_form({})))
PARAMETER: Final = Mapped(dict.fromkeys(("default", "low", "high"), float), ("default", "low", "high"))
TREE_FORM: Final = Form.of(
    Later("tree", lambda: _node_form({"parameters": MapOf(Form.of(list[float], PARAMETER)), "let": MapOf(VALUE_FORM)}))
)


def _condition_form() -> Form:
    joined = [Mapped({word: ListOf(CONDITION_FORM)}, (word,)) for word in JOINED]
    return Form.of(VALUE_FORM, *joined, Mapped({"not": CONDITION_FORM}, ("not",)))


def _node_form(top: Json) -> Form:
    """Return the form of a tree that may also have the keys of `top`."""
    branch = {"if": CONDITION_FORM, "then": NODE_FORM}
    rules = ListOf(Form.of(Mapped(branch, tuple(branch)), NODE_FORM))
    return Form.of(
        VALUE_FORM,
        Mapped({**top, **branch, "else": NODE_FORM}, BRANCH),
        Mapped({**top, "rules": rules}, ("rules",)),
        Mapped({**top, "value": VALUE_FORM}, ("value",)),
    )


@dataclass(eq=False, repr=False)
class Treed(Coded):
    """A policy whose source is a tree. Errors name the location in the tree."""

    tree: Annotated[Any, TREE_FORM] = None
    parameters: Values = field(default_factory=dict)
    steps: Steps = STEPS
    memory_keys: MemoryKeys = MEMORY_KEYS

    def __post_init__(self) -> None:
        if self.tree is None:
            raise HeadwayError("tree: give the tree as 'tree', as in {tree: {if: ..., then: ..., else: ...}}.")
        self.written = tree_source(self.tree, self.stage)
        try:
            self.compile(self.written.text, "tree", self.parameters)
        except CodeError as error:
            if not error.rejections:
                raise
            first, more = error.rejections[0], len(error.rejections) - 1
            problem = f"{self.written.place(first.line)}: {first.construct}: {first.why}"
            raise CodeError(f"{problem}{f' (and {more} more)' if more else ''}.", error.rejections) from None

    def fail(self, error: BaseException, request: Request | None) -> HeadwayError:
        failure = super().fail(error, request)
        if failure is error:
            return failure
        return CodeError(LINE.sub(lambda match: self.written.place(int(match[1])), str(failure)))


TREE: Final = "`tree` has if, then and else, with expressions of the policy language. `parameters` sets its parameters."
declare(
    "tree",
    Treed,
    {
        "routing": "Scores candidates by a decision tree; the highest wins.\n\n"
        f"{TREE} Ties: lowest index. {BELIEF} {LIMITS}",
        "admission": "Admits by a decision tree, whose values are admit, reject, or seconds after which to ask again."
        f"\n\n{TREE} {BELIEF} {LIMITS}",
        "priority": f"Scores by a decision tree; higher matters more.\n\n{TREE} {BELIEF} {LIMITS}",
        "estimator": f"Expects what a decision tree gives: a number of output tokens.\n\n{TREE} {BELIEF} {LIMITS}",
        "decider": f"Splits a request by a decision tree, whose values are split or whole.\n\n{TREE} {BELIEF} {LIMITS}",
        "scheduler": "Serves the request with the lowest value of a decision tree first.\n\nThe tree is evaluated when "
        f"a request arrives there; a tree that reads `engine`, after each change. {TREE} {LIMITS}",
        "scaling": "Sets the number of replicas by a decision tree; `stay` keeps the current number."
        f"\n\n{TREE} {LIMITS}",
    },
)

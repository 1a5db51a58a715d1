"""Programs: policy sources that are checked and compiled once. Each simulation or gateway starts a program anew, with
an empty memory."""

from __future__ import annotations

import ast
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

from headway.config.wording import shown, suggest
from headway.policies.code import language as lang
from headway.policies.code.decision import DECIDE, Decision
from headway.policies.code.kinds import Kinds
from headway.policies.code.library import SIZED, library, reject_unsized
from headway.policies.code.names import CodeParameter, Names
from headway.policies.code.rejection import CodeError, Exhausted, Misuse, Rejection
from headway.policies.code.rewrite import FACTORY, rewrite
from headway.policies.code.state import Belief, Memory, Terms
from headway.policies.code.syntax import find_foreign, find_misplaced, parse

QUOTED = re.compile(r"'(\w+)'")
LIBRARY_NAMES = list(library(lambda steps: None, Memory()))
FAILURES: dict[type[BaseException], str] = {
    ZeroDivisionError: "division by zero; ratio(a, b) returns 0 instead",
    IndexError: "the list is too short for this index",
    OverflowError: "the number is too large",
    RecursionError: "the program exceeds the interpreter's recursion limit",
    MemoryError: "the program exceeds the memory limit",
}


def check(source: str, stage: str) -> list[Rejection]:
    """Return all rejections of a source in order of lines. If the source can run, the list is empty."""
    return examine(source, stage)[0]


def stage_of(source: str) -> str | None:
    """Return the stage whose entry function a source defines. If the source fits no stage or several, return None."""
    tree = parse(source)
    if isinstance(tree, Rejection):
        return None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    stages = [stage for stage, entrances in lang.ENTRANCES.items() if defined & set(entrances)]
    if len(stages) > 1:  # a function that is an entry of one stage may be a helper in another
        stages = [stage for stage in stages if not check(source, stage)]
    return stages[0] if len(stages) == 1 else None


def examine(source: str, stage: str) -> tuple[list[Rejection], Names | None, Kinds | None]:
    tree = parse(source)
    if isinstance(tree, Rejection):
        return [tree], None, None
    rejections = _by_line(find_foreign(tree)) or _by_line(find_misplaced(tree))
    if rejections:
        return rejections, None, None
    names = Names(tree, stage)
    if names.rejections:
        return _by_line(names.rejections), names, None
    kinds = Kinds(names)
    return _by_line(kinds.settle()), names, kinds


@lru_cache(maxsize=128)
def plain_program(source: str, stage: str) -> Program:
    """Compile a source with the default values of its parameters. If it was compiled before, return that program.

    A search compiles the same source several times in a row."""
    return Program(source, stage)


@lru_cache(maxsize=128)
def named_program(source: str, stage: str, name: str, values: tuple[tuple[str, type, float], ...]) -> Program:
    """Compile a source for a policy with this name and these parameter values. The result is cached, because a run
    builds each of its policies several times. The values include their types, because 1 equals 1.0 as a cache key."""
    return Program(source, stage, name, {name: value for name, _, value in values})


def _by_line(rejections: Any) -> list[Rejection]:
    return sorted(rejections, key=lambda rejection: rejection.line)


class Program:
    """A compiled source. `start` returns its functions with a new, empty memory, for one simulation or gateway."""

    def __init__(
        self, source: str, stage: str, name: str = "policy", values: Mapping[str, float] | None = None
    ) -> None:
        rejections, names, kinds = examine(source, stage)
        if rejections or names is None or kinds is None:
            more = f" (and {len(rejections) - 1} more)" if len(rejections) > 1 else ""
            raise CodeError(f"{name} {rejections[0]}{more}.", rejections)
        self.source, self.stage, self.name = source, stage, name
        self.parameters: tuple[CodeParameter, ...] = tuple(names.parameters.values())
        self.values = self._parameter_values(dict(values or {}))
        self.exact, self.reported = tuple(kinds.exact), tuple(kinds.reported)
        self.entrance = names.entrance
        self.hooks = [hook for hook in lang.HOOKS.get(stage, {}) if hook in names.functions]
        self.functions = list(names.functions)
        self.arity = {name: names.arity(name) for name in names.functions}
        nodes = [node for function in names.functions.values() for node in ast.walk(function)]
        self.nodes = len(nodes)
        self.file = f"<{name}>"
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        self.has_notes = any(name in called for name in lang.NOTES)
        self.remembers = "remember" in called
        self.believes, self.accesses = names.believes, names.accesses
        # Whether the program names the instance that computes the prompt, so that it must see all instances.
        self.pairs = any(keyword.arg == "prefill" for node in calls for keyword in node.keywords)
        self._factory, self.decision = self._compile(names, kinds)
        self._prepays = bool(names.prepaid)

    def _compile(self, names: Names, kinds: Kinds, explaining: bool = False) -> tuple[Callable[..., Any], Decision]:
        module, decision = rewrite(names, kinds, self.values, LIBRARY_NAMES, explaining)
        space: dict[str, Any] = {"__builtins__": {}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(module, self.file, "exec", dont_inherit=True), space)
        factory: Callable[..., Any] = space[FACTORY]
        return factory, decision

    def prepaid(self, instances: int) -> int:
        """Return the steps of scoring this number of instances, if `score` does not count them itself."""
        return instances * (self.decision.steps + instances * self.decision.rows) if self._prepays else 0

    @cached_property
    def _explaining_factory(self) -> Callable[..., Any]:
        """The factory of the functions that also note the terms of their scores. The source is examined again, because
        rewriting has changed the first syntax tree."""
        _, names, kinds = examine(self.source, self.stage)
        assert names is not None and kinds is not None
        return self._compile(names, kinds, explaining=True)[0]

    def _parameter_values(self, values: dict[str, float]) -> dict[str, float]:
        """Return the values of all parameters. If a value is outside its range, raise an error."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name, value in values.items():
            parameter = known.get(name)
            if parameter is None:
                raise CodeError(f"{self.name}: has no parameter {shown(name)}.{suggest(name, known)}")
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not parameter.low <= value <= parameter.high
            ):
                wrong = f"must be a number between {parameter.low:g} and {parameter.high:g}, got {shown(value)}"
                raise CodeError(f"{self.name}: {name}: {wrong}.")
        chosen = {name: values.get(name, parameter.default) for name, parameter in known.items()}
        return {name: int(value) if isinstance(value, int) else float(value) for name, value in chosen.items()}

    def start(self, memory_keys: int = lang.MEMORY_KEYS) -> Running:
        return Running(self, memory_keys)

    def failure(self, error: BaseException, steps: int = lang.STEPS) -> str:
        """Return a message about an exception that the program raised, with the line of the source. `steps` is the
        limit of steps of a decision."""
        frames = traceback.walk_tb(error.__traceback__)
        lines = [
            line
            for frame, line in frames
            if frame.f_code.co_filename == self.file
            and (frame.f_code.co_name[0] != "_" or frame.f_code.co_name == DECIDE)
        ]
        return f"{self.name}{f' line {lines[-1]}' if lines else ''}: {_words(error, steps)}"


class Running:
    """A started program: its functions, the memory that they share, and what the router believes to be cached."""

    def __init__(self, program: Program, memory_keys: int = lang.MEMORY_KEYS) -> None:
        self.program = program
        self.memory, self.belief = Memory(memory_keys), Belief()
        make = program._factory
        self.begin, self.spent, self.deciding, *functions = make(
            partial(library, memory=self.memory, belief=self.belief), _over, SIZED, reject_unsized, KeyError
        )
        self.functions: dict[str, Callable[..., Any]] = dict(zip(program.functions, functions, strict=True))
        self.entrance = self.functions[program.entrance]

    @cached_property
    def explaining(self) -> Explaining:
        """The same program over the same memory, but it notes the terms of its scores."""
        return Explaining(self)


class Explaining:
    """A started program that notes the terms of its scores in `terms`."""

    def __init__(self, running: Running) -> None:
        program, self.terms = running.program, Terms()
        self.begin, _, _, *functions = program._explaining_factory(
            partial(library, memory=running.memory, terms=self.terms, belief=running.belief),
            _over,
            SIZED,
            reject_unsized,
            KeyError,
        )
        self.entrance = dict(zip(program.functions, functions, strict=True))[program.entrance]


def _over() -> None:
    raise Exhausted


def _words(error: BaseException, steps: int) -> str:
    if isinstance(error, Exhausted):
        return f"more than {steps:,} steps in one decision"
    for kind, text in FAILURES.items():
        if isinstance(error, kind):
            return text
    if isinstance(error, Misuse):
        return str(error)
    if isinstance(error, NameError):
        return f"{(QUOTED.findall(str(error)) or ['a name'])[0]} has no value yet"
    if isinstance(error, KeyError):
        return f"there is no entry {shown(error.args[0])}; get(key, default) returns a default instead"
    return _normalise(f"{error}".split("\n")[0]) or type(error).__name__


def _normalise(text: str) -> str:
    """Return an error message of Python in words that are the same for all versions of Python."""
    if "unpack" in text and "(" in text:
        return text[: text.index("(")].strip()
    if text.endswith("empty") or "empty sequence" in text:
        return "min or max of an empty list; default= returns a default instead"
    if "math domain" in text or text.startswith("expected a"):
        return "the function is not defined for this number"
    return "a list or dict cannot be a key" if "unhashable" in text else text

"""Resolves the names of a source: functions, constants and parameters, and the calls between functions."""

import ast
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from math import isfinite

from msgspec import Struct

from headway.policies.code import language as lang
from headway.policies.code.rejection import Rejection

MANY = f"a policy may have at most {lang.MOST_FUNCTIONS} functions"
NEAREST = 40  # maximum number of names that an unknown name is compared with
Constant = int | float | str | bool | None | tuple[int | float | str | bool | None, ...]


class CodeParameter(Struct, frozen=True):
    """A number that a search may choose, declared as `NAME = parameter(default, low, high)`."""

    name: str
    default: float
    low: float
    high: float


class Names:
    """The top-level names of a source, and the rejections found while resolving them."""

    def __init__(self, tree: ast.Module, stage: str) -> None:
        self.stage = stage
        self.functions: dict[str, ast.FunctionDef] = {}
        self.constants: dict[str, Constant] = {}
        self.parameters: dict[str, CodeParameter] = {}
        self.rejections: list[Rejection] = []
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef):
                self._claim(statement.name, statement)
                self.functions[statement.name] = statement
            elif isinstance(statement, ast.Assign):
                self._add_constant(statement)
        if len(self.functions) > lang.MOST_FUNCTIONS:
            self._reject(list(self.functions.values())[lang.MOST_FUNCTIONS], "source", MANY)
            return
        self.locals = {name: _locals(function) for name, function in self.functions.items()}
        self.bound = {name: _bound(function) for name, function in self.functions.items()}
        self.fixed = {name: _fixed(function) for name, function in self.functions.items()}
        self.entrance = self._entrance()
        # The function whose calls the stage charges before a decision, because it calls it once for each instance:
        # `score`, unless the program calls it too. Empty if there is none.
        self.prepaid = "score" if self.entrance == "score" and not self._called(("score",)) else ""
        self.believes = self._called(lang.FURTHER_BELIEFS)
        self.accesses = self._called((lang.ACCESS,))
        for name, function in self.functions.items():
            self.rejections += self._calls(name, function)
        self._recursion()

    def _called(self, names: Iterable[str]) -> bool:
        """Return whether a function of the source calls one of these functions."""
        nodes = [node for function in self.functions.values() for node in ast.walk(function)]
        return any(isinstance(node, ast.Name) and node.id in names for node in nodes)

    def arity(self, function: str) -> int:
        """Return the number of arguments of a function of the source."""
        return len(self.functions[function].args.args)

    def is_constant(self, name: str) -> bool:
        return name in self.constants or name in self.parameters

    def _reject(self, node: ast.AST, construct: str, why: str) -> None:
        self.rejections.append(Rejection(getattr(node, "lineno", 1), construct, why))

    def _claim(self, name: str, node: ast.AST) -> None:
        if name in self.functions or self.is_constant(name):
            self._reject(node, name, "is defined twice")
        elif name in lang.FUNCTIONS or name == lang.PARAMETER:
            self._reject(node, name, "is a library function; choose another name")

    def _add_constant(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Name):
            self._reject(node, "assignment", "the target of a top-level assignment must be a name")
            return
        self._claim(target.id, node)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == lang.PARAMETER:
            self._parameter(target.id, value)
            return
        try:
            literal = _literal(value)
        except ValueError:
            why = "a top-level value must be a number, a string, a tuple of these, or parameter(default, low, high)"
            self._reject(node, target.id, why)
            literal = 0
        self.constants[target.id] = literal

    def _parameter(self, name: str, call: ast.Call) -> None:
        names = ("default", "low", "high")
        values = dict(zip(names, call.args, strict=False)) | {
            str(keyword.arg): keyword.value for keyword in call.keywords
        }
        try:
            default, low, high = (_number(values[keyword]) for keyword in names)
        except (ValueError, KeyError):
            default = low = high = 0.0
            self._reject(call, name, "a parameter needs three numbers, as in parameter(0.7, 0, 1)")
        if len(call.args) > len(names) or not low <= default <= high:
            self._reject(call, name, "a parameter's default must be between its low and its high")
        self.parameters[name] = CodeParameter(name, default, low, high)

    def _entrance(self) -> str:
        """Return the name of the function that the stage calls."""
        entrances = lang.ENTRANCES[self.stage]
        present = [name for name in entrances if name in self.functions]
        forms = " or ".join(
            f"def {name}({', '.join(argument for argument, _ in entrance.arguments)})"
            for name, entrance in entrances.items()
        )
        if len(present) != 1:
            line = self.functions[present[1]] if len(present) > 1 else ast.Module([], [])
            number = "several entry functions" if present else "no entry function"
            self._reject(line, self.stage, f"{number}; define one of: {forms}")
            return ""
        for name, entrance in (entrances | lang.HOOKS.get(self.stage, {})).items():
            if name not in self.functions:
                continue
            if not entrance.least <= self.arity(name) <= len(entrance.arguments):
                shapes = [entrance.arguments[:count] for count in range(entrance.least, len(entrance.arguments) + 1)]
                listed = " or ".join(f"({', '.join(argument for argument, _ in shape)})" for shape in shapes)
                self._reject(self.functions[name], name, f"must have the arguments {listed}")
        varying = self.arity(present[0]) > 1 or "victim" in self.functions
        if self.stage == "scheduler" and "yields" in self.functions and varying:
            why = "needs an order that never changes; use key(ticket), without the engine and without victim"
            self._reject(self.functions["yields"], "yields", why)
        return present[0]

    def _calls(self, owner: str, function: ast.FunctionDef) -> Iterator[Rejection]:
        """Reject undefined names, and calls with the wrong number of arguments."""
        own = self.locals[owner]
        called = {id(node.func): node for node in ast.walk(function) if isinstance(node, ast.Call)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            name, call = node.id, called.get(id(node))
            if name in own or (self.is_constant(name) and call is None):
                if call is not None:
                    yield Rejection(node.lineno, name, "is a value here; only functions can be called")
            elif call is None:
                if name in self.functions or name in lang.FUNCTIONS:
                    yield Rejection(node.lineno, name, "is a function; it can only be called")
                else:
                    near = _near(name, [*own, *self.constants, *self.parameters])
                    yield Rejection(node.lineno, name, f"is not defined{near}")
            else:
                yield from self._arity(call, name)

    def _arity(self, call: ast.Call, name: str) -> Iterator[Rejection]:
        number = len(call.args)
        if name in self.functions:
            arity = len(self.functions[name].args.args)
            if number != arity or call.keywords:
                yield Rejection(call.lineno, name, f"takes {arity} positional arguments, not {number}")
            return
        library = lang.FUNCTIONS.get(name)
        if library is None or (library.stages and self.stage not in library.stages):
            known = [
                function for function, entry in lang.FUNCTIONS.items() if not entry.stages or self.stage in entry.stages
            ]
            near = _near(name, [*known, *self.functions])
            yield Rejection(call.lineno, name, f"there is no such function in a {self.stage} policy{near}")
        elif not library.least <= number <= library.most:
            count = str(library.least) if library.least == library.most else f"{library.least} to {library.most}"
            yield Rejection(call.lineno, name, f"takes {count} arguments, not {number}")
        elif name in lang.NOTES:
            if not isinstance(call.args[0], ast.Constant) or not isinstance(call.args[0].value, str):
                yield Rejection(call.lineno, name, f'needs a name in quotes, as in {name}("cache", value)')
            elif name == lang.LEFT_OUT and self.entrance != "route":
                yield Rejection(call.lineno, name, "is for route; in score, return a low number")
            elif name == lang.TERM and self.entrance == "route" and number == 2:
                yield Rejection(call.lineno, name, 'needs the instance, as in score_term("cache", value, instance)')
        for keyword in call.keywords:
            if keyword.arg == "key" and not (
                isinstance(keyword.value, ast.Lambda) and len(keyword.value.args.args) == 1 and number == 1
            ):
                yield Rejection(call.lineno, "key", "must be a lambda of one argument, in a call with one list")
            if keyword.arg == "reverse" and not isinstance(keyword.value, ast.Constant):
                yield Rejection(call.lineno, "reverse", "must be True or False")

    def _recursion(self) -> None:
        """Reject recursion, because its maximum depth depends on the interpreter."""
        calls = {
            name: [
                node.func.id
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions
            ]
            for name, function in self.functions.items()
        }
        try:
            TopologicalSorter(calls).prepare()
        except CycleError as error:
            for name in dict.fromkeys(error.args[1]):
                self._reject(self.functions[name], name, "calls itself, directly or through others; use a loop")


def _locals(function: ast.FunctionDef) -> list[str]:
    """Return the names that a function binds, including those of its comprehensions and lambdas."""
    nodes = list(ast.walk(function))
    arguments = [argument.arg for node in nodes if isinstance(node, ast.arguments) for argument in node.args]
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return list(dict.fromkeys([*arguments, *assigned]))


def _bound(function: ast.FunctionDef) -> frozenset[str]:
    """Return the names that a function binds, except those of its comprehensions and lambdas."""
    apart = [node for node in ast.walk(function) if isinstance(node, ast.comprehension)]
    inner = {id(name) for node in apart for name in ast.walk(node.target)}
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and id(node) not in inner]
    return frozenset(
        [argument.arg for argument in function.args.args]
        + [name.id for name in names if isinstance(name.ctx, ast.Store)]
    )


def _fixed(function: ast.FunctionDef) -> frozenset[str]:
    """Return the arguments that nothing in a function binds again."""
    nodes = list(ast.walk(function))
    inner = [argument.arg for node in nodes if isinstance(node, ast.Lambda) for argument in node.args.args]
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return frozenset(argument.arg for argument in function.args.args) - {*inner, *stored}


def _literal(node: ast.expr) -> Constant:
    if isinstance(node, ast.Tuple):
        return tuple(_scalar(element) for element in node.elts)
    return _scalar(node)


def _scalar(node: ast.expr) -> int | float | str | bool | None:
    if isinstance(node, ast.Constant) and not isinstance(node.value, bytes | complex):
        return node.value  # type: ignore[return-value]
    return _number(node)


def _number(node: ast.expr) -> float:
    value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(value)
    return value


def _near(name: str, known: list[str]) -> str:
    matches = get_close_matches(name, known[:NEAREST], 1)
    return f"; did you mean {matches[0]}?" if matches else ""

"""Infers the kind of each expression of a source. A kind is a set of possible types.

The passes repeat until no kind changes. This terminates, because a kind can only gain types. All lists, tuples and
dicts of a source share one set of element kinds. This is less precise than one set per list, but stays correct if two
names refer to the same list.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from headway.policies.code import language as lang
from headway.policies.code.language import (
    BIG,
    DICT,
    FLOAT,
    INT,
    LIST,
    MAPPINGS,
    MID,
    NONE,
    NUMBER,
    REPEATED,
    ROW_TUPLES,
    ROWS,
    SEQUENCE,
    SPAN,
    STR,
    TUPLE,
    WHOLE,
)
from headway.policies.code.names import Names
from headway.policies.code.rejection import Rejection


def union_of(kinds: Iterable[int]) -> int:
    union = 0
    for kind in kinds:
        union |= kind
    return union


def kind_kept(kind: int) -> int:
    """Return the kind of a value after a variable or container stores it. MID (a bounded integer) becomes BIG
    (unbounded), because a loop that reads the stored value and stores the result again can make it grow without
    bound."""
    return kind & ~MID | BIG if kind & MID else kind


def of_value(value: object) -> int:
    return {bool: INT, int: INT, float: FLOAT, str: STR, tuple: TUPLE}.get(type(value), NONE)


def arithmetic(left: int, right: int) -> int:
    numbers = FLOAT if (left | right) & FLOAT else 0
    if left & WHOLE and right & WHOLE:
        numbers |= BIG if (left | right) & BIG else MID
    return numbers


def needs_guard(op: ast.operator, left: int, right: int) -> bool:
    """Return whether an operator needs a guard, because its result could grow without bound. Adding a small value in a
    loop needs no guard, because the sum grows too slowly to do harm. Doubling a value in a loop needs a guard."""
    if isinstance(op, ast.Add | ast.Sub) and left & BIG and right & BIG:
        return True
    if isinstance(op, ast.Add):
        return bool(left & REPEATED and right & REPEATED)
    if isinstance(op, ast.Mod):
        return bool(left & STR)
    if isinstance(op, ast.Mult):
        repeats = (left & REPEATED and right & WHOLE) or (right & REPEATED and left & WHOLE)
        grows = (left & BIG and right & WHOLE) or (right & BIG and left & WHOLE)
        return bool(repeats or grows)
    return False


def _own_names(target: ast.expr, scope: ast.expr) -> dict[str, str]:
    """Return the names that a comprehension or lambda binds, each with a name that no other scope has."""
    names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    return {name: f"{name} {scope.lineno} {scope.col_offset}" for name in names}


class Kinds:
    """The kinds of a source. After `settle` has run, `of[node]` is the kind of the expression `node`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.of: dict[ast.expr, int] = {}
        self.variables: dict[tuple[str, str], int] = {}
        self.returns = dict.fromkeys(names.functions, 0)
        self.held = 0  # union of the kinds of all elements of all containers in the source
        self.exact: dict[str, None] = {}
        self.reported: dict[str, None] = {}
        self._changed = True
        self._owner = ""
        self._inner: dict[str, str] = {}  # names that scopes around a node bind -> unique names
        for name, entrance in (lang.ENTRANCES[names.stage] | lang.HOOKS.get(names.stage, {})).items():
            if name in names.functions:
                for argument, (_, kind) in zip(names.functions[name].args.args, entrance.arguments, strict=False):
                    self.variables[name, argument.arg] = kind

    def settle(self) -> list[Rejection]:
        """Infer all kinds, and return a rejection for each unknown field."""
        for _ in range(lang.MOST_PASSES):
            self._changed = False
            for name, function in self.names.functions.items():
                self._owner = name
                self._body(function.body)
                if not isinstance(function.body[-1], ast.Return):
                    self._grow(self.returns, self._owner, NONE)
            if not self._changed:
                return list(self._fields())
        return [Rejection(1, "source", "too many names depend on one another")]

    def _fields(self) -> Iterator[Rejection]:
        for node, kind in self.of.items():
            if not isinstance(node, ast.Attribute):
                continue
            base = self.of[node.value]
            records = [record for record in lang.RECORDS if base & record]
            fields = [lang.FIELDS[record][node.attr] for record in records if node.attr in lang.FIELDS[record]]
            for field in fields:
                self.exact |= dict.fromkeys(field.exact)
                self.reported |= dict.fromkeys(field.reported)
                for signal in field.exact:
                    if (self.names.stage, signal) in lang.BARRED:
                        yield Rejection(node.lineno, f".{node.attr}", lang.BARRED[self.names.stage, signal])
            if fields or not (base or kind):
                continue
            if not records:
                why = f"only {', '.join(lang.RECORDS.values())} have fields"
                yield Rejection(node.lineno, f".{node.attr}", why)
                continue
            known = list(lang.FIELDS[records[0]])
            article = "an" if lang.RECORDS[records[0]][0] in "aei" else "a"
            why = f"{article} {lang.RECORDS[records[0]]} has no such field; it has {', '.join(known)}"
            yield Rejection(node.lineno, f".{node.attr}", why)

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=[target], value=value):
                    self._give(target, self._kind(value), value)
                case ast.AugAssign(target=target, op=op, value=value):
                    self._kind(target)
                    self._kind(value)
                    self._give(target, self._operation(op, target, value))
                case ast.Return(value=value):
                    self._grow(self.returns, self._owner, NONE if value is None else self._kind(value))
                case ast.Expr(value=value):
                    self._kind(value)
                case ast.If(test=test) | ast.While(test=test):
                    self._kind(test)
                    self._body(statement.body)
                    self._body(statement.orelse)
                case ast.For(target=target, iter=over):
                    self._give(target, self._elements(self._kind(over)))
                    self._body(statement.body)
                    self._body(statement.orelse)

    def _give(self, target: ast.expr, kind: int, value: ast.expr | None = None) -> None:
        match target:
            case ast.Name(id=name):
                name = self._inner.get(name, name)
                self._grow(self.variables, (self._owner, name), kind)
                self.of[target] = self.variables[self._owner, name]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = (
                    value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts) else None
                )
                for place, part in enumerate(parts):
                    self._give(part, self._elements(kind) if values is None else self._kind(values[place]))
            case ast.Subscript(value=base, slice=place):
                self._kind(base)
                self._kind(place)
                self._hold(kind)

    def _grow(self, table: dict[Any, int], name: object, kind: int) -> None:
        """Add `kind` to the kinds that `table` has for `name`."""
        before = table.get(name)
        now = (before or 0) | kind_kept(kind)
        if now != before:
            table[name] = now
            self._changed = True

    def _hold(self, kind: int) -> None:
        now = self.held | kind_kept(kind)
        self._changed |= now != self.held
        self.held = now

    def _elements(self, kind: int) -> int:
        """Return the kind of the elements that a value of kind `kind` contains."""
        elements = union_of(row for rows, row in ROWS.items() if kind & rows)
        if kind & (LIST | TUPLE | DICT):
            elements |= self.held | (STR | INT if kind & DICT else 0)
        if kind & sum(MAPPINGS):
            elements |= STR
        return elements | (STR if kind & STR else 0) | (INT if kind & SPAN else 0)

    def _kind(self, node: ast.expr) -> int:
        kind = self.of[node] = self._infer(node)
        return kind

    def _infer(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=value):
                return of_value(value)
            case ast.Name(id=name):
                return self._name_kind(name)
            case ast.Attribute(value=base, attr=name):
                kind = self._kind(base)
                records = [lang.FIELDS[record] for record in lang.RECORDS if kind & record]
                fields = [record[name] for record in records if name in record]
                self._hold(union_of(field.held for field in fields))
                return union_of(field.kind for field in fields)
            case ast.BinOp(left=left, op=op, right=right):
                self._kind(left)
                self._kind(right)
                return self._operation(op, left, right)
            case ast.UnaryOp(op=op, operand=operand):
                kind = self._kind(operand)
                return INT if isinstance(op, ast.Not) else kind & (FLOAT | WHOLE)
            case ast.BoolOp(values=values):
                return union_of([self._kind(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._kind(test)
                return self._kind(body) | self._kind(orelse)
            case ast.Compare(left=left, comparators=others):
                for side in (left, *others):
                    self._kind(side)
                return INT
            case ast.Call():
                return self._call(node)
            case ast.Subscript(value=base, slice=place):
                return self._at(self._kind(base), place)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                for part in parts:
                    self._hold(self._kind(part))
                return LIST if isinstance(node, ast.List) else TUPLE
            case ast.Dict(keys=keys, values=values):
                for part in (*(key for key in keys if key is not None), *values):
                    self._hold(self._kind(part))
                return DICT
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
        return 0

    def _name_kind(self, name: str) -> int:
        if name in self._inner:
            return self.variables.get((self._owner, self._inner[name]), 0)
        kind = self.variables.get((self._owner, name), 0)
        if name in self.names.bound[self._owner] or not self.names.is_constant(name):
            return kind
        if name in self.names.parameters:
            return kind | NUMBER
        value = self.names.constants[name]
        if isinstance(value, tuple):
            self._hold(union_of(map(of_value, value)))
        return kind | of_value(value)

    def _at(self, base: int, place: ast.expr) -> int:
        if not isinstance(place, ast.Slice):
            self._kind(place)
            values = union_of(value for mapping, value in MAPPINGS.items() if base & mapping)
            return self._elements(base & ~(DICT | sum(MAPPINGS))) | (self.held if base & DICT else 0) | values
        for bound in (place.lower, place.upper):
            if bound is not None:
                self._kind(bound)
        if base & ROW_TUPLES:
            self._hold(self._elements(base & ROW_TUPLES))
        return base & SEQUENCE | (TUPLE if base & ROW_TUPLES else 0)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> int:
        (clause,) = node.generators
        elements, outer = self._elements(self._kind(clause.iter)), self._inner
        self._inner = outer | _own_names(clause.target, node)
        self._give(clause.target, elements)
        for test in clause.ifs:
            self._kind(test)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._hold(union_of([self._kind(result) for result in results]))
        self._inner = outer
        return DICT if isinstance(node, ast.DictComp) else LIST

    def _operation(self, op: ast.operator, first: ast.expr, other: ast.expr) -> int:
        if isinstance(op, ast.Div):
            return FLOAT
        left, right = self.of[first], self.of[other]
        kind = arithmetic(left, right)
        if isinstance(op, ast.Add):
            kind |= left & right & SEQUENCE
            tuples = ROW_TUPLES | TUPLE
            if left & tuples and right & tuples and (left | right) & ROW_TUPLES:
                self._hold(self._elements((left | right) & ROW_TUPLES))
                kind |= TUPLE
        if self.guards(op, first, other):
            kind = kind & ~(MID | BIG) | (INT if kind & WHOLE else 0)
        return kind

    def guards(self, op: ast.operator, first: ast.expr, other: ast.expr) -> bool:
        """Return whether an operator needs a guard, which keeps integers below 2**63."""
        left, right = self.of[first], self.of[other]
        if needs_guard(op, left, right):
            return True
        if not (isinstance(op, ast.Mult) and left & WHOLE and right & WHOLE):
            return False
        return self._bits(first) + self._bits(other) > lang.MOST_BITS

    def _bits(self, node: ast.expr) -> int:
        """Return the maximum number of bits of an integer that the expression can produce."""
        if not self.of[node] & MID:
            return 64
        if isinstance(node, ast.BinOp):
            left, right = self._bits(node.left), self._bits(node.right)
            return left + right if isinstance(node.op, ast.Mult) else max(left, right) + 1
        return max(
            [
                self._bits(child)
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.expr) and child in self.of
            ]
        )

    def _call(self, node: ast.Call) -> int:
        arguments = [self._kind(argument) for argument in node.args]
        for keyword in node.keywords:
            if isinstance(keyword.value, ast.Lambda):
                target, outer = ast.Name(keyword.value.args.args[0].arg, ast.Store()), self._inner
                self._inner = outer | _own_names(target, keyword.value)
                self._give(target, self._elements(arguments[0]))
                self._kind(keyword.value.body)
                self._inner = outer
            else:
                arguments.append(self._kind(keyword.value))
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func.attr, self._kind(node.func.value), arguments)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in self.names.functions:
            for argument, kind in zip(self.names.functions[name].args.args, arguments, strict=True):
                self._grow(self.variables, (name, argument.arg), kind)
            return self.returns[name]
        self.exact |= dict.fromkeys(lang.FUNCTIONS[name].exact)
        self.reported |= dict.fromkeys(lang.FUNCTIONS[name].reported)
        return self._library(name, arguments, len(node.args))

    def _library(self, name: str, arguments: list[int], in_order: int) -> int:
        if name == "abs":
            return arguments[0] & (FLOAT | WHOLE)
        if name in ("min", "max"):
            return (self._elements(arguments[0]) if in_order == 1 else arguments[0]) | union_of(arguments[1:])
        if name in lang.NOTES:
            return arguments[1]
        if name == "recall":
            return NUMBER | STR | arguments[1]
        gives = lang.FUNCTIONS[name].gives
        elements = union_of(map(self._elements, arguments)) if gives == LIST else 0
        if elements:
            self._hold(elements)
        if name in ("enumerate", "zip", "eviction_order"):
            self._hold(TUPLE | INT)
        return gives

    def _method(self, name: str, base: int, arguments: list[int]) -> int:
        if name == "append":
            self._hold(arguments[0])
            return NONE
        values = union_of(value for mapping, value in MAPPINGS.items() if base & mapping)
        if name == "get":
            return self.held | arguments[1] | values
        self._hold(TUPLE | STR | INT | values)
        return LIST

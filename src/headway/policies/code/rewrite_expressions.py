"""Rewrites the expressions of a checked source: counts their steps, and replaces operators that could do harm with
guards."""

import ast
from typing import Any, Final

from headway.policies.code.charges import Charges, cost
from headway.policies.code.kinds import Kinds
from headway.policies.code.language import (
    CONTAINER,
    DICT,
    FIELDS,
    FUNCTIONS,
    INSTANCES,
    LIST,
    MAPPINGS,
    NONE,
    NOTES,
    PASSING,
    RECORD,
    RECORDS,
    ROW_TUPLES,
    SAMPLES,
    STORE,
    STR,
    TICKETS,
    TUPLE,
)
from headway.policies.code.names import Names

GUARDS: Final = {ast.Add: "_add", ast.Sub: "_sub", ast.Mult: "_mul", ast.Mod: "_mod"}
PLAIN_FORMS: Final = {f"_{name}": f"_plain_{name}" for name in ("min", "max")}
LOOKED_UP: Final = {"cached_tokens": ("_cached", "index"), "tenant": ("_tenants", "tenant")}  # function -> table, field
TABLES: Final = sum(MAPPINGS)


class Expressions(ast.NodeTransformer):
    """Rewrites the expressions of one function. Nodes keep their line numbers for error messages."""

    def __init__(
        self, names: Names, kinds: Kinds, values: dict[str, float], owner: str, explaining: bool = False
    ) -> None:
        self.names, self.values, self.explaining = names, values, explaining
        self.kinds, self.guards = kinds.of, kinds.guards
        self.nested = bool(kinds.held & CONTAINER)  # whether a container may contain another container
        self.own = set(names.bound[owner])
        self.fixed = names.fixed[owner]
        self.charges: Charges | None = None  # steps of the segment; None: the expression may not be evaluated once

    def uncertain(self, node: ast.expr) -> ast.expr:
        """Rewrite an expression that may be evaluated never or several times."""
        before, self.charges = self.charges, None
        visited: ast.expr = self.visit(node)
        self.charges = before
        return visited

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test: ast.expr = self.visit(node.test)
        return ast.copy_location(ast.IfExp(test, self.uncertain(node.body), self.uncertain(node.orelse)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        first, *others = node.values
        return ast.copy_location(ast.BoolOp(node.op, [self.visit(first), *map(self.uncertain, others)]), node)

    def add(self, node: ast.AugAssign, now: ast.expr) -> ast.expr:
        """Return the rewritten value of `x += y`, where `now` reads `x`."""
        if isinstance(node.op, ast.Add) and self.kinds[now] & LIST:
            return library_call("_extend", [self.visit(now), self.visit(node.value)], node)
        return self._operate(node.op, now, node.value, node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.own and isinstance(node.ctx, ast.Load):
            if node.id in self.values:
                return ast.copy_location(ast.Constant(self.values[node.id]), node)
            if node.id in self.names.constants:
                value: Any = self.names.constants[node.id]
                return ast.copy_location(ast.Constant(value), node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._operate(node.op, node.left, node.right, node)

    def _operate(self, op: ast.operator, left: ast.expr, right: ast.expr, node: ast.AST) -> ast.expr:
        harmless = not self.guards(op, left, right)
        left, right = self.visit(left), self.visit(right)
        if harmless:
            return ast.copy_location(ast.BinOp(left, op, right), node)
        return library_call(GUARDS[type(op)], [left, right], node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = [node.left, *node.comparators]
        nested = [bool(self.kinds[side] & CONTAINER) for side in sides]
        if len(sides) == 2 and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = self._looked_up(sides[1], sides[0])
            if found is not None:
                return ast.copy_location(ast.Compare(self.visit(sides[0]), node.ops, [found]), node)
        visited = [self.visit(side) if place < 2 else self.uncertain(side) for place, side in enumerate(sides)]
        for place, op in enumerate(node.ops, 1):
            if isinstance(op, ast.In | ast.NotIn):
                # Comparing texts with texts costs little, so that they are only counted.
                texts = self.kinds[sides[place - 1]] in (STR, STR | NONE) and _names(sides[place])
                if not texts:
                    visited[place] = library_call("_scan", [visited[place]], node)
                elif place == 1:
                    visited[place] = self._spanned(sides[place], visited[place], 1)
                else:
                    visited[place] = library_call("_span", [visited[place]], node)
                if nested[place - 1]:
                    visited[place - 1] = library_call("_flat", [visited[place - 1]], node)
            elif nested[place - 1] and nested[place]:
                visited[place - 1 : place + 1] = [
                    library_call("_flat", [operand], node) for operand in visited[place - 1 : place + 1]
                ]
        return ast.copy_location(ast.Compare(visited[0], node.ops, visited[1:]), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not isinstance(node.slice, ast.Slice):
            place = self.visit(node.slice)
            if (found := self._looked_up(node.value, node.slice)) is not None:
                return ast.copy_location(ast.Subscript(found, place, ast.Load()), node)
            if self.kinds[node.value] & (DICT | TABLES) and self.kinds[node.slice] & CONTAINER:
                place = library_call(
                    "_flat", [place], node
                )  # charges steps for nested tuples, because hashing them recurses
            return ast.copy_location(ast.Subscript(self.visit(node.value), place, ast.Load()), node)
        bounds = [
            ast.Constant(None) if bound is None else self.visit(bound) for bound in (node.slice.lower, node.slice.upper)
        ]
        return library_call("_slice", [self.visit(node.value), *bounds], node)

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        keys = [self._key(key, node) for key in node.keys if key is not None]
        return ast.copy_location(ast.Dict(list(keys), [self.visit(value) for value in node.values]), node)

    def _key(self, key: ast.expr, node: ast.expr) -> ast.expr:
        if self.charges is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return library_call("_key", [self.visit(key)], node)
        self.charges.steps += STORE
        return key

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self._read(node)
        # Mappings and lists of views become read-only, so that a program cannot change them.
        return library_call("_frozen", [value], node) if self.kinds[node] & (TABLES | SAMPLES) else value

    def _read(self, node: ast.Attribute) -> ast.expr:
        """Return the rewritten read of a field. A mapping may still be changed."""
        kind, base = self.kinds[node.value], self.visit(node.value)
        if not kind & ~(RECORD | NONE) and kind:
            return ast.copy_location(ast.Attribute(base, node.attr, ast.Load()), node)
        return library_call("_field", [base, ast.Constant(node.attr)], node)

    def _looked_up(self, mapping: ast.expr, key: ast.expr) -> ast.expr | None:
        """If a text is looked up in a mapping of a view, return the rewritten mapping. It stays as it is, and the key
        needs no check. Otherwise return None, and leave the mapping to be visited."""
        if not isinstance(mapping, ast.Attribute) or self.kinds[key] != STR:
            return None
        kind = self.kinds[mapping]
        return self._read(mapping) if kind and not kind & ~TABLES else None

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        clauses, elt = self._clauses(node), self._within(node.generators[0].target, node.elt)
        return ast.copy_location(ast.ListComp(elt, clauses), node)

    visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        clauses, target = self._clauses(node), node.generators[0].target
        key = library_call("_key", [self._within(target, node.key)], node)
        return ast.copy_location(ast.DictComp(key, self._within(target, node.value), clauses), node)

    def _clauses(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> list[ast.comprehension]:
        clause = node.generators[0]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        over = self.each(clause.iter, cost(*results, *clause.ifs))
        return [ast.comprehension(clause.target, over, [self._within(clause.target, test) for test in clause.ifs], 0)]

    def _within(self, target: ast.AST, node: ast.expr) -> ast.expr:
        """Rewrite an expression in which the names that `target` binds hide top-level names of the source."""
        before = self.own
        names = [child.id for child in ast.walk(target) if isinstance(child, ast.Name)]
        self.own = before | {*names, *(child.arg for child in ast.walk(target) if isinstance(child, ast.arg))}
        visited = self.uncertain(node)
        self.own = before
        return visited

    def each(self, node: ast.expr, steps: int) -> ast.expr:
        """Return the rewritten iterable of a loop or comprehension. The rewritten code charges `steps` for each element
        before the first iteration."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PASSING:
            return library_call(f"_each_{node.func.attr}", [self.each(node.func.value, steps)], node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PASSING:
            return library_call(f"_each_{node.func.id}", [self.each(argument, steps) for argument in node.args], node)
        items: ast.expr = self.visit(node)
        return self._spanned(node, items, steps) if steps else items

    def _spanned(self, node: ast.expr, items: ast.expr, steps: int) -> ast.expr:
        """Charge `steps` for each element of `items`, which `node` was rewritten to: at once, or with the block."""
        if self.charges is not None and (fixed := self._fixed(node)):
            self.charges.add(node, steps, fixed == INSTANCES)
            return items
        return library_call("_span", [items], node) if steps == 1 else _weigh(items, steps, node)

    def _fixed(self, node: ast.expr) -> int:
        """Return the kind of a tuple of a view whose length is known when a block begins, or 0."""
        kind = self.kinds[node]
        match node:
            case ast.Name(id=name):
                return kind if name in self.fixed and kind == INSTANCES else 0
            case ast.Attribute(value=ast.Name(id=name) as base):
                view = name in self.fixed and self.kinds[base] in RECORDS
                return kind if view and (kind in (INSTANCES, TICKETS) or (kind == TUPLE and _names(node))) else 0
        return 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "get" and (found := self._looked_up(node.func.value, node.args[0])) is not None:
                get = ast.copy_location(ast.Attribute(found, "get", ast.Load()), node)
                return ast.copy_location(ast.Call(get, [*map(self.visit, node.args)], []), node)
            return library_call(f"_{node.func.attr}", [self.visit(node.func.value), *map(self.visit, node.args)], node)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in ("any", "all"):
            return self._any_or_all(node, name)
        arguments: list[ast.expr] = [self.visit(argument) for argument in node.args]
        if name in NOTES and not self.explaining:
            return arguments[1]
        if name in LOOKED_UP:
            table, field = LOOKED_UP[name]
            place = ast.Attribute(arguments[0], field, ast.Load())
            found = ast.copy_location(ast.Subscript(ast.Name(table, ast.Load()), place, ast.Load()), node)
            if name != "cached_tokens":
                return found
            return ast.copy_location(ast.BinOp(found, ast.Mult(), ast.Name("_size", ast.Load())), node)
        called = f"_{name}" if name in FUNCTIONS else name
        if name == "recall" and self.kinds[node.args[0]] == STR:
            called = "_remembered"  # a text needs no check
        if called in PLAIN_FORMS and self._plain(node):
            called = PLAIN_FORMS[called]
            # The steps of a comprehension are already charged.
            if len(arguments) == 1 and not isinstance(arguments[0], ast.ListComp):
                arguments = [self._spanned(node.args[0], arguments[0], 1)]
        for keyword in node.keywords:
            more = cost(keyword.value.body) - 1 if isinstance(keyword.value, ast.Lambda) else 0
            arguments = [self._spanned(node.args[0], arguments[0], more)] if more else arguments
        rewritten = library_call(called, arguments, node)
        rewritten.keywords = [ast.keyword(argument.arg, self.visit(argument.value)) for argument in node.keywords]
        return rewritten

    def _any_or_all(self, node: ast.Call, name: str) -> ast.expr:
        """Rewrite `any` and `all` so that they stop at the first decisive element."""
        over = node.args[0]
        if isinstance(over, ast.GeneratorExp):
            clauses, elt = self._clauses(over), self._within(over.generators[0].target, over.elt)
            items: ast.expr = ast.copy_location(ast.GeneratorExp(elt, clauses), node)
        else:
            items = library_call("_span", [self.visit(over)], node)
        return library_call(f"_{name}", [items], node)

    def _plain(self, node: ast.Call) -> bool:
        """Return whether a call of `min` or `max` compares only values that are cheap to compare. Containers are not
        cheap, because comparing two containers takes as many steps as they have elements."""
        for keyword in node.keywords:
            if isinstance(keyword.value, ast.Lambda) and not self._short(keyword.value.body):
                return False
        if len(node.args) > 1:
            return not any(self.kinds[argument] & CONTAINER for argument in node.args)
        return not self.nested

    def _short(self, node: ast.expr) -> bool:
        """Return whether a `key=` function returns values that are cheap to compare: no containers except a tuple of
        plain values. `node` is the body of the function."""
        if isinstance(node, ast.Tuple):
            return all(not self.kinds[element] & (CONTAINER | ROW_TUPLES) for element in node.elts)
        return not self.kinds[node] & (CONTAINER | ROW_TUPLES)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return ast.copy_location(ast.Lambda(node.args, self._within(node.args, node.body)), node)


def _names(node: ast.expr) -> bool:
    """Return whether an expression is a field that is a tuple of texts in every record that has it."""
    if not isinstance(node, ast.Attribute):
        return False
    fields = [record[node.attr] for record in FIELDS.values() if node.attr in record]
    return all(field.held == STR for field in fields)


def _weigh(items: ast.expr, steps: int, node: ast.AST) -> ast.expr:
    return library_call("_weigh", [items, ast.Constant(steps)], node)


def library_call(name: str, arguments: list[ast.expr], node: ast.AST) -> ast.Call:
    """Return a call of a function that the factory injects."""
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)

"""Rewrites a checked source: adds step counts, and replaces operators that could do harm with guards.

Injected names begin with an underscore, which is not allowed for names in a source. All functions become closures over
one counter of the remaining steps, `_left`. The counter depends on the syntax, not on bytecode instructions, so it is
the same in every version of Python.
"""

import ast
from typing import Any, Final

from headway.policies.code.charges import Charges, cost, may_leave
from headway.policies.code.decision import DECIDING, Decision, closure, decide
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
    ROWS,
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
FACTORY: Final = "_factory"
LIBRARY: Final = "_library"

_SHELL: Final = f"""
def {FACTORY}(_made, _over, _sized, _unsized, _missing):
    _left = 0
    _cached = ()
    _tenants = None
    _size = 1
    def _begin(steps, cached, tenants):
        nonlocal _left, _cached, _tenants
        _left = steps
        _cached = cached
        _tenants = tenants
    def _take(steps):
        nonlocal _left
        _left -= steps
        if _left < 0:
            _over()
    def _spent():
        return _left
    def _span(items):
        nonlocal _left
        try:
            _left -= _sized[items.__class__](items)
        except _missing:
            _unsized(items)
        if _left < 0:
            _over()
        return items
    def _weigh(items, steps):
        nonlocal _left
        try:
            _left -= steps * _sized[items.__class__](items)
        except _missing:
            _unsized(items)
        if _left < 0:
            _over()
        return items
    {LIBRARY} = _made(_take)
"""


def rewrite(
    names: Names, kinds: Kinds, values: dict[str, float], used: list[str], explaining: bool = False
) -> tuple[ast.Module, Decision]:
    """Return a module with one function, the factory, which returns the program's functions, and the decision that one
    of them takes. `used` lists the names of
    the library functions; the factory looks up those that the program calls. Unless `explaining`, the functions do not
    note the terms of their scores, so that terms cost nothing."""
    shell = ast.parse(_SHELL)
    factory = shell.body[0]
    assert isinstance(factory, ast.FunctionDef)
    functions = []
    for name, node in names.functions.items():
        body, charges = _Rewrite(names, kinds, values, name, explaining).function(node)
        charged = (charges.of_items() if name == names.prepaid else charges).statements(node)
        functions.append(closure(node, [*charged, *body]))
        if name == names.entrance:
            decision = decide(names, kinds, node, body, charges)
    called = sorted(
        {
            node.id
            for function in (*functions, decision.function)
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
        }
        & (set(used) - {"_weigh"})
    )
    for name in called:  # reading a closure variable is faster than a dict look-up
        factory.body.append(ast.parse(f"{name} = {LIBRARY}[{name!r}]").body[0])
    factory.body += [*functions, decision.function]
    returned = ", ".join(["_begin", "_spent", DECIDING, *names.functions])
    factory.body.append(ast.parse(f"def _f():\n return {returned}").body[0].body[0])  # type: ignore[attr-defined]
    return ast.fix_missing_locations(shell), decision


class _Rewrite(ast.NodeTransformer):
    """Rewrites one function. Nodes keep their line numbers for error messages."""

    def __init__(
        self, names: Names, kinds: Kinds, values: dict[str, float], owner: str, explaining: bool = False
    ) -> None:
        self.names, self.values, self.explaining = names, values, explaining
        self.kinds, self.guards = kinds.of, kinds.guards
        self.nested = bool(kinds.held & CONTAINER)  # whether a container may contain another container
        self.own = set(names.bound[owner])
        self.fixed = names.fixed[owner]
        self.charges: Charges | None = None  # steps of the segment; None: the expression may not be evaluated once

    def function(self, node: ast.FunctionDef) -> tuple[list[ast.stmt], Charges]:
        """Return the rewritten body of a function, and what a call charges when it begins."""
        charges = Charges(cost(*node.body))
        return self._block(node.body, charges), charges

    def _statements(self, body: list[ast.stmt], steps: int = 0, owner: ast.stmt | None = None) -> list[ast.stmt]:
        """Return the rewritten statements of a block that charges `steps`, and what else is certain, when it begins."""
        charges, place = Charges(steps), owner or body[0]
        statements = self._block(body, charges)
        return [*charges.statements(place), *statements]

    def _block(self, body: list[ast.stmt], charges: Charges) -> list[ast.stmt]:
        """Rewrite the statements of a block. Add the steps that are certain when it begins to `charges`. After a
        statement that may leave the block, charge the steps that are certain from there."""
        outer, segments = self.charges, [(charges, list[ast.stmt]())]
        for statement in body:
            self.charges, segment = segments[-1]
            segment += self._rewritten(statement)
            if may_leave(statement):
                segments.append((Charges(), []))
        self.charges = outer
        first, *others = segments
        charged = [each for more, segment in others if segment for each in (*more.statements(segment[0]), *segment)]
        return [*first[1], *charged] or [ast.Pass()]

    def _rewritten(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, ast.AugAssign):
            return self._augment(statement)
        useless = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        return [] if useless else [self.visit(statement)]

    def _uncertain(self, node: ast.expr) -> ast.expr:
        """Rewrite an expression that may be evaluated never or several times."""
        before, self.charges = self.charges, None
        visited: ast.expr = self.visit(node)
        self.charges = before
        return visited

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test: ast.expr = self.visit(node.test)
        return ast.copy_location(ast.IfExp(test, self._uncertain(node.body), self._uncertain(node.orelse)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        first, *others = node.values
        return ast.copy_location(ast.BoolOp(node.op, [self.visit(first), *map(self._uncertain, others)]), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        """Rewrite a loop so that it charges steps. A loop over the instances charges all its steps before it starts,
        because the number of instances is fixed. Any other loop charges steps at each iteration."""
        over = node.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "enumerate":
            over = over.args[0]
        if self.kinds[over] in ROWS:
            items, body = self._each(node.iter, cost(*node.body)), self._statements(node.body)
        else:
            items, body = self._each(node.iter, 0), self._loop(node)
        return ast.copy_location(ast.For(node.target, items, body, self._orelse(node.orelse)), node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        return ast.copy_location(
            ast.While(self._uncertain(node.test), self._loop(node), self._orelse(node.orelse)), node
        )

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """Rewrite a result. If it is a number with hints, note the kinds of the numbers for the decision."""
        kinds = []
        match node.value:
            case ast.Tuple(elts=[score, ast.Dict(values=hints)]):
                kinds = [self.kinds[each] for each in (score, *hints)]
        rewritten = ast.Return(None if node.value is None else self.visit(node.value))
        rewritten.kinds = kinds  # type: ignore[attr-defined]
        return ast.copy_location(rewritten, node)

    def visit_If(self, node: ast.If) -> ast.stmt:
        test, body = self.visit(node.test), self._statements(node.body)
        return ast.copy_location(ast.If(test, body, self._orelse(node.orelse)), node)

    def _loop(self, node: ast.For | ast.While) -> list[ast.stmt]:
        test = [node.test] if isinstance(node, ast.While) else []
        return self._statements(node.body, cost(*test, *node.body), node)

    def _orelse(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return self._statements(body) if body else []

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        target, value = node.targets[0], self.visit(node.value)
        if isinstance(target, ast.Subscript):
            return _put(value, self.visit(target.value), self.visit(target.slice), node)
        return ast.copy_location(ast.Assign([target], value), node)

    def _augment(self, node: ast.AugAssign) -> list[ast.stmt]:
        """Rewrite `x += y` as an assignment. If `x` is a subscript, its base and index are evaluated once, before
        `y`."""
        target = node.target
        if isinstance(target, ast.Name):
            now: ast.expr = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            self.kinds[now] = self.kinds[target]
            return [ast.copy_location(ast.Assign([target], self._add(node, now)), node)]
        assert isinstance(target, ast.Subscript)
        before, parts = [], []
        for name, part in (("_base", target.value), ("_place", target.slice)):
            once = ast.copy_location(ast.Name(name, ast.Load()), part)
            self.kinds[once] = self.kinds[part]
            parts.append(once)
            before.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], self.visit(part)), node))
        now = ast.copy_location(ast.Subscript(parts[0], parts[1], ast.Load()), target)
        self.kinds[now] = self.kinds[target]
        return [*before, _put(self._add(node, now), parts[0], parts[1], node)]

    def _add(self, node: ast.AugAssign, now: ast.expr) -> ast.expr:
        if isinstance(node.op, ast.Add) and self.kinds[now] & LIST:
            return _call("_extend", [self.visit(now), self.visit(node.value)], node)
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
        return _call(GUARDS[type(op)], [left, right], node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = [node.left, *node.comparators]
        nested = [bool(self.kinds[side] & CONTAINER) for side in sides]
        if len(sides) == 2 and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = self._looked_up(sides[1], sides[0])
            if found is not None:
                return ast.copy_location(ast.Compare(self.visit(sides[0]), node.ops, [found]), node)
        visited = [self.visit(side) if place < 2 else self._uncertain(side) for place, side in enumerate(sides)]
        for place, op in enumerate(node.ops, 1):
            if isinstance(op, ast.In | ast.NotIn):
                # Comparing texts with texts costs little, so that they are only counted.
                texts = self.kinds[sides[place - 1]] in (STR, STR | NONE) and _names(sides[place])
                if not texts:
                    visited[place] = _call("_scan", [visited[place]], node)
                elif place == 1:
                    visited[place] = self._spanned(sides[place], visited[place], 1)
                else:
                    visited[place] = _call("_span", [visited[place]], node)
                if nested[place - 1]:
                    visited[place - 1] = _call("_flat", [visited[place - 1]], node)
            elif nested[place - 1] and nested[place]:
                visited[place - 1 : place + 1] = [
                    _call("_flat", [operand], node) for operand in visited[place - 1 : place + 1]
                ]
        return ast.copy_location(ast.Compare(visited[0], node.ops, visited[1:]), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not isinstance(node.slice, ast.Slice):
            place = self.visit(node.slice)
            if (found := self._looked_up(node.value, node.slice)) is not None:
                return ast.copy_location(ast.Subscript(found, place, ast.Load()), node)
            if self.kinds[node.value] & (DICT | TABLES) and self.kinds[node.slice] & CONTAINER:
                place = _call("_flat", [place], node)  # charges steps for nested tuples, because hashing them recurses
            return ast.copy_location(ast.Subscript(self.visit(node.value), place, ast.Load()), node)
        bounds = [
            ast.Constant(None) if bound is None else self.visit(bound) for bound in (node.slice.lower, node.slice.upper)
        ]
        return _call("_slice", [self.visit(node.value), *bounds], node)

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        keys = [self._key(key, node) for key in node.keys if key is not None]
        return ast.copy_location(ast.Dict(list(keys), [self.visit(value) for value in node.values]), node)

    def _key(self, key: ast.expr, node: ast.expr) -> ast.expr:
        if self.charges is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return _call("_key", [self.visit(key)], node)
        self.charges.steps += STORE
        return key

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self._read(node)
        # Mappings and lists of views become read-only, so that a program cannot change them.
        return _call("_frozen", [value], node) if self.kinds[node] & (TABLES | SAMPLES) else value

    def _read(self, node: ast.Attribute) -> ast.expr:
        """Return the rewritten read of a field. A mapping may still be changed."""
        kind, base = self.kinds[node.value], self.visit(node.value)
        if not kind & ~(RECORD | NONE) and kind:
            return ast.copy_location(ast.Attribute(base, node.attr, ast.Load()), node)
        return _call("_field", [base, ast.Constant(node.attr)], node)

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
        key = _call("_key", [self._within(target, node.key)], node)
        return ast.copy_location(ast.DictComp(key, self._within(target, node.value), clauses), node)

    def _clauses(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> list[ast.comprehension]:
        clause = node.generators[0]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        over = self._each(clause.iter, cost(*results, *clause.ifs))
        return [ast.comprehension(clause.target, over, [self._within(clause.target, test) for test in clause.ifs], 0)]

    def _within(self, target: ast.AST, node: ast.expr) -> ast.expr:
        """Rewrite an expression in which the names that `target` binds hide top-level names of the source."""
        before = self.own
        names = [child.id for child in ast.walk(target) if isinstance(child, ast.Name)]
        self.own = before | {*names, *(child.arg for child in ast.walk(target) if isinstance(child, ast.arg))}
        visited = self._uncertain(node)
        self.own = before
        return visited

    def _each(self, node: ast.expr, steps: int) -> ast.expr:
        """Return the rewritten iterable of a loop or comprehension. The rewritten code charges `steps` for each element
        before the first iteration."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PASSING:
            return _call(f"_each_{node.func.attr}", [self._each(node.func.value, steps)], node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PASSING:
            return _call(f"_each_{node.func.id}", [self._each(argument, steps) for argument in node.args], node)
        items: ast.expr = self.visit(node)
        return self._spanned(node, items, steps) if steps else items

    def _spanned(self, node: ast.expr, items: ast.expr, steps: int) -> ast.expr:
        """Charge `steps` for each element of `items`, which `node` was rewritten to: at once, or with the block."""
        if self.charges is not None and (fixed := self._fixed(node)):
            self.charges.add(node, steps, fixed == INSTANCES)
            return items
        return _call("_span", [items], node) if steps == 1 else _weigh(items, steps, node)

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
            return _call(f"_{node.func.attr}", [self.visit(node.func.value), *map(self.visit, node.args)], node)
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
        call = _call(called, arguments, node)
        call.keywords = [ast.keyword(argument.arg, self.visit(argument.value)) for argument in node.keywords]
        return call

    def _any_or_all(self, node: ast.Call, name: str) -> ast.expr:
        """Rewrite `any` and `all` so that they stop at the first decisive element."""
        over = node.args[0]
        if isinstance(over, ast.GeneratorExp):
            clauses, elt = self._clauses(over), self._within(over.generators[0].target, over.elt)
            items: ast.expr = ast.copy_location(ast.GeneratorExp(elt, clauses), node)
        else:
            items = _call("_span", [self.visit(over)], node)
        return _call(f"_{name}", [items], node)

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


def _put(value: ast.expr, base: ast.expr, place: ast.expr, node: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Expr(_call("_put", [value, base, place], node)), node)


def _weigh(items: ast.expr, steps: int, node: ast.AST) -> ast.expr:
    return _call("_weigh", [items, ast.Constant(steps)], node)


def _call(name: str, arguments: list[ast.expr], node: ast.AST) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)

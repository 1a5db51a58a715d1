"""Rewrites a checked source: adds step counts, and replaces operators that could do harm with guards.

Injected names begin with an underscore, which is not allowed for names in a source. All functions become closures over
one counter of the remaining steps, `_left`. The counter depends on the syntax, not on bytecode instructions, so it is
the same in every version of Python.
"""

import ast
from typing import Final

from headway.policies.code.charges import Charges, cost, may_leave
from headway.policies.code.decision import DECIDING, Decision, closure, decide
from headway.policies.code.kinds import Kinds
from headway.policies.code.language import ROWS
from headway.policies.code.names import Names
from headway.policies.code.rewrite_expressions import Expressions, library_call

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


class _Rewrite:
    """Rewrites one function: its statements here, and their expressions with `expressions`."""

    def __init__(
        self, names: Names, kinds: Kinds, values: dict[str, float], owner: str, explaining: bool = False
    ) -> None:
        self.kinds = kinds.of
        self.expressions = Expressions(names, kinds, values, owner, explaining)

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
        outer, segments = self.expressions.charges, [(charges, list[ast.stmt]())]
        for statement in body:
            self.expressions.charges, segment = segments[-1]
            segment += self._rewritten(statement)
            if may_leave(statement):
                segments.append((Charges(), []))
        self.expressions.charges = outer
        first, *others = segments
        charged = [each for more, segment in others if segment for each in (*more.statements(segment[0]), *segment)]
        return [*first[1], *charged] or [ast.Pass()]

    def _rewritten(self, statement: ast.stmt) -> list[ast.stmt]:
        match statement:
            case ast.AugAssign():
                return self._augment(statement)
            case ast.Expr(value=ast.Constant()):
                return []
            case ast.Expr(value=value):
                return [ast.copy_location(ast.Expr(self._visit(value)), statement)]
            case ast.For():
                return [self._for(statement)]
            case ast.While():
                return [self._while(statement)]
            case ast.If():
                return [self._if(statement)]
            case ast.Return():
                return [self._return(statement)]
            case ast.Assign():
                return [self._assign(statement)]
        return [statement]

    def _for(self, node: ast.For) -> ast.stmt:
        """Rewrite a loop so that it charges steps. A loop over the instances charges all its steps before it starts,
        because the number of instances is fixed. Any other loop charges steps at each iteration."""
        over = node.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "enumerate":
            over = over.args[0]
        if self.kinds[over] in ROWS:
            items, body = self.expressions.each(node.iter, cost(*node.body)), self._statements(node.body)
        else:
            items, body = self.expressions.each(node.iter, 0), self._loop(node)
        return ast.copy_location(ast.For(node.target, items, body, self._orelse(node.orelse)), node)

    def _while(self, node: ast.While) -> ast.stmt:
        test = self.expressions.uncertain(node.test)
        return ast.copy_location(ast.While(test, self._loop(node), self._orelse(node.orelse)), node)

    def _if(self, node: ast.If) -> ast.stmt:
        test, body = self._visit(node.test), self._statements(node.body)
        return ast.copy_location(ast.If(test, body, self._orelse(node.orelse)), node)

    def _return(self, node: ast.Return) -> ast.stmt:
        """Rewrite a result. If it is a number with hints, note the kinds of the numbers for the decision."""
        kinds = []
        match node.value:
            case ast.Tuple(elts=[score, ast.Dict(values=hints)]):
                kinds = [self.kinds[each] for each in (score, *hints)]
        rewritten = ast.Return(None if node.value is None else self._visit(node.value))
        rewritten.kinds = kinds  # type: ignore[attr-defined]
        return ast.copy_location(rewritten, node)

    def _assign(self, node: ast.Assign) -> ast.stmt:
        target, value = node.targets[0], self._visit(node.value)
        if isinstance(target, ast.Subscript):
            return _put(value, self._visit(target.value), self._visit(target.slice), node)
        return ast.copy_location(ast.Assign([target], value), node)

    def _visit(self, node: ast.expr) -> ast.expr:
        visited: ast.expr = self.expressions.visit(node)
        return visited

    def _loop(self, node: ast.For | ast.While) -> list[ast.stmt]:
        test = [node.test] if isinstance(node, ast.While) else []
        return self._statements(node.body, cost(*test, *node.body), node)

    def _orelse(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return self._statements(body) if body else []

    def _augment(self, node: ast.AugAssign) -> list[ast.stmt]:
        """Rewrite `x += y` as an assignment. If `x` is a subscript, its base and index are evaluated once, before
        `y`."""
        target = node.target
        if isinstance(target, ast.Name):
            now: ast.expr = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            self.kinds[now] = self.kinds[target]
            return [ast.copy_location(ast.Assign([target], self.expressions.add(node, now)), node)]
        assert isinstance(target, ast.Subscript)
        before, parts = [], []
        for name, part in (("_base", target.value), ("_place", target.slice)):
            once = ast.copy_location(ast.Name(name, ast.Load()), part)
            self.kinds[once] = self.kinds[part]
            parts.append(once)
            before.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], self._visit(part)), node))
        now = ast.copy_location(ast.Subscript(parts[0], parts[1], ast.Load()), target)
        self.kinds[now] = self.kinds[target]
        return [*before, _put(self.expressions.add(node, now), parts[0], parts[1], node)]


def _put(value: ast.expr, base: ast.expr, place: ast.expr, node: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Expr(library_call("_put", [value, base, place], node)), node)

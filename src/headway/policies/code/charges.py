"""The steps that a rewritten source charges. Steps that are certain once a block begins are charged together."""

import ast
from collections.abc import Iterator
from typing import Final

from headway.policies.code.language import DEAR, NODES_A_STEP

LOOPED: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


class Charges:
    """The steps that a block charges when it begins: a constant, and multiples of the number of instances."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.rows: dict[str, tuple[ast.expr, int]] = {}  # source of the candidates -> its expression, steps for each
        self.items: dict[str, tuple[ast.expr, int]] = {}  # the same for other tuples of views

    def add(self, items: ast.expr, steps: int, candidates: bool) -> None:
        source, table = ast.unparse(items), self.rows if candidates else self.items
        _, before = table.get(source, (items, 0))
        table[source] = items, before + steps

    def of_items(self) -> "Charges":
        """Return the charges for other tuples alone."""
        charges = Charges()
        charges.items = self.items
        return charges

    def total(self) -> ast.expr:
        """Return the expression of the number of steps."""
        counted = [*self.rows.values(), *self.items.values()]
        total: ast.expr | None = ast.Constant(self.steps) if self.steps or not counted else None
        for rows, steps in counted:
            count: ast.expr = ast.Call(ast.Name("_len", ast.Load()), [rows], [])
            product = count if steps == 1 else ast.BinOp(count, ast.Mult(), ast.Constant(steps))
            total = product if total is None else ast.BinOp(total, ast.Add(), product)
        assert total is not None
        return total

    def statements(self, node: ast.AST) -> list[ast.stmt]:
        """Return the statements that subtract the steps, and stop the program if no steps are left."""
        if not self.steps and not self.rows and not self.items:
            return []
        left = ast.AugAssign(ast.Name("_left", ast.Store()), ast.Sub(), self.total())
        test = ast.Compare(ast.Name("_left", ast.Load()), [ast.Lt()], [ast.Constant(0)])
        return [ast.fix_missing_locations(ast.copy_location(each, node)) for each in (left, stop(test))]


def stop(test: ast.expr) -> ast.stmt:
    """Return the statement that stops the program if `test` holds."""
    return ast.If(test, [ast.Expr(ast.Call(ast.Name("_over", ast.Load()), [], []))], [])


def may_leave(statement: ast.stmt) -> bool:
    """Return whether the statements after this one may not be executed although it does not fail."""
    leaving = (ast.Return, ast.Break, ast.Continue)
    return any(isinstance(node, leaving) for node in ast.walk(statement))


def cost(*parts: ast.AST) -> int:
    """Return the number of steps to charge for these nodes, at least 1. The bodies of loops and comprehensions do not
    count, because they are charged for each iteration."""
    count = dear = 0
    for part in parts:
        for node in _once(part):
            count += isinstance(node, ast.expr | ast.stmt)
            if isinstance(node, ast.Attribute):
                dear += DEAR.get(node.attr, 0)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                dear += DEAR.get(node.func.id, 0)
    return 1 + count // NODES_A_STEP + dear


def _once(part: ast.AST) -> Iterator[ast.AST]:
    todo = [part]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.For):
            todo += [node.target, node.iter, *node.orelse]
        elif isinstance(node, ast.While):
            todo += node.orelse
        elif isinstance(node, LOOPED):
            todo.append(node.generators[0].iter)
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)

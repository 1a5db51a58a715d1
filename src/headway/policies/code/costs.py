"""What going once through a piece of syntax costs, in steps: known before it runs, and the same in every Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from headway.policies.code.language import DEAR, NODES_A_STEP

LOOPED: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


def cost(*parts: ast.AST) -> int:
    """At least one step. What a loop, a comprehension or a lambda within it repeats pays for itself."""
    count = dear = 0
    for part in parts:
        for node in _once(part):
            count += isinstance(node, ast.expr | ast.stmt)
            if isinstance(node, ast.Attribute):
                dear += DEAR.get(node.attr, 0)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                dear += DEAR.get(node.func.id, 0)
    return 1 + count // NODES_A_STEP + dear


def repeated(node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> list[ast.AST]:
    """What a comprehension does for each element."""
    made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return [*made, *node.generators[0].ifs]


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

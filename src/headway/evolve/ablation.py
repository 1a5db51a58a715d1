"""What each part of a winner contributes: the winner without the part, on the validation part. And the winner without
the parts that change no decision."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate_many
from headway.evolve.expression import FEATURES, STAGES
from headway.evolve.fitness import Gain, over
from headway.evolve.journal import Judged
from headway.evolve.selection import Selection
from headway.evolve.situations import decisions
from headway.evolve.suite import Suite
from headway.evolve.texts import readable
from headway.experiment.runner import Runner
from headway.policies import registry
from headway.policies.bundle import Bundle
from headway.policies.code import check, plain_program
from headway.types import Json

SIMPLIFIED: Final = ("simplified",)  # the mutation of a winner without its needless parts
MOST: Final = 12  # maximum number of parts


class Ablated(Struct, frozen=True):
    """A part of the winner, and the gain that the winner loses without it: a mean with its interval, as a fraction of
    the baseline's figures. If the policy fails without the part, `lost` is None."""

    part: str
    lost: Gain | None

    def document(self) -> Json:
        return {"part": self.part, "lost": None if self.lost is None else msgspec.to_builtins(self.lost)}


def ablate(
    winner: Bundle, suite: Suite, stage: str, cache: Cache | None = None, runner: Runner | None = None
) -> list[Ablated]:
    """Return the parts of the winner, the most important first. A policy without a source, or a suite without a
    validation part, has none."""
    source = source_in(winner, stage)
    if source is None or not suite.parts.get("validation"):
        return []
    rows = without_parts(source, stage)[:MOST]
    bundles = [winner, *(with_source(winner, stage, shorter) for _, shorter in rows)]
    whole, *shorter = evaluate_many(bundles, suite, "validation", cache=cache, runner=runner, progress=False)
    parts = [
        Ablated(part, over(whole, evaluation, suite.objectives))
        for (part, _), evaluation in zip(rows, shorter, strict=True)
    ]
    return sorted(parts, key=lambda each: -each.lost.mean if each.lost else float("-inf"))


def simplify(
    chosen: Selection, suite: Suite, stage: str, cache: Cache | None = None, runner: Runner | None = None
) -> Selection:
    """Return the selection with a simpler winner: without the parts that change no decision in the situations of
    `situations`. If any figure on the train or validation part differs, return the selection unchanged."""
    winner = chosen.winner.bundle
    source = source_in(winner, stage)
    shortest = None if source is None else simplest(source, stage)
    if shortest is None or shortest == source:
        return chosen
    mutations = (*winner.mutations, *SIMPLIFIED)
    bundle = replace(with_source(winner, stage, shortest), parent=winner.id, mutations=mutations)
    if bundle.complexity >= winner.complexity:
        return chosen
    pairs = {}
    for part in ("train", *(["validation"] if chosen.validated else [])):
        pairs[part] = evaluate_many([winner, bundle], suite, part, cache=cache, runner=runner, progress=False)
        before, after = pairs[part]
        if [case.figures for case in before.cases] != [case.figures for case in after.cases]:
            return chosen
    validated = chosen.validated | ({bundle.id: pairs["validation"][1]} if "validation" in pairs else {})
    return replace(chosen, winner=Judged(bundle, pairs["train"][1]), validated=validated)


def candidate_id(winner: Bundle) -> str:
    """Return the id of the search's candidate that the winner is: without its simplification at the end."""
    simplified = winner.mutations[-1:] == SIMPLIFIED
    return winner.parent if simplified and winner.parent is not None else winner.id


def simplest(source: str, stage: str) -> str | None:
    """Return a source without the parts that change no decision; None if decisions of the stage cannot be compared."""
    if stage not in STAGES:
        return None
    wanted = decisions(plain_program(source, stage))
    while wanted is not None:
        same = (text for _, text in without_parts(source, stage) if decisions(plain_program(text, stage)) == wanted)
        shorter = next(same, None)
        if shorter is None:
            return source
        source = shorter
    return None


def source_in(bundle: Bundle, stage: str) -> str | None:
    """Return the source of a policy with its numbers; None if the policy is not written in the policy language."""
    name, _ = registry.split(bundle.policy(stage), f"policies.{stage}")
    return readable(bundle, stage) if name == "code" else None


def with_source(bundle: Bundle, stage: str, source: str) -> Bundle:
    _, keys = registry.split(bundle.policy(stage), f"policies.{stage}")
    rest = {key: value for key, value in keys.items() if key not in ("source", "path", "parameters")}
    return replace(bundle, policies={**bundle.policies, stage: {"name": "code", "source": source, **rest}})


def without_parts(source: str, stage: str) -> list[tuple[str, str]]:
    """Return the parts of a program that can be removed, each with the program without it: terms, factors, arguments
    of `min` and `max`, and branches."""
    found: dict[str, str] = {}
    count = sum(1 for _ in ast.walk(ast.parse(source)))
    for place in range(count):
        for side in (0, 1):
            tree = ast.parse(source)
            remover = _Remover(place, side)
            tree = remover.visit(tree)
            if not remover.part:
                continue
            shorter = ast.unparse(_without_unused(tree)) + "\n"
            if shorter not in found and not check(shorter, stage):
                found[shorter] = remover.part
    return [(part, shorter) for shorter, part in found.items()]


class _Remover(ast.NodeTransformer):
    """Removes one side of the node at a place, and keeps the other side."""

    def __init__(self, place: int, side: int) -> None:
        self.place, self.side, self.part = place, side, ""
        self._number = -1

    def generic_visit(self, node: ast.AST) -> ast.AST:
        self._number += 1
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in FEATURES:
            return node  # the definition of a feature of genetic programming is no part of the rule
        if self._number == self.place:
            if isinstance(node, ast.If):  # keep what follows, or the branch
                self.part = f"{'otherwise' if self.side else 'then'}, if {ast.unparse(node.test)}"
                return node.body[0] if self.side else ast.Expr(ast.Constant(""))
            for part, left in list(_sides(node))[self.side : self.side + 1]:
                self.part = ast.unparse(part)
                return left
        return super().generic_visit(node)


def _sides(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each removable side of a node, and what is left of the node without it."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield left, right
            yield right, left
        case ast.BinOp(left, ast.Sub(), right):
            yield left, ast.UnaryOp(ast.USub(), right)
            yield right, left
        case ast.BinOp(left, ast.Mult(), right) if not (_is_constant(left) or _is_constant(right)):
            yield left, right
            yield right, left
        case ast.IfExp(_, chosen, other):
            yield chosen, other
            yield other, chosen
        case ast.Call(ast.Name("min" | "max"), [left, right], []):
            yield left, right
            yield right, left


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _without_unused(tree: ast.AST) -> ast.AST:
    """Remove assignments to local names that nothing reads any more."""
    while True:
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        removed = False
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = [line for line in node.body if not _is_unused(line, read)]
                removed |= len(body) < len(node.body)
                node.body = body
        if not removed:
            return ast.fix_missing_locations(tree)


def _is_unused(line: ast.stmt, read: set[str]) -> bool:
    return isinstance(line, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id not in read for target in line.targets
    )

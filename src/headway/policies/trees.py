"""Policies that are decision trees: one of the name `tree` in every stage. What runs is the tree's source."""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from headway.errors import HeadwayError
from headway.policies.code import CodeError
from headway.policies.code.stages import BELIEF, ONCE, Coded, Values, declare
from headway.policies.tree import tree_source
from headway.types import Request

LINE = re.compile(r"\btree line (\d+)")


@dataclass(eq=False, repr=False)
class Treed(Coded):
    """A tree in place of a source; errors name the place in the tree."""

    tree: Any = None
    parameters: Values = field(default_factory=dict)

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


FORM: Final = (
    "`tree` has if, then and else; its {} are expressions of the policy language. `parameters` are the values of those "
    "that it declares."
)
TREE: Final = FORM.format("values and conditions")
declare(
    "tree",
    Treed,
    {
        "routing": "Scores each candidate by a decision tree, and the highest wins."
        f"\n\n{TREE} Ties: lowest index. {BELIEF}",
        "admission": "Admits by a decision tree, whose values are admit, reject, or seconds after which to ask again."
        f"\n\n{FORM.format('conditions')}",
        "priority": f"Scores by a decision tree; higher matters more.\n\n{TREE}",
        "scheduler": f"Serves first whoever a decision tree gives the lowest number.\n\nThe tree {ONCE} {TREE}",
        "scaling": f"Finds the number of replicas by a decision tree; the word stay leaves them as they are.\n\n{TREE}",
    },
)

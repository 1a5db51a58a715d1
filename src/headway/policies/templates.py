"""Templates: policies in the policy language that come with the package, each with numbers to choose.

Each is a source under `presets/templates`, by stage. What it declares as `NAME = parameter(default, low, high)` is a
parameter of the catalogue's like any other: a key of a scenario, a `--set` path, a dimension of a search. A source is
compiled when its policy is first looked up.
"""

import ast
from functools import partial
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final

from headway.config.documents import presets
from headway.errors import HeadwayError
from headway.policies.code import Program
from headway.policies.code.stages import STAGES, Coded, Sourced
from headway.policies.registry import Bounds, Entry, defer, describe

OWN: Final = ("begin", "call", "entry", *get_annotations(Sourced))  # what a policy of code has beside its own fields


class Template(Coded):
    """A policy whose source is the package's, and whose parameters are fields."""

    blank: ClassVar = False
    template: ClassVar[str]
    chosen: ClassVar[tuple[str, ...]]  # the names of its parameters

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.chosen}
        self.compile(self.template, type(self).__name__, values)


def compile_template(stage: str, name: str, source: str) -> Entry:
    """Make a policy class of a source, with its parameters as fields, and return its catalogue entry."""
    program = Program(source, stage, name)
    members: dict[str, Any] = {
        "__doc__": ast.get_docstring(ast.parse(source)),
        "__module__": __name__,
        "__annotations__": {each.name: Annotated[float, Bounds(each.low, each.high)] for each in program.parameters},
        "template": source,
        "chosen": tuple(each.name for each in program.parameters),
    }
    reserved = {
        name for base in STAGES[stage].__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ()))
    }
    for each in program.parameters:
        if each.name in (*members, *reserved, *OWN):
            raise HeadwayError(f"{name}: {each.name}: a policy has that already; choose another name.")
        members[each.name] = float(each.default)
    cls = type(name, (Template, STAGES[stage]), members)
    return describe(cls, stage, name, program.exact, program.reported, kind="template")


TEMPLATES: Final = {
    (stage, name): source for stage in STAGES for name, source in presets(f"templates/{stage}", ".py").items()
}
for (stage, name), source in TEMPLATES.items():
    defer(stage, name, partial(compile_template, stage, name, source))

"""Templates: built-in policies in the policy language, with parameters that a search can tune.

Each template is a source file under `presets/templates`, in the folder of its stage. A declaration `NAME =
parameter(default, low, high)` makes a parameter like those of any other policy: a scenario key, a `--set` path, a
dimension of a search. A source is compiled when a caller first looks up its policy.
"""

import ast
from functools import partial
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final

from headway.config.documents import presets
from headway.errors import HeadwayError
from headway.policies.code import Program
from headway.policies.code.coded import Coded
from headway.policies.code.stages import STAGES, Sourced
from headway.policies.registry import Bounds, Entry, defer, describe

RESERVED: Final = ("begin", "call", "entry", *get_annotations(Sourced))  # attributes that every coded policy has


class Template(Coded):
    """A policy with a built-in source. The parameters of the source are fields of the class."""

    blank: ClassVar = False
    template: ClassVar[str]
    parameter_names: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.parameter_names}
        self.compile(self.template, type(self).__name__, values)


def compile_template(stage: str, name: str, source: str) -> Entry:
    """Make a policy class from a source. Its fields are the parameters of the source. Return its catalogue entry."""
    program = Program(source, stage, name)
    members: dict[str, Any] = {
        "__doc__": ast.get_docstring(ast.parse(source)),
        "__module__": __name__,
        "__annotations__": {each.name: Annotated[float, Bounds(each.low, each.high)] for each in program.parameters},
        "template": source,
        "parameter_names": tuple(each.name for each in program.parameters),
    }
    reserved = {
        name for base in STAGES[stage].__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ()))
    }
    for each in program.parameters:
        if each.name in (*members, *reserved, *RESERVED):
            raise HeadwayError(f"{name}: {each.name}: the name is reserved. Choose another name.")
        members[each.name] = float(each.default)
    cls = type(name, (Template, STAGES[stage]), members)
    return describe(cls, stage, name, program.exact, program.reported, kind="template")


TEMPLATES: Final = {
    (stage, name): source for stage in STAGES for name, source in presets(f"templates/{stage}", ".py").items()
}
for (stage, name), source in TEMPLATES.items():
    defer(stage, name, partial(compile_template, stage, name, source))

"""The base of the policies in the policy language: they compile a source, start it, and check what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import language as lang
from headway.policies.code.program import Program, Running, named_program
from headway.policies.code.rejection import CodeError
from headway.policies.registry import Bounds, Entry
from headway.types import Request

Values = dict[str, float]
FAILURES: Final = (Exception, RecursionError, MemoryError)
Steps = Annotated[int, Bounds(100, 100_000_000, log=True)]  # maximum number of steps of a decision
MemoryKeys = Annotated[int, Bounds(0, 10_000_000)]  # maximum number of values that a program remembers


class Coded:
    """A policy that runs a program. The signals that it reads are known from the source."""

    stage: ClassVar[str]
    blank: ClassVar = True  # the policy needs a source from the user
    steps: int = lang.STEPS
    memory_keys: int = lang.MEMORY_KEYS
    program: Program
    running: Running

    def compile(self, source: str, name: str, values: Values) -> None:
        typed = tuple((key, type(value), value) for key, value in values.items())
        numbers = all(isinstance(value, int | float) for value in values.values())
        # Bypass the cache if a value is not a number, because it may be unhashable.
        compile_ = named_program if numbers else named_program.__wrapped__
        self.program = program = compile_(source, self.stage, name, typed)
        name = registry.entry_of(type(self), self.stage).name
        self.entry = Entry(self.stage, name, type(self), program.exact, program.reported, False)
        self.restart()

    def restart(self) -> None:
        self.running = running = self.program.start(self.memory_keys)
        self.call, self.begin = running.entrance, running.begin

    def __deepcopy__(self, memo: dict[int, Any]) -> Coded:
        """Return a new policy with the same parameters and an empty memory."""
        return type(self)(**registry.values_of(self))

    def ask(self, function: Callable[..., Any], request: Request | None, *arguments: Any) -> Any:
        """Call a function of the program. Errors name the line and the request."""
        try:
            return function(*arguments)
        except FAILURES as error:
            raise self.fail(error, request) from error

    def number(self, value: Any, request: Request | None, most: float = 1e15) -> float:
        """Return an answer that must be a number between -`most` and `most`."""
        if type(value) not in (int, float) or not abs(value) <= most:
            raise self.wrong(value, request)
        return float(value)

    def fail(self, error: BaseException, request: Request | None) -> HeadwayError:
        if isinstance(error, HeadwayError) and str(error).startswith("policies"):
            return error
        return CodeError(f"policies.{self.stage}: {self.program.failure(error, self.steps)}{_at(request)}.")

    def wrong(self, value: object, request: Request | None, function: str = "") -> CodeError:
        function = function or self.program.entrance
        known = lang.ENTRANCES[self.stage] | lang.HOOKS.get(self.stage, {})
        right = f"{function} must return {known[function].gives}"
        returned = f"{right}, but returned {shown(value)}{_at(request)}"
        return CodeError(f"policies.{self.stage}: {self.program.name}: {returned}.")


def _at(request: Request | None) -> str:
    return "" if request is None else f", at request {request.id}"

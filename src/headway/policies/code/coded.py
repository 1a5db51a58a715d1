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
from headway.types import ADMIT, NO_PRIORITY, Priority, Request

Values = dict[str, float]
NUMBERS: Final = (float, int)  # not bool
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
        """Start the program with an empty memory."""
        self.running = running = self.program.start(self.memory_keys)
        self.begin = running.begin

    def decision(
        self, running: Running, answer: Callable[..., Any], believed: Any = None, explained: Any = None, tokens: int = 1
    ) -> Callable[..., Any]:
        """Return the function that takes a whole decision. `answer` turns a result into the stage's answer, `believed`
        returns the cached blocks of `tokens` tokens, and `explained` decides if the decision is to be explained."""
        return running.deciding(  # type: ignore[no-any-return]
            _steps=self.steps,
            _tokens=tokens,
            _failures=FAILURES,
            _fail=self.failed,
            _answer=answer,
            _number=self.number,
            _numbers=NUMBERS,
            _real=float,
            _whole=int,
            _sent=getattr(self, "sent", None),
            _admit=ADMIT,
            _believed=believed,
            _look=running.belief.look,
            _explained=explained,
            _priority=Priority,
            _no_hints=NO_PRIORITY.hints,
            _reason=f"scored by {self.program.name}",
        )

    def failed(self, error: BaseException, subject: Any) -> HeadwayError:
        """Return the error of a decision on a request."""
        return self.fail(error, subject)

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
        if value.__class__ in NUMBERS and -most <= value <= most:
            return float(value)
        raise self.wrong(value, request)

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

"""What the doctor reports: problems, each with its place and a remedy."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, field, to_builtins

from headway.types import Json

Level = Literal["error", "warning", "note"]
SOON_DAYS: Final = 21  # certificates that expire earlier than this are a warning
LEVELS: Final = ("error", "warning", "note")  # from the most to the least severe


class Problem(Struct, frozen=True):
    """`error`: requests fail, or the gateway does not start. `warning`: the gateway works, but worse, less safely or
    not for long. `note`: it may be as intended."""

    level: Level
    where: str  # a key of the file, or a part of the running gateway
    what: str
    remedy: str


class Report(Struct):
    target: str
    checked: list[str] = field(default_factory=list)  # what the doctor could look at
    problems: list[Problem] = field(default_factory=list)
    reached: bool = True  # False: the doctor could look at nothing, so it cannot tell

    def add(self, level: Level, where: str, what: str, remedy: str) -> None:
        problem = Problem(level, where, what, remedy)
        if problem not in self.problems:  # the file and the running gateway may have the same problem
            self.problems.append(problem)

    def error(self, where: str, what: str, remedy: str) -> None:
        self.add("error", where, what, remedy)

    def warn(self, where: str, what: str, remedy: str) -> None:
        self.add("warning", where, what, remedy)

    def note(self, where: str, what: str, remedy: str) -> None:
        self.add("note", where, what, remedy)

    def fails(self, level: Level) -> bool:
        """Return whether there is a problem of this level or of a more severe one."""
        return any(LEVELS.index(problem.level) <= LEVELS.index(level) for problem in self.problems)

    def sorted(self) -> list[Problem]:
        return sorted(self.problems, key=lambda problem: LEVELS.index(problem.level))

    def document(self) -> Json:
        document: Json = {"target": self.target, "checked": self.checked, "reached": self.reached}
        return document | {"problems": to_builtins(self.sorted())}

"""Plans: the lengths and pauses of a session. All are drawn when the session begins, so that they do not depend on the
cluster.

Each key has its own random stream, named after the key. Therefore adding a key does not change the values drawn for
other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from math import exp, log, sqrt
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway import hashing
from headway.streams import stream
from headway.types import PS_PER_US
from headway.workload import durations, kinds, shapes
from headway.workload.adapters import salt_content
from headway.workload.contexts import Context
from headway.workload.correlations import Evolution
from headway.workload.sessions import Turn
from headway.workload.shapes import MAX_TOKENS, Maker

MOST_STEPS: Final = 10_000  # maximum number of requests of one session
MOST_AHEAD: Final = 100  # maximum number of requests of a session whose prompts are created ahead
MOST_THOUGHTS: Final = 10_000  # maximum number of steps in all chains of thought of one session

Lengths = Mapping[str, tuple[Any, str]]  # key -> (distribution, path of the key in the scenario for errors)


class Step(Struct, gc=False):
    """One request of a session."""

    new_tokens: int
    output_tokens: int
    hidden_tokens: int = 0  # number of tokens at the start of the output that later turns do not repeat
    delay_ps: int = 0
    max_tokens: int | None = None
    branch: int = 0  # number of the context that the request continues: 0 for the session, others for sub-agents
    after: tuple[int, ...] = ()  # indices of the steps that this step waits for
    by_user: bool = False  # True if a person sends the request, False if an agent does


class Mark(Struct, frozen=True, gc=False):
    """How a session of a burst, or of an abusive tenant, differs from an ordinary session."""

    prompt_factor: float = 1.0
    output_factor: float = 1.0
    unique: bool = False  # whether the session has no shared prefix


USUAL: Final = Mark()


class Recipe:
    """The distributions of one kind of session. They are parsed once for all users of a closed loop.

    `lengths` are the length distributions of the tenant; a kind may override them. `label` is part of the names of the
    random streams, so that several kinds have different streams.
    """

    def __init__(
        self,
        kind: kinds.AnyKind,
        lengths: Lengths,
        evolution: Evolution,
        where: str,
        label: str = "",
    ) -> None:
        self.kind = kind
        self.evolution = evolution
        self.label = label
        self.subagents = kind.subagents if isinstance(kind, kinds.Agentic) else None
        self.makers: dict[str, Maker] = {}
        for name in kinds.TOKENS:
            spec, place = getattr(kind, name), f"{where}.{name}"
            if spec is None:
                spec, place = lengths[name]
            if spec is not None:
                self.makers[name] = shapes.maker(spec, place)
        for name in kind.__struct_fields__:
            if name in kinds.DURATIONS:
                self.makers[name] = durations.maker(getattr(kind, name), f"{where}.{name}")
            elif name in kinds.LENGTHS and name not in kinds.TOKENS:
                self.makers[name] = shapes.maker(getattr(kind, name), f"{where}.{name}")
        if self.subagents is not None:
            for name in kinds.SUBAGENT_LENGTHS:
                own = f"subagents.{name}"
                self.makers[own] = shapes.maker(getattr(self.subagents, name), f"{where}.{own}")


class Planner:
    """Draws sessions from the distributions of a recipe."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        def rng(name: str) -> Random:
            return stream(seed, f"workload.{recipe.label}{name}")

        self.kind, self._evolution, self._subagents = recipe.kind, recipe.evolution, recipe.subagents
        draws = self._draws = {name: make(rng(name)) for name, make in recipe.makers.items()}
        self._prompt, self._output = draws["prompt_tokens"], draws["output_tokens"]
        self._limit: Callable[[], int | None] = draws.get("max_tokens", repeat(None).__next__)
        if self._evolution.decode_variation is not None:
            self._gauss = rng("correlations.decode").gauss
        if isinstance(self.kind, kinds.Agentic):
            self._tool_tokens, self._uniform = draws["tool_tokens"], rng("tool_call").random
        if self._subagents is not None:
            self._sub_uniform = rng("subagents").random

    def draw(self, mark: Mark = USUAL) -> list[Step]:
        """Draw the requests of the next session. Each request comes after the requests that it waits for."""
        prompt = clip_length(self._prompt() * mark.prompt_factor) if mark.prompt_factor != 1 else self._prompt()
        if isinstance(self.kind, kinds.Completion):
            return [self._step(prompt, self._output(), mark, by_user=True)]
        self._thoughts = MOST_THOUGHTS
        follow_ups, outputs = self._follow_ups(), self._outputs()
        steps: list[Step] = []
        waits: tuple[int, ...] = ()
        for turn in range(self._draws["turns"]()):
            if len(steps) >= MOST_STEPS:
                break
            tokens, delay = (next(follow_ups), self._draws["think_time"]() * PS_PER_US) if turn else (prompt, 0)
            steps.append(self._step(tokens, next(outputs), mark, delay, after=waits, by_user=True))
            if isinstance(self.kind, kinds.Agentic) and self._uniform() < self.kind.tool_call:
                for _ in range(self._draws["calls"]()):
                    if len(steps) >= MOST_STEPS:
                        break
                    self._call(steps, outputs, mark)
            waits = (len(steps) - 1,)
        return steps

    def _call(self, steps: list[Step], outputs: Iterator[int], mark: Mark) -> None:
        """Append the requests of a tool call: one request with the tool's result, or else the requests of sub-agents
        and one request with their results."""
        caller, tool_latency = len(steps) - 1, self._draws["tool_latency"]
        full = len(steps) > MOST_STEPS - 2  # sub-agents need at least two steps: their own and the one with the results
        if self._subagents is None or self._sub_uniform() >= self._subagents.probability or full:
            delay = tool_latency() * PS_PER_US
            steps.append(self._step(self._tool_tokens(), next(outputs), mark, delay, after=(caller,)))
            return
        turns, first_prompt = self._draws["subagents.turns"], self._draws["subagents.prompt_tokens"]
        ends, reports, branch = [], 0, len(steps)
        for number in range(self._draws["subagents.count"]()):
            room = MOST_STEPS - 1 - len(steps)
            if not room:
                break
            last = caller
            for turn in range(min(turns(), room)):
                tokens, delay = (self._tool_tokens(), tool_latency() * PS_PER_US) if turn else (first_prompt(), 0)
                steps.append(self._step(tokens, self._output(), mark, delay, branch + number, (last,)))
                last = len(steps) - 1
            ends.append(last)
            reports += steps[last].output_tokens
        steps.append(self._step(min(reports, MAX_TOKENS), next(outputs), mark, after=tuple(ends)))

    def _step(
        self,
        tokens: int,
        output: int,
        mark: Mark,
        delay_ps: int = 0,
        branch: int = 0,
        after: tuple[int, ...] = (),
        by_user: bool = False,
    ) -> Step:
        hidden = 0
        if isinstance(self.kind, kinds.Reasoning):
            thoughts = min(self._draws["steps"](), self._thoughts)
            self._thoughts -= thoughts
            step_tokens = self._draws["step_tokens"]
            hidden = min(sum(step_tokens() for _ in range(thoughts)), MAX_TOKENS)
        if mark.output_factor != 1:
            output = clip_length(output * mark.output_factor)
        output = min(output + hidden, MAX_TOKENS)
        limit = self._limit()
        if limit is not None:
            output = min(output, limit)
        return Step(tokens, output, hidden, delay_ps, limit, branch, after, by_user)

    def _follow_ups(self) -> Iterator[int]:
        """Yield the number of new tokens of each turn after the first turn."""
        growth, draw = self._evolution.prompt_growth, self._draws["turn_tokens"]
        if growth is None:
            while True:
                yield draw()
        tokens = float(draw())
        while True:
            yield clip_length(tokens)
            tokens = min(tokens * growth, MAX_TOKENS)

    def _outputs(self) -> Iterator[int]:
        """Yield the output lengths of a session: independently drawn lengths or, with `decode_variation`, the previous
        length times a factor of mean 1."""
        variation = self._evolution.decode_variation
        if variation is None:
            while True:
                yield self._output()
        variance = log(1 + variation**2)
        tokens = float(self._output())
        while True:
            yield clip_length(tokens)
            tokens = min(tokens * exp(self._gauss(-variance / 2, sqrt(variance))), MAX_TOKENS)


def clip_length(tokens: float) -> int:
    """Round a length to a whole number from 1 to `MAX_TOKENS`."""
    return 1 if tokens < 1 else int(tokens + 0.5) if tokens < MAX_TOKENS else MAX_TOKENS


class Script(Struct, frozen=True, gc=False):
    """A drawn session: its requests (`steps`), its shared prefix, and the content numbers of its requests."""

    kind: kinds.AnyKind
    model: str
    steps: list[Step]
    prefix: tuple[int, int]  # (key of the group's prefix, length of the prefix in tokens)
    first: int  # content number of the first step
    stride: int = 1
    adapter: str | None = None
    prefix_added: bool = False  # whether the prefix comes in addition to the drawn tokens
    outer: tuple[int, int] | None = None  # (key, length) of the outer prefix with which the prefix begins
    drawn: list[Turn] | None = None  # all requests in full, if they were created ahead of the session

    def draw_ahead(self) -> Script:
        """Return the script with its requests in full. A long session stays as it is, because each request holds its
        whole prompt."""
        steps = len(self.steps)
        return replace(self, drawn=list(Turns(self, steps))) if steps <= MOST_AHEAD else self

    def turns(self, count: int) -> Sequence[Turn]:
        """Return the first `count` requests, as `Turns` does."""
        return Turns(self, count) if self.drawn is None else self.drawn[:count]


class Turns(Sequence[Turn]):
    """The first `count` requests of a script, created on demand. Callers must read each request once, and the requests
    of one branch in order. Therefore memory holds only one context per branch, not all prompts."""

    __slots__ = ("_contexts", "_count", "_script")

    def __init__(self, script: Script, count: int) -> None:
        self._script, self._count = script, count
        self._contexts: dict[int, Context] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        script = self._script
        step = script.steps[index]
        context = self._contexts.get(step.branch)
        if context is None:
            kind, added = script.kind, script.prefix_added
            if isinstance(kind, kinds.Completion):
                context = Context(*script.prefix, added=added, outer=script.outer)
            else:
                context = Context(*script.prefix, kind.growth, kinds.limit_of(kind), added, script.outer)
            self._contexts[step.branch] = context
        number = script.first + index * script.stride
        output_key = hashing.key(hashing.OUTPUT, number)
        path = context.prompt(step.new_tokens, hashing.key(hashing.PROMPT, number))
        context.add_answer(output_key, step.output_tokens, step.hidden_tokens)
        if script.adapter is not None:
            path, output_key = salt_content(path, output_key, script.adapter)
        return Turn(
            path.tokens,
            step.output_tokens,
            path,
            output_key,
            step.delay_ps,
            script.model,
            str(script.kind.__struct_config__.tag),
            step.max_tokens,
            context.prefix_tokens,
            script.adapter,
        )

"""The `workload:` section, and what it plans: requests with the truth that only the simulator may know."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice, repeat
from random import Random
from typing import Any, Final

from msgspec import Struct, to_builtins

from headway import hashing
from headway.section import read
from headway.streams import stream
from headway.types import PS_PER_SECOND, HeadwayError, Json, Path, Request
from headway.units import duration_ps, rate
from headway.workload import arrivals, prefixes, shapes
from headway.workload.traces import FORMATS, Trace, check_format, read_trace
from headway.workload.traces.source import reason
from headway.workload.traces.table import LAST_PS, too_late
from headway.workload.traffic import OpenLoop, Planned, Traffic

PS_PER_US: Final = 1_000_000
MAX_REQUESTS: Final = 1_000_000_000
PROMPT_TOKENS: Final = {"dist": "normal", "mean": 512, "std": 128, "min": 16, "max": 2048}
OUTPUT_TOKENS: Final = {"dist": "normal", "mean": 256, "std": 64, "min": 8, "max": 1024}
SYNTHETIC: Final = ("requests", "rate", "arrival", "prompt_tokens", "output_tokens", "prefix")
INSTEAD: Final = {"requests": "use workload.trace.limit", "rate": "use workload.trace.speed"}
MAX_BLOCK: Final = 65536


class TraceSpec(Struct, frozen=True):
    """The `trace` key: a file to replay. Without `format` it is told from the content."""

    path: str
    format: str | None = None
    speed: float = 1.0  # 2 replays twice as fast
    limit: int | None = None  # the first so many requests
    block_tokens: int | None = None  # of a Mooncake trace's hash_ids, 512 unless said


class WorkloadSpec(Struct):
    """The section as written; a key that is None was not given. It is checked when it is made, files apart.

    Synthetic requests need a `rate`, and `requests` or `duration` (or both: whichever ends first). A trace brings its
    own times and lengths; `duration` and `max_tokens` go with either.
    """

    requests: int | None = None
    duration: Any = None  # ends arrivals: only those before it count
    rate: Any = None
    arrival: Any = None  # poisson unless said
    prompt_tokens: Any = None
    output_tokens: Any = None
    prefix: Any = None
    trace: Any = None
    max_tokens: Any = None  # what clients declare; an output never exceeds it

    def __post_init__(self) -> None:
        if self.duration is not None and duration_ps(self.duration, "workload.duration") <= 0:
            raise HeadwayError(f"workload.duration: must be longer than nothing, got {self.duration!r}.")
        if self.max_tokens is not None:
            shapes.parse(self.max_tokens, "workload.max_tokens")
        if self.trace is None:
            self._check_synthetic()
        else:
            self._check_trace()

    def _check_synthetic(self) -> None:
        if self.requests is None and self.duration is None:
            raise HeadwayError(
                "workload: say 'requests' or 'duration' for synthetic requests, or give a 'trace' to replay."
            )
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise HeadwayError(f"workload.requests: must lie between 1 and {MAX_REQUESTS}, got {self.requests}.")
        if self.rate is None:
            raise HeadwayError("workload.rate: is missing; say how many requests arrive, as in 40/s.")
        expected = rate(self.rate, "workload.rate")
        if self.requests is None:
            expected *= Fraction(duration_ps(self.duration, "workload.duration"), PS_PER_SECOND)
            if expected > MAX_REQUESTS:
                wrong = f"{self.rate} for {self.duration} are more than {MAX_REQUESTS} requests"
                raise HeadwayError(f"workload.rate: {wrong}; lower the rate or shorten the duration.")
        shapes.parse(self._shape("prompt_tokens"), "workload.prompt_tokens")
        shapes.parse(self._shape("output_tokens"), "workload.output_tokens")
        arrivals.parse(self._arrival(), "workload.arrival")
        if self.prefix is not None:
            prefixes.parse(self.prefix, "workload.prefix")

    def _check_trace(self) -> None:
        for name in SYNTHETIC:
            if getattr(self, name) is not None:
                raise HeadwayError(f"workload.{name}: a trace brings its own; {INSTEAD.get(name, 'leave it out')}.")
        trace = read(TraceSpec, self.trace, "workload.trace")
        if trace.format is not None:
            check_format(trace.format, "workload.trace.format")
        if not 1e-6 <= trace.speed <= 1e6:
            raise HeadwayError(f"workload.trace.speed: must lie between 1e-6 and 1e6, got {trace.speed:g}.")
        if trace.limit is not None and trace.limit < 1:
            raise HeadwayError(f"workload.trace.limit: must be at least 1, got {trace.limit}.")
        if trace.block_tokens is not None:
            if trace.format is not None and "blocks" not in FORMATS[trace.format]:
                raise HeadwayError(f"workload.trace.block_tokens: an {trace.format} trace has no blocks; leave it out.")
            if not 1 <= trace.block_tokens <= MAX_BLOCK:
                wrong = f"must lie between 1 and {MAX_BLOCK}, got {trace.block_tokens}"
                raise HeadwayError(f"workload.trace.block_tokens: {wrong}.")

    def _shape(self, name: str) -> Any:
        given = getattr(self, name)
        default = PROMPT_TOKENS if name == "prompt_tokens" else OUTPUT_TOKENS
        return default if given is None else given

    def _arrival(self) -> Any:
        return "poisson" if self.arrival is None else self.arrival

    def resolved(self) -> Json:
        """The section with every default written out, but for what a trace's file tells: format and block size."""
        found: Json = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if self.trace is not None:
            return found | {"trace": to_builtins(read(TraceSpec, self.trace, "workload.trace"))}
        arrival = arrivals.parse(self._arrival(), "workload.arrival")
        found["arrival"] = arrival.process if arrival.cv is None else to_builtins(arrival)
        found |= {name: self._shape(name) for name in ("prompt_tokens", "output_tokens")}
        if self.prefix is not None:
            found["prefix"] = to_builtins(prefixes.parse(self.prefix, "workload.prefix"))
        return found

    def plan(self, seed: int, model: str = "") -> Traffic:
        """The requests in order of arrival, one at a time."""
        stop_ps = LAST_PS + 1
        if self.duration is not None:
            stop_ps = min(stop_ps, duration_ps(self.duration, "workload.duration"))
        declared = self._declared(seed)
        if self.trace is not None:
            spec = read(TraceSpec, self.trace, "workload.trace")
            return OpenLoop(_replay(load(spec), Fraction(str(spec.speed)), stop_ps, declared, model))
        return OpenLoop(self._synthesise(seed, model, stop_ps, declared))

    def _declared(self, seed: int) -> Callable[[], int] | None:
        if self.max_tokens is None:
            return None
        return shapes.sampler(self.max_tokens, "workload.max_tokens", stream(seed, "workload.max_tokens"))

    def _synthesise(self, seed: int, model: str, stop_ps: int, declared: Callable[[], int] | None) -> Iterator[Planned]:
        def lengths(name: str) -> shapes.Draw:
            return shapes.sampler(self._shape(name), f"workload.{name}", stream(seed, f"workload.{name}"))

        rng: Random = stream(seed, "workload.arrivals")
        process = arrivals.parse(self._arrival(), "workload.arrival")
        times = arrivals.microseconds(process, rate(self.rate, "workload.rate"), rng)
        tokens, group = 0, repeat(prefixes.NO_GROUP).__next__
        if self.prefix is not None:
            prefix = prefixes.parse(self.prefix, "workload.prefix")
            tokens, group = prefix.tokens, prefixes.chooser(prefix, seed)
        bounded = islice(times, MAX_REQUESTS if self.requests is None else self.requests)
        prompts, outputs = lengths("prompt_tokens"), lengths("output_tokens")
        return _generate(bounded, prompts, outputs, group, tokens, stop_ps, declared, model)


def load(spec: TraceSpec) -> Trace:
    """The trace of a scenario."""
    path = pathlib.Path(spec.path)
    try:
        path.open("rb").close()
    except (OSError, ValueError) as error:
        raise HeadwayError(f"workload.trace.path: {str(path)!r} cannot be opened ({reason(error)}).") from None
    return read_trace(path, spec.format, limit=spec.limit, block_tokens=spec.block_tokens, ask="workload.trace.format")


def _generate(
    times: Iterator[int],
    prompt_tokens: shapes.Draw,
    output_tokens: shapes.Draw,
    group: Callable[[], int],
    prefix_tokens: int,
    stop_ps: int,
    declared: Callable[[], int] | None,
    model: str,
) -> Iterator[Planned]:
    group_kind, prompt_kind, output_kind, key = hashing.GROUP, hashing.PROMPT, hashing.OUTPUT, hashing.key
    limit = None
    for number, microseconds in enumerate(times):
        arrival_ps = microseconds * PS_PER_US
        if arrival_ps >= stop_ps:
            if arrival_ps > LAST_PS and stop_ps > LAST_PS:
                raise HeadwayError(
                    f"workload.rate: request {number} would come {too_late(arrival_ps)}; raise the rate."
                )
            return
        prompt, output, member = prompt_tokens(), output_tokens(), group()
        shared = 0
        if member < 0:
            path = Path((key(prompt_kind, number),), (prompt,))
        elif prompt <= prefix_tokens:
            shared = prompt
            path = Path((key(group_kind, member),), (prompt,))
        else:
            shared = prefix_tokens
            path = Path((key(group_kind, member), key(prompt_kind, number)), (prefix_tokens, prompt))
        if declared is not None:
            limit = declared()
            output = min(output, limit)
        request = Request(number, arrival_ps, prompt, path, model, max_tokens=limit, shared_prefix_tokens=shared)
        yield Planned(request, output, key(output_kind, number))


def _replay(
    trace: Trace, speed: Fraction, stop_ps: int, declared: Callable[[], int] | None, model: str
) -> Iterator[Planned]:
    """A trace's requests, its times divided by `speed` and rounded to the picosecond."""
    numerator, denominator = 2 * speed.denominator, 2 * speed.numerator
    half = speed.numerator
    path = trace.paths()
    limit = None
    for row, stamp in enumerate(trace.arrival_ps):
        arrival_ps = (stamp * numerator + half) // denominator
        if arrival_ps >= stop_ps:
            if arrival_ps > LAST_PS and stop_ps > LAST_PS:
                raise HeadwayError(f"workload.trace.speed: request {row} would come {too_late(arrival_ps)}; raise it.")
            return
        output = trace.output_tokens[row]
        if declared is not None:
            limit = declared()
            output = min(output, limit)
        request = Request(row, arrival_ps, trace.prompt_tokens[row], path(row), model, max_tokens=limit)
        yield Planned(request, output, hashing.key(hashing.OUTPUT, row))

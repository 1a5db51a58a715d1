"""`headway trace`: the verbs that look into a trace file, and those that make another of it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.options import flag
from headway.cli.page import AsJson, Page
from headway.cli.trace_files import AS_IT_COMES, AS_THEY_ARE, Drawn, Files, In, Out, at_least_one
from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload.traces import FORMATS

trace = App(name="trace", help="Look into a trace file, or make another of it.", help_format="plaintext")

FORMATS_LIST = join_words(list(FORMATS), "or")

Values = Annotated[list[str] | None, flag("Of this one; repeat for more.")]


@trace.command
def inspect(
    file: Annotated[Path, Parameter(name="FILE", help="A trace in any format, .gz or not, or a folder of one.")],
    /,
    *,
    format: Annotated[
        str | None, Parameter(help=f"The trace's format, where it cannot be told safely: {FORMATS_LIST}.")
    ] = None,
    capacity: Annotated[
        str, Parameter(help="Cache sizes in the trace's own blocks, separated by commas; inf is unlimited.")
    ] = "1000,10000,inf",
    instances: Annotated[str, Parameter(help="Numbers of caches under round robin, separated by commas.")] = "1,8",
    order: Annotated[
        Literal["first-to-last", "tail-first"],
        Parameter(help="How a cache uses the blocks of one prompt; an engine releases them tail first."),
    ] = "first-to-last",
    block_tokens: Annotated[int | None, Parameter(help="Tokens of a block, where the file does not say.")] = None,
    limit: Annotated[int | None, Parameter(help="Read the first so many requests only.")] = None,
    drawn: Drawn = AS_IT_COMES,
    as_json: AsJson = False,
) -> Page | Json:
    """Print a trace's shape (rate, lengths, burstiness, sessions) and how much of it a cache could reuse."""
    from headway.experiment.look import inspect_trace
    from headway.report.progress import Bar
    from headway.report.workload_tables import report, snippet

    sizes = [_blocks(part) for part in capacity.split(",")]
    counts = [_whole(part, "--instances", 100_000) for part in instances.split(",")]
    at_least_one(("--block-tokens", block_tokens), ("--limit", limit))
    with Bar(None, "requests") as bar:
        figures = inspect_trace(
            file,
            format=format,
            capacities=sizes,
            instances=counts,
            order=order,
            block_tokens=block_tokens,
            limit=limit,
            **asdict(drawn),
            progress=bar.update,
        )
    return figures if as_json else Page([report(figures, file.name)], snippet(figures, str(file), block_tokens, limit))


def _blocks(text: str) -> int | None:
    return None if text.strip().lower() in ("inf", "infinite", "unlimited") else _whole(text, "--capacity", 10**12)


def _whole(text: str, where: str, most: int) -> int:
    digits = text.strip().replace("_", "")
    number = int(digits) if digits.isdecimal() and len(digits) <= 18 else 0
    if not 1 <= number <= most:
        raise HeadwayError(f"{where}: {shown(text.strip())} is not a whole number from 1 to {most:,}.")
    return number


def _drop_unset(**values: object) -> Json:
    """The options that the command line has."""
    return {name: value for name, value in values.items() if value is not None}


@trace.command
def convert(
    source: In,
    target: Out,
    /,
    *,
    files: Files = AS_THEY_ARE,
    drawn: Drawn = AS_IT_COMES,
) -> Page | Json:
    """Write a trace in another format; what that cannot express is told on stderr."""
    return files.rewrite(source, target, drawn=drawn)


@trace.command
def from_records(
    source: Annotated[Path, Parameter(name="DIR", help="A folder of the gateway's records, as in records/0001.")],
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="The trace to write, as in live.jsonl.")],
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Make a trace of live traffic that a gateway has recorded: times, lengths and blocks, never text."""
    return files.rewrite(source, output, read_format="records")


@trace.command
def cap(
    source: In,
    target: Out,
    /,
    *,
    max_turns: Annotated[int, Parameter(help="Requests of a session to keep.")],
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Keep the first turns of each session; where the trace records none, sessions are derived from its blocks."""
    return files.rewrite(source, target, [{"cap": {"max_turns": max_turns}}])


@trace.command
def scale(
    source: In,
    target: Out,
    /,
    *,
    rate: Annotated[str | None, Parameter(help="How much faster: 2 halves every time.")] = None,
    prompt_tokens: Annotated[str | None, Parameter(help="A factor for the lengths of prompts.")] = None,
    output_tokens: Annotated[str | None, Parameter(help="A factor for the lengths of outputs.")] = None,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Make a trace faster or slower, its prompts and outputs longer or shorter.

    A shorter prompt is cut to the blocks it still fills, a longer one goes on with content of its own.
    """
    factors = _drop_unset(rate=rate, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return files.rewrite(source, target, [{"scale": factors}])


@trace.command(name="slice")
def slice_(
    source: In,
    target: Out,
    /,
    *,
    start: Annotated[str | None, Parameter(help="Requests from this time on, as in 10m,")] = None,
    end: Annotated[str | None, Parameter(help="and before this one.")] = None,
    requests: Annotated[str | None, Parameter(help="Requests by number, as in 0:1000, the last not included.")] = None,
    sessions: Annotated[str | None, Parameter(help="Sessions by number, as in 0:100, the last not included.")] = None,
    whole_sessions: Annotated[bool, flag("Keep the sessions that begin inside, with all their turns.")] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Keep a piece of a trace; its times then count from the piece's start."""
    bounds = _drop_unset(
        start=start,
        end=end,
        requests=_range(requests, "--requests"),
        sessions=_range(sessions, "--sessions"),
        whole_sessions=whole_sessions,
    )
    return files.rewrite(source, target, [{"slice": bounds}])


@trace.command
def merge(
    source: In,
    other: Annotated[Path, Parameter(name="OTHER", help="The trace to merge into it.")],
    target: Out,
    /,
    *,
    other_from: Annotated[str | None, Parameter(help="The format of OTHER, where it cannot be told safely.")] = None,
    other_block_tokens: Annotated[int | None, Parameter(help="Tokens of a block of OTHER.")] = None,
    offset: Annotated[str | None, Parameter(help="How much later OTHER starts, as in 10m.")] = None,
    one_trace: Annotated[
        bool, flag("Both are pieces of one trace: equal names and block ids mean the same in both.")
    ] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Merge two traces by time; their sessions, ids and blocks are kept apart."""
    from headway.workload.transforms.rewrite import check_target

    check_target(target, source, other)
    keys = _drop_unset(path=str(other), format=other_from, block_tokens=other_block_tokens, offset=offset)
    return files.rewrite(source, target, [{"merge": {**keys, "apart": not one_trace}}])


@Parameter(name="*")
@dataclass(frozen=True)
class Conditions:
    """Which requests to keep."""

    model: Values = None
    tenant: Values = None
    kind: Values = None
    slo_class: Values = None
    session: Values = None
    turn: Annotated[list[int] | None, flag("Of this turn; repeat for more.")] = None
    min_turn: Annotated[int | None, Parameter(help="The first turn to keep, from 0.")] = None
    max_turn: Annotated[int | None, Parameter(help="The last turn to keep, from 0.")] = None
    min_prompt_tokens: Annotated[int | None, Parameter(help="The shortest prompt to keep.")] = None
    max_prompt_tokens: Annotated[int | None, Parameter(help="The longest prompt to keep.")] = None
    min_output_tokens: Annotated[int | None, Parameter(help="The shortest output to keep.")] = None
    max_output_tokens: Annotated[int | None, Parameter(help="The longest output to keep.")] = None


ALL = Conditions()


@trace.command(name="filter")
def filter_(source: In, target: Out, /, *, conditions: Conditions = ALL, files: Files = AS_THEY_ARE) -> Page | Json:
    """Keep the requests for which everything given holds; bounds are included."""
    return files.rewrite(source, target, [{"filter": _drop_unset(**asdict(conditions))}])


@trace.command
def dequantise(
    source: In,
    target: Out,
    /,
    *,
    grid: Annotated[str, Parameter(help="The length of a tick, as in 3s; auto tells it from the stamps.")] = "auto",
    seed: Annotated[int, Parameter(help="Of the draws.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Spread arrivals whose stamps were rounded to a grid uniformly over its ticks, in the order of the file."""
    return files.rewrite(source, target, [{"dequantise": {"grid": grid, "seed": seed}}])


@trace.command
def anonymise(
    source: In,
    target: Out,
    /,
    *,
    seed: Annotated[
        str | None, Parameter(help="Pseudonyms that are the same in every file made with this secret, not numbers.")
    ] = None,
    keep_models: Annotated[bool, flag("Leave the models' names.")] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Rename sessions, requests, tenants, models and blocks, and drop all that only the source knows."""
    return files.rewrite(source, target, [{"anonymise": _drop_unset(seed=seed, keep_models=keep_models)}])


@trace.command
def starts(
    source: In,
    target: Out,
    /,
    *,
    rate: Annotated[str, Parameter(help="Sessions that begin, as in 0.2/s.")],
    seed: Annotated[int, Parameter(help="Of the draws.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Give a trace whose sessions each count from their own start a clock: Poisson session starts."""
    return files.rewrite(source, target, [{"starts": {"rate": rate, "seed": seed}}])


@trace.command
def assign(
    source: In,
    target: Out,
    /,
    *,
    tenant: Annotated[list[str], flag("A tenant, as in crawler:1:batch: name, weight, class; repeat for more.")],
    seed: Annotated[int, Parameter(help="Of the lots.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Give each session, or request without one, to one of these tenants by lot."""
    tenants = {}
    for text in tenant:
        name, _, rest = text.partition(":")
        weight, _, slo_class = rest.partition(":")
        tenants[name] = _drop_unset(weight=weight or None, slo_class=slo_class or None)
    return files.rewrite(source, target, [{"assign": {"tenants": tenants, "seed": seed}}])


def _range(text: str | None, where: str) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip().replace("_", "") for part in text.split(":")]
    if len(parts) != 2 or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise HeadwayError(f"{where}: {shown(text)} is not a range; write from:to, as in 0:1000.")
    return [int(part) for part in parts]

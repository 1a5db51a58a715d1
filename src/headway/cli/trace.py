"""`headway trace`: inspects, converts and transforms trace files."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headway.cli.options import flag
from headway.cli.page import AsJson, Page
from headway.cli.trace_files import AS_IT_COMES, AS_THEY_ARE, NO_TABLE, Drawn, Files, In, Out, Table
from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload.traces import FORMATS

trace = App(name="trace", help="Inspect, convert and transform trace files.", help_format="plaintext")

FORMATS_LIST = join_words(list(FORMATS), "or")

Values = Annotated[list[str] | None, flag("Keep requests with this value; repeat for more.")]


@trace.command
def inspect(
    file: Annotated[Path, Parameter(name="FILE", help="A trace in any format, plain or .gz, or a trace folder.")],
    /,
    *,
    format: Annotated[
        str | None, Parameter(help=f"Format of the trace, if Headway cannot detect it: {FORMATS_LIST}.")
    ] = None,
    capacity: Annotated[
        str, Parameter(help="Cache sizes to try, in blocks of the trace, separated by commas; inf: no limit.")
    ] = "1000,10000,inf",
    instances: Annotated[
        str, Parameter(help="How many caches to try, such as 1,2,4. Requests go to the caches in turn.")
    ] = "1,8",
    order: Annotated[
        Literal["first-to-last", "tail-first"],
        Parameter(help="Order in which the cache evicts the blocks of one prompt; engines evict the tail first."),
    ] = "first-to-last",
    block_tokens: Annotated[int | None, Parameter(help="Tokens per block, if the file does not say.")] = None,
    limit: Annotated[int | None, Parameter(help="Read only the first N requests.")] = None,
    drawn: Drawn = AS_IT_COMES,
    table: Table = NO_TABLE,
    as_json: AsJson = False,
) -> Page | Json:
    """Print a trace's rate, lengths, burstiness and sessions, and how much a cache could reuse."""
    from headway.display.progress import Bar
    from headway.experiment.look import inspect_trace
    from headway.report.workload_tables import report, snippet
    from headway.workload.traces.columns import write_columns

    sizes = [_blocks(part) for part in capacity.split(",")]
    counts = [_whole(part, "--instances", 100_000) for part in instances.split(",")]
    columns = table.columns(file, format)
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
            columns=columns,
            skip_bad=table.skip_bad,
            progress=bar,
        )
    mapping = None if columns is None else write_columns(columns)
    example = snippet(figures, str(file), block_tokens, limit, mapping, table.skip_bad)
    return figures if as_json else Page([report(figures, file.name), "", "To replay it, in a scenario:"], example)


def _blocks(text: str) -> int | None:
    return None if text.strip().lower() in ("inf", "infinite", "unlimited") else _whole(text, "--capacity", 10**12)


def _whole(text: str, where: str, most: int) -> int:
    digits = text.strip().replace("_", "")
    number = int(digits) if digits.isdecimal() and len(digits) <= 18 else 0
    if not 1 <= number <= most:
        raise HeadwayError(f"{where}: {shown(text.strip())} is not a whole number from 1 to {most:,}.")
    return number


def _drop_unset(**values: object) -> Json:
    """Return these options by name, without the ones that are None."""
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
    """Write a trace in another format; print on stderr what that format cannot express."""
    return files.rewrite(source, target, drawn=drawn)


@trace.command
def from_records(
    source: Annotated[Path, Parameter(name="DIR", help="A folder of gateway records, such as records/0001.")],
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="The trace to write, such as live.jsonl.")],
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Make a trace from a gateway's records: times, lengths and block hashes, never text."""
    return files.rewrite(source, output, read_format="records")


@trace.command
def cap(
    source: In,
    target: Out,
    /,
    *,
    max_turns: Annotated[int, Parameter(help="Number of requests to keep per session.")],
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Keep the first turns of each session. Without recorded sessions, Headway derives them from blocks."""
    return files.rewrite(source, target, [{"cap": {"max_turns": max_turns}}])


@trace.command
def scale(
    source: In,
    target: Out,
    /,
    *,
    rate: Annotated[str | None, Parameter(help="Speed factor: with 2, requests arrive twice as fast.")] = None,
    prompt_tokens: Annotated[str | None, Parameter(help="Factor for prompt lengths.")] = None,
    output_tokens: Annotated[str | None, Parameter(help="Factor for output lengths.")] = None,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Scale the speed, prompt lengths and output lengths of a trace.

    A shorter prompt keeps its first blocks; a longer one continues with content that no other prompt shares.
    """
    factors = _drop_unset(rate=rate, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return files.rewrite(source, target, [{"scale": factors}])


@trace.command(name="slice")
def slice_(
    source: In,
    target: Out,
    /,
    *,
    start: Annotated[str | None, Parameter(help="Keep requests from this time on, such as 10m.")] = None,
    end: Annotated[str | None, Parameter(help="Keep requests before this time.")] = None,
    requests: Annotated[
        str | None, Parameter(help="Keep requests by index, such as 0:1000; the end is not included.")
    ] = None,
    sessions: Annotated[
        str | None, Parameter(help="Keep sessions by index, such as 0:100; the end is not included.")
    ] = None,
    whole_sessions: Annotated[bool, flag("Keep sessions that begin inside the piece, with all their turns.")] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Keep a piece of a trace. Its times then count from the start of the piece."""
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
    other: Annotated[Path, Parameter(name="OTHER", help="The second trace.")],
    target: Out,
    /,
    *,
    other_from: Annotated[str | None, Parameter(help="Format of OTHER, if Headway cannot detect it.")] = None,
    other_block_tokens: Annotated[int | None, Parameter(help="Tokens per block of OTHER.")] = None,
    offset: Annotated[str | None, Parameter(help="Time by which to delay the second trace, such as 10m.")] = None,
    one_trace: Annotated[
        bool, flag("Treat both files as parts of one trace, in which equal names and block ids mean the same.")
    ] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Merge two traces by time, without mixing up their sessions, ids and blocks."""
    from headway.workload.transforms.rewrite import check_target

    check_target(target, source, other)
    keys = _drop_unset(path=str(other), format=other_from, block_tokens=other_block_tokens, offset=offset)
    return files.rewrite(source, target, [{"merge": {**keys, "apart": not one_trace}}])


@Parameter(name="*")
@dataclass(frozen=True)
class Conditions:
    """Conditions on requests."""

    model: Values = None
    tenant: Values = None
    kind: Values = None
    slo_class: Values = None
    session: Values = None
    turn: Annotated[list[int] | None, flag("Keep this turn; repeat for more.")] = None
    min_turn: Annotated[int | None, Parameter(help="First turn to keep, counted from 0.")] = None
    max_turn: Annotated[int | None, Parameter(help="Last turn to keep, counted from 0.")] = None
    min_prompt_tokens: Annotated[int | None, Parameter(help="Minimum prompt length to keep, in tokens.")] = None
    max_prompt_tokens: Annotated[int | None, Parameter(help="Maximum prompt length to keep, in tokens.")] = None
    min_output_tokens: Annotated[int | None, Parameter(help="Minimum output length to keep, in tokens.")] = None
    max_output_tokens: Annotated[int | None, Parameter(help="Maximum output length to keep, in tokens.")] = None


ALL = Conditions()


@trace.command(name="filter")
def filter_(source: In, target: Out, /, *, conditions: Conditions = ALL, files: Files = AS_THEY_ARE) -> Page | Json:
    """Keep the requests that meet every condition; bounds are inclusive."""
    return files.rewrite(source, target, [{"filter": _drop_unset(**asdict(conditions))}])


@trace.command
def dequantise(
    source: In,
    target: Out,
    /,
    *,
    grid: Annotated[
        str, Parameter(help="Length of a tick, such as 3s; by default, detected from the timestamps.")
    ] = "auto",
    seed: Annotated[int, Parameter(help="Random seed.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Spread rounded arrival times uniformly over their ticks, in the order of the file."""
    return files.rewrite(source, target, [{"dequantise": {"grid": grid, "seed": seed}}])


@trace.command
def anonymise(
    source: In,
    target: Out,
    /,
    *,
    seed: Annotated[
        str | None,
        Parameter(help="Secret: with it, a name gets the same pseudonym in every file. Default: names become numbers."),
    ] = None,
    keep_models: Annotated[bool, flag("Keep the names of models.")] = False,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Replace the names of sessions, requests, tenants, models and blocks, and drop other fields."""
    return files.rewrite(source, target, [{"anonymise": _drop_unset(seed=seed, keep_models=keep_models)}])


@trace.command
def starts(
    source: In,
    target: Out,
    /,
    *,
    rate: Annotated[str, Parameter(help="Rate of session starts, such as 0.2/s.")],
    seed: Annotated[int, Parameter(help="Random seed.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Draw Poisson session starts for a trace whose sessions each begin at time 0."""
    return files.rewrite(source, target, [{"starts": {"rate": rate, "seed": seed}}])


@trace.command
def assign(
    source: In,
    target: Out,
    /,
    *,
    tenant: Annotated[list[str], flag("Tenant as name:weight:class, such as crawler:1:batch; repeat for more.")],
    seed: Annotated[int, Parameter(help="Random seed.")] = 0,
    files: Files = AS_THEY_ARE,
) -> Page | Json:
    """Assign each session, or request without a session, to a random tenant."""
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
        raise HeadwayError(f"{where}: {shown(text)} is not a range. Write start:end, as in 0:1000.")
    return [int(part) for part in parts]

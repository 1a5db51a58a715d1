"""Options that the `headway trace` commands share: which trace to read, and how to write the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.cli.options import flag
from headway.cli.page import AsJson, Page, confirm, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.workload.traces.record import Column

In = Annotated[Path, Parameter(name="IN", help="The trace to read.")]
Out = Annotated[Path, Parameter(name="OUT", help="The file to write.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Drawn:
    """Options for trace formats that describe distributions instead of single requests: how to generate the
    requests."""

    seed: Annotated[int, Parameter(help="For servegen, whose requests are generated: the random seed.")] = 0
    start: Annotated[str | None, Parameter(help="For servegen: start of the period to generate, such as 10h.")] = None
    duration: Annotated[str | None, Parameter(help="For servegen: length of the period to generate, such as 5m.")] = (
        None
    )


AS_IT_COMES = Drawn()


@Parameter(name="*")
@dataclass(frozen=True)
class Table:
    """Options for reading a table whose columns the user has chosen."""

    map: Annotated[
        str | None,
        Parameter(
            help="For your own table: fields and columns, such as arrival=ts_ms:ms,prompt=in_tok,output=out_tok."
        ),
    ] = None
    skip_bad: Annotated[bool, flag("For your own table: skip rows that are wrong.")] = False
    yes: Annotated[bool, flag("Use the guessed mapping of columns without asking.", "--yes", "-y")] = False

    def columns(self, source: Path, read_format: str | None) -> dict[str, Column] | None:
        """Return which column of the table contains which field. This is the mapping in `--map`, or a guess if the
        format is unknown and the user agrees to the guess. If the format is known, return None."""
        from headway.workload.traces import guess_mapping
        from headway.workload.traces.columns import NAME, guess_columns, parse_columns, write_columns

        if self.map is not None:
            return parse_columns(self.map, "--map")
        if read_format not in (None, NAME):
            return None
        guess = guess_mapping(source) if read_format is None else guess_columns(source)
        if guess is None:
            return None  # the reader will raise an error that says what is missing
        text = write_columns(guess)
        say(f"{source.name}: columns guessed: {text}")
        if self.yes or confirm("Use this mapping?", f"--yes, or --map {text}"):
            return guess
        raise HeadwayError(f"{source.name}: no mapping of columns. Pass --map FIELD=COLUMN,...")


NO_TABLE = Table()


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """How to read one trace and write another."""

    read_format: Annotated[str | None, Parameter(name="--from", help="Format of IN, if Headway cannot detect it.")] = (
        None
    )
    format: Annotated[
        str | None,
        Parameter(
            name="--to", help="Format of OUT. Default: by its name, such as x.mooncake.jsonl, otherwise headway."
        ),
    ] = None
    block_tokens: Annotated[int | None, Parameter(help="Tokens per block of IN, if the file does not say.")] = None
    limit: Annotated[int | None, Parameter(help="Read only the first N requests.")] = None
    table: Table = NO_TABLE
    as_json: AsJson = False

    def rewrite(
        self,
        source: Path,
        target: Path,
        steps: Sequence[Json] = (),
        drawn: Drawn = AS_IT_COMES,
        read_format: str | None = None,
    ) -> Page | Json:
        """Read a trace, apply the transformations in `steps`, and write the new trace. Report what the new format
        cannot express. Return the output to print."""
        import msgspec

        from headway.display.progress import Bar
        from headway.workload.traces.record import Options
        from headway.workload.transforms import make
        from headway.workload.transforms.rewrite import rewrite

        at_least_one(("--block-tokens", self.block_tokens), ("--limit", self.limit))
        transforms = [make(name, keys, name) for step in steps for name, keys in step.items()]
        reads = read_format or self.read_format
        columns = self.table.columns(source, reads)
        options = Options(
            block_tokens=self.block_tokens,
            limit=self.limit,
            columns=columns,
            skip_bad=self.table.skip_bad,
            **asdict(drawn),
        )
        with Bar(None, "requests") as bar:
            options = msgspec.structs.replace(options, stage=bar.stage)
            counts = rewrite(
                source,
                target,
                transforms,
                read_format=reads,
                format=self.format,
                options=options,
                progress=bar.update,
            )
        for note in counts.notes:
            say(f"{source.name}: {note}")
        for phrase in counts.lost:
            say(f"{target.name}: the {counts.format} format cannot express {phrase}.")
        if self.as_json:
            return {"in": str(source), "out": str(target), **msgspec.to_builtins(counts)}
        of = f" of {counts.read:,}" if counts.written < counts.read else ""
        return Page([], f"wrote {counts.written:,}{of} requests to {target} in {counts.format} format")


AS_THEY_ARE = Files()


def at_least_one(*options: tuple[str, int | None]) -> None:
    for name, value in options:
        if value is not None and value < 1:
            raise HeadwayError(f"{name}: must be at least 1, got {value}.")

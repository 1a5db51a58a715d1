"""What the commands on traces have in common: which file is read and how, and what another is written as."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

In = Annotated[Path, Parameter(name="IN", help="The trace to read.")]
Out = Annotated[Path, Parameter(name="OUT", help="The file to write.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Drawn:
    """What of a format to draw whose requests are drawn rather than read."""

    seed: Annotated[int, Parameter(help="Of a format whose requests are drawn (servegen): the seed.")] = 0
    start: Annotated[str | None, Parameter(help="Likewise: where in the data to begin, as in 10h.")] = None
    duration: Annotated[str | None, Parameter(help="Likewise: how long to draw for, as in 5m.")] = None


AS_IT_COMES = Drawn()


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """How a trace is read and another one written."""

    read_format: Annotated[
        str | None, Parameter(name="--from", help="The format of IN, where it cannot be told safely, as for inspect.")
    ] = None
    format: Annotated[
        str | None,
        Parameter(name="--to", help="The format of OUT; else by its name, as in x.mooncake.jsonl; else headway."),
    ] = None
    block_tokens: Annotated[int | None, Parameter(help="Tokens of a block of IN, where the file does not say.")] = None
    limit: Annotated[int | None, Parameter(help="Read the first so many requests only.")] = None
    as_json: AsJson = False

    def rewrite(
        self,
        source: Path,
        target: Path,
        steps: Sequence[Json] = (),
        drawn: Drawn = AS_IT_COMES,
        read_format: str | None = None,
    ) -> Page | Json:
        """Make one file of another, tell what was lost, and give what is to be printed."""
        import msgspec

        from headway.report.progress import Bar
        from headway.workload.traces.record import Options
        from headway.workload.transforms import make
        from headway.workload.transforms.rewrite import rewrite

        at_least_one(("--block-tokens", self.block_tokens), ("--limit", self.limit))
        transforms = [make(name, keys, name) for step in steps for name, keys in step.items()]
        options = Options(block_tokens=self.block_tokens, limit=self.limit, **asdict(drawn))
        with Bar(None, "requests") as bar:
            counts = rewrite(
                source,
                target,
                transforms,
                read_format=read_format or self.read_format,
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

"""Read a trace file, transform it, and write it in the same or another format."""

import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from headway.config.wording import join_words
from headway.errors import HeadwayError, argument
from headway.workload.traces import FORMATS, find_format, open_trace
from headway.workload.traces.record import Options, Reader, Record
from headway.workload.traces.source import reason
from headway.workload.transforms.base import Transform

OWN: Final = "headway"
OWN_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")
STRIDE: Final = 1024  # number of records between two reports of progress


class Rewritten(Struct):
    """The result of rewriting a trace."""

    read_format: str
    format: str
    read: int  # number of requests read
    written: int  # number of requests written
    lost: list[str]  # one phrase for each property that the target format cannot express
    notes: list[str]  # notes from reading the source


def rewrite(
    source: pathlib.Path,
    target: pathlib.Path,
    transforms: Sequence[Transform] = (),
    *,
    read_format: str | None = None,
    format: str | None = None,
    options: Options | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rewritten:
    """Read the trace `source`, transform it, and write it to `target`. If anything fails, `target` is not created."""
    check_target(target, source)
    reader = open_trace(source, read_format, options or Options(), argument("format", "--from"))
    return write_trace(reader, target, transforms, source=source.name, format=format, progress=progress)


def write_trace(
    reader: Reader,
    target: pathlib.Path,
    transforms: Sequence[Transform] = (),
    *,
    source: str,
    format: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rewritten:
    """Transform the trace of a reader, and write it to `target`. If anything fails, `target` is not created."""
    writer = find_format(target_format(target) if format is None else format, argument("to"))
    if writer.write is None:
        able = [name for name, known in FORMATS.items() if known.write is not None]
        raise HeadwayError(f"{argument('to')}: the {writer.name} format is read-only. Choose from {join_words(able)}.")
    read, written = Count(progress), Count()
    info = reader.info
    reader.records = read.over(reader.records)
    for transform in transforms:
        reader = transform(reader)
    place = pathlib.Path(os.path.realpath(target))
    try:
        with tempfile.TemporaryDirectory(prefix=f".{place.name[:40]}.", dir=place.parent) as folder:
            draft = pathlib.Path(folder) / place.name
            lost = writer.write(draft, reader.info, written.over(reader.records))
            if not read.number:
                raise HeadwayError(f"{source}: there are no requests to write.")
            for file in sorted(pathlib.Path(folder).iterdir()):  # a format may have a separate header file
                file.replace(place.parent / file.name)
    except OSError as error:
        raise HeadwayError(f"{target}: cannot be written ({reason(error)}).") from None
    notes = [note for note in info.extra.get("notes", ()) if isinstance(note, str)]
    return Rewritten(info.format, writer.name, read.number, written.number, lost, notes)


class Count(Struct):
    """Counts records as they are read."""

    progress: Callable[[int], None] | None = None
    number: int = 0

    def over(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self.number += 1
            if self.progress is not None and self.number % STRIDE == 0:
                self.progress(self.number)
            yield record


def check_target(target: pathlib.Path, *sources: pathlib.Path) -> None:
    """Raise an error if the target cannot be written, or if writing it would overwrite a source."""
    for source in sources:
        if target.exists() and source.exists() and target.samefile(source):
            raise HeadwayError(f"{target}: is the source file. Name another file to write.")
    if target.exists() and not target.is_file():
        raise HeadwayError(f"{target}: exists and is not a file. Name another one.")
    if not pathlib.Path(os.path.realpath(target)).parent.is_dir():
        raise HeadwayError(f"{target}: the folder {str(target.parent)!r} does not exist. Create it first.")


def target_format(target: pathlib.Path) -> str:
    """Return the format that a file name contains, as in trace.mooncake.jsonl. If it contains none, return Headway's
    own format."""
    parts = target.name.lower().split(".")
    named = [name for name in FORMATS if name in parts[1:]]
    if len(named) == 1:
        return named[0]
    if not named and target.name.lower().endswith(OWN_SUFFIXES):
        return OWN
    example = f"{parts[0] or 'trace'}.{OWN}.jsonl.gz"
    wrong = f"the file name {target.name!r} does not show the format"
    raise HeadwayError(f"{argument('to')}: {wrong}. Set the format, or use a name like {example}.")

"""Trace files: which formats there are, how one is told from its content, and reading one."""

from __future__ import annotations

import pathlib
from typing import Final

from headway.types import HeadwayError
from headway.wording import suggest
from headway.workload.traces import azure, mooncake
from headway.workload.traces.source import lines
from headway.workload.traces.table import Trace

__all__ = ["FORMATS", "Trace", "check_format", "detect", "read_trace"]

FORMATS: Final = {"mooncake": ("blocks",), "azure": ()}  # what a format knows beside times and lengths


def check_format(format: str, where: str) -> None:
    if format not in FORMATS:
        raise HeadwayError(f"{where}: no trace format is called {format!r}.{suggest(format, FORMATS)}")


def detect(path: pathlib.Path, ask: str = "--format") -> str:
    """The format of a file by its first line; where that does not settle it, an error asks for `ask`."""
    for number, line in lines(path):
        # Bailian's JSONL has hash_ids as well, but stamps in seconds and blocks of 16: not to be taken for Mooncake's.
        if line.startswith(b"{") and b'"hash_ids"' in line and b'"chat_id"' not in line:
            return "mooncake"
        if not line.startswith(b"{") and set(azure.COLUMNS) <= set(azure.split(line, f"{path.name} line {number}")):
            return "azure"
        wanted = f"say {ask}, {' or '.join(FORMATS)}"
        raise HeadwayError(f"{path.name} line {number}: the format of this file cannot be told safely; {wanted}.")
    raise HeadwayError(f"{path.name}: the file is empty.")


def read_trace(
    path: pathlib.Path,
    format: str | None = None,
    *,
    limit: int | None = None,
    block_tokens: int | None = None,
    ask: str = "--format",
) -> Trace:
    """A trace file as columns; `format` None means to tell it from the content."""
    if format is not None:
        check_format(format, ask)
    known = detect(path, ask) if format is None else format
    if known == "mooncake":
        trace = mooncake.load(path, limit, block_tokens)
    else:
        if block_tokens is not None:
            raise HeadwayError(f"{path.name}: an azure trace has no blocks, so block_tokens cannot be given.")
        trace = azure.load(path, limit)
    if not len(trace):
        raise HeadwayError(f"{path.name}: the file holds no requests.")
    return trace

"""Trace files: which formats there are, how one is known by its content, and reading one.

A format is a module of this package with a `FORMAT`: a new one is a new file.
"""

import pathlib
from importlib import import_module
from itertools import islice
from pkgutil import iter_modules
from typing import Final

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import check_ordinary, check_text, head
from headway.workload.traces.table import Trace

__all__ = [
    "FORMATS",
    "Format",
    "Info",
    "Options",
    "Reader",
    "Record",
    "Trace",
    "detect",
    "find_format",
    "open_trace",
    "read_trace",
]

FIRST: Final = (  # modules whose formats are listed in this order, before all others
    *("own", "mooncake", "azure", "burstgpt", "bailian", "weka", "servegen", "dynamo", "tracelab", "routesim"),
    *("blis", "otel", "records"),
)
DEFAULTS: Final = Options()


def _find_formats() -> dict[str, Format]:
    others = [module.name for module in iter_modules(__path__) if module.name not in FIRST]
    modules = [import_module(f"{__name__}.{name}") for name in (*FIRST, *others)]
    return {module.FORMAT.name: module.FORMAT for module in modules if hasattr(module, "FORMAT")}


FORMATS: Final = _find_formats()


def find_format(name: str, where: str) -> Format:
    """A format by its name, in which `_` and `-` are the same."""
    format = FORMATS.get(name) or FORMATS.get(name.replace("_", "-"))
    if format is None:
        raise HeadwayError(f"{where}: no trace format is called {shown(name)}.{suggest(name, FORMATS)}")
    return format


def detect(path: pathlib.Path, ask: str = "--format") -> str:
    """The format of a file by its first lines; where they do not settle it, an error asks for `ask`."""
    first = head(path)
    if not first and not path.is_dir():
        raise HeadwayError(f"{path.name}: the file is empty.")
    names = [format.name for format in FORMATS.values() if format.tell(path, first)]
    if len(names) == 1:
        return names[0]
    if first:
        check_text(first[0], path)
    what = "folder" if path.is_dir() else "file"
    remedy = f"say {ask}, one of {', '.join(names or FORMATS)}"
    raise HeadwayError(f"{path.name or path}: the format of this {what} cannot be told safely; {remedy}.")


def open_trace(
    path: pathlib.Path, format: str | None = None, options: Options = DEFAULTS, ask: str = "--format"
) -> Reader:
    """A trace about to be read; `format` None means to tell it from the content."""
    check_ordinary(path)
    known = find_format(detect(path, ask) if format is None else format, ask)
    if not known.drawn and (options.start is not None or options.duration is not None):
        wrong = f"a {known.name} trace is read as it is, so start and duration cannot be given"
        raise HeadwayError(f"{path.name}: {wrong}; take a piece of it with slice.")
    reader = known.read(path, options)
    if options.block_tokens is not None and reader.info.block_tokens is None:
        raise HeadwayError(f"{path.name}: this {known.name} trace has no blocks, so block_tokens cannot be given.")
    if options.limit is not None:
        return Reader(reader.info, islice(reader.records, options.limit))
    return reader


def read_trace(
    path: pathlib.Path,
    format: str | None = None,
    *,
    limit: int | None = None,
    block_tokens: int | None = None,
    ask: str = "--format",
) -> Trace:
    """A trace file as columns."""
    trace = Trace.load(open_trace(path, format, Options(block_tokens=block_tokens, limit=limit), ask))
    if not len(trace):
        raise HeadwayError(f"{path.name}: the file holds no requests.")
    return trace

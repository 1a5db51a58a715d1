"""Trace files: the table of formats, detection of the format from the content, and reading.

Every module of this package that defines `FORMAT` is a format.
"""

import pathlib
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pkgutil import iter_modules
from typing import Final

from msgspec.structs import replace

from headway.config.keys import Form
from headway.config.schema import Names
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError, argument
from headway.workload.traces.columns import NAME as TABLE
from headway.workload.traces.columns import REQUIRED, Columns, column_names, guess_columns, how_to_map
from headway.workload.traces.record import Format, Options, Reader
from headway.workload.traces.source import check_ordinary, check_text, head
from headway.workload.traces.table import Trace

FIRST: Final = (  # modules whose formats are listed first, in this order
    *("own", "mooncake", "azure", "burstgpt", "bailian", "weka", "servegen", "dynamo", "tracelab", "routesim"),
    *("blis", "otel", "records", "vllm_log", "own_table"),
)
DEFAULTS: Final = Options()


_NAMES: Final = dict.fromkeys((*FIRST, *(module.name for module in iter_modules(__path__))))
_MODULES: Final = [import_module(f"{__name__}.{name}") for name in _NAMES]
FORMATS: Final[dict[str, Format]] = {
    module.FORMAT.name: module.FORMAT for module in _MODULES if hasattr(module, "FORMAT")
}


FORMAT_NAME: Final = Form.of(Names(lambda: FORMATS, "_"))  # `_` in place of `-` is valid too


def find_format(name: str, where: str) -> Format:
    """Return the format with this name. In names, `_` and `-` are interchangeable."""
    format = FORMATS.get(name) or FORMATS.get(name.replace("_", "-"))
    if format is None:
        raise HeadwayError(f"{where}: no trace format is called {shown(name)}.{suggest(name, FORMATS)}")
    return format


def detect(path: pathlib.Path, ask: str | None = None) -> str:
    """Return the name of a file's format, detected from the first lines. If these fit no format or several formats,
    raise an error that tells the user to set the format. `ask` names the argument, option or key that sets it; the
    default is the argument `format`."""
    ask = ask or argument("format")
    first = head(path)
    if not first and not path.is_dir():
        raise HeadwayError(f"{path.name}: the file is empty.")
    names = [format.name for format in FORMATS.values() if format.tell(path, first)]
    if len(names) == 1:
        return names[0]
    if first:
        check_text(first[0], path)
    what = "folder" if path.is_dir() else "file"
    wrong = f"{path.name or path}: cannot detect the format of this {what}."
    known = names or [name for name in FORMATS if name != TABLE]
    choice = f"et {ask} to one of {', '.join(known)}"
    mapping = how_to_map(path, ask)
    if not names and len(column_names(path)) >= len(REQUIRED):
        raise HeadwayError(f"{wrong} If it is a table of your own, map its columns. {mapping} Otherwise s{choice}.")
    raise HeadwayError(f"{wrong} S{choice}; or, if it is a table of your own, map its columns. {mapping}")


def guess_mapping(path: pathlib.Path) -> Columns | None:
    """If the format of a file is unknown, guess which column of the table has which field. If the format is known, or
    a required field has no column, return None."""
    with suppress(HeadwayError):
        detect(path)
        return None
    return None if path.is_dir() else guess_columns(path)


def open_trace(
    path: pathlib.Path, format: str | None = None, options: Options = DEFAULTS, ask: str | None = None
) -> Reader:
    """Open a trace for reading. If `format` is None, detect the format from the content. In errors, `ask` names the
    argument, option or key that sets the format; the default is the argument `format`."""
    ask = ask or argument("format")
    check_ordinary(path)
    if format is None:
        format = TABLE if options.columns is not None else detect(path, ask)
    known = find_format(format, ask)
    if options.columns is not None and known.name != TABLE:
        raise HeadwayError(f"{path.name}: a {known.name} trace has its own columns. Remove the mapping of columns.")
    if not known.drawn and (options.start is not None or options.duration is not None):
        wrong = f"start and duration do not apply to a {known.name} trace"
        raise HeadwayError(f"{path.name}: {wrong}. Use the transform slice to take a part of it.")
    reader = known.read(path, replace(options, ask=ask))
    if options.block_tokens is not None and reader.info.block_tokens is None:
        raise HeadwayError(f"{path.name}: this {known.name} trace has no blocks. Remove block_tokens.")
    if options.limit is not None:
        return Reader(reader.info, islice(reader.records, options.limit))
    return reader


def read_trace(
    path: pathlib.Path,
    format: str | None = None,
    *,
    limit: int | None = None,
    block_tokens: int | None = None,
    ask: str | None = None,
) -> Trace:
    """Read a trace file into memory."""
    trace = Trace.load(open_trace(path, format, Options(block_tokens=block_tokens, limit=limit), ask))
    if not len(trace):
        raise HeadwayError(f"{path.name}: the file holds no requests.")
    return trace

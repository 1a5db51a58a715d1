"""The mapping of a user's own table: which column has which field of a request.

It is written `arrival=ts_ms:ms,prompt=in_tok,output=out_tok,session=conv`: each field has a column and, if necessary, a
unit.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Final

from headway.config.keys import Form
from headway.config.schema import Mapped
from headway.config.wording import join_words, shown, suggest
from headway.errors import HeadwayError, worded
from headway.workload.traces.cells import EXCEL, UNITS
from headway.workload.traces.record import Column
from headway.workload.traces.table_files import read_names

NAME: Final = "columns"
FIELDS: Final = {  # field -> usual names of its column, in lower case without separators
    "arrival": ("arrival", "arrivaltime", "arrivedat", "timestamp", "time", "ts", "datetime", "date", "createdat",
                "created", "starttime", "startedat", "requesttime", "receivedat"),
    "prompt": ("prompttokens", "inputtokens", "intokens", "contexttokens", "inputlength", "promptlength", "promptlen",
               "inputlen", "numprompttokens", "numinputtokens", "requesttokens", "intok", "tokensin", "in"),
    "output": ("outputtokens", "completiontokens", "generatedtokens", "outtokens", "responsetokens", "outputlength",
               "outputlen", "numoutputtokens", "numcompletiontokens", "outtok", "tokensout", "out"),
    "session": ("session", "sessionid", "conversation", "conversationid", "conv", "convid", "chatid", "threadid"),
    "duration": ("duration", "latency", "e2elatency", "responsetime", "totaltime", "e2e", "elapsed"),
    "turn": ("turn", "turnindex", "turnid", "round"),
    "tenant": ("tenant", "tenantid", "org", "orgid", "organization", "organizationid", "customer", "customerid",
               "user", "userid", "account", "team"),
    "class": ("class", "sloclass", "tier", "priorityclass"),
    "model": ("model", "modelname", "modelid"),
    "prefix": ("prefix", "prefixid", "systemid", "systempromptid", "templateid", "prompttemplate"),
    "prefix_tokens": ("prefixtokens", "sharedprefixtokens", "systemtokens"),
    "max_tokens": ("maxtokens", "maxcompletiontokens", "maxnewtokens"),
    "id": ("id", "requestid", "reqid"),
}  # fmt: skip
REQUIRED: Final = ("arrival", "prompt", "output")
TIMES: Final = ("arrival", "duration")  # fields whose columns may have a unit
EXAMPLE: Final = "arrival=ts_ms:ms,prompt=in_tokens,output=out_tokens"
UNKNOWN: Final = "COLUMN"  # stands for a column that the user has to name
SHOWN: Final = 12  # maximum number of columns of a table that an error lists


Columns = dict[str, Column]
# `-` in place of `_` is valid too.
COLUMNS_FORM: Final = Form.of({"type": "string", "pattern": "="}, Mapped(dict.fromkeys(FIELDS, str), REQUIRED))


def parse_columns(mapping: object, where: str) -> Columns:
    """Return the column of each field, read from a string such as `EXAMPLE` or from a mapping of fields to columns."""
    if isinstance(mapping, str):
        pairs = [part.partition("=")[::2] for part in mapping.split(",") if part.strip()]
        if not pairs or not all(name.strip() and column.strip() for name, column in pairs):
            raise HeadwayError(f"{where}: write field=column, separated by commas, as in {EXAMPLE}.")
    elif isinstance(mapping, Mapping):
        pairs = [(str(name), _column_text(column)) for name, column in mapping.items()]
    else:
        raise HeadwayError(f"{where}: expected a mapping of fields to columns, as in {EXAMPLE}, got {shown(mapping)}.")
    columns: Columns = {}
    for name, text in pairs:
        field = name.strip().replace("-", "_")
        if field not in FIELDS:
            raise HeadwayError(f"{where}: no field is called {shown(field)}.{suggest(field, FIELDS)}")
        if field in columns:
            raise HeadwayError(f"{where}: {field} is mapped twice.")
        columns[field] = _column(field, text.strip(), where)
    for field in REQUIRED:
        if field not in columns:
            raise HeadwayError(f"{where}: {field} has no column. Add {field}=COLUMN.")
    return columns


def _column(field: str, text: str, where: str) -> Column:
    name, colon, unit = text.rpartition(":")
    if field in TIMES and colon:
        known = [known for known in UNITS if known != EXCEL or field == "arrival"]
        if unit not in known:
            raise HeadwayError(f"{where}: {shown(unit)} is not a unit of {field}. Use {join_words(known, 'or')}.")
        return Column(name, unit)
    return Column(text)


def write_columns(columns: Columns) -> str:
    """Return a mapping as a string that `parse_columns` can read."""
    return ",".join(f"{field}={_column_text(column)}" for field, column in columns.items())


def _column_text(column: object) -> str:
    if not isinstance(column, Column):
        return str(column)
    return f"{column.name}:{column.unit}" if column.unit else column.name


def guess_columns(path: pathlib.Path) -> Columns | None:
    """Guess the column of each field from the names of a table's columns. If a required field has no column, return
    None."""
    columns = _usual_columns(path)
    return None if _missing(columns) else columns


def _missing(columns: Columns) -> list[str]:
    return [field for field in REQUIRED if field not in columns]


def _usual_columns(path: pathlib.Path) -> Columns:
    """Return, for each field, the column that has a usual name of this field. Fields without such a column are
    missing."""
    plain = {re.sub(r"[\W_]+", "", name.lower()): name for name in reversed(column_names(path))}
    columns: Columns = {}
    for field, usual in FIELDS.items():
        match = next((plain[name] for name in usual if name in plain), None)
        if match is not None and field != "duration":  # the unit of a duration cannot be guessed
            columns[field] = Column(match)
        elif field in TIMES:
            with_unit = {f"{name}{unit}": unit for name in usual for unit in UNITS}
            match = next((name for name in with_unit if name in plain), None)
            if match is not None:
                columns[field] = Column(plain[match], with_unit[match])
    return columns


def how_to_map(path: pathlib.Path, ask: str) -> str:
    """Return advice for an error message: how to map the columns of this table. It lists the table's own columns."""
    names, columns = column_names(path), _usual_columns(path)
    missing = _missing(columns)
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    example = write_columns({**{field: Column(UNKNOWN) for field in REQUIRED}, **columns}) if names else EXAMPLE
    fill = f", with your columns in place of {UNKNOWN}" if names and missing else ""
    why = f"No column has a usual name of {join_words(missing)}; the columns are {listed}. " if fill else ""
    return f"{why}{how_to_set('columns', example, ask)}{fill}."


def how_to_set(key: str, value: str, ask: str) -> str:
    """Return a phrase for an error message: how to set `columns` or `skip_bad`. `ask` names the argument, option or key
    that sets the format, so that the phrase can name the matching argument, option or key."""
    if ask.endswith("trace.format"):
        text = f'"{value}"' if key == "columns" else value
        return f"Set {ask.removesuffix('format')}{key}: {text}"
    option = f"--map {value}" if key == "columns" else "--skip-bad"
    if "." in ask:  # the format is set by another section's key, and that section has no key `columns`
        return f"Convert it with headway trace convert {option}"
    python = f'columns="{value}"' if key == "columns" else "skip_bad=True"
    return f"Pass {worded(option, python)}"


def column_names(path: pathlib.Path) -> list[str]:
    """Return the names of a table's columns. If the file is not a table, return no names."""
    try:
        return [] if path.is_dir() else read_names(path)
    except HeadwayError:
        return []

"""Writes starters: short, commented files from which users start their own files. A starter is valid as written.

The templates are in `presets/starters`. A template is filled with the user's values, checked in the same way as a file
that a user loads, and then written.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml
from msgspec import Struct

from headway.config.arguments import checked
from headway.config.documents import parse_yaml, presets, write_text
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError, argument, worded
from headway.policies.bundle import EVERY, Bundle
from headway.schemas import schema_file
from headway.workload.traces import detect, guess_mapping
from headway.workload.traces.columns import column_names, how_to_map, parse_columns, write_columns

TRACE: Final = "trace"  # text of a scenario that replays a trace


class Option(Struct, frozen=True):
    """A value of a starter that the user may choose. If `question` is empty, users in a terminal are not asked for this
    value."""

    question: str
    default: Any


class Starter(Struct, frozen=True):
    """A kind of starter: the name of its file, the schema of its text, and its options."""

    file: str
    schema: str
    options: dict[str, Option]


HARDWARE: Final = {
    "rate": Option("Rate of new sessions", "4/s"),
    "instances": Option("Number of instances", 4),
    "model": Option("Model", "llama-3.1-8b"),
    "gpu": Option("GPU", "h200"),
}
ENGINES: Final = ("http://127.0.0.1:9100", "http://127.0.0.1:9101")
STARTERS: Final = {
    "scenario": Starter(
        "scenario.yaml",
        "scenario",
        {
            **HARDWARE,
            "trace": Option("Trace to replay instead of generated requests, if any", None),
            "columns": Option("", None),
            "routing": Option("Routing policy", "weighted"),
        },
    ),
    "gateway": Starter(
        "gateway.yaml",
        "gateway",
        {
            "listen": Option("Address for clients", "127.0.0.1:8000"),
            "engines": Option("URLs of the engines, separated by commas", ENGINES),
            "routing": Option("Routing policy", "kv-aware-spill"),
        },
    ),
    "suite": Starter("suite.yaml", "suite", HARDWARE),
    "policy": Starter("policy.yaml", "bundle", {"stage": Option(f"Stage ({', '.join(EVERY)})", "routing")}),
}


@checked
def write_starter(kind: str, file: str | Path | None = None, *, force: bool = False, **options: Any) -> Path:
    """Write a starter, and return the path of the file. The kind is scenario, gateway, suite or policy.

    `headway init KIND --help` lists the options of each kind. A policy is a bundle, or its source alone if the name of
    the file ends with .py. An existing file is an error, unless `force` is set.
    """
    starter = find_starter(kind)
    for name in options:
        if name not in starter.options:
            raise HeadwayError(f"{kind}: there is no option {shown(name)}.{suggest(name, starter.options)}")
    path = new_file(kind, file, force)
    values = {name: option.default for name, option in starter.options.items()}
    values |= {name: value for name, value in options.items() if value is not None}
    text = _source(values, path) if path.suffix == ".py" else _document(kind, starter, values, path)
    write_text(path, text)
    return path


def find_starter(kind: str) -> Starter:
    if kind not in STARTERS:
        raise HeadwayError(f"init: there is no starter for {shown(kind)}.{suggest(str(kind), STARTERS)}")
    return STARTERS[kind]


def new_file(kind: str, file: str | Path | None, force: bool) -> Path:
    """Return the path of a file to write. If the file exists, raise an error, unless `force` is set."""
    path = Path(find_starter(kind).file if file is None else file).expanduser()
    if path.suffix not in ((".yaml", ".yml", ".py") if kind == "policy" else (".yaml", ".yml")):
        endings = ".yaml (a bundle) or .py (its source)" if kind == "policy" else ".yaml"
        raise HeadwayError(f"{path}: the name of a {kind} file ends with {endings}.")
    if path.exists() and not force:
        raise HeadwayError(
            f"{path}: already exists. Choose another name, or overwrite it with {worded('--force', 'force=True')}."
        )
    return path


def _document(kind: str, starter: Starter, values: Mapping[str, Any], path: Path) -> str:
    fields = {name: _scalar(str(value) if isinstance(value, Path) else value) for name, value in values.items()}
    fields |= {"schema": str(schema_file(starter.schema)), "file": shlex.quote(str(path))}
    name = kind
    if kind == "gateway":
        engines = values["engines"]
        if not isinstance(engines, str | Sequence):
            raise HeadwayError(f"engines: expected URLs, separated by commas or in a list, got {shown(engines)}.")
        urls = [url.strip() for url in engines.split(",")] if isinstance(engines, str) else list(engines)
        fields["engines"] = "\n".join(f"  engine-{number}: {_scalar(url)}" for number, url in enumerate(urls))
    elif kind == "policy":
        stage = _stage(values["stage"])
        fields |= {"name": _scalar(path.stem), "source": textwrap.indent(_template(stage).rstrip("\n"), " " * 6)}
    elif values.get("trace") is not None:
        name = TRACE
        fields |= _trace(values["trace"], values["columns"], path)
    text = Template(presets("starters")[name]).substitute(fields)
    _check(kind, parse_yaml(text, str(path)))
    return text


def _source(values: Mapping[str, Any], path: Path) -> str:
    stage, name = _stage(values["stage"]), shlex.quote(str(path))
    return (
        f"# A {stage} policy in the policy language, a small part of Python: docs/policy-language.md\n"
        f"# Check it:             headway policy check {name}\n"
        f"# Tune its parameters:  headway evolve --template {name} --stage {stage}\n"
        f"{_template(stage)}"
    )


def _stage(stage: Any) -> str:
    if stage not in EVERY:
        raise HeadwayError(f"stage: there is no stage {shown(stage)}.{suggest(str(stage), EVERY)}")
    return str(stage)


def _template(stage: str) -> str:
    """Return the source of the first template of a stage."""
    return next(iter(presets(f"templates/{stage}", ".py").values()))


def _trace(file: Any, columns: Any, path: Path) -> dict[str, str]:
    """Return the fields of a starter that replays a trace. If the trace is a table of the user's own, the starter needs
    a mapping of the table's columns: the one in `columns`, or a guess."""
    trace = Path(str(file)).expanduser()
    if not trace.exists():
        raise HeadwayError(f"{file}: there is no such trace.")
    fields = {"trace": _scalar(str(file) if path.parent == Path() else str(trace.absolute())), "columns": "", "map": ""}
    guess = guess_mapping(trace) if columns is None else None
    if columns is None and guess is None:
        _check_known(trace)
        return fields
    mapping = write_columns(parse_columns(columns, argument("columns", "--map")) if guess is None else guess)
    note = "" if guess is None else "  # guessed from the names of the columns"
    return fields | {"columns": f"    columns: {_scalar(mapping)}{note}\n", "map": f" --map {shlex.quote(mapping)}"}


def _check_known(trace: Path) -> None:
    """Raise if the format of a trace is unknown. If the file is a table, the error says how to map its columns."""
    try:
        detect(trace)
    except HeadwayError as error:
        if column_names(trace):
            raise HeadwayError(
                f"{trace.name}: the format is unknown. {how_to_map(trace, argument('format'))}"
            ) from None
        raise error


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]


def _check(kind: str, document: Any) -> None:
    """Load the document of a starter. If a value is wrong, this raises the error of the loader."""
    if kind == "scenario":
        from headway.scenario.scenario import validate

        validate(document)
    elif kind == "suite":
        from headway.evolve.suite import Suite

        Suite.load(document)
    elif kind == "policy":
        Bundle.read(document).check()
    else:
        try:
            from headway.gateway.config import Config
        except ImportError:  # the extra `gateway` is missing; `headway serve` names it
            return
        Config.load(document)

"""Reads and writes the user's YAML documents and text files. Reading is strict; errors name the file and the line."""

import re
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from headway.config.wording import cut, shown
from headway.errors import HeadwayError

DEEPEST: Final = 100  # maximum nesting depth of a document
MOST_VALUES: Final = 1_000_000  # maximum number of values in a document, because aliases can expand to billions
MOST_BYTES: Final = 64_000_000  # maximum size of a file, because reading a device such as /dev/zero would never end
# libyaml is faster than PyYAML's parser, but recurses without a limit. So it parses only documents with at most
# FAST_BYTES characters and at most FAST_OPENINGS opening brackets or dashes: their nesting cannot do harm.
FAST_BYTES: Final = 1_000_000
FAST_OPENINGS: Final = 1_000
DISPUTED: Final = re.compile(r"[^\n -~]|[?!|>]")  # characters that the two parsers may treat differently, such as tabs
MERGE: Final = "tag:yaml.org,2002:merge"
SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _StrictLoader(yaml.SafeLoader):
    """Rejects duplicate keys in a mapping. PyYAML would silently keep only the last one."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Does the same as `_StrictLoader`, but with the parser of libyaml, which is ten times as fast."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    lines: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == MERGE:  # merged keys are not duplicates: a mapping may override them
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str | int | float | None):
            continue
        name, line = str(key), key_node.start_mark.line + 1  # keys become strings, so 1 and "1" are duplicates
        if name in lines:
            first = lines[name]
            raise HeadwayError(f"line {line}: {name!r} is written twice (first on line {first}); keep one of them.")
        lines[name] = line
    loader.flatten_mapping(node)
    return loader.construct_mapping(node)


for _loader in (_StrictLoader, _FastLoader):
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _load(text: str) -> Any:
    """Parse a YAML string. Errors always come from PyYAML's own parser, so libyaml does not change their text."""
    if len(text) <= FAST_BYTES and sum(map(text.count, "[{-")) <= FAST_OPENINGS and not DISPUTED.search(text):
        with suppress(Exception):
            return yaml.load(text, _FastLoader)
    return yaml.load(text, _StrictLoader)


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML string into plain values. Error messages begin with `where` and name the line."""
    try:
        document = _load(text)
        check_size(document)
        return document
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise HeadwayError(f"{where}: {line}this is not YAML ({error.problem}).{_remedy(str(error.problem))}") from None
    except yaml.YAMLError as error:
        raise HeadwayError(f"{where}: this is not YAML ({str(error).splitlines()[0]}).") from None
    except HeadwayError as error:
        raise HeadwayError(f"{where}: {error}") from None
    except RecursionError:
        raise HeadwayError(f"{where}: this YAML cannot be read (it is nested too deeply).") from None
    # PyYAML also raises these exceptions for some invalid documents.
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        why = cut(" ".join(str(error).split()))
        raise HeadwayError(f"{where}: this YAML cannot be read ({why}).") from None


def _remedy(problem: str) -> str:
    """Return what to do about the usual mistakes, which PyYAML states in terms of its parser."""
    if "'\\t'" in problem:
        return " Indent with spaces, not with tabs."
    if "<block end>" in problem or "mapping values are not allowed" in problem:
        return " Indent this line like its neighbours, and put text with a colon into quotes."
    return ""


def check_size(document: Any) -> None:
    """Raise an error if a document is nested too deeply, is too large, or contains broken Unicode."""
    waiting = [(document, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if depth > DEEPEST:
            raise HeadwayError(f"this is nested deeper than {DEEPEST} levels.")
        if values > MOST_VALUES:
            raise HeadwayError(f"this contains more than {MOST_VALUES:,} values.")
        if isinstance(value, dict):
            waiting.extend((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list | tuple | set):
            waiting.extend((item, depth + 1) for item in value)
        elif isinstance(value, str) and SURROGATE.search(value):
            raise HeadwayError(f"{shown(value)} contains an unpaired surrogate, which is not a valid character.")


def read_yaml(path: str | Path) -> Any:
    return parse_yaml(read_text(path, "a YAML file in UTF-8"), str(path))


def read_text(file: str | Path, expected: str = "text in UTF-8") -> str:
    try:
        return read_bytes(str(file)).decode()
    except UnicodeDecodeError:
        raise HeadwayError(f"{file}: is not a text file; expected {expected}.") from None


def read_bytes(file: str) -> bytes:
    try:
        with Path(file).expanduser().open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        raise HeadwayError(f"{cut(file)}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    if len(data) > MOST_BYTES:
        raise HeadwayError(f"{cut(file)}: cannot be read (it has more than {MOST_BYTES:,} bytes).")
    return data


def presets(folder: str, ending: str = ".yaml") -> dict[str, str]:
    """Return the presets in a folder of the package as a mapping of names to file contents, sorted by name."""
    return dict(_presets(folder, ending))


@cache
def _presets(folder: str, ending: str) -> dict[str, str]:
    files = (resources.files("headway") / "presets" / folder).iterdir()
    names = {file.name.removesuffix(ending): file for file in files if file.name.endswith(ending)}
    return {name: names[name].read_text(encoding="utf-8") for name in sorted(names)}


def file_name(file: str) -> str:
    """Return the name of a file without its folder."""
    return Path(file).name


def beside(file: str, document: str | Path) -> str:
    """Return the absolute path of a file in a document's folder. If there is no such file, return `file` unchanged."""
    try:
        path = Path(document).parent / Path(file).expanduser()
        return str(path.absolute()) if path.is_file() else file
    except (OSError, RuntimeError):  # path too long, or unknown `~user`: the error is raised when the file is read
        return file


def stem(file: str) -> str:
    """Return the name of a file without its folder and extension."""
    return Path(file).stem.encode(errors="replace").decode()


class _Writer(yaml.SafeDumper):
    """Writes multi-line strings as YAML block scalars. A value that occurs twice is written twice, without YAML
    aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: _Writer, text: str) -> yaml.ScalarNode:
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Writer.add_representer(str, _text)


def yaml_text(document: Any) -> str:
    """Return a document as readable YAML."""
    return yaml.dump(document, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120)


def write_text(file: str | Path, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HeadwayError(f"{cut(str(file))}: cannot be written ({error.strerror or error}).") from None

"""The files that a scenario refers to: a trace, lengths, measured steps, a policy's code, a class of the user's own.

A reference is the value of any key `path` or `file`, of `profile` and `model` where it ends as a file does, and any
`file.py:Class`, be it a value, a mapping's key or a part of scorers written as text. Reading a document makes them
absolute, so that its folder is not needed later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.profile import scorer_list

Change = Callable[[str], str]
HALVES = (".yaml", ".csv")  # the header and the rows of a BLIS trace
ENDINGS = {"path": ("",), "file": ("",), "profile": (".yaml", ".yml"), "model": (".json",)}  # of files, by key


def absolute(value: Any, folder: Path | None = None) -> Any:
    """A copy of a document whose files go by their whole paths: found from `folder`, or else from the current one.
    What is found in neither stays as it is written, for whoever opens it to tell."""

    def find(file: str) -> str:
        try:
            path = Path(file).expanduser()
            for base in (folder or Path(), Path()):
                if file and (base / path).exists():  # some traces are folders
                    return str((base / path).absolute())
        except (OSError, RuntimeError, ValueError):  # no such user, a name too long, a folder that may not be entered
            pass
        return file

    return _each(value, find)


def replace_by_digests(value: Any) -> Any:
    """A copy of a document with a digest of their bytes in place of the files it refers to."""
    return _each(value, _digest)


def _digest(file: str) -> str:
    """The digest of a file with the other half of its trace, if any, or of all files of a folder."""
    path = Path(file)
    try:
        if path.is_dir():
            files = {*path.iterdir(), *path.rglob("chunk-*")}  # ServeGen's clients may lie deeper
            return _digest_all((str(item.relative_to(path)), item) for item in sorted(files))
        if not path.is_file():
            return file
        halves = [(suffix, path.with_suffix(suffix)) for suffix in HALVES if path.suffix in HALVES]
        return _digest_all(halves) if all(half.is_file() for _, half in halves) and halves else _bytes(path)
    except OSError as error:
        raise HeadwayError(f"{cut(file)}: cannot be read ({error.strerror or error}).") from None


def _digest_all(files: Iterable[tuple[str, Path]]) -> str:
    digests = [(name, _bytes(file)) for name, file in files if file.is_file()]
    return blake2b(repr(digests).encode(), digest_size=16).hexdigest()


def _bytes(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=16)).hexdigest()


def _each(value: Any, change: Change, key: object = None) -> Any:
    if isinstance(value, dict):
        document: dict[Any, Any] = {}
        for name, item in value.items():
            changed = _name(name, change) if isinstance(name, str) else name
            if changed in document:
                raise HeadwayError(f"{cut(changed)}: stands twice in one mapping, under two names; keep one of them.")
            document[changed] = _each(item, change, name)
        return document
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    if not isinstance(value, str) or key == "source":  # which is a policy's text, whatever it looks like
        return value
    if value.endswith(ENDINGS.get(str(key), ())):
        return change(value)
    return _scorers(value, change) if key == "scorers" else _name(value, change)


def _name(text: str, change: Change) -> str:
    file, colon, name = text.rpartition(":")
    return f"{change(file)}:{name}" if colon and registry.is_file(text) else text


def _scorers(text: str, change: Change) -> Any:
    """Scorers as text become a list where a file is among them, since a path may hold any sign that text is cut at."""
    if not registry.is_file(text):
        return text
    try:
        return _each(scorer_list(text), change)
    except HeadwayError:  # the reader reports it at its place
        return text

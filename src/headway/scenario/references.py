"""Finds the files that a scenario refers to: traces, lengths, measured steps, policy code and the user's classes.

The value of any key `path` or `file` is a reference. The value of `profile` or `model` is a reference if it has the
extension of a file. A text of the form `file.py:Class` is a reference too, whether it is a value, a key of a mapping,
or a part of scorers that are written as one string. Reading a document makes its references absolute, so that the
document's folder is not needed later.
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
HALVES = (".yaml", ".csv")  # extensions of the two files of a BLIS trace: header and rows
ENDINGS = {"path": ("",), "file": ("",), "profile": (".yaml", ".yml"), "model": (".json",)}  # key -> file extensions


def absolute(value: Any, folder: Path | None = None) -> Any:
    """Return a copy of a document with absolute file paths. A relative path resolves against `folder` if the file
    exists there, and otherwise against the current folder. If the file exists in neither folder, its path stays
    unchanged, and the code that opens the file reports the error."""

    def find(file: str) -> str:
        try:
            path = Path(file).expanduser()
            for base in (folder or Path(), Path()):
                if file and (base / path).exists():  # some traces are folders
                    return str((base / path).absolute())
        except (OSError, RuntimeError, ValueError):  # unknown user, path too long, or no permission
            pass
        return file

    return _each(value, find)


def replace_by_digests(value: Any) -> Any:
    """Return a copy of a document in which each file path is replaced by a digest of the file's content."""
    return _each(value, _digest)


def replace_by_stamps(value: Any) -> Any:
    """Return a copy of a document in which each file path is replaced by the path, size and time of the file. This is
    faster than digests, and sufficient within one process."""
    return _each(value, _stamp)


def _stamp(file: str) -> str:
    path = Path(file)
    if path.is_dir():
        files = sorted(path.rglob("*"))
    else:
        files = [path.with_suffix(suffix) for suffix in HALVES] if path.suffix in HALVES else [path]
    facts = [(str(item), item.stat()) for item in files if item.exists()]
    return repr([(name, fact.st_size, fact.st_mtime_ns) for name, fact in facts]) if facts else file


def _digest(file: str) -> str:
    """Return the digest of a file, of both files of a BLIS trace, or of all files in a folder."""
    path = Path(file)
    try:
        if path.is_dir():
            files = {*path.iterdir(), *path.rglob("chunk-*")}  # ServeGen's clients may be in subfolders
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
                raise HeadwayError(f"{cut(changed)}: the mapping has two names for the same file; keep one of them.")
            document[changed] = _each(item, change, name)
        return document
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    if not isinstance(value, str) or key == "source":  # `source` is a policy's program, not a file path
        return value
    if value.endswith(ENDINGS.get(str(key), ())):
        return change(value)
    return _scorers(value, change) if key == "scorers" else _name(value, change)


def _name(text: str, change: Change) -> str:
    file, colon, name = text.rpartition(":")
    return f"{change(file)}:{name}" if colon and registry.is_file(text) else text


def _scorers(text: str, change: Change) -> Any:
    """Change the file paths in scorers that are written as one string. If the string contains a file path, return a
    list in place of the string, because the changed path may contain the separators of the string."""
    if not registry.is_file(text):
        return text
    try:
        return _each(scorer_list(text), change)
    except HeadwayError:  # the same error is reported later, when the section is read
        return text

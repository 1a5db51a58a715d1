"""Loads policies from users' files: `path/to/my_policy.py:MyPolicy`."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from headway.config.wording import one_line, suggest
from headway.errors import HeadwayError
from headway.hashing import stable

FROM_FILE = "headway_user_"  # prefix of the module names of users' files
_FILES: dict[Path, tuple[bytes, ModuleType]] = {}  # executed file -> (its content at that time, its module)


def load_class(reference: str, where: str) -> type:
    file, _, attribute = reference.rpartition(":")
    if not file.endswith(".py") or not attribute.isidentifier():
        raise HeadwayError(f"{where}: {reference!r} is not of the form path/to/file.py:ClassName.")
    module = execute(file, where)
    cls = getattr(module, attribute, None)
    if not isinstance(cls, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise HeadwayError(f"{where}: {file} has no class {attribute!r}.{suggest(attribute, classes)}")
    return cls


def execute(file: str, where: str) -> ModuleType:
    """Return a user's file as a module. A file is executed once per process, and again if its content has changed."""
    try:
        path = Path(file).expanduser().resolve()
        text = path.read_bytes() if path.is_file() else None
    except (OSError, RuntimeError, ValueError) as error:
        raise HeadwayError(f"{where}: {file!r} cannot be read: {one_line(error)}.") from None
    if text is None:
        raise HeadwayError(f"{where}: there is no file {file!r}.")
    known = _FILES.get(path)
    if known is not None and known[0] == text:
        return known[1]
    name = f"{FROM_FILE}{path.stem}_{stable(str(path), text.hex()):016x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations look up the module there
    try:
        exec(spec.loader.source_to_code(text, str(path)), vars(module))  # compiles `text` and ignores cached bytecode
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = one_line(error)
        end = "" if problem.endswith("?") else "."
        raise HeadwayError(f"{where}: {file} could not be loaded: {problem}{end}") from error
    _FILES[path] = (text, module)
    return module

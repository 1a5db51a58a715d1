"""The planted troubles, a module for each area. Each module has a tuple `TROUBLES`; to add troubles, add a module."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from headway.testing.planted.trouble import Trouble

_MODULES: Final = sorted(module.name for module in iter_modules(__path__) if module.name != "trouble")
TROUBLES: Final[tuple[Trouble, ...]] = tuple(
    trouble for name in _MODULES for trouble in import_module(f"{__name__}.{name}").TROUBLES
)

"""Packages that tests need and an installation may lack."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(package: str, extra: str) -> None:
    """Skip the module that calls this unless `package` is installed. Unlike `importorskip` it does not import the
    package: every worker collects every module, and some packages take seconds to import."""
    if not find_spec(package):
        pytest.skip(f"{package} is not installed: pip install 'headway[{extra}]'", allow_module_level=True)
